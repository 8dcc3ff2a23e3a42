"""The second-order tensor: its decomposition, and how near it comes to the heads."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.recovery.moment._second_order import _squares, decompose, second_order_start
from attnlearn.solve._batch import WhiteBatch
from tests.recovery._problems import moment, problem, signals, tokens


def matched(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For every row of `b` the cosine with the row of `a` that is nearest up to sign."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    cosines = a @ b.T
    return cosines[np.abs(cosines).argmax(axis=0), np.arange(len(b))]


def sum_of(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.einsum("hi,hj,hl->ijl", a, a, c)


@pytest.mark.parametrize("heads", [1, 2, 5, 12])
def test_a_sum_is_decomposed(rng, heads):
    a, c = rng.standard_normal((2, heads, heads))
    found, third = decompose(sum_of(a, c), rng)
    assert np.abs(matched(found, a)).min() > 1 - 1e-6
    assert np.allclose(sum_of(found, third), sum_of(a, c), atol=1e-6 * np.abs(sum_of(a, c)).max())


def test_noise_moves_it_little(rng):
    a, c = (np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2))
    whole = sum_of(a, c)
    noise = rng.standard_normal(whole.shape)
    noisy = (
        whole + 0.3 * np.linalg.norm(whole) / np.linalg.norm(noise) * (noise + noise.transpose(1, 0, 2)) / 2
    )
    assert np.abs(matched(decompose(noisy, rng)[0], a)).min() > 0.95


def test_what_has_no_pencil_gives_nothing(rng):
    assert decompose(np.zeros((3, 3, 3)), rng) is None


def test_one_chunk_against_the_definition(rng):
    n, k, r, o, heads = 3, 4, 2, 3, 2
    z, residual = (rng.standard_normal((n, k, size)).astype(np.float32) for size in (r, o))
    visible = np.tril(np.ones((k, k), bool))[None]
    u, v = rng.standard_normal((heads, r + 1, r)), rng.standard_normal((heads, r, o))
    wanted = np.zeros((heads, heads, heads))
    for s in range(n):
        for a in range(k):
            seen = np.arange(k) <= a
            query = np.append(z[s, a], 1.0)
            scores = np.array([query @ u[j] @ z[s, seen].T for j in range(heads)])
            values = np.array([z[s, seen] @ v[j] @ residual[s, a] for j in range(heads)])
            scores, values = (part - part.mean(axis=1, keepdims=True) for part in (scores, values))
            wanted += np.einsum("ib,jb,lb->ijl", scores[:, :-1], scores[:, :-1], values[:, :-1])
    left, right = u.transpose(1, 0, 2).reshape(r + 1, -1), v.transpose(2, 0, 1).reshape(o, -1)
    found = _squares(
        left.astype(np.float32), right.astype(np.float32), heads, WhiteBatch(z, residual, visible)
    )
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["normal", "boolean"])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "causal": True}, {"scale": 6.0}])
def test_the_heads_are_where_it_says_with_their_signs(seed, rng, kind, options):
    layer = AttentionLayer.random(5, 24, rank=6, seed=seed, **options)
    whole = problem(layer, tokens(rng, kind, 8000, 8, 24))
    shown = moment(whole, seed)
    truth = np.concatenate([layer.theta, layer.query_bias[:, None]], axis=1).reshape(5, -1)
    truth = truth @ shown.query_basis[:5].reshape(5, -1).T
    found = second_order_start(whole, signals(whole, seed), shown, 5, rng)
    assert matched(found, truth).min() > 0.9


def test_padding_counts_for_nothing(seed, rng):
    layer = AttentionLayer.random(3, 16, rank=6, seed=seed)
    x = tokens(rng, "normal", 8000, 8, 16)
    mask = np.arange(8) < rng.integers(5, 9, size=len(x))[:, None]
    whole = problem(layer, x, mask=mask)
    shown = moment(whole, seed)
    truth = layer.theta.reshape(3, -1) @ shown.query_basis[:3, :-1].reshape(3, -1).T
    assert matched(second_order_start(whole, signals(whole, seed), shown, 3, rng), truth).min() > 0.9
