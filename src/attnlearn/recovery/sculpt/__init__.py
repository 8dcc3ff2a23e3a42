"""Learning a layer from random examples as the paper does it: sculpting a convex body around the heads."""

from attnlearn.recovery.sculpt._body import Body
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._proposers import sculpt_table
from attnlearn.recovery.sculpt._recheck import body_check

__all__ = ["Body", "SculptConfig", "body_check", "sculpt_table"]
