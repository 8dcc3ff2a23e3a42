"""Oracles: anything that answers tokens with outputs, here, in another process or behind HTTP; every query counts."""

from attnlearn.oracle._base import BudgetSpent, Counts, Oracle
from attnlearn.oracle._http import HttpSource
from attnlearn.oracle._noise import Noise
from attnlearn.oracle._parse import parse
from attnlearn.oracle._process import ProcessSource

__all__ = ["BudgetSpent", "Counts", "HttpSource", "Noise", "Oracle", "ProcessSource", "parse"]
