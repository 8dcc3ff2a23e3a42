from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.spectral._floor import measured_floor, noise_floor
from attnlearn.recovery.spectral._moment import orthonormal
from attnlearn.recovery.spectral._operator import MomentOperator
from attnlearn.recovery.spectral._rows import RowSource

from ._problems import problem, run, tokens


def prepared(layer, x, **options):
    whole = problem(layer, x, **options)
    state, _ = run(whole, "prepare")
    return whole, state, MomentOperator(RowSource(whole, state, whole.split.fit), state)


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
    _, _, operator = prepared(layer, tokens(rng, kind, 200, 4, 4))
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


@pytest.mark.parametrize("kind", ["normal", "boolean"])
def test_computed_floor_is_the_measured_one(rng, kind):
    layer = AttentionLayer.random(2, 16, rank=4, seed=1)
    _, state, operator = prepared(layer, tokens(rng, kind, 3000, 6, 16))
    ratio = measured_floor(operator, rng) / noise_floor(operator, state)
    assert 0.85 < ratio < 1.3


@pytest.mark.parametrize("kind", ["normal", "boolean", "correlated", "normalized"])
def test_deflation_leaves_the_next_value_at_the_floor(seed, rng, kind):
    layer = AttentionLayer.random(3, 16, rank=6, seed=seed)
    state, evidence = run(problem(layer, tokens(rng, kind, 5000, 6, 16)), "moment", seed)
    values, floor = state.singular_values, state.floor
    assert values[2] > 2 * floor
    assert 0.6 * floor < values[3] < 1.2 * floor
    assert evidence["moment"]["visible"] == 3


def test_span_contains_the_heads(seed, rng):
    layer = AttentionLayer.random(3, 12, seed=seed)
    x = tokens(rng, "normal", 8000, 6, 12)
    state, _ = run(problem(layer, x), "moment", seed)
    theta = state.basis.T @ layer.theta @ state.basis
    shift = np.einsum("mde,d->me", layer.theta, state.mean) @ state.basis
    heads = np.concatenate([theta, shift[:, None]], axis=1).reshape(3, -1)
    span = orthonormal(state.query_basis[:3]).reshape(3, -1)
    inside = np.linalg.norm(heads @ span.T, axis=1) / np.linalg.norm(heads, axis=1)
    assert np.sqrt(1 - inside**2).max() < 0.25


def test_result_does_not_depend_on_the_number_of_threads(monkeypatch, rng):
    layer = AttentionLayer.random(2, 8, seed=0)
    whole = problem(layer, tokens(rng, "normal", 1500, 5, 8))
    results = []
    for threads in (1, 3):
        monkeypatch.setattr("attnlearn.engine._threads.own_threads", lambda threads=threads: threads)
        results.append(run(whole, "unmix")[0].theta)
    assert np.array_equal(*results)


def test_too_few_examples_are_reported_with_a_number_that_is_right(seed, rng):
    layer = AttentionLayer.random(4, 24, rank=6, seed=seed)
    x = tokens(rng, "normal", 12_000, 6, 24)
    with pytest.raises(Stop) as stopped:
        run(problem(layer, x[:160], num_heads=None), "moment", seed)
    assert stopped.value.outcome_name == "TOO_FEW_EXAMPLES"
    needed = stopped.value.evidence["examples_needed"]
    assert 1.5 * 160 <= needed < 6_000
    _, evidence = run(problem(layer, x[: 2 * needed]), "count", seed)
    assert evidence["count"]["heads"] == 4


def test_progress_and_randomness_come_from_the_tools(rng):
    layer = AttentionLayer.random(2, 8, seed=0)
    whole = problem(layer, tokens(rng, "normal", 1500, 5, 8))
    assert np.array_equal(run(whole, "moment", 5)[0].query_basis, run(whole, "moment", 5)[0].query_basis)
    assert Tools(seed=5).rng("moment").random() != Tools(seed=6).rng("moment").random()


def test_heads_of_rank_one_show_twice_and_do_not_break_the_moment(seed, rng):
    layer = AttentionLayer.random(3, 16, rank=1, seed=seed)
    state, evidence = run(problem(layer, tokens(rng, "normal", 8000, 6, 16)), "moment", seed)
    assert np.isfinite(state.singular_values).all()
    assert evidence["moment"]["visible"] >= 3
