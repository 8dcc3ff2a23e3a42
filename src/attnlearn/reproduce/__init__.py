"""The papers' claims as figures with numbers beside them; what they compare needs the extra `sculpt`, and with it `train`."""

from attnlearn._extras import require_extra

require_extra("reproduce", "sculpt")

from attnlearn.reproduce._hardness import hardness
from attnlearn.reproduce._learning import learning
from attnlearn.reproduce._optimization import optimization
from attnlearn.reproduce._plots import plot
from attnlearn.reproduce._texts import describe

__all__ = [
    "describe",
    "hardness",
    "learning",
    "optimization",
    "plot",
]
