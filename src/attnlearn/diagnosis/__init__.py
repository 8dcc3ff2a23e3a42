"""Whether a layer can be learned, by which route, and from how much."""

from attnlearn.diagnosis._advice import Advice, RouteAdvice
from attnlearn.diagnosis._conditions import Conditions, conditions

__all__ = ["Advice", "Conditions", "RouteAdvice", "conditions"]
