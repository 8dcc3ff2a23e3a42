"""Learning linear attention: least squares on its monomials, heads from a low-rank decomposition.

Read it in this order: `_features` (the monomials), `_regress` (least squares), `_heads` and `_rank` (heads), `_certify`, `_learn`.
"""

from attnlearn.recovery.linear._config import LinearConfig
from attnlearn.recovery.linear._learn import LinearRoute

__all__ = ["LinearConfig", "LinearRoute"]
