"""Refinement: Gauss-Newton on every parameter of a layer, from a start near the truth down to rounding or noise."""

from attnlearn.solve.refinement._config import RefineConfig, Refined
from attnlearn.solve.refinement._descent import damping_factor
from attnlearn.solve.refinement._refine import refine

__all__ = ["RefineConfig", "Refined", "damping_factor", "refine"]
