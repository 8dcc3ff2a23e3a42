"""Problems that learners meet in tests and benchmarks: generic ones and hostile ones, with the right answers."""

from tests.problems._copies import COPIES
from tests.problems._curved import CURVED
from tests.problems._discrete import DISCRETE
from tests.problems._errors import ERRORS
from tests.problems._fickle import FICKLE
from tests.problems._general import GENERAL
from tests.problems._hostile import HOSTILE, hostile_problems
from tests.problems._in_turn import IN_TURN
from tests.problems._judge import broken_claims
from tests.problems._loose import LOOSE
from tests.problems._noisy import WITH_ERRORS as TEXTBOOK
from tests.problems._oracles import ORACLES
from tests.problems._others import COMPRESSING, SCULPTING
from tests.problems._positions import POSITIONS
from tests.problems._problem import Problem
from tests.problems._ranges import RANGES
from tests.problems._structured import STRUCTURED
from tests.problems._tied import TIED
from tests.problems._unions import UNIONS
from tests.problems._unmodelled import UNMODELLED

ENEMIES = (
    TIED | LOOSE | UNIONS | IN_TURN | CURVED | DISCRETE | COPIES | RANGES
    | ORACLES | FICKLE | COMPRESSING | STRUCTURED
)  # fmt: skip
"""Kinds made to earn a claim that is false, for `recover`, `extract` and `compress`."""
WITH_ERRORS = TEXTBOOK | ERRORS
"""Outputs with errors, and structure that must not pass for noise."""
ALL = HOSTILE | UNMODELLED | ENEMIES | GENERAL | SCULPTING | WITH_ERRORS | POSITIONS
"""Every kind of problem by name."""

__all__ = [
    "ALL",
    "ENEMIES",
    "GENERAL",
    "HOSTILE",
    "POSITIONS",
    "SCULPTING",
    "UNMODELLED",
    "WITH_ERRORS",
    "Problem",
    "broken_claims",
    "hostile_problems",
]
