"""Constants of the recovery assembly, with the derivation or the measurement that set them."""

from __future__ import annotations

DIAGNOSED = 8_000
"""Examples handed to the diagnosis of a misfit, which looks at no more."""
EQUATIONS_NEEDED = 4.0
"""Equations per unknown at which refine finds the answer from a fair start."""
REFINE_EQUATIONS = 64.0
REFINE_FEWEST = 4_096
"""Refine sees at most this many equations per unknown (and never less than that many sequences, if there are):
beyond it, exact data add nothing, and noise falls only with the square root."""
REFINE_BYTES = 2**30
"""Copy of the fit examples that refine may hold when there is noise to average out."""
WHOLE_BETTER = 0.9
"""Heads of full rank replace those of the inferred rank only if they lower the select error by a tenth: with noise
they fit worse, and where the rank was too small they fit exactly."""
WHOLE_STEPS = 8
"""Steps in which heads of full rank, from the answer of the inferred rank, must show that they fit better."""
START_RANK = 1e-4
"""Singular values of a given start below this share of the head's largest are not counted towards its rank: products
of float32 factors leave 1e-7. If the rank was too small, the misfit shows it and the whole Theta is refined."""
FIRST_STEPS = 8
MORE_STEPS = 40
LAST_STEPS = 24
TWINS = 0.35
"""Heads so close to each other, at the start or after so many steps, are taken for one that was seen twice, and refined as
two only if that leaves an error and lowers it. Heads of rank one show twice in the moment; most copies came out 0.08 to
0.37 apart and others 0.7, which come close on the way. Refined as they were they took 50 to 100 s to become one (d = 16 and
23, m = 2), and as one a tenth of a second. Exact fits take 4 to 8 steps; those that take more begin again with a
preconditioner of their own, and 40 steps more; a fit without heads that did nothing begins at its optimum and has 24."""
EVERY_STEPS = 12
"""Steps on all examples, from an optimum on some of them: noise takes 2 or 3. Where heads are missing dozens lower a misfit by
nothing that matters."""
TARGET_MARGIN = 0.7
"""The worst select error must be below this share of the target before the certify side is asked: with 2,000
select and 2,000 certify examples the two maxima differ by less."""
TARGET_RESIDUAL = 0.1
"""Refine stops at this share of the target: the worst of 2,000 examples has two to six times the error of the average."""
FIT_SHARE = 0.75
"""Share of the examples on the fit side when data are scarce."""
CERTIFIED_LEAST = 200
"""Examples below which the certify side (15 %) has fewer than the 28 that claim C1 needs."""
OVERFIT = 3.0
"""A select error three times the fit error means that the fit side was memorised."""
MEMORISED_MORE = 1.5
"""... and that half as many again are needed at least, whatever the unknowns of the answer ask for: it is not the truth."""
NOTICEABLE = 1e-6
MISFIT = 0.03
"""Errors above three per cent that fit and select share are structure, not measurement noise."""
NEAR_HEADS = 0.05
"""A fit that is not exact and has two heads closer than this says little of noise: two true heads so close leave refine
without curvature. Heads 0.01 and 0.03 apart ended 0.003 and 0.02 apart, with errors of 3e-5 and 2e-4; those 0.1 apart are
found to rounding."""

# --- grow -------------------------------------------------------------------------------------------------
GROW_HEADS = 16
GROW_DIRECTIONS = 128
"""Heads, and directions of the tokens, up to which further heads are looked for: a refine of full rank for each."""
GROW_LEAST = 1e-7
"""Error below which a fit that is not exact wants no head but a better condition: saturated heads leave 1e-8 to 1e-12 and take more
of them without an end. A head of 1e-5 beside four others leaves about that."""
GROW_STARTS = 2
GROW_SCORES = 2.0
"""Starts for every further head, and the standard deviation of their scores."""
GROW_BETTER = 0.7
GROW_WORTH = 0.85
GROW_AHEAD = 2
"""Share of the error that must remain at most for further heads to count, and for another to be added to them, and how many are
added at most before they count. A missing head
that was found left 1e-14, one of three equal ones sqrt(2/3) = 0.82; where the outputs were no attention a further head left
0.9 and more, with a residual connection 0.3."""

# --- plan: choices, not fits; how far they were off is said in `_plan` -----------------------------------
PROCESS_BYTES = 450_000_000
"""The interpreter with JAX and SciPy, before any data."""
REFINE_COPIES = 5.0
"""Copies of its examples that refine holds at its peak, in float64: as given, cast, whitened, in chunks, in float32."""
PLANNED_PASSES = 5.0
PLANNED_INNER = 300.0
PLANNED_LOOK = 3.0
"""Passes of the moment over the examples that it reads, products with the Gauss-Newton matrix, and examples that are read over
those that would show equal heads clearly, in a usual run."""
PLANNED_EFFICIENCY = 0.3
"""Share of a matrix product's speed that the passes reach: their products are small, and softmax is none."""

# --- range -----------------------------------------------------------------------------------------------
RANGE = {"float32": 1e9, "float64": 1e15}
RANGE_EXAMPLES = 1_000
"""Largest size of tokens and outputs (its inverse: smallest). Solves run in float32 and square what they are given: float64
outputs of 1e-40 and tokens of 1e30 failed, float32 tokens of 1e10 left biases without a digit."""
