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
ROUNDING_SLACK = 30.0
"""A fit is exact when its error is within this factor of the measured rounding of one forward evaluation: the
solver's own rounding and another implementation's order of summation both add to it."""
EXACT = {"float64": 1e-11}
"""float64 fits count as exact up to here: refine stops between 1e-14 and 1e-12, and two heads that merge leave
a residual of about their distance, so distances above 1e-10 are seen."""
APART = 100.0
APART_LEAST = 1e-4
"""Heads must be apart by 100 times the bound on their error, and by 1e-4 in any case."""
VISIBLE = 100.0
"""The weakest head must stand out of the error a hundredfold."""
PARAMETER_SAFETY = 3.0
"""The smallest singular value is an estimate from above within its stated tolerance, and the bound neglects
curvature: both are covered by this factor."""
PARAMETER_ERROR = 1e-2
"""Beyond one per cent the linearisation behind the bound is not trusted and C3 is not established."""
