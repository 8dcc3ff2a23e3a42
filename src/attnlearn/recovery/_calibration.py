"""Every constant of `recover` outside the solvers, in two sections: those that change answers, and sizes and budgets.

Each constant of the first section has a measurement behind it, which `benchmarks/calibrate` prints again. Numbers that mean the same
in the solvers are those of `solve/_calibration`:

| constant | here it is |
|---|---|
| DIGIT | the share of a target at which the fit stops: the worst of 2,000 examples has two to six times the average error |
| EQUATIONS_PER_UNKNOWN | equations at which a fit finds the answer from a fair start, and on which starts of the unmixing are compared |
| FAR_MORE | a select error so many times the fit error was memorised; a step of singular values so many times those after it is no noise; the largest change of a score in a step of the unmixing |
| GROWTH | the change of the damping after a step of the unmixing |
| HALVED | pass j of the moment deflates components above HALVED^j of the largest |
| LEAST_ROWS | sequences from which statistics are taken and which a fit is given at least; the first look of the moment has a quarter |
| MANY_PRODUCTS | products with the Gauss-Newton matrix in a usual fit (66 to 150 on 17 layers, d = 8 to 128); a step of the wide search has half |
| NEARLY_ALL | the share of the select error that a repair with more freedom must leave at most |
| NEGLIGIBLE | the decrease at which an inner iteration ends; the residual at which a wide fit has found the layer (starts reach 1e-5 or end above 1e-2); singular values of a given start that do not count |
| RIDGE | the ridge of least squares, in float32 |
| ROUGH | the ridge of the output whitening (it raised the weakest head of the antibody layer 0 from 2.2 to 4.2 floors); the first damping |
| SAMPLE | sequences of the unmixing at least, and half of those on which head counts are judged |
| STEPS_MOST | steps of an iteration that is to reach its end |
"""

from __future__ import annotations

from attnlearn.solve._calibration import DIGIT as DIGIT
from attnlearn.solve._calibration import EQUATIONS_PER_UNKNOWN as EQUATIONS_PER_UNKNOWN
from attnlearn.solve._calibration import FAR_MORE as FAR_MORE
from attnlearn.solve._calibration import GROWTH as GROWTH
from attnlearn.solve._calibration import HALVED as HALVED
from attnlearn.solve._calibration import LEAST_ROWS as LEAST_ROWS
from attnlearn.solve._calibration import MANY_PRODUCTS as MANY_PRODUCTS
from attnlearn.solve._calibration import NEARLY_ALL as NEARLY_ALL
from attnlearn.solve._calibration import NEGLIGIBLE as NEGLIGIBLE
from attnlearn.solve._calibration import RIDGE as RIDGE
from attnlearn.solve._calibration import ROUGH as ROUGH
from attnlearn.solve._calibration import SAMPLE as SAMPLE
from attnlearn.solve._calibration import STEPS_MOST as STEPS_MOST

# === changes answers =====================================================================================

# --- signals ---------------------------------------------------------------------------------------------
SIGNIFICANT = 6.0
"""Standard errors above which a mean, a correlation or a kurtosis is taken for real: with 128^2 position pairs chance reaches 4.5."""
SKEWED = 0.5
"""Mean cube of a white coordinate above which the moment is not trusted. Chance leaves 0.1 in 4,096 sequences of three tokens;
lognormal tokens of logarithmic deviation 0.7, on which one of eight heads was seen, have 2.9."""
HEAVY_TAILS = 1.0
"""Mean excess kurtosis of the white coordinates above which only the calmer half of the sequences is read. Tokens of t with 3 to 6
degrees: the measured floor falls from 4 to 18 times the computed one to 1.0 to 2.3 times. With 10 degrees (kurtosis 1) both take
the same time."""
LINEAR_SHARE = {"float32": 1e-9, "float64": 1e-12}
"""Share of the output variance left by the linear fit below which the attention is invisible: float32 outputs carry 1e-14 of
rounding."""
LINEAR_DIGITS = 1e-9
"""Share left by the linear fit below which it is made again in float64. In float32 a linear function of the tokens leaves 1e-12 (d = 6,
own token or mean of all), in float64 1e-31."""

# --- moment ----------------------------------------------------------------------------------------------
ABOVE_FLOOR = 1.2
"""A singular value above this multiple of the noise floor may be a head. The first value that is noise lay between 0.77 and 1.04 of
the floor in some forty runs."""
CLEAR = 2.0
"""Floors at which a head is beyond doubt: no more examples are read, and the count does not ask for more. From 1.6 floors the fit
takes about as long as from 2.5 (d = 32, 64 and the antibody layer 0)."""
GAP = 1.1
"""Ratio of two neighbouring figures that noise does not make: of the weakest head to the next value (noise values follow each other
within 2 %; with enough examples the ratio was 1.4 and more), and of the select residual without a head to that with it (1.13 to
30 for true heads, at most 1.08 for false ones)."""
NEEDED_AT = 0.8
"""Examples needed: N (0.8 floor / s)^2. Asked at about half of what was enough, the number was 1.1 to 2.5 of it for two heads, 0.5 to 1.2
for four and 0.6 to 0.7 for six (d = 8 to 24); 0.9 to 1.3 for four to twelve heads at d = 52 to 128."""
MORE_LEAST = 1.5
"""Who has too few examples is asked for half as many again at least."""
DEFLATION_STEP = 2 / 3
"""The step that contracts errors symmetric under the swap and errors orthogonal to their swap alike, by 3 (derived)."""
TENSOR_ALIKE = 0.8
"""Cosine that every head must keep between the second-order estimate and the optimum for both to be believed. Random layers of 1 to
12 heads on five kinds of tokens have 0.87 to 1 as a rule."""
EFFECTIVE_RANK = 1.5
"""Effective rank ‖Theta‖_F^2 / ‖Theta‖_op^2 below which a head counts as of rank one; random rank 2 has 1.3 to 2."""
ALIKE = 0.02
"""Relative difference at which two values, residuals or errors count as the same."""

# --- wide search -----------------------------------------------------------------------------------------
SCARCE = 24.0
"""Equations per unknown of eight heads up to which the moment of independent tokens may miss heads. With 8 it did (d = 24, m = 4;
d = 32, m = 8), with 7 to 17 it showed what was there in other layers (d = 12 to 32, m = 2 to 8)."""
WIDE_SCORES = 0.5
"""Standard deviation of the scores of random heads."""
WIDE_RANK = 4
"""Low rank of random heads, or a quarter of the directions if that is more. Strong scores of rank one, fitted with full rank, are
memorised (three layers in 26 to 29 directions: select errors of 0.2 to 1; with rank 4, 1e-3 and less)."""
MUCH_BETTER = 0.8
"""Share of an error that must remain at most for more heads to be worth their unknowns. Twice the heads left 0.48 and 0.75 where
there were more heads to find, and 1.05 where the outputs were a perceptron or two layers."""

STUDENT_RATE = 5e-3
"""First rate of the stochastic descent in 128 directions; it falls with their root. On a recorded layer 2.5e-3 left 0.22 after 1,000 steps,
5e-3 0.08, 1e-2 0.49. In 24 directions a quarter of it left 0.35 and more after 600, the rate itself 0.013, eight times it up to 0.15."""
ADAM_MEMORY = 0.9, 0.99
"""Weights of the past in the averages of the slope and of its square, the usual ones. In 24 directions they left 0.013, (0.9, 0.9) 0.003 at
most, (0.99, 0.99) 0.13."""
STUDENT_ROUGH = 0.3
"""Select error of a student up to which its heads are tried as a start. Gauss-Newton led from 0.04 and 0.06 (127 and 383 directions) to the
heads; a speech model's layer (200 directions) left 0.1. In 24 directions it led from each of 15 students, of errors up to 0.88: there the
limit only saves time."""

# --- fit -------------------------------------------------------------------------------------------------
DUPLICATE = 0.35
"""Heads closer than this share of their norm are taken for one that was seen twice, and fitted as two only if that lowers the error.
Heads of rank one show twice in the moment; most copies came out 0.08 to 0.37 apart. Fitted as they were they took 50 to 100 s to
become one (d = 16 and 23, m = 2), and as one a tenth of a second."""
TARGET_MARGIN = 0.7
"""The worst select error must be below this share of the target before the certify side is asked: with 2,000 select and 2,000 certify
examples the two maxima differed by less in 39 of 40 cases."""
NOTICEABLE = 1e-6
"""Select error below which neither memorising nor a missing head is looked for: exact fits leave 1e-14 and less, a head that is missing
7e-4 and more."""
MISFIT = 0.03
"""Errors above three per cent are large: where the input explains part of such an error, heads may be missing, and they are looked for
at any cost."""
NEAR_HEADS = 0.05
"""A fit that is not exact and has two heads closer than this says little of noise. With 0.1 % noise heads 0.01 apart came out 0.3 to 1.1 of
their distance apart, those 0.1 apart at the right one."""


# --- before and after ------------------------------------------------------------------------------------
CERTIFIED_LEAST = 200
"""Examples below which the certify side (15 %) has fewer than the 28 that claim C1 needs (derived)."""
RANGE = {"float32": 1e9, "float64": 1e15}
"""Largest size of tokens and outputs (its inverse: smallest), a cautious choice. float64 outputs of 1e-40 and tokens of 1e30 failed;
large outputs fail from 1e18 on in either precision."""
GOOD_SHARES = 0.25, 0.58
"""Nonlinear shares of the outputs at which a layer shows itself well; tokens that we may choose are scaled to their middle. One-hot
attention of random layers leaves a third of the variance to the linear fit (0.67), so the upper end must stay below that."""

# === sizes and budgets ===================================================================================
PLENTY = 64
"""Rows, or equations, for every unknown beyond which exact data add nothing, and noise falls only with the square root; and the factor
up to which tokens that we may choose are scaled (scores move by its square)."""
FEW = 3
"""How often something cheap is repeated before it is believed: passes that show no head, sign flips, head counts, growing, sizes of
the scores that the second-order directions are tried with."""
VECTORS = 24
"""Singular vectors followed at first; doubled as long as fewer than SPARE of them are noise."""
SPARE = 4
"""A handful: vectors of noise that are followed beside the heads, random starts of the unmixing (on two layers 11 of 12 reached the
same optimum), chunks of a block at least."""
CHUNK_BYTES = 12 * 2**20
"""Working memory of a chunk: fits the last-level cache, so that the products run at full speed."""
CACHE_BYTES = 640 * 2**20
"""Whitened rows are kept in float32 below this size and recomputed in every pass above it."""
SHARES = 32
"""Shares of the rows that the workers of a cluster hold, so that two to some ten of them have about as much to do each."""
OUTPUT_DIRECTIONS = 8
"""Random output directions on which the unmixing is solved: m^2 unknowns do not need all outputs."""
ROWS_PER_UNKNOWN = 12
"""Scalar equations per unknown (2 m^2 + nuisance) of the unmixing: the residual on select examples is 2 to 30 % above that on the
rows used. Starts are compared on four equations per unknown, which show which optimum is which."""
TENSOR_PAIRS = 200
"""Pairs of tokens, times m^2, behind the second-order tensor: with 500 sequences of 8 tokens twelve heads (d = 64) have cosines of
0.99 with the truth, with 2,000 twenty-four (d = 32) 0.98 and more."""
WIDE_FIRST = 64
"""Directions up to which the wide search comes before the moment of tokens that it does not model, and after one that failed on
others: a start costs 1 to 5 s in 32 directions, 10 to 30 in 64."""
GROWN_MOST = 128
"""Directions up to which heads are added one by one: a fit of full rank for every head tried."""
WIDE_MOST = 1024
"""Directions up to which the wide search goes, with a stochastic descent above WIDE_FIRST: about 50 CPU s in 128 directions, and
eight times as long in 384."""
STUDENT_RANK = 64
"""The first rank of a student at most; a quarter of the directions if that is less. Heads of published models have 16 to 64 columns. The
second student has twice that."""
STUDENT_STEPS = 2_000
STUDENT_DIRECTIONS = 128
"""Steps of a stochastic descent in so many directions. On recorded layers (127 directions, 8 heads) 1,000 steps left errors of 0.08, 2,000
0.01 to 0.03, and 6,000 0.014."""
WIDTHS = (8, 16, 32)
"""Numbers of heads that the wide search has. The first is also the usual number of heads, the second the most that growing reaches,
the third the most that a moment is believed to show on tokens that it does not model."""
REFINE_BYTES = 2**30
"""Copy of the fit examples that a fit may hold when there is noise to average out."""
SHORT_STEPS = 8
"""Steps of a short try: exact fits take 4 to 8. A wide start has three times as many. Passes over the data at most: with warm starts 2
to 5 suffice."""
PROCESS_BYTES = 450_000_000
"""The interpreter with its libraries, before any data."""
REFINE_COPIES = 5.0
"""Copies of its examples that a fit holds at its peak, in float64: as given, cast, whitened, in chunks, in float32."""
PLANNED_SPEED = 0.4
"""Share of a matrix product's speed that passes and products reach: they are small, and softmax is none."""
ELEMENTWISE = 200
"""Operations of a matrix product in the time that a product with the Gauss-Newton matrix takes for the softmax of one score. Beside other work: 104 ns for a row
and head of five keys in 8 dimensions, 290 for one of eight keys in 32."""
NOISY_PRODUCTS = 300
"""Products on every example behind the claims about outputs that carry errors, for each head that is left out or split, and SPARE times
as many for halves, spread and planted heads. Three heads in 8 dimensions took 1,750."""
PLANNED_REST = 0.5
"""Seconds that a run takes beside products: 0.2 to 0.8 for reading, hashing and comparing 4,000 to 20,000 sequences."""
LOOK_SHARE = 0.1
"""Share of a planned run that the next look of `explain` may take. The antibody layer 0 shows the rank of its heads in the second look."""
