"""Data in pieces, one value for every chunk, and sums over them: what runs where the chunks are.

A `Pieces` is given (the chunks themselves) or derived from others, chunk by chunk and when it is first needed. Only sums come
back. So the same lines run on the threads of this process and, inside `summed_by`, on the workers of a cluster: these keep what
was derived, and compute again what a lost worker had (`_seats`).

Functions of pieces must be pure: they may not change a piece, and must be found by their module's name, as `pickle` does.
Cost: what is derived is kept as long as the `Pieces` lives, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Protocol

from attnlearn.engine import _calibration as calibration
from attnlearn.engine._threads import in_order

_keys = count()


def added(values: Iterable[Any]) -> Any:
    """The sum of arrays or numbers, or of tuples of them, in order and in the memory of the first; None stays None.

    >>> added([(1, None), (2, None)])
    (3, None)
    """
    remaining = iter(values)
    total = next(remaining)
    for value in remaining:
        if isinstance(total, tuple):
            total = _like(total, [_plus(one, other) for one, other in zip(total, value)])
        else:
            total = _plus(total, value)
    return total


def _plus(one: Any, other: Any) -> Any:
    if one is not None:
        one += other
    return one


def _like(kind: tuple, parts: list) -> tuple:
    return kind._make(parts) if hasattr(kind, "_make") else tuple(parts)  # type: ignore[attr-defined]


class Elsewhere(Protocol):
    """Who takes over sums that are worth it."""

    def worth(self, work: float) -> bool:
        """Whether a sum of so many multiplications should not run here."""
        ...

    def sum(self, sources: tuple[Pieces, ...], function: Callable, given: tuple) -> Any:
        """The sum of `function(*pieces of the sources, *given)`."""
        ...


def piece_of(function: Callable, sources: tuple[Pieces, ...], given: tuple, place: int) -> Any:
    """`function` of the pieces of one chunk."""
    scratch: dict[int, Any] = {}
    return function(*(source.at(place, scratch) for source in sources), *given)


_elsewhere: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


@contextmanager
def summed_by(elsewhere: Elsewhere | None) -> Iterator[None]:
    """Inside the block, sums that are worth it run elsewhere."""
    token = _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def worth_moving(work: float) -> bool:
    """Whether a sum of so many multiplications runs elsewhere.

    >>> worth_moving(1e30)
    False
    """
    elsewhere = _elsewhere.get()
    return elsewhere is not None and elsewhere.worth(work)


class Pieces:
    """One value for each of `number` chunks. `work` is the number of multiplications in one piece of a sum over them.

    >>> doubled = Pieces.of([1, 2, 3]).derive(int.__mul__, given=(2,))
    >>> doubled.sum(int.__add__, given=(1,)), list(doubled)
    (15, [2, 4, 6])
    """

    def __init__(
        self,
        number: int,
        function: Callable | None = None,
        sources: tuple[Pieces, ...] = (),
        given: tuple = (),
        *,
        keep: bool = True,
        work: float = 0.0,
    ) -> None:
        self.key, self.number, self.keep, self.work = next(_keys), number, keep, work
        self.function, self.sources, self.given = function, sources, given
        self.values: dict[int, Any] = {}

    @classmethod
    def of(cls, values: Pieces | Sequence[Any]) -> Pieces:
        """Pieces that are given."""
        if isinstance(values, Pieces):
            return values
        found = cls(len(values))
        found.values = dict(enumerate(values))
        return found

    def derive(
        self,
        function: Callable,
        *beside: Pieces,
        given: tuple = (),
        keep: bool = True,
        work: float | None = None,
    ) -> Pieces:
        """`function(piece, pieces of `beside`, *given)` of every chunk, for later; computed anew in every sum unless kept."""
        work = self.work if work is None else work
        return Pieces(self.number, function, (self, *beside), given, keep=keep, work=work)

    def at(self, place: int, scratch: dict[int, Any] | None = None) -> Any:
        """The piece of one chunk; what is not kept is in `scratch` while one chunk is worked on."""
        scratch = {} if scratch is None else scratch
        found = self.values.get(place, scratch.get(self.key))
        if found is None:
            assert self.function is not None, "what is given is there"
            found = self.function(*(source.at(place, scratch) for source in self.sources), *self.given)
            if self.keep:
                self.values[place] = found
            else:
                scratch[self.key] = found
        return found

    def drop(self) -> None:
        """Keep nothing from now on; what is asked for again is computed again."""
        assert self.function is not None, "what is given cannot be computed again"
        self.keep, self.values = False, {}

    def sum(self, function: Callable, *beside: Pieces, given: tuple = ()) -> Any:
        """The sum over the chunks of `function(piece, pieces of `beside`, *given)`; tuples are added part by part."""
        elsewhere = _elsewhere.get()
        if elsewhere is not None and elsewhere.worth(self.work * self.number):
            return elsewhere.sum((self, *beside), function, given)
        return added(self.each(function, *beside, given=given))

    def each(self, function: Callable, *beside: Pieces, given: tuple = ()) -> Iterator[Any]:
        """`function` of every chunk here, in order; on threads where there is `THREAD_WORK` enough for them."""
        sources, places = (self, *beside), range(self.number)
        work = partial(piece_of, function, sources, given)
        return in_order(work, places) if self.work >= calibration.THREAD_WORK else map(work, places)

    def __iter__(self) -> Iterator[Any]:
        return (self.at(place) for place in range(self.number))

    def __len__(self) -> int:
        return self.number
