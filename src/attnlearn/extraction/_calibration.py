"""Every constant of the extraction, with the derivation or the measurement that set it."""

from __future__ import annotations

# --- measure ---------------------------------------------------------------------------------------------
SURPLUS_TOKENS = 12
"""Single tokens beyond the d + 1 that fix S and b. The residual has 12 d_out degrees of freedom: the noise is
known to 5 % at d_out = 16."""
AFFINE_NOISE = 100.0
"""Single tokens are answered affinely by every attention layer. A residual of so many times the noise between
repeats and the rounding of the answers (and above AFFINE_RELATIVE of the answers) is something else."""
AFFINE_RELATIVE = 0.05
"""The coarsest format with a use, bfloat16, leaves 0.4 %."""
EPSILONS = 4.0
"""Noise is never believed to be below 4 machine epsilons of the largest answer: what float64 sums of a few
hundred terms leave."""

# --- probe -----------------------------------------------------------------------------------------------
SCALE_GRID = (-9, 10)
"""Exponents of 2 of the token scales that are tried: from 0.002 to 512 times unit variance."""
SCALE_SEQUENCES = 3
SCALE_SHARE = 0.2
"""The scale is where the answers vary with the query by this share of what they do when saturated: Gaussian
logits of standard deviation 1.1 vary by 0.2 of the square of fully saturated ones."""
SCALE_NOISE = 10.0
"""Changes below so many times what noise would cause count as none: small tokens drown in it."""
ONSET_SPAN = 24.0
"""Heads that set in at scales further apart than this are saturated or uniform where others are seen."""
COUNT_POINTS = 12
"""Query points with which the counting of heads starts; doubled until the rank stops growing."""
COUNT_POINTS_MOST = 768
RANK_NOISE = 6.0
"""A singular value counts above 6 noise (sqrt(rows) + sqrt(columns)), three times the largest one of pure noise
(Marchenko-Pastur edge, constant 1) even if the noise was measured too small by half."""
DIFFERENCE_LEAST = 1e-5
DIFFERENCE_MOST = 0.3
"""Logit step of the central differences: noise^(1/3) balances the rounding noise/h and the truncation h^2/6,
kept where both are meaningful."""
LOGIT_STD = 1.1
"""Standard deviation of the logits at the chosen scale, see SCALE_SHARE."""
BASE_SPREAD = (0.2, 1.3)
"""Base points lie at these fractions of the chosen scale: sigma'(z) must differ between them, and must not
vanish at all of them."""

# --- separate --------------------------------------------------------------------------------------------
PENCILS = 60
"""Random pencils tried; the joint-diagonality of all Jacobians picks the best. The chance that one pencil has
its eigenvalues closer than 1 % falls like m^2 / 100 and 60 tries cover m = 16."""
SUM_RULE = 0.02
"""Relative residual of sum_i v_i = delta S above which a head is constant in x (measured without one: 4e-5 in
float32, 1e-10 in float64)."""
ATTEMPT_SCALES = (1.0, 0.5, 2.0, 0.2, 1.0, 0.5)
ATTEMPTS = len(ATTEMPT_SCALES)
"""Displacements delta tried before giving up; each is independent and at a multiple of the scale found."""
CONVERGED = 30.0
"""A slice is solved when its residual is below so many times the noise (measured: 0.5 to 7 times)."""
CONVERGED_MOST = 0.01
CONVERGED_COARSE = 4.0
"""Where 30 times the noise would be more than 1 % of the answers it proves nothing: 4 times must do."""
CONVERGED_RELATIVE = 1e-9
"""... or below this share of its answers: what the linear algebra in float64 leaves when noise is 1e-16."""

# --- joint -----------------------------------------------------------------------------------------------
SEARCH_BASES = 4
SEARCH_BASES_MOST = 64
"""Base points at which the count starts; doubled while every new Jacobian is a new one, up to 64 Jacobians."""
SEARCH_SPREAD = (0.3, 2.0)
"""Points lie at these multiples of the chosen scale: where all heads are affine nothing tells them apart."""
SEARCH_EQUATIONS = 3.0
SEARCH_MORE = 2
"""Heads beyond the lower bound that are tried."""
SEARCH_STARTS = 48
SEARCH_STEPS = 120
SEARCH_DAMPING = 0.01
SEARCH_GAIN = 1e-3
"""A start ends where an almost undamped step takes less than this share off its squared residual."""
SEARCH_EXACT = 1e-12
"""Share of the answers that a float64 search must come down to."""
SEARCHES = 2
"""Displacements at which heads with dependent values are searched for before the run ends."""
SEARCH_UNKNOWNS = 300
"""Slopes in a search, at most: a step over all starts then takes about a second."""

# --- logits ----------------------------------------------------------------------------------------------
DESIGN_LOGIT = 2.0
"""Standard deviation of the logits at designed points. At |z| = 1 sigma is nearly affine and displacements of
logits and of values look alike; at |z| = 4 it is nearly constant."""
DESIGN_SURPLUS = 2
"""Sequences beyond those that equal equations and unknowns. Each halves the noise amplification at first; refine
removes what is left."""
DESIGN_COARSE = 1e-4
"""Noise over the shortest v_i above which four times as many points are asked: refine cannot mend what follows."""
DESIGN_TRIES = 60
"""Random designs of which the best conditioned is used; the best of 60 is within 20 % of the best of 600."""
DESIGN_REACH = 3.0
"""Points beyond so many typical norms are penalised: their rounding error grows with them."""
SLICE_STEPS = 60
SLICE_DAMPING = 1e-6
SLICE_GAIN = 1e-2
"""Steps of a slice, its first damping, and the share of the squared residual below which a step is the last."""
SLICE_RIDGE = 1e-14
"""Relative ridge on the triangular factor of the sigmoids: equal ones leave the values finite."""
DOUBLED_POINTS = 8
"""Queries with the second token doubled that decide signs when the sum rule cannot."""

# --- match -----------------------------------------------------------------------------------------------
DISPLACEMENT = 0.03
DISPLACEMENT_MOST = 0.4
"""Length of the displacements eta over that of delta. At 0.03 every slice of d = 8..256, m = 1..16 converged
from its neighbour, at 0.1 up to 20 % failed (88 % for d = m = 16), at 0.3 half. More only when noise asks."""
BLURRED_SHARE = 1 / 3
"""Share of attempts that needed the longest displacements from which on two heads count as too close: two heads 1e-7 apart
needed them in two of six."""
DISPLACED_ERROR = 0.15
"""Worst-case relative error of W (noise times amplification) above which longer displacements are used. The true
error is 10 to 50 times smaller than this worst case, well inside refine's basin."""
SCALE_CHANGE = 4.0
"""The scale that follows from the rows of Theta may differ by this factor from the probed one, no more: noise in
those rows only makes them longer."""
DISPLACED_AGAIN = 3
"""Times that slices are asked, failed ones with a third of the displacement."""
DOUBTFUL = 8.0
"""A slice whose residual is so many times the median one is asked again too. One of 64 slices in another optimum, with 20
times the residual of the others and still below CONVERGED, put an error of 12 % into W instead of 0.3 %."""

# --- spans -----------------------------------------------------------------------------------------------
SPAN_SLICES = 4
"""Whole slices by which their number grows until the directions of the values show; twice as many at first."""
SPAN_GAP = 30.0
SPAN_SURPLUS = 4
"""W_i has rank r when the singular values of its known rows fall by 30 after the r-th and at least 4 more were known. In
float32 they fell by 110 to 2,300 (d = 64 and 128, m = 8 and 16): the directions are wrong by the inverse, 0.1 to 0.6 %."""
SPAN_AMPLIFICATION = 16.0
"""Noise of the values over that of the answers. Queries are added until it is less: one is enough for d = 128, m = 8, rank 16
(7 to 9), two for d = 64, m = 16, rank 8 (10 to 14), and more changed the error of W by less than a tenth."""
SPAN_STEPS = 8
"""Gauss-Newton steps from values that differ by 3 %, at most: the first leaves 1 to 3 % of the change, the fourth rounding."""
SPAN_MISS = 0.05
"""Residual over the change of the answers: the directions must explain it as refine's basin wants it."""

# --- complete --------------------------------------------------------------------------------------------
TOLD_SHARE = 0.6
"""Weights of a row are read by a linear solve with d_out equations for m (k - 1) unknowns, and inside the rank of a W_i for its own
k - 1: above this share the solve is too badly conditioned."""
TOLD_VALUES = 0.03
"""Singular values of a W_i that count for its rank have this share of the first, ten times what noise makes of none in float32."""
LOGIT_LEAST = 1e-4
"""Attention weights are clipped here: such a logit only says that the head is saturated, and has little weight."""
RANK_GAP = 5.0
RANK_SURPLUS = 2
"""A head has rank r when the singular values of its known rows fall by 5 after the r-th and at least 2 more rows
were known. A wrong rank is found out by the random queries below, and more references are added."""
SHARED_FALL = 1.5
"""Fall of the singular values, averaged over heads, that is tried as their common rank where none shows the gap above."""
CHECK_SEQUENCES = 24
COMPLETE_ATTEMPTS = 3
UNEXPLAINED_NOISE = 5.0
"""... or so many times the noise, if that is more."""
UNEXPLAINED = 0.05
"""Random queries that decide whether the references suffice: error over that of uniform attention."""
START_EXPLAINED = 0.2
"""Above this the tokens saturate some head and smaller ones are tried: refine's basin ends here."""

# --- polish and certify ----------------------------------------------------------------------------------
FIT_EQUATIONS = 3.0
FIT_SCORE_EQUATIONS = 2.25
FIT_EQUATIONS_NOISY = 12.0
"""Equations per unknown of the last fit; random three-token sequences are added up to this. At 3.5 a Gauss-Newton
step of refine took 23 to 100 inner iterations on a d = 128 layer (400 and more without random sequences). Noise
falls with the root of their number, so coarse answers are asked more often. Scores move only 2 m numbers of a row of
three tokens, whatever d_out is, and are counted apart: with 1.7, 2.25, 3 and 4.5 such equations for each of them the inner
iterations at d = 96, m = 6, rank 12 were 841, 475, 322 and 245, and refine took 19, 14, 13 and 14 s."""
NOISY = 1e-5
"""Noise over the largest answer above which it pays to average: float32 leaves 1e-7, bfloat16 4e-3."""
RANDOM_TOKENS = 3
"""Tokens of a random sequence: with two keys a head equals its negative plus a constant one, more only cost more."""
FIT_RANDOM_LEAST = 32
"""A few random sequences even where there are equations enough."""
EVERY_EQUATION = 1e9
"""Equations per unknown of refine: a random part of the few and designed queries would leave directions unseen."""
FIT_DAMPING = 1e-4
"""The closed form is a good start: at d = 64, m = 6, rank 10 and float32's noise refine took 5 steps and 988 inner iterations
from a damping of 1e-2, 4 and 771 from 1e-4, 4 and 758 from 1e-6, to the same answer."""
FIT_TOLERANCE = 0.1
FIT_GAIN = 1e-2
"""Share of the noise that steps of refine are solved to, and of the squared residual that the last one promises: with three equations
per unknown that is a thirtieth of what noise does to the parameters. On an antibody layer the last step, which changes nothing,
then takes 20 inner iterations instead of 131."""
CLEARLY_BETTER = 0.5
"""Another rank must halve the error: more unknowns always fit noise a little better."""
SAME_HEAD = 1e-8
"""Relative distance of the scores of heads that are fitted as one, if that explains the answers as well."""
FINAL_FALL = 1e3
"""Fall of the singular values of a fitted Theta that is its rank: float64 leaves 1e-12, float32 1e-6 of the largest."""
TRIMMED = 2.0
"""Ranks at which the closed form explains the answers to within this factor of what it does whole are tried first."""
POLISHED = 5.0
"""The fit explains the answers when its residual is within this factor of the noise."""
CERTIFY_SEQUENCES = 277
CERTIFY_TOKENS = RANDOM_TOKENS
CERTIFY_LENGTHS = tuple(range(2, 17))
CERTIFY_SCALES = (1 / 3, 2.0)
"""Fresh Gaussian sequences, the tokens that every oracle must take, the lengths, and the smallest and largest size that are tried. Tokens
twice as large have scores four times as large; with three times as large ones the rounding of right parameters (4e-14, d = 4) made
errors of 3.4e-13. At delta = 1e-6 they speak of 95 % of the inputs (ln(1e6)/0.05). More only make that fraction
larger; a caller who wants 99.3 % asks 2,000."""
LARGER = 4.0
LARGER_SEQUENCES = 28
LARGER_ERROR = 1e3
"""Size of further tokens over the scale, sequences of them, and how many times the error that counts as exact they may show: scores
are sixteen times as large there, and with them the rounding of right parameters. Clipped tokens and capped scores leave 1e-2 and more."""
CERTIFY_EQUATIONS = 2.5
"""Equations for each unknown of the scores, on fitted and fresh queries together: with 1.7, 2.25, 3 and 4.5 in the experiment
above the smallest eigenvalue of the Jacobian was 0.006, 0.018, 0.031 and 0.044, and its bound took 480, 288, 224 and 192
steps. An antibody layer (d = 128) has 2.7, most of them on designed queries, and 0.003 to 0.007."""
ANSWER_STEPS = 100.0
"""Noise of exact answers in machine epsilons of the largest: measured 1 to 20 in float32 and float64 up to d = 256; six
decimals are 1e9 of float64's."""
FIT_ROUNDING = 1.5
"""Residual of the fit over the layer's own rounding on the same float32 queries. Right answers left 0.5 to 1.1 (d = 6 to 48, also of an
oracle that multiplies factors instead of Theta), and 0.8 on antibody layers; without a head of relative size or distance 1e-6 it was
2.1 to 9.1, of 5e-7 1.2 to 4.5 (three heads, d = 6)."""
AS_GOOD_AS_NOISE = 3.0
"""Certify errors within this factor of the oracle's noise: the answer is as good as the noise allows."""
MISFIT = 0.01
"""Typical certify error above which the answer does not explain the oracle."""
FINER_THAN_FLOAT32 = 1e-9
"""Noise over the largest answer below which the layer is returned in float64; float32 rounding leaves 3e-8."""
APART = 0.05
"""Heads closer than this, relative to their norms, are named as the reason why an exact fit is not certified."""

# --- leak ------------------------------------------------------------------------------------------------
LEAK_SEQUENCES = 256
"""Random sequences on which an owner measures the error: known to 1/sqrt(256 k d_out), below 2 %."""
