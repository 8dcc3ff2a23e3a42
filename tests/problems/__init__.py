"""Problems that learners meet in tests and benchmarks: generic ones and hostile ones, with the right answers."""

from tests.problems._hostile import HOSTILE, Problem, hostile_problems
from tests.problems._judge import broken_claims

__all__ = ["HOSTILE", "Problem", "broken_claims", "hostile_problems"]
