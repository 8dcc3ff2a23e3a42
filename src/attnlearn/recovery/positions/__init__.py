"""Scores with positions: which kinds are tried, the search for a layer of one family, and the row of the table that does both."""

from attnlearn.recovery.positions._kinds import Asked, asked_for
from attnlearn.recovery.positions._proposer import WithPositions

__all__ = ["Asked", "WithPositions", "asked_for"]
