"""Learning a layer from random examples as the paper does it: sculpting a convex body around the heads.

Most modules need the extra `sculpt`; `_config`, `_rows`, `_slabs` and `_state` do not, so `conditions` runs without it.
"""

from attnlearn.recovery.sculpt._config import SculptConfig

__all__ = ["SculptConfig"]
