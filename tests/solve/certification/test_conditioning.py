"""Conditioning and standard errors, against the written-out Jacobian and against simulated fits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn._forward import attention_forward
from attnlearn._precision import precision
from attnlearn.solve import _calibration as calibration
from attnlearn.solve.certification._conditioning import smallest_singular
from attnlearn.solve.certification._point import prepare
from attnlearn.solve.certification._spectrum import dense_spectrum
from attnlearn.solve.refinement import refine
from benchmarks.cramer_rao import standard_errors


def covariances(
    layer: AttentionLayer, x: np.ndarray, rank: int | None, weights: np.ndarray
) -> list[list[np.ndarray]]:
    """Blocks of (J^T J)^{-1} for every head's Theta, W and c, on the tangent space of rank-r matrices; sequences are weighted."""
    with precision(np.float64):
        params = tuple(map(jnp.asarray, layer.parameters))
        run = lambda p: attention_forward(Parameters(*p), x, layer.causal).ravel()  # noqa: E731
        parts = jax.jacobian(run)(params)
    jacobian = np.concatenate([np.asarray(part).reshape(part.shape[0], -1) for part in parts], axis=1)
    jacobian *= np.repeat(weights, x.shape[1] * layer.out_dim)[:, None]
    m, d, size = layer.num_heads, layer.dim, layer.theta.size
    tangent = np.eye(jacobian.shape[1])
    if rank is not None:
        normal = []
        for head in range(m):
            u, _, vt = np.linalg.svd(layer.theta[head])
            for left in u.T[rank:]:
                for right in vt[rank:]:
                    direction = np.zeros((m, d, d))
                    direction[head] = np.outer(left, right)
                    normal.append(np.append(direction.ravel(), np.zeros(len(tangent) - size)))
        tangent = np.linalg.svd(np.array(normal))[2][len(normal) :].T
    reduced = jacobian @ tangent
    full = tangent @ np.linalg.inv(reduced.T @ reduced) @ tangent.T
    starts = np.cumsum([0, layer.theta.size, layer.w.size, layer.query_bias.size])
    blocks = []
    for start, array in zip(starts, (layer.theta, layer.w, layer.query_bias)):
        step = array.size // m
        blocks.append([full[s : s + step, s : s + step] for s in start + step * np.arange(m)])
    return blocks


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("rough", [False, True])
def test_bounds_hold_for_tokens_of_many_sizes_and_as_soon_as_they_are_good(rng, seed, rank, rough):
    """Every part of a spectrum that `good` is shown holds, long before the eigenvalue is known."""
    layer = AttentionLayer.random(2, 5, rank=rank, bias=True, seed=seed)
    x = rng.standard_normal((80, 5, 5)) * np.exp(rng.uniform(-2, 1.5, 80))[:, None, None]
    shown = []

    def good(conditioning):
        shown.append(conditioning)
        return False

    shown.append(smallest_singular(layer, x, rank=rank, rough=rough, good=good))
    weights = shown[-1].weights
    assert weights.min() < 0.3 < weights.max() == 1
    blocks = covariances(layer, x[: len(weights)], rank, weights)
    for found in shown:
        for name, part in zip(("theta", "w", "query_bias"), blocks):
            own = getattr(layer, name)
            norms = np.linalg.norm(own.reshape(len(own), -1), axis=1) if name != "query_bias" else 1.0
            worst = np.array([np.sqrt(np.linalg.norm(block, 2)) for block in part]) / norms
            assert (getattr(found, name) >= worst).all()
    assert (shown[-1].w <= 100 * np.array([np.sqrt(np.linalg.norm(block, 2)) for block in blocks[1]])).all()


@pytest.mark.parametrize(("rank", "causal"), [(None, False), (2, True)])
def test_bounds_hold_and_standard_errors_agree(rng, seed, rank, causal):
    layer = AttentionLayer.random(2, 5, rank=rank, bias=True, causal=causal, seed=seed)
    x = rng.standard_normal((60, 5, 5)) * [1, 0.5, 2, 1, 1] + 0.3
    found = smallest_singular(layer, x, rank=rank)
    errors = standard_errors(layer, x, 1.0, rank=rank, draws=24)
    blocks = covariances(layer, x[: found.examples], rank, found.weights)
    plain = covariances(layer, x[: found.examples], rank, np.ones(found.examples))
    assert found.examples == errors.examples
    for name, part in zip(("theta", "w", "query_bias"), blocks):
        own = getattr(layer, name)
        norms = np.linalg.norm(own.reshape(len(own), -1), axis=1)
        worst = np.array([np.sqrt(np.linalg.norm(block, 2)) for block in part]) / norms
        # Bounds, and no idle ones: within a factor 30 of the worst case.
        assert (getattr(found, name) >= worst).all()
        assert (getattr(found, name) <= 30 * worst).all()
    for name, part in zip(("theta", "w", "query_bias"), plain):
        exact = np.array([np.sqrt(np.trace(block)) for block in part])
        np.testing.assert_allclose(getattr(errors, name), exact, rtol=0.25)
    assert found.smallest == 1 / max(found.theta.max(), found.w.max())
    assert found.unknowns == np.sum([2 * (25 if rank is None else 16), 2 * 5, 2 * 25, 5])


def test_too_few_examples_bind_nothing(rng):
    layer = AttentionLayer.random(3, 6)
    found = smallest_singular(layer, rng.standard_normal((5, 4, 6)))
    assert found.equations < found.unknowns
    assert found.smallest == 0.0


def test_heads_of_different_ranks_are_bound_like_whole_ones(rng, seed):
    layer = AttentionLayer.random(3, 6, rank=2, seed=seed)
    u, s, vt = np.linalg.svd(layer.theta)
    s[1, 1:], s[2] = 0, 0
    layer = layer.replace(theta=(u * s[:, None, :]) @ vt)
    x = rng.standard_normal((400, 4, 6))
    by_rank, whole = (smallest_singular(layer, x, rank=rank) for rank in (2, None))
    assert by_rank.lower > 0.1 * whole.lower > 0
    assert by_rank.theta[2] == 0 < whole.theta[2] < np.inf  # a rank of zero leaves Theta no freedom
    assert (by_rank.w <= 3 * whole.w).all()


def test_equal_heads_are_not_determined(rng):
    layer = AttentionLayer.random(2, 5, bias=True)
    twin = layer.replace(
        theta=np.repeat(layer.theta[:1], 2, axis=0), query_bias=np.repeat(layer.query_bias[:1], 2, axis=0)
    )
    x = rng.standard_normal((60, 5, 5))
    assert smallest_singular(twin, x).smallest < 1e-2 * smallest_singular(layer, x).smallest


@pytest.mark.slow
def test_standard_errors_predict_a_noisy_fit(rng, seed):
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed)
    x = rng.standard_normal((400, 5, 6))
    y = layer(x) + 0.01 * rng.standard_normal((400, 5, 6))
    found = refine(layer, x, y)
    errors = standard_errors(layer, x, 0.01, draws=8)
    shrunk = np.sqrt(errors.examples / 400)
    for name in ("theta", "w"):
        off = np.linalg.norm(getattr(found.layer, name) - getattr(layer, name), axis=(1, 2))
        np.testing.assert_allclose(off, shrunk * getattr(errors, name), rtol=0.5)


def test_a_spectrum_that_overflows_resolves_nothing(monkeypatch) -> None:
    """No eigenvalue, so every bound on parameters is infinite and no claim about them can be established."""
    from attnlearn.solve import _calibration
    from attnlearn.solve.certification import _spectrum

    def overflown(self, steps, deadline):
        self.diagonal += [np.nan] * steps
        self.beside += [np.inf] * steps

    monkeypatch.setattr(_spectrum.Lanczos, "extend", overflown)
    layer, x = AttentionLayer.random(2, 3, seed=0), np.random.default_rng(0).standard_normal((60, 4, 3))
    written = smallest_singular(layer, x)
    assert written.guaranteed > 0  # the matrix of so small a layer is written out
    assert np.isfinite(written.theta).all()
    assert np.isinf(written.w).all()  # how much W can undo is not known
    monkeypatch.setattr(_calibration, "MATRIX_MOST", 0)
    found = smallest_singular(layer, x)
    assert found.lower == found.guaranteed == 0
    assert np.isinf(found.theta).all()


def test_whoever_waits_is_told_how_far_it_came(rng):
    told = []
    layer, x = AttentionLayer.random(2, 4), rng.standard_normal((60, 5, 4))
    found = smallest_singular(layer, x, on_step=lambda **figures: told.append(figures))
    assert [figures["products"] for figures in told] == sorted({figures["products"] for figures in told})
    assert told[-1]["products"] == found.lanczos_steps
    assert told[-1]["guaranteed"] == pytest.approx(found.guaranteed)
    assert found.lower < found.guaranteed  # for W and b too


def test_a_badly_determined_layer_is_shown_more_examples(rng, monkeypatch):
    layer, x = AttentionLayer.random(2, 4), rng.standard_normal((2_000, 5, 4))
    before = smallest_singular(layer, x)
    assert before.examples < len(x)
    monkeypatch.setattr("attnlearn.solve._calibration.MANY_PRODUCTS", 1)
    monkeypatch.setattr("attnlearn.solve._calibration.INNER_MOST", 1)
    after = smallest_singular(layer, x)
    assert after.examples == len(x)
    assert after.equations == len(x) * 5 * 4
    # Per unit of output error on all examples the parameters are bound more tightly.
    assert (after.theta < before.theta).all()


@pytest.mark.parametrize("rank", [None, 2])
def test_the_matrix_written_out_has_the_eigenvalue_that_lanczos_finds(rng, seed, rank):
    layer, x = AttentionLayer.random(2, 5, rank=rank, seed=seed), rng.standard_normal((300, 5, 5))
    found = smallest_singular(layer, x, rank=rank, rough=True)
    assert found.guaranteed < found.eigenvalue  # by Lanczos, which guarantees a part only
    point = prepare(layer, x, None, rank, False, found.examples, dtype=np.float64, even=True)
    whole = dense_spectrum(point, None)
    np.testing.assert_allclose(whole.estimate, found.eigenvalue, rtol=1e-3)
    assert found.guaranteed <= whole.lower <= whole.estimate


def test_a_small_layer_that_attends_weakly_is_bound_all_the_same(rng, seed):
    """Mixtures of weak heads change the outputs by so little that float32 does not see it."""
    layer, x = AttentionLayer.random(2, 4, scale=1e-3, seed=seed), rng.standard_normal((400, 5, 4))
    seen = []
    found = smallest_singular(layer, x, on_step=lambda **figures: seen.append(figures))
    assert 0 < found.lower < 1e-5
    assert {"of"} <= seen[-1].keys()
    blocks = covariances(layer, x[: found.examples], None, found.weights)
    norms = np.linalg.norm(layer.theta, axis=(1, 2))
    worst = np.array([np.sqrt(np.linalg.norm(block, 2)) for block in blocks[0]]) / norms
    assert (found.theta >= 0.99 * worst).all()


def test_a_hurried_call_gives_up_and_binds_nothing(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((400, 5, 4))
    patient = smallest_singular(layer, x)
    assert smallest_singular(layer, x, hurried=True).lower == patient.lower > 0
    monkeypatch.setattr("attnlearn.solve._calibration.MANY_PRODUCTS", 1)
    monkeypatch.setattr("attnlearn.solve._calibration.INNER_MOST", 1)
    monkeypatch.setattr("attnlearn.solve._calibration.MATRIX_MOST", 0)  # nor is the matrix written out
    found = smallest_singular(layer, x, hurried=True)
    assert found.lower == 0
    assert found.smallest == 0
    assert np.isinf(found.theta).all()
    assert np.isinf(found.w).all()
    assert found.examples == len(x)  # every example was tried before


def test_a_hurried_call_on_a_small_layer_writes_the_matrix_out(rng, seed, monkeypatch):
    layer, x = AttentionLayer.random(2, 4, seed=seed), rng.standard_normal((60, 5, 4))
    patient = smallest_singular(layer, x, rough=True)
    monkeypatch.setattr("attnlearn.solve._calibration.MANY_PRODUCTS", 1)
    monkeypatch.setattr("attnlearn.solve._calibration.INNER_MOST", 1)
    found = smallest_singular(layer, x, hurried=True, rough=True)
    assert found.examples == patient.examples == len(x)
    assert found.guaranteed == pytest.approx(patient.eigenvalue, rel=1e-3)


def test_a_rough_look_at_few_outputs_binds_less_and_still_bounds(rng, seed, monkeypatch):
    """With four combinations of eight outputs every bound holds for all of them, and is within a factor of ten of the sharp one."""
    monkeypatch.setattr(calibration, "PIECE", 2)
    monkeypatch.setattr("attnlearn.solve.certification._point.sequences_wanted", lambda *_: 60)
    layer = AttentionLayer.random(1, 4, bias=True, seed=seed)
    layer = AttentionLayer(layer.theta, rng.standard_normal((1, 4, 8)), layer.query_bias)
    x = rng.standard_normal((60, 5, 4))
    rough, sharp = (smallest_singular(layer, x, rough=rough) for rough in (True, False))
    for name, part in zip(("theta", "w", "query_bias"), covariances(layer, x, None, rough.weights)):
        own = getattr(layer, name)
        worst = np.sqrt(np.linalg.norm(part[0], 2))
        worst /= 1 if name == "query_bias" else np.linalg.norm(own)
        assert worst <= getattr(rough, name)[0] <= 10 * getattr(sharp, name)[0]
