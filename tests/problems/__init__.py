"""Problems that learners meet in tests and benchmarks: generic ones and hostile ones, with the right answers."""

from tests.problems._discrete import DISCRETE
from tests.problems._hostile import HOSTILE, hostile_problems
from tests.problems._judge import broken_claims
from tests.problems._problem import Problem
from tests.problems._tied import TIED
from tests.problems._unmodelled import UNMODELLED

ALL = HOSTILE | UNMODELLED | TIED | DISCRETE
"""Every kind of problem by name."""

__all__ = ["ALL", "DISCRETE", "HOSTILE", "TIED", "UNMODELLED", "Problem", "broken_claims", "hostile_problems"]
