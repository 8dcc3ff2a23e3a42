"""Every constant of the shared solvers, with the derivation or the measurement that set it."""

from __future__ import annotations

# --- split -----------------------------------------------------------------------------------------------
FEWEST_UNITS = 20
"""Below 20 independent sequences no side of the split can say anything."""
CERTIFY_FRACTION = 0.15
CERTIFY_MOST = 2_000
"""2,000 examples leave q = ln(1e6)/2000 = 0.7 % of the inputs uncovered; more would be taken from learning."""
SELECT_FRACTION = 0.1
SELECT_MOST = 2_000

# --- certify ---------------------------------------------------------------------------------------------
DELTA = 1e-6
"""Probability with which claim C1 may be wrong."""
FUNCTION_ERROR = 1e-3
"""C1 is established only for errors that a user would call small, unless a target is given."""
UNCOVERED = 0.5
"""C1 must speak of at least half of the inputs: 28 certify examples at delta = 1e-6."""
SMALL_EXAMPLE = 1e-3
"""Examples whose output is below this fraction of the typical norm are measured against the fraction."""
FLOOR_EXAMPLES = 256
"""Examples on which rounding and the visibility of heads are measured."""
ROUNDING_SLACK = 4.0
"""A fit is exact when its error is within this factor of the measured rounding of one forward evaluation. Right
answers from float32 data have 0.8 to 1.1 of it, another implementation's rounding adds as much again; a head of 1e-6
that is missing leaves 5 to 7."""
EXACT = {"float64": 3e-13}
"""float64 fits count as exact up to here: those that refine ends have errors of 1e-15 to 1e-13 on their worst
example. A head that is missing, or two that became one, leave about their size or distance: 1e-12 is seen."""
EXACT_MOST = 1e-3
"""Above this no error is rounding, however large the scores: a layer whose outputs float32 cannot hold is not exact."""
APART = 100.0
APART_LEAST = 1e-4
APART_ROOT = 10.0
"""Heads must be apart by 100 times the bound on their error, by 1e-4 in any case, and by ten roots of the error that counts as
exact: one head in the place of two leaves the square of their distance."""
VISIBLE = 100.0
"""The weakest head must stand out of the error a hundredfold."""
PARAMETER_SAFETY = 3.0
"""The smallest singular value is an estimate from above within its stated tolerance, and the bound neglects
curvature: both are covered by this factor."""
PARAMETER_ERROR = 1e-2
"""Beyond one per cent a bound says too little: C3 is not established, and of biases it says that they are not bounded."""
WHOLE_ROWS = 1.5
"""The Jacobian of whole Theta_i is taken if it wants at most so many times the rows of the found rank."""
DROP_ROWS = 4
"""Rows for each column of P on which the W of other heads are fitted when one is left out."""

# --- general position ---
POSITION_SEQUENCES = 28
"""Sequences that must have three different keys, and rows beyond twice the directions in which relations are looked for. If 28
independent sequences all agree, the set on which two layers agree has positive measure with confidence 1 - 1e-6."""
POSITION_MOST = 6_000
POSITION_LOOK = 256
POSITION_TRIES = 4
POSITION_TOKENS = 20_000
"""Sequences, sequences for ranks, random subsets and tokens that are looked at, at most."""
POSITION_WIDTH = 2_048
POSITION_FEATURES = 700
"""Directions of the stacked sequence up to which all its tokens are stacked at once (a second of work), and features of the
quadratic regressions (five of them take 0.1 s)."""
POSITION_ROUNDING = 1e-9
"""Variance of a direction, relative to the largest in white coordinates, below which it does not vary. Free tokens leave
1e-2 (Gaussian) to 1e-5 (LayerNormed words, 700 features); relations computed in float64 leave 1e-30, in float32 1e-14."""
POSITION_RIDGE = 1e-13
"""Relative ridge of the normal equations of the quadratic regressions."""
ELLIPSOID = 1e-3
"""Smallest over largest curvature of a quadric that counts as an ellipsoid: LayerNorm's have 0.2 to 1, flags 1e-15."""
POSITION_VALUES = 0.9
"""Share of different values from which on tokens count as continuous: 20,000 normal float32 numbers have 0.999."""

POSITION_DEFICIENT = 0.02
"""Share of sequences whose differences have a smaller rank than they could, up to which tokens may have a density (none would)."""
VALUES_TOKENS = 2_000
VALUES_STARTS = 8
VALUES_STEPS = 20
VALUES_ROUNDS = 6
VALUES_GAP = 0.02
VALUES_MOST = 16
"""Tokens, starts, fixed-point steps, rounds of classes, width of the gaps between values relative to their range, and values at most, of the
search for a direction in which tokens take few values."""

# --- second opinion ---
RIVAL_STARTS = 20
RIVAL_TRIES = 40
"""Starts that must come back to the head they left to exclude a symmetry of the tokens (2^-20 = 1e-6), and starts at most."""
RIVAL_DIRECTIONS = 16
"""Directions up to which one start is tried where nothing is suspicious: 0.03 s at 8, 0.1 s at 16, 0.5 s at 32 directions."""
RIVAL_EXACT = 1e-9
RIVAL_ROUNDING = 30.0
"""Relative residual, and machine epsilons of the tokens, below which a fit of a head's outputs counts as another exact one."""
RIVAL_APART = 1e-4
RIVAL_NEEDED = 1e3
"""Two exact fits are the same head if their scores are within 1e-4 of each other and within a thousand tolerances of the fit: fits that
agree do so to 1e-6. A head that changes the outputs by less than so many tolerances is not part of a rival."""
RIVAL_SCORES = 1e-3
"""Norm of scores on white tokens below which a head counts as flat."""
RIVAL_EQUATIONS = 4
RIVAL_LEAST = 200
RIVAL_STEPS = 30
"""Equations for each unknown, sequences at least and Gauss-Newton steps of a fit: random starts took 7 to 14 steps."""

# --- copies ---
SCAN_SEQUENCES = 2**22
"""Coordinates of tokens that are hashed at once: 32 MB."""
COPY_FIT = 10_000
COPY_WIDTH = 128
COPY_LOOK = 100_000
"""Sequences of the other sides, random combinations of their coordinates and pairs for the median, at most."""
COPY_CHANCE = 1e-3
"""Probability that one of the compared pairs looks like a copy by chance."""
COPY_SHARED = 0.5
"""A sequence that shares this share of its tokens with another is a copy or a window of it."""
COPY_CROWD = 3.0
"""... also where chance would allow it now and then, if it happens three times as often as among independent tokens."""
COPY_MOST = 0.75
"""Share of certify units that may have relatives: beyond it the rest are most likely relatives that were not recognised."""
COPY_FREQUENT = 0.9
"""A token that stands in nine of ten sequences tells nothing about their kinship."""

# --- diagnose --------------------------------------------------------------------------------------------
DIAGNOSE_EXAMPLES = 8_000
"""Examples that the tests look at: enough for k d = 1,000 unknowns, a second of work."""
SUPPORTED = 0.6
"""A cause is named only above this evidence; the tests over all teachers in tests/problems keep it honest."""
RESIDUAL_SHARE = 0.1
"""The identity must carry a tenth of the linear influence on a row."""
NORMALISED_MISS = 1e-3
"""LayerNorm leaves about its epsilon, 1e-5; an ordinary layer of dimension d misses by about sqrt(2/d)."""
CAUSAL_FIRST = 1e-3
CAUSAL_LAST = 0.05
"""Under a causal mask the first row sees one key and is linear; the last row is not."""
WINDOW_EMPTY = 0.01
"""Influence beyond a window is zero up to the error of the estimate."""
WINDOW_EDGE = 0.2
"""A window ends at once: the last distance inside has a fifth of the influence of a neighbour or more."""
POSITION_SHARE = 0.02
"""Layers without position terms stay below 0.001 at 4,000 examples."""
ROWS_UNEQUAL = 0.3
"""A shift of all tokens moves the rows of any attention layer alike; those of a general map do not care."""
NOISE_SPREAD = 1e-6
"""Relative spread of outputs of equal inputs: rounding stays below."""

# --- refine ----------------------------------------------------------------------------------------------
EQUATIONS_PER_UNKNOWN = 4.0
"""Refine works on so many examples first. Fewer make each product cheaper and the system worse conditioned:
at d=128, m=8, rank 16, k=8 a solve to 1e-4 took 150 inner steps with 280 sequences, 90 with 360, 55 with 500."""
SCORE_EQUATIONS = 8.0
"""The derivative of a row in the scores lies in the span of m (k - 1) value differences, however many outputs
there are, so the scores need their own count of equations: rows x min(d_out, m (k - 1)) over unknowns, or half the
keys if causal (d = 26, k = 3, causal: with 512 sequences no positive eigenvalue, with 1,365 one of 0.01). Random and
sapiens layers at d=128 have 9 and converge in 20 to 45 inner steps; rxnmapper at d=256 (heads half saturated) with
4.5 took over 400 to win one digit."""
ROWS_PER_FEATURE = 2.0
"""Never fewer output rows than this many times the m d + 1 columns that are eliminated."""
REHEARSED_OUTPUTS = 64
REHEARSED_SHARE = 0.5
"""Combinations of the outputs that a rehearsal looks at, at least, and the share of all that they may be. With 64 of 128, 256 and
512 outputs a product takes 0.68, 0.46 and 0.26 of the time (8 heads of rank 16, 32 and 32, k = 8), in as many inner steps (at
d = 128: 6, 12, 20, 36, 10 instead of 6, 12, 21, 37, 12); at d = 64 with 32 of 64 nothing is won."""
LABOUR = 120
"""Inner steps from which on the examples are doubled: solves that take so many are badly conditioned, and more so by too few
examples. The rxnmapper layer took 187, 211 and 323 with 2,231 sequences, 63 and 101 with 4,462."""
GROWTH = 8
"""Factor by which the examples grow when those in use are fitted and the rest is not, or when there is noise."""
LEAST_ROWS = 4096
LEAST_ROWS_SPARING = 1024
"""Never fewer rows than this, if there are, to refine or to certify. Few examples leave directions weak by chance (d = 6 on a
skewed support, 24 sequences: smallest eigenvalue 2e-4; 512: 6e-3). A sparing run is certified without a Jacobian and does with a
quarter: d = 32, m = 8 takes 0.15 s instead of 0.26."""
CHUNK_ROWS = 1024
"""Query rows handled at once: the products reach full speed, the working arrays stay at a few MB."""
THREAD_WORK = 2e7
"""Multiplications, rows x columns x outputs, of a chunk below which chunks run one after another. Threads wait for each other
between NumPy's calls: with 5e6 (d = 32) a product takes 1.6 ms on two threads and 1.5 on one, with 5e7 (d = 64) 12 and 20."""
PRODUCT_ROWS = 64
"""Rows of one piece of a product that threads share: enough for full speed."""
CACHE_LEAST = 2**30
CACHE_SHARE = 1 / 8
"""Up to here (an eighth of the machine's memory, a gibibyte at least) patterns, mixed tokens and values are kept between
inner steps; beyond they are recomputed. At d = 512, 8 heads of rank 64, 32,000 rows, a step takes 2.6 s kept and 4.4 s
recomputed."""
COLUMNS_SHARE = 0.25
"""Share of that which the columns P of a least squares may take while it passes over them two to four times."""
INITIAL_DAMPING = 1e-2
"""In preconditioned coordinates, where the curvature is about 1: a hundredth leaves a good start alone."""
DAMPING_LIMIT = 1e4
"""A step a ten-thousandth of Gauss-Newton's that still fails means that no step succeeds."""
FORCING_MOST = 0.1
FORCING_LEAST = {"float32": 1e-4, "float64": 1e-8}
"""Accuracy of the inner solves: the relative residual, kept between these. The lower end is what products deliver, so one outer
step in float32 wins at most four digits."""
DOUBTED = 1e-3
HALVED = 0.5
"""Relative residual below which a step that did not halve it, or a stop beside noise, is not believed before inner solves ran
in float64: scores of size 0.03 (d = 16, m = 4) leave directions of curvature 1e-4 and a residual of 3e-4."""
FORCING_SPARE = 0.3
"""... and no more than a third of what the tolerance of a sparing run asks for. Not for float32 outputs, whose rounding the
last step averages: with it the parameters of eight heads were right to 2.4e-6, without to 4.9e-6."""
DOUBLE_BELOW = 1e-4
"""Relative residual at which residuals move to float64; float32 evaluates them to about 3e-7."""
LOWER_BELOW = 3e-4
LOWER_SLOW = 3e-3
LOWER_KEPT = 0.5
RANK_OPEN = 50.0
RANK_CLEAR = 10.0
"""Below this relative residual, or one ten times as large that no longer halves, the rank is looked at again: what lies
under 50 residuals, and ten times under the value before it, counts as zero. Behind LayerNorm the antibody layer's sixteenth
value drowns in the noise of the moment (28 was inferred); here it stands at 0.1 of the largest. If the lower rank does not
lead to an exact fit the higher one is taken up again, unless the residual is noise: stationary, and not half of what it was
when the rank was lowered. (d = 52, rank 5 instead of 4, noise 1e-3: 3 s instead of 75.)"""
RANK_ROUNDING = 30.0
"""Singular values below so many machine epsilons of the largest are rounding: products of exact rank left 0.7 to 1."""
FLOOR = 16.0
"""At this many machine epsilons the relative residual is rounding: measured floors are 8 (d=32) to 16 (d=128)."""
FLOOR_STALL = 1e4
"""A residual below so many epsilons that no longer halves is rounding too (badly conditioned tokens)."""
STATIONARY = 1e-6
"""Fraction of the squared residual that the best linear step could still remove at a noise floor. The fitted
parameters take about unknowns/equations of it, between 0.01 and 0.25, so the rest is negligible."""
STATIONARY_SUBSET = 1e-2
"""The same on examples that will be replaced by more of them."""
CRAWL_ABOVE = 0.03
CRAWL_STEPS = 10
CRAWL = 2e-3
"""A residual above three per cent that ten steps together lowered by less than 0.2 % is at the bottom of a valley that
holds no layer: with a residual connection left in the outputs it took 50 further steps to win another 0.1 %. Starts
that reach the truth halve their residual every few steps."""
CREEP_STEPS = 8
CREEP = 0.1
"""Eight steps solved for in float64 that together win less than a digit end a run: those that lead out of a valley of mixtures won
five. Parities, whose heads are saturated, take hundreds of products for a step and get nowhere."""
RIDGE_SINGLE = 1e-6
RIDGE_DOUBLE = 1e-13
"""Relative ridge inside Cholesky factors of Gram matrices: the rounding of the sums they come from. Its bias
is removed by correcting with true residuals."""
TOKEN_RANK = {"float32": 1e-5, "float64": 1e-10}
"""Eigenvalues of the token covariance below this fraction of the largest are directions without tokens."""
CORRECTED = {"float32": 1e-3, "float64": 1e-5}
"""W and b count as eliminated when they could remove only this share of the residual: its square enters the
cost, and the gradient of the scores sees it at first order."""
CONTRACTION = 0.3
"""A correction that does not shrink the removable part to this fraction has met rounding."""
RENEW_ABOVE = 0.1
"""Below this relative residual the layer moves so little that its preconditioner is kept: at d = 32, m = 8, a new one at a residual
of 0.04 takes 12 ms and saves none of the 46 inner steps."""
FRESH_NOISE = 3.0
FRESH_FACTOR = 100.0
"""Examples that were not used may be fitted this much worse than those that were before more are taken: beside noise, of which the
fit takes some away (1.3 at four equations per unknown), and where the fit is exact."""

# --- jacobian --------------------------------------------------------------------------------------------
LANCZOS_BLOCK = 32
LANCZOS_MOST = 4_096
"""Lanczos steps between checks and at most; a guarantee that must take more is given up at once. A conditioning of
100 in preconditioned coordinates needs about 150 at delta = 1e-6 (sapiens layer 0: 224 steps), one of 1e4, as heads
that are half saturated have it, over a thousand."""
DENSE_MOST = 2_500
DENSE_ROUNDING = 1e-12
"""Unknowns up to which the matrix is written out where Lanczos gives no guarantee, and the rounding of its eigenvalues relative to
the largest: the sums behind an entry have some thousand terms in float64. Scores of size 0.03, 0.01 and 0.001 have smallest
eigenvalues of 3e-4, 4e-5 and 4e-7 (d = 8, m = 3)."""
LANCZOS_SHARE = 0.25
"""Steps end when the guaranteed value is at least a quarter of the estimate: bounds are then within a factor 2."""
LANCZOS_LOOK = 96
LANCZOS_PATIENCE = 400
"""After so many steps, if more than 400 will be needed, twice as many examples are taken, as long as there are some: those of
the rxnmapper layer raise the smallest eigenvalue from 0.0020 to 0.018 of a largest of 20, and 340 steps do instead of 1,060."""
PROBE_ACCURACY = 1e-2
PROBE_STEPS = 512
"""Accuracy of the solves behind standard errors, far below their sampling error, and their steps at most."""
