"""Layers on the edge of what can be learned: parities, square waves, near-degenerate families.

`parity` and `rounding` are the families behind the hardness results; `near_degenerate` approaches each
non-degeneracy condition by a distance of one's choice.
"""

from attnlearn.hard._degenerate import DEGENERACIES, near_degenerate
from attnlearn.hard._parity import parity, parity_subset
from attnlearn.hard._rounding import rounding, rounding_reach

__all__ = ["DEGENERACIES", "near_degenerate", "parity", "parity_subset", "rounding", "rounding_reach"]
