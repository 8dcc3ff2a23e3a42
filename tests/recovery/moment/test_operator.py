"""The moment as an operator: products against the definition, pair by pair, wherever they are computed."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Engine
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery.moment._operator import MomentOperator, orthonormal
from tests.recovery._problems import problem, signals, tokens


def operator_of(whole: Problem, engine: Engine | None = None) -> MomentOperator:
    found = signals(whole)
    source = RowSource(whole.examples, found, whole.split.fit)
    return MomentOperator(source, found, *([] if engine is None else [engine]))


def dense_moment(operator: MomentOperator) -> np.ndarray:
    """The matrix of the operator by its definition, pair by pair."""
    (rows,) = operator.source.whole()
    z, r, visible = (None if part is None else np.asarray(part, float) for part in rows)
    n, k, d = z.shape
    correlation = np.zeros((k, k)) if operator.correlation is None else operator.correlation
    total, pairs = 0.0, 0.0
    for a in range(k):
        for b in range(k):
            if a == b or (visible is not None and not visible[0, a, b]):
                continue
            e = z[:, b] - correlation[a, b] * z[:, a]
            query = np.column_stack([z[:, a], np.ones(n)])
            square = e[:, :, None] * e[:, None, :] - (1 - correlation[a, b] ** 2) * np.eye(d)
            total = total + np.einsum("nu,npq,no->upqo", query, square, r[:, a], optimize=True)
            pairs += n
    return total / pairs


@pytest.mark.parametrize("kind", ["normal", "correlated"])
@pytest.mark.parametrize("causal", [False, True])
def test_streamed_products_are_those_of_the_definition(rng, kind, causal):
    layer = AttentionLayer.random(2, 4, bias=True, seed=0, causal=causal)
    operator = operator_of(problem(layer, tokens(rng, kind, 200, 4, 4)))
    moment = dense_moment(operator)
    right = rng.standard_normal((3, 4, 4))
    left = rng.standard_normal((3, 5, 4))
    size = np.abs(moment).max()
    forth = np.einsum("upqo,lqo->lup", moment, right)
    back = np.einsum("upqo,lup->lqo", moment, left)
    assert np.abs(operator.times(right) - forth).max() < 1e-4 * size
    assert np.abs(operator.transposed_times(left) - back).max() < 1e-4 * size
    known = np.array([0.7]), rng.standard_normal((1, 5, 4)), rng.standard_normal((1, 4, 4))
    there = np.sum(left * operator.times(right, known))
    assert there == pytest.approx(np.sum(right * operator.transposed_times(left, known)), rel=1e-3, abs=1e-3)


def test_products_of_two_processes_are_those_of_one(rng):
    whole = problem(AttentionLayer.random(2, 4, seed=0), tokens(rng, "normal", 200, 4, 4))
    right = rng.standard_normal((3, 4, 4))
    here, there = (operator_of(whole, engine) for engine in (Engine(), Engine(workers=2)))
    assert np.array_equal(here.times(right), there.times(right))


def test_signs_of_all_ones_change_nothing_and_random_ones_kill_the_mean(rng):
    operator = operator_of(
        problem(AttentionLayer.random(1, 4, seed=0, scale=3.0), tokens(rng, "normal", 2000, 4, 4))
    )
    right = operator.start(rng, 6)
    same = operator.flipped(np.ones(operator.source.num, np.float32))
    mixed = operator.flipped(rng.choice(np.array([-1, 1], np.float32), operator.source.num))
    assert np.array_equal(operator.times(right), same.times(right))
    assert np.linalg.norm(mixed.times(right)) < 0.5 * np.linalg.norm(operator.times(right))


def test_starts_are_orthonormal(rng):
    blocks = orthonormal(rng.standard_normal((5, 3, 4))).reshape(5, -1)
    assert np.abs(blocks @ blocks.T - np.eye(5)).max() < 1e-12


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_products_on_a_cluster_are_those_of_this_process(rng, monkeypatch) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    monkeypatch.setattr("attnlearn.engine._calibration.SEAT_WORK", 0.0)
    whole = problem(AttentionLayer.random(2, 4, seed=0), tokens(rng, "normal", 200, 4, 4))
    here, right = operator_of(whole), rng.standard_normal((3, 4, 4))
    signs = rng.choice(np.array([-1, 1], np.float32), here.source.num)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp"
    ) as cluster:
        engine = Engine.parse(f"dask:{cluster.scheduler_address}")
        with engine.summing():
            there = operator_of(whole, engine)
            assert there._there is not None
            found = [operator.times(right) for operator in (there, there.flipped(signs))]
    wanted = [operator.times(right) for operator in (here, here.flipped(signs))]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
