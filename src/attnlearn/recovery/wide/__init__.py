"""The wide search: more heads than the layer has, from random scores, and then without those that it can do without."""

from attnlearn.recovery.wide._search import search

__all__ = ["search"]
