"""Every constant of the shared solvers, in two sections: those that change answers, and sizes and budgets.

Each constant that changes answers says what it means and what set it; the scripts in `benchmarks/calibrate/` print the
measurements again (each lists the constants it covers). Several checks share one constant where it means the same in all
of them. Constants with "root in float32" are for float64, whose digits are twice those of float32.
"""

from __future__ import annotations

import numpy as np

# =========================================================================================================
# Changes answers
# =========================================================================================================

# --- claims ----------------------------------------------------------------------------------------------
FEWEST_UNITS = 20
"""Below 20 independent sequences no side of the split can say anything."""
CERTIFY_FRACTION = 0.15
"""Share of the sequences on the certify side: 200 sequences give the 28 that C1 needs at `DELTA` and `UNCOVERED`."""
SELECT_FRACTION = 0.1
"""Share of the sequences on the select side, which only compares candidates."""
DELTA = 1e-6
"""Probability with which claim C1 may be wrong, and with which a guaranteed eigenvalue may be too large."""
UNCOVERED = 0.5
"""C1 must speak of at least half of the inputs. Two sequences that share half of their tokens are relatives."""
SMALL_ERROR = 1e-3
"""The largest relative error that C1 calls small unless a target is given, or that counts as rounding however large the scores are.
Outputs below this share of the typical norm are measured against the share."""
ROUNDING_SLACK = 4.0
"""A fit is exact when its error is within this factor of the measured rounding of one forward evaluation. Right
answers from float32 data have 0.8 to 1.1 of it, another implementation's rounding adds as much again; a head of 1e-6
that is missing leaves 5 to 7."""
EXACT = 3e-13
"""Fits count as exact up to here: those that refine ends in float64 have errors of 1e-15 to 1e-13 on their worst example. A
head that is missing, or two that became one, leave about their size or distance: 1e-12 is seen."""
STANDS_OUT = 100.0
"""What a claim distinguishes must stand out of the error a hundredfold: the distance of heads out of the bound on their error, the
square of that distance (which one head in the place of two leaves) out of the error that counts as exact, and the output of
the weakest head. Examples that were not used in an exact fit may be fitted a hundred times worse than those that were."""
APART_LEAST = 1e-4
"""Scores closer than this, relative to their size, are those of one head: two exact fits of one head agree to 1e-6."""
PARAMETER_SAFETY = 3.0
"""The smallest singular value is an estimate from above within its stated tolerance, and the bound neglects
curvature: both are covered by this factor."""
PARAMETER_ERROR = 1e-2
"""Beyond one per cent a bound says too little: C3 is not established, and of biases it says that they are not bounded."""
WHOLE_ROWS = 1.5
"""The Jacobian of whole Theta_i is taken if it wants at most so many times the rows of the found rank."""

# --- tokens ----------------------------------------------------------------------------------------------
SUPPORT_TOLERANCE = {"bfloat16": 2e-5, "float32": 1e-11, "float64": 1e-13}
"""Variance, relative to the largest, below which a direction is outside the support. Rounding leaves about eps^2 of a direction
that does not exist (bfloat16 1.3e-6 = 2^-16 / 12, float32 4e-15, float64 5e-32), and the summed covariance about 1e-15 of its
largest entry. float32 tokens whose mantissa ends in 16 zero bits were stored as bfloat16 once."""
CAUSAL = 1e-4
"""Share of the first row that its own token may leave unexplained under a causal mask (rounding and noise only). The last row must
leave more than the square root of it, or the comparison says nothing."""
LEAST_KEYS = 3
"""With two keys a head equals its negative and a flat one; three tell them apart (docs/certificates.md)."""
NO_VARIANCE = 1e-9
"""Variance of a direction, relative to the largest in white coordinates, below which it does not vary, and relative residual below
which a fit of a head's outputs is exact. Free tokens leave 1e-2 (Gaussian) to 1e-5 (LayerNormed words, 700 features);
relations computed in float64 leave 1e-30, in float32 1e-14."""
ROUNDING_EPS = 30.0
"""Machine epsilons that count as rounding of what was computed in a few steps. Products of exact rank leave singular values of 0.7
to 1 epsilons; heads on tokens that are related up to rounding fit each other's outputs to a few."""
COPY_CHANCE = 1e-3
"""Probability that one of the compared pairs looks like a copy by chance."""
FAR_MORE = 3.0
"""Three times as much is no chance: as many shared tokens as independent sequences would have, or as large a residual beside noise
on examples that were not used (the fit takes some noise away: 1.3 at four equations per unknown)."""
ENOUGH_SHARE = 0.25
"""The least share that is enough: certify units without relatives (beyond that the rest are most likely relatives that were not
recognised), and the part of an eigenvalue that is guaranteed (bounds are then within a factor of 2; where a bound can change a claim,
all but this share is guaranteed). The damping falls after a step
that misses less than this share of what the linear model promised, rises by `FAR_MORE` after one that keeps less than this share,
and fourfold, then eightfold, sixteenfold, after steps that fail. (Tenfold each time, good and bad steps alternate: heads a
hundredth apart were not told apart.)"""
NEARLY_ALL = 0.9
"""Tokens with this share of different values count as continuous (20,000 normal float32 numbers have 0.999). A token in this share
of the sequences tells nothing about their kinship. Evidence for position effects ends here."""
FEW = 0.02
"""Two per cent is not nothing. Sequences whose differences have a smaller rank than they could (tokens with a density: none).
Gaps between the values of a direction, relative to its range. Linear influence that depends on the position (without position
terms 0.001 at 4,000 examples), or beyond a window. The nonlinear part of the last row if the first has none. A residual
this large that hardly falls."""

# --- diagnose --------------------------------------------------------------------------------------------
SUPPORTED = 0.6
"""A cause is named only above this evidence; the tests over all teachers in tests/problems keep it honest."""

# --- refine ----------------------------------------------------------------------------------------------
EQUATIONS_PER_UNKNOWN = 4
"""Refine works on so many examples first. Fewer make each product cheaper and the system worse conditioned:
at d=128, m=8, rank 16, k=8 a solve to 1e-4 took 150 inner steps with 280 sequences, 90 with 360, 55 with 500.
The derivative of a row in the scores lies in the span of m (k - 1) value differences, however many outputs there are, so the
scores are counted apart and want twice as many: random and sapiens layers at d=128 have 9 and converge in 20 to 45 inner steps;
rxnmapper at d=256 (heads half saturated) with 4.5 took over 400 to win one digit."""
HALVED = 0.5
"""A step is slow that does not halve the residual, and a correction of W and b that does not halve what it should remove has met
rounding. A lower rank is kept beside noise unless the residual has halved since. A head is saturated if fewer than half of the rows
count for it (the antibody layer 0 has 0.9, rxnmapper's heads 0.37 to 0.98)."""
DIGIT = 0.1
"""A digit: the least accuracy of inner solves; the factor of the damping; the residual below which a layer moves so little that its
preconditioner is kept (at d = 32, m = 8, a new one at 0.04 takes 12 ms and saves none of the 46 inner steps); what eight steps in
float64 must win together (those that lead out of a valley of mixtures won five digits); the gap after the last singular value;
the share of the linear influence that an identity must carry, and how sharply a window ends."""
ROUGH = 1e-2
"""One per cent is enough for what is corrected later or only estimated: W and b after a step, the stationarity on examples that
will be replaced by more, solves behind standard errors, and the first damping (in preconditioned coordinates, where the
curvature is about 1)."""
NEGLIGIBLE = 1e-3
"""A thousandth is negligible, and its square is the same share of squares:
residual     W and b are eliminated when they could remove only this share of it in float32, its square in float64.
stationary   A best step that removes its square from the squared residual; the fitted parameters take unknowns/equations of that,
             between 0.01 and 0.25.
stalled      Eight steps that win less than this share of a large residual get nowhere.
doubted      Residuals below this that hardly fall may be due to inner solves in float32: scores of size 0.03 (d = 16, m = 4) leave
             directions of curvature 1e-4 and a residual of 3e-4.
flat         Scores of this norm on white tokens. The tolerance of a fit is negligible beside a head that is needed.
diagnosis    LayerNorm misses its ellipsoid by 1e-5, an ordinary layer by about sqrt(2/d). Equal inputs whose outputs differ by the square are noisy.
ellipsoids   Their axes are 0.2 to 1 of the largest behind LayerNorm; those of flags 1e-15."""
SOLVED = 1e-8
"""Relative accuracy that inner solves deliver, its root in float32: one outer step in float32 wins at most four digits, and below a
residual of that size residuals are computed in float64. A step that small beside Gauss-Newton's that still fails means that no
step succeeds."""
RANK_BELOW = 3e-3
"""Below this relative residual, if it no longer halves, or a tenth of it, the rank is looked at again. Behind LayerNorm the antibody
layer's sixteenth value drowns in the noise of the moment (28 was inferred); here it stands at 0.1 of the largest. With d = 52,
rank 5 instead of 4 and noise 1e-3 a run takes 3 s instead of 75."""
RANK_OPEN = 50.0
"""Singular values under 50 residuals, and ten times under the value before them, count as zero."""
FLOOR = 16.0
"""At this many machine epsilons the relative residual is rounding: measured floors are 8 (d=32) to 16 (d=128)."""
FLOOR_STALL = 1e4
"""A residual below so many epsilons that no longer halves is rounding too (badly conditioned tokens)."""
RIDGE = 1e-13
"""Relative ridge inside Cholesky factors of Gram matrices, root in float32: the rounding of the sums they come from. Its bias is
removed by correcting with true residuals. It must stay below `EXACT`, or a head that others can stand in for would look visible.
Eigenvalues of a matrix that is written out have ten times this rounding: an entry is a sum of some thousand terms."""

# =========================================================================================================
# Sizes and budgets
# =========================================================================================================

SIDE_MOST = 2_000
"""Sequences of the select and of the certify side at most: 2,000 leave q = ln(1e6)/2000 = 0.7 % of the inputs uncovered. Also the
fewest tokens that are searched for a value that a share of them has."""
LOOK_MOST = 10_000
"""Sequences that diagnosis, general position and the search for copies look at, at most: a second of work."""
SAMPLE = 256
"""Sequences on which something is measured that every sequence shows: rounding, visibility, rank, another fit of one head; and
certify sequences that are compared with all others first: if none has a relative, at most 5.4 % of all have one at `DELTA`. One
start is tried in up to 16 directions, where a head's scores are 256 numbers (0.1 s; 0.5 s in 32 directions)."""
MATRIX_MOST = 2_500
"""Rows of a matrix whose eigenvalues are computed: stacked sequences, or the Gauss-Newton matrix where Lanczos gives no guarantee.
Lanczos takes at most twice as many steps."""
FEATURES_MOST = 700
"""Features of the quadratic regressions (five of them take 0.1 s)."""
TRIES = 8
"""Random subsets, starts, rounds and recent steps that are looked at before something is taken for granted."""
COPY_WIDTH = 128
"""Random combinations of a sequence's coordinates that stand for all of them; half as many of its tokens without their order."""
SCAN_COORDINATES = 2**22
"""Coordinates of tokens that are hashed or compared at once: 32 MB."""
PIECE = 64
"""Rows of one piece of a product that threads share, enough for full speed; combinations of the outputs that `combine_first` and a rough bound look at;
sequences of a second opinion on tokens in general position, if they determine a head. With 64 of 128, 256 and 512 outputs a product takes 0.68, 0.46 and 0.26 of the time; at d = 64 with 32 of 64 nothing is won."""
GROWTH = 8
"""Factor by which the examples grow when those in use are fitted and the rest is not, or when there is noise."""
LEAST_ROWS = 4_096
"""Never fewer rows than this, if there are, to refine or to certify. Few examples leave directions weak by chance (d = 6 on a
skewed support, 24 sequences: smallest eigenvalue 2e-4; 512: 6e-3). A run with a target is certified without a Jacobian and does with
one chunk: d = 32, m = 8 takes 0.15 s instead of 0.26."""
CHUNK_ROWS = 1_024
"""Query rows handled at once: the products reach full speed, the working arrays stay at a few MB."""
CACHE_LEAST = 2**30
"""Memory that may always be used to keep patterns, mixed tokens and values between inner steps."""
CACHE_SHARE = 1 / 8
"""Share of the machine's memory that may be used so. At d = 512, 8 heads of rank 64, 32,000 rows, a step takes 2.6 s kept and 4.4 s
recomputed."""
MANY_PRODUCTS = 120
"""Inner steps from which on examples that tell more of saturated heads are taken, or twice as many: solves that take so many are badly
conditioned, and more so by too few examples. The rxnmapper layer took 187, 211 and 323 with 2,231 sequences, 63 and 101 with 4,462. After so many Lanczos steps
more examples are taken if over `INNER_MOST` would be needed."""
INNER_MOST = 400
"""Products of one inner solve at most. A Lanczos run that needs more is shown twice as many examples, as long as there are some:
those of the rxnmapper layer raise the smallest eigenvalue from 0.0020 to 0.018 of a largest of 20, and 340 steps do instead
of 1,060."""
STEPS_MOST = 60
"""Outer steps of a refinement at most; fits of one head, which took 7 to 21, and fixed-point iterations have half of them."""
LANCZOS_BLOCK = 16
"""Lanczos steps between checks, and vectors that are kept in one array."""
DRAWS = 4
"""Draws of noise behind a standard error; a head has many numbers, so few suffice. Lanczos steps between looks at a largest
eigenvalue, which takes about 12."""


def in_precision(value: float, dtype: np.dtype | type) -> float:
    """A constant that is given for float64, in this precision: its root in float32, which has half the digits.

    >>> in_precision(1e-10, np.float64), round(in_precision(1e-10, np.float32), 12)
    (1e-10, 1e-05)
    """
    return value**0.5 if np.dtype(dtype) == np.float32 else value
