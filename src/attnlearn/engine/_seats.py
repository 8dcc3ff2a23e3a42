"""Sums over pieces on the workers of a Dask cluster, which keep what they have been given or have derived.

Every thread of a worker is a seat. The chunks are dealt to the seats once and stay there with everything derived from them. A sum
sends its function and its arguments to every seat, once, and brings back a few partial sums. These are the nodes of one binary
tree over all chunks that lie inside one seat, so what is added to what does not depend on the seats: any number of workers
gives the same bytes, as long as their processors and BLAS are alike. A run without a cluster adds the chunks in order and
differs from it by rounding.

When a worker is lost or a new one comes, all seats begin anew: chunks are dealt again, and what had been derived is computed
again from its recipe. What a seat holds is a result that Dask keeps for the client, so it is gone with the client.

Cost: one task a seat and sum, and the pickles of its arguments. What can fail: `EngineError` as in `_cluster`.
"""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import Device
from attnlearn.engine import _calibration as calibration
from attnlearn.engine._cluster import Cluster, connected
from attnlearn.engine._failure import EngineError
from attnlearn.engine._pieces import Pieces, added, piece_of
from attnlearn.engine._threads import limited_blas

Nodes = dict[tuple[int, int], Any]


class Recipe(NamedTuple):
    """How a seat makes pieces from those it has; None for chunks that are given."""

    key: int
    function: Callable | None
    sources: tuple[int, ...]
    given: tuple
    keep: bool
    device: Device | None


class Order(NamedTuple):
    """A sum as a seat is told it: pieces to forget, pieces to drop, pieces to learn, and what to add."""

    forgotten: tuple[int, ...]
    dropped: tuple[int, ...]
    recipes: tuple[Recipe, ...]
    sources: tuple[int, ...]
    function: Callable
    given: tuple


class Store:
    """What one seat holds."""

    def __init__(self) -> None:
        self.held: dict[int, Pieces] = {}


def merged(nodes: Nodes, number: int) -> Nodes:
    """Add siblings of the binary tree over `number` chunks, in place, as far as both are there; a last one alone moves up.

    >>> merged({(0, 0): 1, (0, 1): 2, (0, 2): 4}, 3)
    {(2, 0): 7}
    >>> merged({(0, 1): 2, (0, 2): 4}, 4)
    {(0, 1): 2, (0, 2): 4}
    """
    level = 0
    while 2**level < number:
        for place in sorted(place for height, place in nodes if height == level and place % 2 == 0):
            if (level, place + 1) in nodes:
                both = [nodes.pop((level, place)), nodes.pop((level, place + 1))]
                nodes[level + 1, place // 2] = added(both)
            elif (place + 1) * 2**level >= number:
                nodes[level + 1, place // 2] = nodes.pop((level, place))
        level += 1
    return nodes


def serve(store: Store, order: bytes, chunks: bytes, places: range, number: int) -> bytes | None:
    """On a worker: the sums over `places`, as far as they can be added; None if the seat lost what it had."""
    wanted: Order = pickle.loads(order)
    given: dict[int, dict[int, Any]] = pickle.loads(chunks)
    for key in wanted.forgotten:
        store.held.pop(key, None)
    try:
        for key in wanted.dropped:
            store.held[key].drop()
        for recipe in wanted.recipes:
            sources = tuple(store.held[key] for key in recipe.sources)
            made = Pieces(
                number, recipe.function, sources, recipe.given, keep=recipe.keep, device=recipe.device
            )
            made.values = given.get(recipe.key, made.values)
            store.held[recipe.key] = made
        sources = tuple(store.held[key] for key in wanted.sources)
    except KeyError:
        return None
    nodes: Nodes = {}
    device = sources[0].device
    arguments = wanted.given if device is None else device.to(wanted.given)
    with limited_blas(1), np.errstate(all="ignore"):
        for place in places:
            nodes[0, place] = piece_of(wanted.function, sources, arguments, place)
            merged(nodes, number)
    if device is not None:
        nodes = {node: device.back(value) for node, value in nodes.items()}
    return pickle.dumps(nodes, protocol=pickle.HIGHEST_PROTOCOL)


def dealt(number: int, seats: int) -> list[range]:
    """The chunks of every seat: neighbours, and nearly as many for each.

    >>> dealt(5, 2)
    [range(0, 2), range(2, 5)]
    """
    edges = [number * seat // seats for seat in range(seats + 1)]
    return [range(*ends) for ends in pairwise(edges)]


def _family(sources: tuple[Pieces, ...], seen: set[int] | None = None) -> Iterator[Pieces]:
    """The pieces that these are made from and themselves, sources first."""
    seen = set() if seen is None else seen
    for pieces in sources:
        if pieces.key not in seen:
            yield from _family(pieces.sources, seen)
            seen.add(pieces.key)
            yield pieces


def _recipe(pieces: Pieces) -> Recipe:
    sources = tuple(source.key for source in pieces.sources)
    return Recipe(pieces.key, pieces.function, sources, pieces.given, pieces.keep, pieces.device)


class Lost(Exception):
    """A worker to which chunks were dealt is gone, or has forgotten them."""


class Seat:
    """One thread of a worker: where it is, the future of its store, the keys it knows, and whether it keeps them."""

    def __init__(self, address: str, store: Any) -> None:
        self.address, self.store = address, store
        self.known: dict[int, bool] = {}


class Seats:
    """The seats of a cluster; connected when the first sum is worth it."""

    def __init__(self, address: str) -> None:
        self._address, self._stack = address, ExitStack()
        self._cluster: Cluster | None = None
        self._seats: list[Seat] = []
        self._forgotten: deque[int] = deque()
        self._watched: set[int] = set()

    def worth(self, work: float) -> bool:
        """Whether a sum of so many multiplications takes longer than its messages."""
        return work >= calibration.SEAT_WORK

    def sum(self, sources: tuple[Pieces, ...], function: Callable, given: tuple) -> Any:
        """The sum of `function(*pieces of the sources, *given)`."""
        for _attempt in range(calibration.WORKER_DEATHS):
            try:
                return self._summed(sources, function, given)
            except Lost:
                self._seats = []
        raise EngineError("workers were lost several times in one sum, often for want of memory")

    def close(self) -> None:
        """Let go of the workers."""
        self._seats = []
        self._stack.close()

    def _summed(self, sources: tuple[Pieces, ...], function: Callable, given: tuple) -> Any:
        cluster = self._taken()
        number = sources[0].number
        family = list(_family(sources))
        forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
        keys = tuple(source.key for source in sources)
        orders: dict[tuple, bytes] = {}
        futures = []
        for seat, places in zip(self._seats, dealt(number, len(self._seats))):
            missing = [pieces for pieces in family if pieces.key not in seat.known]
            dropped = tuple(p.key for p in family if not p.keep and seat.known.get(p.key))
            new = (dropped, tuple(pieces.key for pieces in missing))
            if new not in orders:
                order = Order(forgotten, dropped, tuple(map(_recipe, missing)), keys, function, given)
                orders[new] = pickle.dumps(order, protocol=pickle.HIGHEST_PROTOCOL)
            chunks = {
                pieces.key: {place: pieces.values[place] for place in places}
                for pieces in missing
                if pieces.function is None
            }
            packed = pickle.dumps(chunks, protocol=pickle.HIGHEST_PROTOCOL)
            seat.known |= {pieces.key: pieces.keep for pieces in family}
            self._watch(missing)
            futures.append(
                cluster.submit(serve, seat.store, orders[new], packed, places, number, workers=[seat.address])
            )
        nodes: Nodes = {}
        for found in self._results(cluster, futures):
            nodes |= found
        (total,) = merged(nodes, number).values()
        return total

    def _results(self, cluster: Cluster, futures: list) -> Iterator[Nodes]:
        for future in futures:
            while not future.done():
                cluster.wait([future])
                self._all_there(cluster)
            found = cluster.value(future, self._all_there)
            if found is None:
                raise Lost
            yield pickle.loads(found)

    def _all_there(self, cluster: Cluster) -> None:
        if not {seat.address for seat in self._seats} <= set(cluster.threads()):
            raise Lost

    def _watch(self, sent: list[Pieces]) -> None:
        """Have the seats forget these pieces when nobody here needs them."""
        for pieces in sent:
            if pieces.key not in self._watched:
                self._watched.add(pieces.key)
                weakref.finalize(pieces, self._forgotten.append, pieces.key).atexit = False

    def _taken(self) -> Cluster:
        """The cluster, with a seat on every thread of its workers."""
        if self._cluster is None:
            client = self._stack.enter_context(connected(self._address))
            self._cluster = Cluster(client, self._address)
        if not self._seats:
            self._cluster.look()
        there = self._cluster.threads()
        if there != [seat.address for seat in self._seats]:
            self._seats = [Seat(address, self._cluster.submit(Store, workers=[address])) for address in there]
        return self._cluster
