"""Constants of compression, with the derivation or the measurement that set them."""

from __future__ import annotations

ROWS_PER_FEATURE = 64.0
"""Fit rows per column of [alpha_1 X, ..., alpha_h X]: least squares on R rows per column raises the squared error on
fresh rows by about 1/R, here 1.6 %, beside what the scores cost."""
SEQUENCES_LEAST = 4_000
"""Sequences in all when more can be had: 600 of them certify, which leaves ln(1e6)/600 = 2.3 % of inputs uncovered."""
STEPS = 12
STEPS_ON_THE_WAY = 2
"""Gauss-Newton steps at the wanted number of heads and at the others, at most. With a residual that stays, steps gain little
after the first few: in a trial on sapiens layer 0 with 4 heads (4,000 sequences, rank 16, another start than the one used
here) the fit error went 0.4704, 0.4698, 0.4697, 0.4696, 0.4696. The numbers themselves are a choice."""
STEPS_AT_ONCE = 2
LITTLE = 1e-3
"""At the wanted number of heads steps are taken two at a time, until one lowers the fit error by less than this share."""
INNER = 60
"""Conjugate gradient steps inside one of them; 4 to 17 were taken in such trials."""
DAMPING = 1e-2
EXACT = {"float32": 3e-6, "float64": 1e-11}
"""Relative error on select examples below which a smaller layer computes the same function up to rounding."""
SHAPE_STEPS = 60
TRIAL_STEPS = 20
"""Quasi-Newton steps on the factors of the chosen shape, and on each shape before one is chosen, at most.
Sapiens layer 0, half the width, 6,000 sequences, Gaussian / correlated tokens, error on them after 5, 10, 20, 40 and 100 steps:
0.522, 0.518, 0.5161, 0.5154, 0.5150 / 0.281, 0.276, 0.2735, 0.2726, 0.2720."""
TRIAL_EQUATIONS = 30
"""Equations per number of the shape in a trial, which sees no more sequences than that takes. Sapiens layer 0, half the width, 4,000 sequences, Gaussian
tokens: 20 steps on 1,000 of them (31 equations) and 15 on all end at 0.5132 in 3.4 CPU s, 40 on all at 0.5126 in 5.7; on fresh sequences 0.5320 and 0.5319."""
SETTLED_STEPS = 5
SETTLED = 3e-4
"""Such steps end when the last five together lower the error by less than this share."""
MEMORY = 20
"""Pairs that the quasi-Newton method remembers."""
CORRECTIONS = 2
"""Times that O and b are corrected with true residuals at the end: each wins the digits that normal equations lose."""
SAYS_NOTHING = 1.0
"""An error of one output's norm is what a layer has that answers zero: a bound of that size says nothing."""
COVERED = 0.9
"""Fraction of the inputs of which C1 speaks. With 600 certify sequences 25 errors may lie above the claimed one."""
