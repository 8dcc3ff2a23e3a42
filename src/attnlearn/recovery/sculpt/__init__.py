"""Learning a layer from random examples as the paper does it: sculpting a convex body around the heads."""

from attnlearn.recovery.sculpt._assemble import sculpt_phases
from attnlearn.recovery.sculpt._body import Body
from attnlearn.recovery.sculpt._config import SculptConfig

__all__ = ["Body", "SculptConfig", "sculpt_phases"]
