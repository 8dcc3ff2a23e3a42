"""Constants of sculpting, with the derivation or the measurement that set them."""

from __future__ import annotations

# --- crude sum -------------------------------------------------------------------------------------------
SUM_SEQUENCES = 30_000
SUM_SHARES = tuple(float(0.3 * (0.0005 / 0.3) ** (step / 7)) for step in range(8))
SUM_REPEATS = 4
"""From 30,000 sequences, eight falling quantiles with four repeats took the error of the sum from 0.25-0.42 to
3e-4-8e-3 on eight random layers (d = 8..12, k = 3..6, m = 1..3, ‖Theta‖_F = 4)."""
SUM_ASTRAY = 0.1
NARROW_SHARES = tuple(float(0.01 * (0.0005 / 0.01) ** (step / 4)) for step in range(5))
NARROW_REPEATS = 12
"""At d = 16, k = 8, m = 2 the wide quantiles led two of ten sums astray (errors of 0.3 and 0.45, more than at the start);
from a hundredth of the rows on, with more repeats, both came to 0.007."""
SUM_FINEST = 1e-4
"""Residuals are computed in float32 from sums of squares: below this scale they are rounding."""
SUM_BIAS = 4.0
"""Error of the sum over the last scale c: measured between 3 and 6 (d = 8, k = 4, m = 2)."""
SUM_RIDGE = 1e-9
SUM_FOUND = 0.1
"""When the best 0.05 % of the rows are still off by a tenth, no row shows one token alone."""
CANCELLED = 0.5
"""The mean of k tokens explains at least 1/k of the variance of y = x_b S; cancelling projections leave it a quarter
of that (d = 8, k = 4, m = 2)."""
WEAK_SHARE = 0.1
"""Random layers of ‖Theta‖_F = 4 leave 0.36 to 0.59 of the variance to what is not linear
(d = 4..9, k = 3..4, m = 1..3)."""
SUM_GROWTH = 10
"""What to ask for when no row of one token is seen at all: an order of magnitude more, a rule of thumb."""
LINEAR_SHARE = 1e-4
"""Share of the variance that the query and the mean token must leave; below it, attention is a plain average."""
SUM_ROWS = 8
"""Rows per unknown of the refined sum."""
CLEAR_MARGIN = 3.0
"""Standard deviations of the minimum-norm point's scores by which one token must lead (some head still disagrees
in 3.5 % of such rows at m = 2, 12 % at m = 3; the weights see to those)."""
REFINE_SHARES = (0.5, 0.25, 0.12, 0.06, 0.03)
SUM_DOUBT = 0.01
SINGLES_SHARES = (0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.008)
"""A sum that is doubted by more than a hundredth hides most agreeing rows: at d = 16, k = 8, m = 2 a million examples gave
34 slabs at a doubt of 0.15 and 664 at 0.007, no more at 0.003."""

# --- rows ------------------------------------------------------------------------------------------------
SCAN_NUMBERS = 4_000_000
"""Numbers in the largest array of the filter: 16 MB in float32."""

# --- certify rows ----------------------------------------------------------------------------------------
TOLERANCE = 0.05
WINDOW = 8.0
RIVALRY = 6.0
"""Slabs off by more than one logit, with the true sum, at window and rivalry 8 and 6, 8 and 3, 4 and 6, 4 and 3: 4, 9, 7
and 22 % (d = 8, k = 4, m = 2); 9, 12, 20 and 30 % (d = 9, k = 3, m = 3)."""
PROVISIONAL = 4.0
"""u = 4 rho / ‖(x_b - x_b') S‖ before the W_i are known: about the 99 % point of the true u against rho over
that length."""
WIDEST = 3.0
"""Slabs wider than three logits say next to nothing."""
EQUAL_TOKENS = 1e-9
SINGLE_TOLERANCE = 0.02
LARGEST_U = 0.5
"""A half-space from a row that leaves half of the weight open says nothing."""
LOOSENESS = 1.5
"""Rows just outside tolerance and window are kept too: they may come in when the sum is refined."""
LEAST_WEIGHT = 0.003
ROWS_PER_BATCH = 20_000
MOST_ROWS = 60_000
"""At most 60,000 rows of each kind stay in memory: 40 MB at d = 16, k = 4."""
STRIDE = 4
"""Batches read between two looks at the slabs, at most: a look costs as much as a batch when all rows are full."""
SLABS_PER_UNKNOWN = 16.0
"""Distinct slabs per unknown: at d = 8, k = 4, m = 2 hulls from 10 to 27 per unknown were off by 1 to 2 %."""

# --- body ------------------------------------------------------------------------------------------------
NO_SLACK = 1e-7
"""Slack, in half-widths, below which a slab agrees with the others up to the accuracy of the linear program."""
INFLATIONS = (0.0, 0.01, 0.1, 1.0)
"""Half-widths that are added, as little as possible, to give the body an interior."""
FIRST_ROWS = 2.0
CUTS = 0.5
"""Rows per unknown that a program starts with, and that are added at a time: at p = 156 with 3,120 slabs 2 and 0.5, 4
and 0.5, 1.5 and 0.25 took the same time within a quarter."""
HALF_SPACES = 100.0
"""Half-spaces per unknown, those nearest to the hull's base: without a limit they would fill 600 MB at d = 16, k = 8."""
CUT_SLACK = 1e-6
RADIUS = 6.0
"""The box is so many times the largest entry of the least-squares centre, where nothing else bounds the body."""
BODY_SLABS = 6.0
FINAL_BODY_SLABS = 20.0
"""Slabs per unknown, the narrowest first, on which linear programs are solved in every round and at the end."""

# --- hull ------------------------------------------------------------------------------------------------
HULL_REPEATS = 10
HULL_TRUSTED = 1.0
"""Half-widths by which the hull may miss a slab without taking weight from it."""
CENTRE_RIDGE = 1e-3
"""Directions that hardly any slab sees must not lengthen the least-squares centre."""
CLEAR_GAP = 2.5
GAP_SHARE = 0.5
"""Gaps below the right count were 1.4 to 2.4; at it 9 to 21 (m = 2, d = 8, k = 4) and 2.6 to 3.5 (m = 3, d = 9,
k = 3, 6e6 examples); above it up to 1.1 times the right one's."""
UNEXPLAINED = 0.2
ONE_MORE_PAYS = 0.7
"""One head more is tried when the search leaves a fifth of the output, and kept when it takes away 30 % of that. At d = 9,
k = 3, m = 3 a hull of two heads left 0.52; right counts left 0.02 to 0.15 in all rows."""
SHOWN_SINGULAR_VALUES = 12
WIDER = 2.0
"""The body is wide along the hull if it is twice as wide there as in any direction measured across."""

# --- carve -----------------------------------------------------------------------------------------------
FEWEST_SLABS = 3.0
"""Fewer distinct slabs per unknown than this leave directions that hardly any slab sees: at d = 9, k = 3, m = 3 a hull
from 5 per unknown was off by 7 %, one from 1.5 by half. What is found in between is judged on select examples."""
FEWEST_AGAIN = 5.0
"""A later round with fewer is not worth its smaller tolerance: with 3 to 5 it doubled the hull's error (d = 9, k = 3, m = 3)."""
READ_GROWTH = 3.0
"""Examples after a round over those before it, at most: the yield falls threefold with the tolerance at m = 2, and
ninefold at m = 3, where a second round seldom pays."""
STILL_SHRINKING = 0.9
"""The alternation goes on while the body's width across the hull falls by a tenth a round."""
NARROW = 0.06
"""Width across the hull over the hull's distance from 0 that ends the alternation, from the second round on: 4.2 % of
‖Theta_i‖_F for two incoherent heads of equal norm; at widths of 2 to 4 % hulls were off by 0.4 to 1.4 %."""
WIDTH_DIRECTIONS = 3
SATURATED_SHARE = 0.9

# --- search ----------------------------------------------------------------------------------------------
NET_REACH = 2.5
"""The net reaches this far beyond where incoherent heads of equal norm lie."""
NET_TOTAL = 200
"""Points of the net at m >= 3."""
NET_RIDGE = 1e-9
POLISHED = 4
"""Tuples that are polished and judged."""
POLISH_STEPS = 30
POLISHED_ENOUGH = 1e-6
POLISH_DAMPING = 1e-3
"""Steps of the polish, the share of the squared residual below which one is the last, and the first damping."""
GRAM_NUMBERS = 4_000_000

# --- the paper's own steps -------------------------------------------------------------------------------
PAPER_SCALE = 1e-3
"""What the paper's sums are believed to, besides the difference of their halves: of the correlation's bias the examples say
nothing, and the paper's bound of it asks for constants that were not at hand."""
FACETS_PER_UNKNOWN = 8
FACET_STEP = 1e-3
SHORTEST = 1e-6
BISECTIONS = 30
"""Facets of the body that are looked for per unknown, the step of the difference that gives a normal, the shortest distance
to the boundary over the radius of the box, and halvings of its logarithm, which leave 2e-8 of it. At d = 8,
k = 3, m = 2 two facets per unknown showed no long direction, 4 missed a head by 19 to 21 %, 8 by 8 to 19 %."""
PAPER_NET = 400
PAPER_REACH = 1.8
TUPLES_AT_ONCE = 4_000
"""Points of the net of the span in all, and how far it reaches beyond where incoherent heads of equal norm lie. At two heads
about 300 points of the disc, 48,000 pairs: 4 s at d = 8. Our net of the line has 40 points, 780 pairs."""

# --- engines ---------------------------------------------------------------------------------------------
BATCHES_AHEAD = 8
"""Batches filtered at once by the workers of an engine: those that turn out not to be needed are wasted."""

# --- recheck ---------------------------------------------------------------------------------------------
ROUNDING = 1e-6
"""Relative rounding of a proved half-width."""

# --- diagnose --------------------------------------------------------------------------------------------
DIAGNOSED = 1_024
"""Sequences of the fit that names the reason: 40 to 62 equations per unknown of four heads (d = 8 to 16, k = 3 to 8)."""
AGREES = 1e-3
"""Largest relative error on select examples: a right layer leaves rounding, also in float32, a wrong one order one."""
DIAGNOSIS_STARTS = 3
DIAGNOSIS_SCALE = 3.0
HEADS_BEYOND = 2
"""Random starts of ‖Theta‖_F = 3, and how many heads beyond what can be proved or counted are tried."""
