"""Every constant of the spectral route, with the derivation or the measurement that set it."""

from __future__ import annotations

# --- prepare ---------------------------------------------------------------------------------------------
SUPPORT_TOLERANCE = {"float32": 1e-11, "float64": 1e-13}
"""Variance, relative to the largest, below which a direction is outside the support. Rounding leaves about
eps^2 of a direction that does not exist (4e-15, 5e-32), the summed covariance about 1e-15 of its largest entry;
the threshold keeps condition numbers up to 1e11 and 1e13."""
TRUNCATED_SUPPORT_TOLERANCE = 2e-5
"""The same for tokens whose float32 mantissa ends in 16 zero bits (stored once as bfloat16): rounding has the
relative variance 2^-16 / 12 = 1.3e-6 in every direction, a few times more where coordinates differ in size."""
STATISTICS_SEQUENCES = 4_096
STATISTICS_ROWS = 64
"""Sequences, and rows per feature of the linear fit, from which mean, covariance, linear fit and dependence are taken, spread
evenly over the fit side: their errors are a few per cent, far below the noise of a moment that begins with a quarter as many."""
DEPENDENCE_SIGMAS = 6.0
"""Correlation between two positions, in standard errors 1/sqrt(n d), above which it is modelled: with 128^2
position pairs chance reaches 4.5."""
KURTOSIS_SIGMAS = 6.0
"""Excess kurtosis of a coordinate, in standard errors sqrt(24/rows), above which it is modelled."""
SKEWED = 0.5
"""Mean cube of a white coordinate above which the moment is not trusted after a misfit. Chance leaves 0.1 in 4,096 sequences of
three tokens; lognormal tokens of logarithmic deviation 0.7, on which one of eight heads was seen, have 2.9."""
OUTPUT_RIDGE = 0.01
"""Outputs are whitened by (Sigma_r + ridge tr(Sigma_r)/d_out)^(-1/2): directions a hundred times weaker than the
average are not amplified further, they may be noise. On the antibody layer 0 with 20,000
examples whitening raised the weakest head from 2.2 to 4.2 floors and lowered the span error from 0.30 to 0.20."""
HEAVY_TAILS = 1.0
CALM_SHARE = 0.5
"""Mean excess kurtosis of the white coordinates above which calm sequences are looked at, and their share. Tokens of t with 3 to 6
degrees: the measured floor falls from 4 to 18 times the computed one to 1.0 to 2.3 times, and ten heads that ended
TOO_FEW_EXAMPLES stand 2.3 floors high (d = 32). With 10 degrees (kurtosis 1) both take the same time, with 16 (0.5) all do well."""
LINEAR_SHARE = {"float32": 1e-9, "float64": 1e-12}
"""Share of the output variance left by the linear fit below which the attention is invisible: the fit itself is
computed in float32 products with float64 sums, float32 outputs carry 1e-14 of rounding."""
CAUSAL_FIRST = 1e-4
"""Share of row 0 that its own token leaves unexplained under a causal mask (rounding and noise only)."""
CAUSAL_REST = 0.01
"""... and what the later rows must leave unexplained for the comparison to mean anything."""

# --- moment ----------------------------------------------------------------------------------------------
VECTORS = 24
"""Singular vectors followed at first; doubled as long as fewer than SPARE of them are noise. Only the heads and a few more
are followed on all examples."""
SPARE = 4
MOST_VECTORS = 192
PASSES = 8
"""Passes over the data at most, for every number of examples; with warm starts 2 to 5 suffice."""
BLIND_PASSES = 3
"""Passes after which a moment that shows no head is believed; the largest value has settled by then."""
FIRST_LOOK = 1_024
LOOK_MARGIN = 1.3
LOOK_MOST = 0.6
"""The first passes see about a thousand examples, the next ones those that should show the weakest head clearly, and so
on; where that takes more than six tenths of them, all. Fewer would be dominated by single examples: with 1,000 the
measured floor was 0.99 to 1.17 of the computed one on eight problems (4.3 behind LayerNorm with correlated tokens), with
250 up to 2.8 (9.6)."""
CLEAR = 2.0
NOISE_MOST = 1.05
"""More examples are not looked at once the weakest head stands two floors high and the next value is noise. From 1.6 floors
refine takes about as long as from 2.5 (d = 32, 64 and the antibody layer 0), but a head less is hardly worse on the select
side there (1.14 to 1.18 instead of 1.2 to 1.3). A head that is hidden in so few examples leaves a misfit, upon which all
examples are looked at."""
DEFLATION_STEP = 2 / 3
"""The step that contracts errors symmetric under the swap and errors orthogonal to their swap alike, by 3."""
STRONG_FIRST = 0.5
"""Pass j deflates only components above 0.5^j of the largest: the swap of a head that is not yet in D is weaker
than the head, so what is left after the strong ones are in D is more often a head."""
SETTLED = 2e-2
"""Relative change of the singular values between passes at which the deflation has converged; their own
statistical error is larger."""
ABOVE_FLOOR = 1.2
"""A singular value above this multiple of the noise floor is a head. The first value that is noise lay between 0.77
and 1.04 of the floor in some forty runs."""
FLIP_VECTORS = 6
FLIP_PASSES = 3
"""The measured floor: the largest of 6 values after 3 passes with signs flipped. For independent tokens it was 0.91 to
1.23 of the computed one; the floor used is the larger of the two."""
EXCESS_KEPT = 1.05
"""A measured floor so little above the computed one, in the first examples, is not measured again in more of them: it can only
come closer, and measuring took a third of the moment's time."""
CHUNK_BYTES = 12 * 2**20
"""Working memory of a chunk: fits the last-level cache, so that the products run at full speed."""
CHUNKS_LEAST = 4
"""Chunks of a block at least: as many as most machines have cores for."""
BLOCK_SEQUENCES = 8_192
"""Sequences of one block of a pass. Blocks are added in order, here or on a cluster: the sums do not depend on where."""
CACHE_BYTES = 640 * 2**20
"""Whitened rows are kept in float32 below this size and recomputed in every pass above it, which costs about one more
vector a pass. The quarter of the examples that goes first has a store of its own."""

# --- count and unmix -------------------------------------------------------------------------------------
OUTPUT_DIRECTIONS = 8
"""Random output directions on which the unmixing is solved: m^2 unknowns do not need all outputs."""
SLICE_DIRECTIONS = 4
"""Of these, how many one thread takes: two slices, whose equations have only the unknowns in common."""
ROWS_PER_UNKNOWN = 12
"""Scalar equations per unknown (2 m^2 + nuisance) of the unmixing; with 12 the residual on select examples is
2 to 30 % above that on the rows used, most where the span is poor."""
SEQUENCES_LEAST = 128
TENSOR_PAIRS = 200
"""Pairs of tokens, times m^2, behind the second-order tensor: with 500 sequences of 8 tokens twelve heads (d = 64) have cosines of
0.99 with the truth, with 2,000 twenty-four (d = 32) 0.98 and more."""
TENSOR_STARTS = 6
PENCILS = 8
TENSOR_STEPS = 40
TENSOR_SETTLED = 1e-3
"""Beginnings of its decomposition, pencils of which the best begins one, and steps of alternating least squares at most; these end
when the misfit falls by less than a thousandth. With 16 and 24 heads one beginning in three ends with two heads mixed; all of
them take 40 ms."""
TENSOR_SIZES = 1.0, 2.0, 4.0
"""Score sizes that are tried with the directions it gives; the unmixing then finds each head's own."""
TENSOR_ALIKE = 0.8
"""Cosine that every head must keep between the tensor's estimate and the optimum for both to be believed. Random layers of 1 to 12
heads on five kinds of tokens have 0.87 to 1 as a rule; with three or four keys, heavy tails, scores of size 0.3 or more values than
heads some have less, and random starts follow."""
STARTS = 4
"""Random starts; two that agree end the search. On two layers 11 of 12 starts reached the same optimum."""
START_ROWS = 1 / 3
"""Share of the rows on which starts are compared: four equations per unknown show which optimum is which. Half of the output
directions, with as many equations, show false ones: of 19 problems three then took a third start, and none does so."""
ONE_MORE_STEPS = 1
"""Steps of the unmixing with one head more, which is evidence and decides nothing: the second lowered the residual by 0.2 %."""
AGREE = 0.02
"""Relative difference of residuals at which two starts count as the same optimum."""
START_SCORES = 1.0
"""Standard deviation of the scores at the start, between uniform and saturated attention."""
LM_STEPS = 40
LM_DAMPING = 1e-2
LM_FACTOR = 6.0
LM_LARGEST_STEP = 3.0
"""Score change (in standard deviations of a basis score) that one step may make."""
LM_TOLERANCE = 1e-3
"""Relative decrease at which a start has converged: the residual that remains is the error of the span."""
SOLVE_RIDGE = 1e-6
"""Relative ridge of the inner least squares in float32."""
SELECT_SEQUENCES = 400
"""Select examples on which head counts are judged: 400 sequences fix a residual to a few per cent."""
FEWER_WORSE = 1.1
"""One head fewer must raise the residual on select examples at least by this factor, or it was no head: with many
examples the floor sinks below the bias of the first-order model, and heads of effective rank one show twice. A
true head, removed, raised it by 1.13 (rxnmapper) to 30; a false one by at most 1.08. The margin is thin where a head
is weak: certify, not this number, has the last word."""
COUNT_MOST = 32
"""Values above the floor that are taken for heads on tokens which the moment does not model: those of a layer with four heads
behind another one, in a small transformer, showed 63, and those of three heads on a list of 60 words in 16 directions 32. The
unmixing of so many takes hours (m^6) and says nothing; nor do more than there are directions."""
REPEATS_LOOKED = 2_000
KURTOSIS_OF_SIGNS = -1.9
"""Tokens looked at for repetitions, and the excess kurtosis (-2) below which all coordinates are taken for signs."""
GAP = 1.15
"""Ratio of the weakest head to the next value below which they are not told apart; noise values follow each other
within 2 %, while with enough examples the ratio was 1.4 and more."""
ALIKE_BELOW = 2.5
"""Below so many floors a head that the select side does without is no less a head than its equals that are kept: of eight of
the antibody layer 0 at 1.5 to 1.7 floors one was left."""
REMIX_BETTER = 0.5
"""Share of the unexplained that other mixtures of refined heads must leave at most. In a valley of mixtures they left 0.04 to 0.2
(scores of size 0.01 and 0.03), heads that were right 0.5 to 1 where the rest was rounding."""
REGRESS_ROWS = 6
"""Rows per unknown column in the least squares for W after unmixing."""

# --- guess -----------------------------------------------------------------------------------------------
STEP_AFTER = 6
STEP_LEAST = 0.03
STEP_OVER_NOISE = 3.0
"""A step of the singular values: a fall by three per cent and by three times what each of the next six values falls. Noise
falls by 0.5 to 1 % from one value to the next; the weakest head of the antibody layer 0, seen in 400 sequences of 128 tokens
a tenth above the floor, is followed by a fall of 5.7 %."""

# --- search ----------------------------------------------------------------------------------------------
UNEXPLAINED = 1.0
"""A span whose heads leave more of the select side than no heads would is not the heads' span: the third moment of
these tokens is governed by something else. Right spans leave 0.05 to 0.6."""
SEARCH_FIRST = 48
SEARCH_DIRECTIONS = 128
"""Directions up to which random starts come before the moment of tokens that it does not model, and after one that failed on others;
and up to which they come after a moment that tokens misled. A start costs what a refine of full rank does: 1 to 5 s in 32
directions, 10 to 100 in 64 (one core)."""
SEARCH_WIDTHS = (8, 16, 32)
SEARCH_RANK = 4
SEARCH_SCORES = 0.5
"""Numbers of heads that random starts have, and the standard deviation of their scores: see `_search`. Every width is tried with full
rank and with rank 4, or a quarter of the directions if that is more: strong scores of rank one, fitted with full rank, end in
sharp heads that know the fit side by heart (three layers in 26 to 29 directions: select errors of 0.2 to 1; of rank 2 or 4, 1e-3
and less in 3 to 6 s)."""
SEARCH_WIDER = 0.8
"""Share of the error that the second width must leave at most for the third to be tried. On words in twelve directions sixteen heads
left 0.48 and 0.75 of what eight did where there were 20 and 24, which the third found, and 1.05 where there was a perceptron or
two layers."""
SEARCH_PLENTY = 24.0
"""Equations per unknown of eight heads beyond which independent tokens show their heads in the moment, if they have any. With
8 it failed (d = 24, m = 4; d = 32, m = 8), with 7 to 17 it showed what was there (d = 12 to 32, m = 2 to 8)."""
SEARCH_STEPS = 25
SEARCH_INNER = 60
SEARCH_EXAMPLES = 4_096
SEARCH_USED = 2_048
SEARCH_PRICED = 1_024
SEARCH_PRICED_ROWS = 4
"""Steps of a start (those that find the layer take 5 to 20), products in each, examples that it is given and uses at most, and
those on which needless heads are priced, or rows for each of their columns if that is more."""
SEARCH_TOLERANCE = 1e-3
SEARCH_EXACT = 1e-6
SEARCH_FOUND = 1e-3
SEARCH_WORSE = 1.5
"""Residual at which a start with needless heads ends, for it creeps below; at which one without them does; error on the select
side at which that one has found the layer, and the factor by which it may be worse than the wide fit where noise is what both
leave. Starts either reach 1e-5 and less or end above 1e-2."""
SEARCH_LEAPS = 3
"""Numbers of heads that are tried after a wide fit, by how much the price of a drop leaps behind them: by 6 to 1e6 behind the true
number and by 1 to 10 elsewhere."""
SEARCH_ALIKE = 0.02
"""Two starts whose answers leave the same error within this have found what is there, and noise is the rest."""

# --- outcomes --------------------------------------------------------------------------------------------
VISIBLE_AT = 1.5
"""A clear view takes N (1.5 floor / s)^2 examples, so that the weakest head stands a quarter above the threshold."""
SUGGESTED_AT = 0.8
MORE_LEAST = 1.5
"""Examples needed: N (0.8 floor / s)^2, and half as many again at least. A guess was
right and fitted from 0.5 to 0.7 on (d = 52 to 128, m = 2 to 12, five layers): the number asked for at about half of what
was enough, and at nine tenths, was 0.9 to 1.3 of it for four to twelve heads, and 3 times as large for two."""
FAINT = 0.3
"""A largest value that stands out of the noise by less than this share of the floor says no more than that."""
GUESSED_HEADS = 8
"""Number of heads assumed for that estimate, and tried, when none is visible and the caller gave none. Eight, tried where
there were five (d = 32, 220 examples, two layers), left five."""
EFFECTIVE_RANK = 1.5
"""Effective rank ‖Theta‖_F^2 / ‖Theta‖_op^2 below which a head counts as of rank one; random rank 2 has 1.3 to 2,
and is unmixed all the same: the outcome also needs starts that disagree."""
RANK_NOISE = 4.0
"""After the drop that sets the rank the values must lie below this multiple of the noise edge: measured
0.9 to 1.5 on eleven layers (the antibody layers 1.5, by the bias of the first-order model), while the second value
of heads of full rank with a strong query bias lies at 10 to 15."""
RANK_EDGE = 1.3
"""Singular values of a head above this multiple of the noise edge count towards its rank."""
RANK_DROP = 1.8
RANK_STEP = 1.12
"""A fall of the heads' mean spectrum by this factor from one singular value to the next is an edge: noise falls by
less than 1.05 a step, and the heads of the antibody layers drop by 3.7 after their sixteenth. Where noise covers most of the
drop, a fall three times as large as each of the next six will do: those layers, seen at 1.6 floors, drop by 1.27."""

# --- choice of the token scale ---------------------------------------------------------------------------
TARGET_SHARE = 0.45
"""Nonlinear share of the output variance to aim at: the antibody layers, which are seen well, have 0.48; the
random layers of the tests at score standard deviation 2 have 0.6. A choice, not an optimum."""
GOOD_SHARES = 0.25, 0.58
"""Shares at which the tokens are left as they are. One-hot attention of random layers still leaves a third of the
variance to the linear fit (0.67 at score standard deviation 100), so the upper end must stay below that."""
LARGEST_SCALE = 64.0
"""Scores may be moved by a factor of 4096 either way; what needs more is not attention on such tokens."""
SCALE_STEPS = 8
"""Bisection steps: 64 is divided down to a factor of 64^(1/256)."""
SCALE_ROWS = 8
SCALE_SEQUENCES = 400
"""Rows per feature, and sequences at least, for a linear fit whose share is right to a few per cent."""
