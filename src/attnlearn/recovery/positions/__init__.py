"""Scores with positions: which kinds are tried, the search for a layer of one kind, and how the best fit is judged."""

from attnlearn.recovery.positions._kinds import Asked, asked_for
from attnlearn.recovery.positions._route import PositionsRoute

__all__ = ["Asked", "PositionsRoute", "asked_for"]
