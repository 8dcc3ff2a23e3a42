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
ALTERNATIONS = 40
SETTLED = 1e-5
"""Alternations between the two factors of every W_i end when the squared error falls by less than this share."""
FACTOR_STEPS = 30
FACTOR_ACCURACY = 1e-3
"""Conjugate gradient steps for the value factors, on small matrices only: milliseconds each."""
RIDGE = 1e-9
"""Relative ridge of the small systems inside the alternation: far below the errors that rank limits cause."""
SAYS_NOTHING = 1.0
"""An error of one output's norm is what a layer has that answers zero: a bound of that size says nothing."""
COVERED = 0.9
"""Fraction of the inputs of which C1 speaks. With 600 certify sequences 25 errors may lie above the claimed one."""
