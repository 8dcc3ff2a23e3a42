"""The smallest eigenvalue: written out it is exact, by Lanczos it is guaranteed from below."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import on_threads
from attnlearn.solve.certification._point import (
    free_coordinates,
    kernels,
    output_product,
    prepare,
    score_product,
    size_of,
)
from attnlearn.solve.certification._spectrum import (
    Lanczos,
    Tridiagonal,
    dense_spectrum,
    lanczos_spectrum,
    largest_undone,
    spared_share,
    steps_needed,
)


@pytest.mark.parametrize("rank", [None, 2])
def test_lanczos_guarantees_no_more_than_there_is(rng, seed, rank):
    layer, x = AttentionLayer.random(2, 4, rank=rank, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        double, single = (
            prepare(layer, x, None, rank, False, dtype=dtype) for dtype in (np.float64, np.float32)
        )
        exact = dense_spectrum(double, None)
        found = lanczos_spectrum(single, seed, 1e-6, more=False, on_step=None)
    assert 0 < found.lower <= exact.estimate
    assert found.lower >= calibration.ENOUGH_SHARE * found.estimate
    np.testing.assert_allclose(found.estimate, exact.estimate, rtol=1e-2)


@pytest.mark.parametrize("rank", [None, 2])
def test_what_is_spared_bounds_what_w_can_undo(rng, seed, rank):
    """S - tau A >= lower, against both matrices written out."""
    layer, x = AttentionLayer.random(2, 4, rank=rank, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        point = prepare(layer, x, None, rank, False, dtype=np.float64, even=True)
        spared = spared_share(point, seed)
        found = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, spared=spared)
        kernel, units = kernels(point), np.eye(size_of(point))
        bound, moved = (
            np.stack([product(t) for t in units])
            for product in (lambda t: score_product(point, t), lambda t: output_product(point, kernel, t))
        )
        free = np.stack([free_coordinates(point, t) for t in units])
    assert 0 < found.spared == spared
    least = np.linalg.eigvalsh(bound - spared * moved + np.eye(len(free)) - (free + free.T) / 2)[0]
    assert 0 < found.lower <= least
    assert found.lower >= calibration.ENOUGH_SHARE * least


def test_too_much_spared_is_noticed(rng, seed):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        point = prepare(layer, x, None, None, False)
        found = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, spared=0.9)
        plain = lanczos_spectrum(point, seed, 5e-7, more=False, on_step=None)
    assert found == plain
    assert found.spared == 0


class _Diagonal(Lanczos):
    """Lanczos on a diagonal matrix, without a layer."""

    def __init__(self, entries: np.ndarray, rng: np.random.Generator) -> None:
        start = rng.standard_normal(len(entries))
        self.product, self.norm = entries.__mul__, float(np.linalg.norm(start))
        self.previous, self.current = np.zeros_like(start), start / self.norm
        self.kept, self.most, self.diagonal, self.beside = [], 100, [], []


@pytest.fixture
def diagonal(monkeypatch):
    monkeypatch.setattr("attnlearn.solve.certification._spectrum.free_coordinates", lambda _point, t: t)
    monkeypatch.setattr(_Diagonal, "point", None, raising=False)
    return _Diagonal


def test_a_guarantee_takes_steps_and_is_never_more_than_there_is(diagonal, rng):
    entries = np.concatenate([np.linspace(0.1, 2, 500), [20, 30, 50]])
    run, lower, upper = diagonal(entries, rng), [], []
    for _ in range(12):
        run.extend(calibration.LANCZOS_BLOCK, None)
        found = run.tridiagonal(1e-6)
        lower.append(found.lower())
        upper.append(found.upper())
    assert lower[0] == 0
    assert lower == sorted(lower)
    assert max(lower) <= 0.1 <= lower[-1] / 0.9
    assert min(upper) >= 50
    assert upper[-1] <= 51


def test_a_few_large_eigenvalues_cost_few_steps(diagonal, rng):
    """The classical bound, which knows only the ends of the spectrum, takes as many steps as the condition number says."""
    bulk = np.linspace(0.5, 2, 800)
    run = diagonal(np.concatenate([bulk, [200.0, 300.0]]), rng)
    run.extend(4 * calibration.LANCZOS_BLOCK, None)
    exponent = np.log(1.648 * np.sqrt(len(bulk)) / 1e-6)
    assert run.tridiagonal(1e-6).lower() > 0.25
    assert exponent / 2 * np.sqrt(300 / 0.5) > 200


def test_the_bound_fails_no_more_often_than_it_says(diagonal, rng):
    """With a large delta the guarantee is wrong now and then: at most delta of the starts."""
    entries, wrong = np.concatenate([[0.1], np.linspace(1, 2, 60)]), 0
    for _ in range(400):
        run = diagonal(entries, rng)
        run.extend(6, None)
        wrong += run.tridiagonal(0.3).lower() > 0.1
    assert 0 < wrong <= 0.3 * 400


def test_nothing_is_guaranteed_beyond_rounding():
    values = np.array([1e-7, 1.0, 2.0])
    found = Tridiagonal(values, np.full(3, 1e-12), 20.0)
    assert found.excess(0.0) > 0
    assert found.lower() == 0


def test_what_w_can_undo_is_bounded_from_above(rng, seed):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        point = prepare(layer, x, None, None, False, dtype=np.float64)
        kernel, units = kernels(point), np.eye(size_of(point))
        matrix = np.stack([output_product(point, kernel, t) - score_product(point, t) for t in units])
        largest = np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]
        assert largest <= largest_undone(point, seed, 1e-6) <= 2.5 * largest


def test_few_steps_with_more_examples_at_hand_give_up(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
    monkeypatch.setattr(calibration, "INNER_MOST", 1)
    with on_threads():
        point = prepare(layer, x, None, None, False)
        assert lanczos_spectrum(point, seed, 1e-6, more=True, on_step=None) is None
        assert lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None) is not None


def test_a_hurried_run_gives_up_where_it_would_take_many_steps_and_guarantees_nothing(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((200, 5, 4))
    with on_threads():
        point = prepare(layer, x, None, None, False)
        patient, easy = (
            lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, hurried=hurried)
            for hurried in (False, True)
        )
        assert easy == patient  # few steps are enough, so there is nothing to give up
        monkeypatch.setattr(calibration, "MANY_PRODUCTS", 1)
        monkeypatch.setattr(calibration, "INNER_MOST", 1)
        found = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None, hurried=True)
        more = lanczos_spectrum(point, seed, 1e-6, more=True, on_step=None, hurried=True)
        whole = lanczos_spectrum(point, seed, 1e-6, more=False, on_step=None)
    assert found.lower == 0 < found.estimate
    assert found.steps < whole.steps
    assert whole == patient
    assert more is None  # further examples come first


@pytest.mark.parametrize(
    ("steps", "excess", "before", "start", "least", "most"),
    [
        (
            144,
            -10.5,
            -9.2,
            -21.7,
            144,
            calibration.INNER_MOST,
        ),  # a further small Ritz value: the average counts
        (128, -9.2, -12.3, -21.7, 128, 200),  # the last steps win more than the average
        (
            128,
            -20.9,
            -21.0,
            -20.3,
            calibration.INNER_MOST,
            np.inf,
        ),  # nothing was won: more examples are wanted
        (128, -21.0, -20.9, -20.3, np.inf, np.inf),
        (64, 0.1, -3.0, -20.0, 64, 64),
    ],
)
def test_steps_are_expected_to_win_what_they_won(steps, excess, before, start, least, most):
    """Measured on strong heads in 66 dimensions, whose small eigenvalues turn up one after another."""
    assert least <= steps_needed(steps, excess, before, start) <= most
