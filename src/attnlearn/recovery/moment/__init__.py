"""The moment: heads from third-order statistics of the data, above a known noise floor.

take_moment      the span of the heads
count_heads      how many of its vectors are heads
unmix            the heads inside the span, as a start for the fit
unmix_again      other mixtures of heads that the fit has moved
choose_scale     the size of tokens at which a layer shows itself
"""

from attnlearn.recovery.moment._count import Counted, count_heads
from attnlearn.recovery.moment._floor import examples_needed
from attnlearn.recovery.moment._moment import Moment, take_moment
from attnlearn.recovery.moment._scale import choose_scale
from attnlearn.recovery.moment._span import best_start, span_models
from attnlearn.recovery.moment._unmix import Heads, unmix
from attnlearn.recovery.moment._unmix_again import unmix_again

__all__ = [
    "Counted",
    "Heads",
    "Moment",
    "best_start",
    "choose_scale",
    "count_heads",
    "examples_needed",
    "span_models",
    "take_moment",
    "unmix",
    "unmix_again",
]
