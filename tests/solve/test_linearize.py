"""Derivatives and preconditioner, against JAX's own differentiation and dense matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn._precision import precision
from attnlearn.solve import _linearize
from attnlearn.solve._chunks import Chunks, stack_chunks
from attnlearn.solve._linearize import (
    forward_derivative,
    gradient,
    linearize,
    local_arrays,
    normal_product,
    reverse_derivative,
)
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import eliminate
from attnlearn.solve._scores import Scores, mixed, patterns
from attnlearn.solve._step import gauss_newton_step, inner_product, projected_product, solve_normal

CASES = [(None, False, False), (2, False, False), (None, True, True), (2, True, True)]


def example(rng, rank, causal, padded, n=40, d=5, m=3, k=4):
    layer = AttentionLayer.random(m, d, rank=rank or d, bias=True, causal=causal)
    x = rng.standard_normal((n, k, d))
    mask = None
    if padded:
        mask = rng.random((n, k)) < 0.8
        mask[:, 0] = True
    y = rng.standard_normal((n, k, 3))
    return Scores.from_theta(layer.theta, layer.query_bias, rank), Chunks(
        *map(jnp.asarray, stack_chunks(x, y, mask))
    )


def outputs(scores, linear, x, keep, causal):
    alpha, _, _ = patterns(scores, x, keep, causal)
    return mixed(alpha, x, keep) @ linear


def direction(rng, like):
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape)), like)


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_derivatives_agree_with_autodiff(rng, rank, causal, padded):
    with precision(np.float64):
        scores, chunks = example(rng, rank, causal, padded)
        scores = scores.astype(jnp.float64)
        x, keep = chunks.x[0], chunks.keep[0]
        linear = jnp.asarray(rng.standard_normal((scores.c.size + 1, 3)))
        local = jax.jit(local_arrays, static_argnums=4)(scores, linear, x, keep, causal)
        tangent, u = direction(rng, scores), jnp.asarray(rng.standard_normal((*keep.shape, 3)))

        def run(s):
            return outputs(s, linear, x, keep, causal)

        _, expected = jax.jvp(run, (scores,), (tangent,))
        np.testing.assert_allclose(
            forward_derivative(tangent, local).reshape(expected.shape), expected, atol=1e-11
        )
        _, pull = jax.vjp(run, scores)
        (expected,) = pull(u.reshape(-1, 3))
        for found, wanted in zip(jax.tree.leaves(reverse_derivative(u, local)), jax.tree.leaves(expected)):
            np.testing.assert_allclose(found, wanted, atol=1e-10)


def linearization(rng, rank, causal, padded, **shape):
    scores, chunks = example(rng, rank, causal, padded, **shape)
    scores = scores.astype(jnp.float64)
    fit = eliminate(scores, chunks, causal)
    single = chunks.astype(jnp.float32)
    return linearize(scores, fit.linear, fit.factor, single.x, single.keep, causal), chunks


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_projected_product_is_the_schur_complement(rng, rank, causal, padded):
    with precision(np.float64):
        at, chunks = linearization(rng, rank, causal, padded)
        scores = at.scores.astype(jnp.float64)
        x, keep = (array.reshape(-1, *array.shape[2:]) for array in (chunks.x, chunks.keep))
        alpha, _, _ = patterns(scores, x, keep, causal)
        p, tangent = mixed(alpha, x, keep), direction(rng, scores)
        run = lambda s: outputs(s, at.linear.astype(jnp.float64), x, keep, causal)  # noqa: E731
        _, u = jax.jvp(run, (scores,), (tangent,))
        follow = np.linalg.lstsq(p, u, rcond=None)[0]
        expected = jax.vjp(run, scores)[1](u - p @ follow)[0]
        tangent = tangent.astype(np.float32)
        product, followed = jax.jit(normal_product, static_argnums=2)(at, tangent, causal)
        np.testing.assert_allclose(followed, follow, atol=1e-3)
        for one, two in zip(jax.tree.leaves(product), jax.tree.leaves(expected)):
            np.testing.assert_allclose(one, two, atol=1e-4 * np.abs(two).max())


def test_recomputing_gives_the_same_product(rng, monkeypatch):
    with precision(np.float64):
        kept, _ = linearization(rng, 2, True, True)
        tangent = direction(rng, kept.scores).astype(jnp.float32)
        monkeypatch.setattr(_linearize, "cache_bytes", lambda: 0)
        recomputed = linearize(kept.scores, kept.linear, kept.factor, kept.x, kept.keep, True)
        assert kept.cache is not None
        assert recomputed.cache is None
        pairs = zip(*(jax.tree.leaves(normal_product(at, tangent, True)) for at in (kept, recomputed)))
        for one, two in pairs:
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [None, 3])
def test_apply_and_transpose_are_adjoint(rng, rank):
    with precision(np.float64):
        at, _ = linearization(rng, rank, False, False)
        by = precondition(at, False)
        t, g = (direction(rng, at.scores).astype(jnp.float32) for _ in range(2))
        one, two = inner_product(by.apply(t), g), inner_product(t, by.transpose(g))
        np.testing.assert_allclose(one, two, rtol=1e-3)


def written_out(at, causal, by):
    """The Gauss-Newton matrix in the coordinates of `by`."""
    leaves, tree = jax.tree.flatten(at.scores)
    sizes = np.cumsum([leaf.size for leaf in leaves])

    def matvec(v):
        parts = jnp.split(v, sizes[:-1])
        t = jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves)])
        product, _ = projected_product(at, by, t, causal) if by else normal_product(at, t, causal)
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(product)])

    matrix = jax.jit(lambda basis: jax.lax.map(matvec, basis))(jnp.eye(int(sizes[-1]), dtype=jnp.float32))
    return np.asarray(matrix, np.float64)


def flat(scores):
    return np.concatenate([np.reshape(leaf, -1) for leaf in jax.tree.leaves(scores)])


def eigenvalues(at, causal, by):
    return np.linalg.eigvalsh(written_out(at, causal, by))


@pytest.mark.parametrize("rank", [None, 3])
def test_conjugate_gradients_solve_the_written_out_system(rng, rank):
    with precision(np.float64):
        at, _ = linearization(rng, rank, False, False)
        by = precondition(at, False)
        right = direction(rng, at.scores).astype(jnp.float32)
        found = solve_normal(at, by, right, np.float32(0.1), np.float32(1e-5), 500, False)
        matrix = written_out(at, False, by)
        expected = np.linalg.solve(matrix + 0.1 * np.eye(len(matrix)), flat(right))
        np.testing.assert_allclose(flat(found.t), expected, atol=1e-3 * np.abs(expected).max())
        _, follow = normal_product(at, by.apply(found.t), False)
        np.testing.assert_allclose(found.follow, follow, atol=1e-3 * np.abs(follow).max())


def test_conjugate_gradients_end_where_there_is_nothing_to_solve(rng):
    with precision(np.float64):
        at, _ = linearization(rng, 3, False, False)
        by = precondition(at, False)
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), at.scores)
        found = solve_normal(at, by, none, np.float32(0), np.float32(1e-3), 50, False)
        assert found.inner == 0
        # Factors of rank 3 may be turned without any change of Theta: in these directions the matrix is zero.
        turn = rng.standard_normal((len(at.scores.a), 3, 3)).astype(np.float32)
        idle = Scores(at.scores.a @ turn, -at.scores.b @ turn.transpose(0, 2, 1), np.zeros_like(at.scores.c))
        found = solve_normal(at, by, idle, np.float32(0), np.float32(1e-3), 50, False)
        assert np.isfinite(flat(found.t)).all()


def test_preconditioning_evens_out_weak_heads(rng):
    # A head with a hundredth of the others' W makes the bare matrix 1e4 times worse conditioned.
    layer = AttentionLayer.random(3, 6, bias=True)
    w = layer.w * np.array([1.0, 1.0, 0.01])[:, None, None]
    x = rng.standard_normal((120, 5, 6))
    y = layer.replace(w=w)(x)
    with precision(np.float64):
        chunks = Chunks(*map(jnp.asarray, stack_chunks(x, y, None)))
        scores = Scores.from_theta(layer.theta, layer.query_bias, None).astype(jnp.float64)
        fit = eliminate(scores, chunks, False)
        single = chunks.astype(jnp.float32)
        at = linearize(scores, fit.linear, fit.factor, single.x, single.keep, False)
        bare = eigenvalues(at, False, None)
        even = eigenvalues(at, False, precondition(at, False))
    assert bare[-1] / bare[0] > 1e4
    assert even[-1] / even[0] < 100
    assert 0.3 < np.median(even) < 1.5  # curvature about 1, less the share that W and b take


@pytest.mark.parametrize("rank", [None, 3])
def test_the_promised_decrease_is_that_of_the_linear_model(rng, rank):
    with precision(np.float64):
        at, _ = linearization(rng, rank, False, False)
        by = precondition(at, False)
        rest = rng.standard_normal((*at.x.shape[:1], at.x.shape[1] * at.x.shape[2], at.linear.shape[1]))
        rest = (rest / np.linalg.norm(rest)).astype(np.float32)
        step = gauss_newton_step(at, by, rest, np.float32(0.1), np.float32(1e-2), 50, False)
        slope, (product, follow) = gradient(at, rest, False), normal_product(at, step.scores, False)
        expected = -inner_product(slope, step.scores) - 0.5 * inner_product(step.scores, product)
        np.testing.assert_allclose(step.predicted, expected, rtol=1e-3)
        np.testing.assert_allclose(step.linear, -follow, rtol=1e-3, atol=1e-4 * np.abs(follow).max())
