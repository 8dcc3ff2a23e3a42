"""The former place of `attnlearn.solve.refinement`; `recovery` imports from here."""

from attnlearn.solve.refinement import RefineConfig, Refined, refine

__all__ = ["RefineConfig", "Refined", "refine"]
