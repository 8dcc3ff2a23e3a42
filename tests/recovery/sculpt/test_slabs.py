"""The slab inequality: with the true projections it is never violated, whatever the row."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, data
from attnlearn.data import Chunk
from attnlearn.recovery.sculpt._certify_rows import half_spaces_of
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._recheck import prove
from attnlearn.recovery.sculpt._rows import as_batch, explain_batch, explain_pairs, rows_at
from attnlearn.recovery.sculpt._scan import scan
from attnlearn.recovery.sculpt._slabs import Slabs, outer, slab_width, slabs_of
from attnlearn.recovery.sculpt._state import State
from attnlearn.recovery.sculpt._sum import doubt, sum_of_singles
from attnlearn.solve._white import whitening


def rows_of(layer: AttentionLayer, x: np.ndarray, *, causal: bool = False):
    """State with the true sum, and the rows that two tokens explain to a tenth."""
    white = whitening(x, None)
    batch = as_batch(Chunk(x, layer(x), None), white, causal)
    inside = white.enter(layer.parameters)
    total = np.concatenate([inside.w.sum(axis=0), inside.output_bias[None]])
    state = State(
        causal=causal, shift=white.mean, root=white.basis, unroot=white.inverse, sum=total,
        sum_spread=np.zeros_like(total), sum_scale=0.0,
    )  # fmt: skip
    seen = scan(total, batch)
    return state, inside, rows_at(batch, *np.nonzero((seen.pair < 0.1) & batch.seen.any(axis=2)))


def every_pair(state: State, rows) -> Slabs:
    """A slab from every row, without any window (but for weights whose logit is rounding)."""
    pairs = explain_pairs(state.sum, rows)
    each = np.arange(len(rows.query))
    apart = rows.tokens[each, pairs.first] - rows.tokens[each, pairs.second]
    lam = np.clip(pairs.weight, 1e-6, 1 - 1e-6)
    pairs.residual[lam != pairs.weight] = np.inf
    offsets = np.log(lam) - np.log1p(-lam)
    return Slabs(
        outer(rows.queries(), apart), offsets, np.ones_like(lam), each, pairs.first, pairs.second, lam, pairs.residual
    )  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("model", "heads"), [(data.Boolean, 2), (data.Gaussian, 2), (data.Gaussian, 3)])
def test_proved_slabs_contain_every_head(model, heads, bias, seed):
    layer = AttentionLayer.random(heads, 9, scale=4.0, bias=bias, seed=seed)
    x = model(3, 9).sample(60_000, seed=seed)
    state, inside, rows = rows_of(layer, x)
    proved = prove(state, every_pair(state, rows), rows, inside)
    sure = np.isfinite(proved.widths)
    assert sure.sum() > 20
    assert (proved.misses[sure] <= proved.widths[sure] * (1 + 1e-6) + 1e-6).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_filter_sees_the_pairs_that_float64_sees(causal, seed):
    layer = AttentionLayer.random(2, 6, scale=4.0, seed=seed).replace(causal=causal)
    x = data.Gaussian(5, 6).sample(400, seed=seed)
    state, _, _ = rows_of(layer, x, causal=causal)
    batch = as_batch(Chunk(x, layer(x), None), state.whitening, causal)
    seen, rows = scan(state.sum, batch), rows_at(batch, *(place.ravel() for place in np.indices((400, 5))))
    pairs = explain_pairs(state.sum, rows)
    for one, other in zip(pairs, explain_batch(state.sum, batch)):
        np.testing.assert_allclose(one, other.ravel(), atol=1e-6)  # a root of rounding
    size = np.linalg.norm(rows.outputs - state.sum[-1], axis=1)
    two = np.isfinite(pairs.residual)
    assert two.sum() == (400 * 4 if causal else 400 * 5)
    assert not np.isfinite(seen.pair.ravel()[~two]).any()
    np.testing.assert_allclose(seen.pair.ravel()[two], (pairs.residual / size)[two], atol=2e-3)
    clear = two & (pairs.rival > pairs.residual + 0.01 * size)
    assert clear.sum() > 1000
    np.testing.assert_allclose(seen.weight.ravel()[clear], pairs.weight[clear], atol=2e-3)


def test_a_doubtful_sum_is_mended_by_rows_of_one_token(rng, seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    state, _, _ = rows_of(layer, x := data.Boolean(4, 8).sample(30_000, seed=seed))
    batch = as_batch(Chunk(x, layer(x), None), state.whitening, False)
    truth, off = state.sum, 0.03 * rng.standard_normal(state.sum.shape)
    state = dataclasses.replace(state, sum=truth + off, sum_spread=off, sum_scale=0.02)
    rows = rows_at(batch, *np.nonzero(scan(state.sum, batch).single < doubt(state)))
    mended = sum_of_singles(state, rows)
    assert np.linalg.norm(mended.sum - truth) < 0.1 * np.linalg.norm(off)
    assert np.linalg.norm(mended.sum - truth) < doubt(mended) * np.linalg.norm(truth)
    few = rows.take(np.arange(20))
    assert sum_of_singles(state, few) is state


def test_an_error_of_the_sum_is_paid_for(rng, seed):
    """With a wrong sum the residual alone proves nothing; with its error in rho the slabs still hold."""
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    state, inside, rows = rows_of(layer, data.Gaussian(4, 8).sample(20_000, seed=seed))
    wrong = state.sum + 0.003 * rng.standard_normal(state.sum.shape)
    state = dataclasses.replace(state, sum=wrong)
    proved = prove(state, every_pair(state, rows), rows, inside)
    sure = np.isfinite(proved.widths)
    assert sure.sum() > 30
    assert (proved.misses[sure] <= proved.widths[sure] * (1 + 1e-6) + 1e-6).all()


def test_more_vectors_than_outputs_prove_nothing(seed):
    layer = AttentionLayer.random(3, 8, scale=4.0, seed=seed)
    state, inside, rows = rows_of(layer, data.Gaussian(4, 8).sample(2000, seed=seed))
    proved = prove(state, every_pair(state, rows), rows, inside)
    assert (proved.singular == 0).all()
    assert np.isinf(proved.widths).all()


def test_the_window_keeps_false_slabs_out(seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    state, inside, rows = rows_of(layer, data.Boolean(4, 8).sample(60_000, seed=seed))
    heads = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(2, -1)

    def off_by_one(slabs: Slabs) -> float:
        return float(np.mean(np.abs(slabs.normals @ heads.T - slabs.offsets[:, None]).max(axis=1) > 1))

    kept = slabs_of(state, rows, 0.05, SculptConfig())
    assert len(kept.offsets) > 100
    assert off_by_one(kept) < 0.05 < off_by_one(every_pair(state, rows))


def test_half_spaces_have_the_right_sign(seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    state, inside, _ = rows_of(layer, x := data.Gaussian(4, 8).sample(20_000, seed=seed))
    batch = as_batch(Chunk(x, layer(x), None), state.whitening, False)
    rows = rows_at(batch, *np.nonzero(scan(state.sum, batch).single < 0.02))
    heads = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(2, -1)
    found = half_spaces_of(state, rows, heads.mean(axis=0), 10**6)
    assert len(found.thresholds) > 1000
    assert np.mean((found.normals @ heads.T).min(axis=1) < found.thresholds) < 1e-3
    assert ((found.normals @ heads.T) > 0).all()


def test_a_causal_row_uses_only_what_it_sees(seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed).replace(causal=True)
    state, inside, rows = rows_of(layer, data.Gaussian(4, 8).sample(20_000, seed=seed), causal=True)
    pairs = explain_pairs(state.sum, rows)
    two = rows.keys.sum(axis=1) >= 2
    assert (pairs.second[two] <= rows.query[two]).all()
    rows = rows.take(np.flatnonzero(two))
    proved = prove(state, every_pair(state, rows), rows, inside)
    sure = np.isfinite(proved.widths)
    assert sure.sum() > 30
    assert (proved.misses[sure] <= proved.widths[sure] * (1 + 1e-6) + 1e-6).all()


def test_slab_width_limits():
    lam = np.array([0.1, 0.5, 0.9])
    assert (slab_width(np.zeros(3), lam) == 0).all()
    assert np.isinf(slab_width(np.array([0.1, 0.5, 0.1]), lam)).all()
    small = 1e-6
    assert np.allclose(slab_width(np.full(3, small), lam), small / lam + small / (1 - lam), rtol=1e-4)
