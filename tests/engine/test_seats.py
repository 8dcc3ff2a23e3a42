"""Sums on a cluster: the same bytes from any number of workers, also when one is lost on the way."""

from __future__ import annotations

import gc
import pickle
from contextlib import closing, contextmanager

import numpy as np
import pytest

from attnlearn.engine._pieces import Pieces, added, summed_by
from attnlearn.engine._seats import Order, Recipe, Seats, Store, dealt, merged, serve

# Dask and tornado close sockets late when a worker is killed; nothing a caller could do about it.
QUIET = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13])
def test_what_is_added_to_what_does_not_depend_on_the_seats(number, rng):
    """Brackets show the order of the additions."""
    wanted = None
    for seats in range(1, number + 2):
        parts = []
        for places in dealt(number, seats):
            nodes = {}
            for place in places:
                nodes[0, place] = Bracket(str(place))
                merged(nodes, number)
            parts.append(nodes)
        together = {key: value for nodes in parts for key, value in nodes.items()}
        ((_, root),) = merged(together, number).items()
        wanted = wanted or root.text
        assert root.text == wanted
    assert wanted.count("+") == number - 1


class Bracket:
    def __init__(self, text: str) -> None:
        self.text = text

    def __iadd__(self, other: Bracket) -> Bracket:
        self.text = f"({self.text}+{other.text})"
        return self


def test_a_store_that_lost_what_it_had_says_so():
    order = Order((), (), (Recipe(2, scaled, (1,), (), True, None),), (2,), power, (2,))
    assert serve(Store(), pickle.dumps(order), pickle.dumps({}), range(1), 1) is None


def scaled(values: np.ndarray, factor: float) -> np.ndarray:
    return factor * values


def power(values: np.ndarray, exponent: int) -> np.ndarray:
    return values**exponent


def both(values: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, float]:
    return values * others, float(values.sum())


class Greedy(Seats):
    """Takes every sum."""

    def worth(self, work: float) -> bool:
        return True


@contextmanager
def workers(number: int):
    """Workers in this process: what a seat does is the same, and they are there at once."""
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    with distributed.LocalCluster(
        n_workers=number, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        yield cluster


@QUIET
@pytest.mark.timeout(120)
def test_workers_keep_pieces_and_may_be_lost(rng):
    given = Pieces.of(list(rng.standard_normal((7, 50))))
    with workers(2) as cluster, closing(Greedy(cluster.scheduler_address)) as seats:
        threes = given.derive(scaled, given=(3.0,))
        here = added(threes.each(power, given=(2,)))
        with summed_by(seats):
            first = threes.sum(power, given=(2,))
            np.testing.assert_allclose(first, here, rtol=1e-14)
            product, total = threes.sum(both, given)
            np.testing.assert_allclose(product, 3 * sum(np.square(one) for one in given), rtol=1e-13)
            np.testing.assert_allclose(total, 3 * sum(one.sum() for one in given), rtol=1e-12)
            threes.drop()
            assert not threes.values
            cluster.sync(cluster.workers[0].close, timeout=5, reason="lost")
            np.testing.assert_array_equal(threes.sum(power, given=(2,)), first)
            key = threes.key
            del threes
            gc.collect()
            assert key in seats._forgotten
            with pytest.raises(ZeroDivisionError):
                given.sum(fail)
            assert given.sum(scaled, given=(0.0,)).tolist() == [0.0] * 50


def fail(_values: np.ndarray) -> None:
    raise ZeroDivisionError
