"""Learning a layer from random examples: the spectral route, sculpting, and what they share."""

from attnlearn.recovery._recover import recover

__all__ = ["recover"]
