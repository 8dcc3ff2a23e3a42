"""Data in pieces, one value for every chunk, and sums over them: what runs where the chunks are.

A `Pieces` is given (the chunks themselves) or derived from others, chunk by chunk and when it is first needed. Only sums come
back. So the same lines run on the threads of this process and, inside `summed_by`, on the workers of a cluster: these keep what
was derived, and compute again what a lost worker had (`_seats`).

Functions of pieces must be pure: they may not change a piece, and must be found by their module's name, as `pickle` does.
Cost: what is derived is kept as long as the `Pieces` lives, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from attnlearn._arrays import Device
from attnlearn.engine import _calibration as calibration
from attnlearn.engine._threads import in_order

_keys = count()
Value = TypeVar("Value")


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
    """`function` of the pieces of one chunk, which are where those of the first source are."""
    scratch: dict[int, Any] = {}
    return function(*_together(sources, place, scratch), *given)


def _together(sources: tuple[Pieces, ...], place: int, scratch: dict[int, Any]) -> list[Any]:
    device = sources[0].device
    found = [source.at(place, scratch) for source in sources]
    if device is None:
        return found
    return [piece if source.device else device.to(piece) for source, piece in zip(sources, found)]


_elsewhere: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


def summed_by(elsewhere: Elsewhere | None) -> AbstractContextManager[None]:
    """Inside the block, sums that are worth it run elsewhere."""
    return _set(_elsewhere, elsewhere)


_device: ContextVar[Device | None] = ContextVar("device", default=None)


def computed_on(device: Device | None) -> AbstractContextManager[None]:
    """Inside the block, chunks that are cut are computed on this device."""
    return _set(_device, device)


@contextmanager
def _set(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def current_device() -> Device | None:
    """Where chunks that are cut now are computed; None: NumPy.

    >>> current_device() is None
    True
    """
    return _device.get()


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
        device: Device | None = None,
    ) -> None:
        self.key, self.number, self.keep, self.work = next(_keys), number, keep, work
        self.function, self.sources, self.given = function, sources, given
        self.device = sources[0].device if sources else device
        self.values: dict[int, Any] = {}
        self._placed: dict[int, Any] = {}

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
        if self.function is None:
            return self.values[place] if self.device is None else self._on_device(place)
        if place in self.values:
            return self.values[place]
        if self.key not in scratch:
            found = self.function(*_together(self.sources, place, scratch), *self._arguments())
            if self.keep:
                self.values[place] = found
                return found
            scratch[self.key] = found
        return scratch[self.key]

    def _on_device(self, place: int) -> Any:
        assert self.device is not None
        if place not in self._placed:
            self._placed[place] = self.device.to(self.values[place])
        return self._placed[place]

    def _arguments(self) -> tuple:
        """What is given, on the device, moved once."""
        if self.device is None:
            return self.given
        if not self._placed:
            self._placed[0] = self.device.to(self.given)
        return self._placed[0]

    def drop(self) -> None:
        """Keep nothing from now on; what is asked for again is computed again."""
        assert self.function is not None, "what is given cannot be computed again"
        self.keep, self.values = False, {}

    def sum(self, function: Callable, *beside: Pieces, given: tuple = ()) -> Any:
        """The sum over the chunks of `function(piece, pieces of `beside`, *given)`; tuples are added part by part."""
        elsewhere = _elsewhere.get()
        if elsewhere is not None and elsewhere.worth(self.work * self.number):
            return elsewhere.sum((self, *beside), function, given)
        total = added(self.each(function, *beside, given=given))
        return total if self.device is None else self.device.back(total)

    def each(self, function: Callable, *beside: Pieces, given: tuple = ()) -> Iterator[Any]:
        """`function` of every chunk here, in order; on threads where there is `THREAD_WORK` enough for them."""
        sources, places = (self, *beside), range(self.number)
        if self.device is not None:  # which has threads of its own
            return map(partial(piece_of, function, sources, self.device.to(given)), places)
        work = partial(piece_of, function, sources, given)
        return in_order(work, places) if self.work >= calibration.THREAD_WORK else map(work, places)

    def __iter__(self) -> Iterator[Any]:
        return (self._here(place) for place in range(self.number))

    def _here(self, place: int) -> Any:
        if self.function is None:
            return self.values[place]
        return self.at(place) if self.device is None else self.device.back(self.at(place))

    def __len__(self) -> int:
        return self.number
