"""Problems that learners meet in tests and benchmarks: generic ones and hostile ones, with the right answers."""

from tests.problems._hostile import HOSTILE, hostile_problems
from tests.problems._judge import broken_claims
from tests.problems._problem import Problem
from tests.problems._unmodelled import UNMODELLED

__all__ = ["HOSTILE", "UNMODELLED", "Problem", "broken_claims", "hostile_problems"]
