"""Errors that a caller can act on, and the one way in which bad input is refused."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from attnlearn._result import Solution

Row = TypeVar("Row")


class AttnlearnError(Exception):
    """Base class of the errors that are not about bad input.

    >>> issubclass(NotEstablished, AttnlearnError)
    True
    """


class NotEstablished(AttnlearnError):
    """A run did not achieve what was asked for; `.solution` holds everything it learned.

    >>> from attnlearn import Outcome, Solution
    >>> error = NotEstablished(Solution.failed(Outcome.TOO_FEW_EXAMPLES))
    >>> error.solution.outcome.name
    'TOO_FEW_EXAMPLES'
    """

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        super().__init__(f"{solution.outcome.name}: {solution.verdict}")


def raise_if_interrupted(solution: Solution) -> None:
    """Raise `KeyboardInterrupt` for a run that Ctrl-C ended; its `.solution` is what was learned until then.

    Every verb calls it before it returns: a loop over runs must end when its user wants it to.

    >>> from attnlearn import Outcome, Solution
    >>> try:
    ...     raise_if_interrupted(Solution.failed(Outcome.INTERRUPTED))
    ... except KeyboardInterrupt as interrupt:
    ...     interrupt.solution.outcome.name
    'INTERRUPTED'
    """
    if solution.outcome.name == "INTERRUPTED":
        interrupt = KeyboardInterrupt(solution.outcome.remedy)
        interrupt.solution = solution  # type: ignore[attr-defined]
        raise interrupt


class OracleError(AttnlearnError):
    """The oracle died, was too slow, or answered with something that is not an output.

    >>> str(OracleError("no answer within 5 s"))
    'no answer within 5 s'
    """


_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")


def one_line(text: str, limit: int = 500) -> str:
    """Words of a file or a stranger, fit to be shown: one line, no control characters, at most `limit` characters.

    A name in a file could otherwise move a terminal's cursor or turn the direction of writing.

    >>> one_line("bad \\x1b[31mtoken\\x1b[0m\\n\\u202eabc")
    'bad token abc'
    """
    line = " ".join(_ESCAPES.sub("", text).split())
    line = "".join(letter for letter in line if unicodedata.category(letter)[0] != "C")
    return line if len(line) <= limit else line[: limit - 3] + "..."


def describe(value: Any, limit: int = 80) -> str:
    """`value` in at most `limit` characters, on one line; arrays by shape and dtype, paths as they were typed."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and tuple(shape) != ():
        return f"an array of shape {tuple(shape)} and dtype {dtype}"
    return one_line(str(value) if isinstance(value, PurePath) else repr(value), limit)


def require(condition: bool, parameter: str, rule: str, value: Any) -> None:
    """Raise the one-line `ValueError` for bad input unless `condition` holds.

    >>> require(-1 >= 1, "num_heads", "must be at least 1", -1)
    Traceback (most recent call last):
    ValueError: num_heads: must be at least 1, got -1
    """
    if not condition:
        raise ValueError(f"{parameter}: {rule}, got {describe(value)}")


def named(rows: Iterable[Row], attribute: str, name: str) -> Row:
    """The last of `rows` whose `attribute` is `name`; a name that none has is a `KeyError` that lists those there are.

    >>> from types import SimpleNamespace as Phase
    >>> named([Phase(name="moment"), Phase(name="fit")], "name", "refine")
    Traceback (most recent call last):
    KeyError: "no 'refine'; there are: moment, fit"
    """
    known = {getattr(row, attribute): row for row in rows}
    if name not in known:
        raise KeyError(f"no {name!r}; there are: {', '.join(map(str, known)) or 'none'}")
    return known[name]
