"""Derivatives and preconditioner, against JAX's differentiation of the forward map and dense matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._forward import mixed_rows, pattern_rows
from attnlearn._precision import precision
from attnlearn.scores import Bilinear
from attnlearn.solve import _linearize
from attnlearn.solve._chunks import Chunk, cut
from attnlearn.solve._linearize import (
    forward_derivative,
    gradient,
    linearize,
    local_arrays,
    normal_product,
    reverse_derivative,
)
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import columns, eliminate
from attnlearn.solve._step import gauss_newton_step, projected_product, solve_normal

CASES = [(None, False, False), (2, False, False), (None, True, True), (2, True, True)]


def example(rng, rank, causal, padded, n=40, d=5, m=3, k=4):
    layer = AttentionLayer.random(m, d, rank=rank or d, bias=True, causal=causal)
    x = rng.standard_normal((n, k, d))
    mask = None
    if padded:
        mask = rng.random((n, k)) < 0.8
        mask[:, 0] = True
    y = rng.standard_normal((n, k, 3))
    return Bilinear.whole(layer.theta, layer.query_bias).of_rank(rank), cut(x, y, mask)


def outputs(scores, linear, chunk, causal):
    """The layer in JAX, which can differentiate it."""
    theta = scores.a if scores.b is None else jnp.einsum("mdr,mer->mde", scores.a, scores.b)
    keep = jnp.ones(chunk.x.shape[:2]) if chunk.keep is None else chunk.keep
    alpha = pattern_rows(theta, scores.c, chunk.x, keep > 0, causal)
    rows = mixed_rows(alpha, chunk.x).reshape(keep.size, -1)
    return jnp.concatenate([rows, keep.reshape(-1, 1)], axis=1) @ linear


def direction(rng, like):
    return like.shaped(rng.standard_normal(like.flat().size))


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_derivatives_agree_with_autodiff(rng, rank, causal, padded):
    scores, (chunk,) = example(rng, rank, causal, padded)
    linear = rng.standard_normal((scores.c.size + 1, 3))
    local = local_arrays(chunk, scores, linear, causal)
    tangent, u = direction(rng, scores), rng.standard_normal((*chunk.x.shape[:2], 3))
    with precision(np.float64):
        run = lambda s: outputs(s, linear, chunk, causal)  # noqa: E731
        _, expected = jax.jvp(run, (scores,), (tangent,))
        (pulled,) = jax.vjp(run, scores)[1](jnp.asarray(u.reshape(-1, 3)))
    found = forward_derivative(tangent, local)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-11)
    np.testing.assert_allclose(reverse_derivative(u, local).flat(), flat(pulled), atol=1e-10)


def flat(scores):
    return np.concatenate([np.reshape(leaf, -1) for leaf in jax.tree.leaves(scores)])


def linearization(rng, rank, causal, padded, **shape):
    scores, chunks = example(rng, rank, causal, padded, **shape)
    fit = eliminate(scores, chunks, causal)
    return linearize(scores, fit.linear, fit.factor, chunks.astype(np.float32), causal), chunks


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_projected_product_is_the_schur_complement(rng, rank, causal, padded):
    at, (chunk,) = linearization(rng, rank, causal, padded)
    scores = at.scores.astype(np.float64)
    p, tangent = columns(chunk, scores, causal), direction(rng, scores)
    with precision(np.float64):
        run = lambda s: outputs(s, at.linear.astype(np.float64), chunk, causal)  # noqa: E731
        _, u = jax.jvp(run, (scores,), (tangent,))
        follow = np.linalg.lstsq(p, u, rcond=None)[0]
        expected = jax.vjp(run, scores)[1](u - p @ follow)[0]
    product, followed = normal_product(at, tangent.astype(np.float32))
    np.testing.assert_allclose(followed, follow, atol=1e-3)
    for one, two in zip(jax.tree.leaves(product), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, two, atol=1e-4 * np.abs(two).max())


def test_recomputing_gives_the_same_product(rng, monkeypatch):
    kept, _ = linearization(rng, 2, True, True)
    tangent = direction(rng, kept.scores).astype(np.float32)
    monkeypatch.setattr(_linearize, "cache_bytes", lambda: 0)
    recomputed = linearize(kept.scores, kept.linear, kept.factor, kept.chunks, True)
    assert kept.local.keep
    assert not recomputed.local.keep
    for one, two in zip(*(normal_product(at, tangent) for at in (kept, recomputed))):
        np.testing.assert_array_equal(flat(one), flat(two))


def test_threads_give_the_same_bytes(rng, monkeypatch):
    """Chunks on threads are added in order: neither their number nor whether there are any shows in the result."""
    monkeypatch.setattr("attnlearn.solve._chunks.CHUNK_ROWS", 16)
    found = []
    for work, threads in ((0, "2"), (0, "3"), (np.inf, "2")):
        monkeypatch.setattr("attnlearn.engine._calibration.THREAD_WORK", work)
        monkeypatch.setenv("PJRT_NPROC", threads)
        at, chunks = linearization(np.random.default_rng(0), 2, True, True)
        tangent = direction(np.random.default_rng(1), at.scores).astype(np.float32)
        product, follow = normal_product(at, tangent)
        found.append(np.append(product.flat(), follow))
    assert len(chunks) > 4
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("rank", [None, 3])
def test_apply_and_transpose_are_adjoint(rng, rank):
    at, _ = linearization(rng, rank, False, False)
    by = precondition(at)
    t, g = (direction(rng, at.scores).astype(np.float32) for _ in range(2))
    one, two = by.apply(t).flat() @ g.flat(), t.flat() @ by.transpose(g).flat()
    np.testing.assert_allclose(one, two, rtol=1e-3)


def written_out(at, by):
    """The Gauss-Newton matrix in the coordinates of `by`."""
    basis = np.eye(at.scores.flat().size, dtype=np.float32)
    if by:
        rows = [projected_product(at, by, t)[0] for t in basis]
    else:
        rows = [normal_product(at, at.scores.shaped(t))[0].flat() for t in basis]
    return np.asarray(rows, np.float64)


def eigenvalues(at, by):
    return np.linalg.eigvalsh(written_out(at, by))


@pytest.mark.parametrize("rank", [None, 3])
def test_conjugate_gradients_solve_the_written_out_system(rng, rank):
    at, _ = linearization(rng, rank, False, False)
    by = precondition(at)
    right = direction(rng, at.scores).astype(np.float32).flat()
    found = solve_normal(at, by, right, 0.1, 1e-5, 500)
    matrix = written_out(at, by)
    expected = np.linalg.solve(matrix + 0.1 * np.eye(len(matrix)), right)
    np.testing.assert_allclose(found.t, expected, atol=1e-3 * np.abs(expected).max())
    _, follow = normal_product(at, by.apply(at.scores.shaped(found.t)))
    np.testing.assert_allclose(found.follow, follow, atol=1e-3 * np.abs(follow).max())


def test_conjugate_gradients_end_where_there_is_nothing_to_solve(rng):
    at, _ = linearization(rng, 3, False, False)
    by = precondition(at)
    assert solve_normal(at, by, np.zeros_like(at.scores.flat()), 0.0, 1e-3, 50).inner == 0
    # Factors of rank 3 may be turned without any change of Theta: in these directions the matrix is zero.
    turn = rng.standard_normal((len(at.scores.a), 3, 3)).astype(np.float32)
    idle = Bilinear(at.scores.a @ turn, -at.scores.b @ turn.transpose(0, 2, 1), np.zeros_like(at.scores.c))
    assert np.isfinite(solve_normal(at, by, idle.flat(), 0.0, 1e-3, 50).t).all()


def test_preconditioning_evens_out_weak_heads(rng):
    # A head with a hundredth of the others' W makes the bare matrix 1e4 times worse conditioned.
    layer = AttentionLayer.random(3, 6, bias=True)
    w = layer.w * np.array([1.0, 1.0, 0.01])[:, None, None]
    x = rng.standard_normal((120, 5, 6))
    chunks = cut(x, layer.replace(w=w)(x), None)
    scores = Bilinear.whole(layer.theta, layer.query_bias).of_rank(None)
    fit = eliminate(scores, chunks, False)
    at = linearize(scores, fit.linear, fit.factor, chunks.astype(np.float32), False)
    bare, even = eigenvalues(at, None), eigenvalues(at, precondition(at))
    assert bare[-1] / bare[0] > 1e4
    assert even[-1] / even[0] < 100
    assert 0.3 < np.median(even) < 1.5  # curvature about 1, less the share that W and b take


@pytest.mark.parametrize("rank", [None, 3])
def test_the_promised_decrease_is_that_of_the_linear_model(rng, rank):
    at, (chunk,) = linearization(rng, rank, False, False)
    by = precondition(at)
    rest = rng.standard_normal((chunk.x.shape[0] * chunk.x.shape[1], at.linear.shape[1]))
    rest = [(rest / np.linalg.norm(rest)).astype(np.float32)]
    step = gauss_newton_step(at, by, rest, 0.1, 1e-2, 50)
    slope, (product, follow) = gradient(at, rest).flat(), normal_product(at, step.scores)
    expected = -slope @ step.scores.flat() - 0.5 * step.scores.flat() @ product.flat()
    np.testing.assert_allclose(step.predicted, expected, rtol=1e-3)
    np.testing.assert_allclose(step.linear, -follow, rtol=1e-3, atol=1e-4 * np.abs(follow).max())


def test_a_chunk_of_padding_counts_for_nothing():
    chunk = Chunk(np.zeros((3, 4, 5)), np.zeros((3, 4, 2)), np.zeros((3, 4)), np.arange(3))
    layer = AttentionLayer.random(2, 5, bias=True)
    assert not columns(chunk, Bilinear(layer.theta, None, layer.query_bias), False).any()
