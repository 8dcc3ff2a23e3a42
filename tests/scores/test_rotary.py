"""Rotary scores: the textbook's rotation, autodiff, gauge, Theta by offset."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.scores import Rotary, Rotation, frequencies

torch = pytest.importorskip("torch")


def factors(rng, m=2, d=5, width=6):
    return (
        rng.standard_normal((m, d, width)),
        rng.standard_normal((m, d, width)),
        rng.standard_normal((m, width)),
        rng.standard_normal((m, width)),
    )


def textbook(query, key, query_bias, key_bias, rotation, pairing, x, positions):
    """Scores (n, query, m, key): complex coordinates by the definition, one pair at a time."""
    q = np.einsum("nkd,mdh->nkmh", x, query) + query_bias
    k = np.einsum("nkd,mdh->nkmh", x, key) + key_bias
    p = rotation.pairs
    found = np.einsum("namh,nbmh->namb", q[..., 2 * p :], k[..., 2 * p :])
    for j, w in enumerate(rotation.frequencies):
        one, two = (j, j + p) if pairing == "half-split" else (2 * j, 2 * j + 1)
        turn = np.exp(1j * w * np.asarray(positions, float))[:, None]
        zq, zk = ((z[..., one] + 1j * z[..., two]) * turn for z in (q, k))
        found += np.einsum("nam,nbm->namb", zq.conj(), zk).real
    return found


def logits(scores, x, positions=None):
    return scores.logits(x, np.swapaxes(x, 1, 2).copy(), positions)[0]


@pytest.mark.parametrize("pairing", ["half-split", "interleaved"])
@pytest.mark.parametrize("still", [0, 2, 6])
@pytest.mark.parametrize("positions", [None, [0, 3, 4, 10], [2.5, 2.5, 2.5, 2.5]])
def test_scores_are_those_of_the_definition(rng, pairing, still, positions):
    rotation = frequencies(6, base=30.0, rotated=6 - still).rotation
    query, key, query_bias, key_bias = factors(rng)
    x = rng.standard_normal((3, 4, 5))
    scores = Rotary.of_factors(
        query, key, rotation, query_bias=query_bias, key_bias=key_bias, scale=0.5, pairing=pairing
    )
    wanted = 0.5 * textbook(
        query, key, query_bias, key_bias, rotation, pairing, x, range(4) if positions is None else positions
    )
    found = logits(scores, x, positions)
    np.testing.assert_allclose(
        found - found.mean(axis=-1, keepdims=True), wanted - wanted.mean(axis=-1, keepdims=True), atol=1e-10
    )


def test_derivatives_are_those_of_autodiff(rng):
    rotation = frequencies(6, base=30.0, rotated=4).rotation
    query, key, query_bias, key_bias = factors(rng)
    scores = Rotary.of_factors(query, key, rotation, query_bias=query_bias, key_bias=key_bias)
    x, change = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4, 2, 4))
    extended = torch.tensor(np.concatenate([x, np.ones((3, 4, 1))], axis=-1))
    turns = torch.tensor(np.stack([rotation.matrix(p) for p in range(4)]))
    a, b = (torch.tensor(factor, requires_grad=True) for factor in (scores.a, scores.b))

    def forward(a, b):
        q, k = (torch.einsum("nke,meh,khj->nkmj", extended, factor, turns) for factor in (a, b))
        return torch.einsum("namj,nbmj->namb", q, k)

    found, kept = scores.logits(x, np.swapaxes(x, 1, 2).copy())
    out = forward(a, b)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-10)
    out.backward(torch.tensor(change))
    back = scores.vjp(change, kept)
    np.testing.assert_allclose(back.a, a.grad.numpy(), atol=1e-10)
    np.testing.assert_allclose(back.b, b.grad.numpy(), atol=1e-10)
    tangent = scores.shaped(rng.standard_normal(scores.flat().size))
    pushed = torch.autograd.functional.jvp(
        forward, (a.detach(), b.detach()), (torch.tensor(tangent.a), torch.tensor(tangent.b))
    )[1]
    np.testing.assert_allclose(scores.jvp(tangent, kept), pushed.numpy(), atol=1e-10)


def test_scores_at_an_offset_are_a_bilinear_form(rng):
    rotation = frequencies(6, base=30.0, rotated=4).rotation
    query, key, query_bias, key_bias = factors(rng)
    scores = Rotary.of_factors(query, key, rotation, query_bias=query_bias, key_bias=key_bias)
    x = rng.standard_normal((1, 4, 5))
    found = logits(scores, x)
    for one in range(4):
        for other in range(4):
            theta, c = scores.at(other - one)
            t, t0 = scores.bias_at(other - one)
            wanted = x[0, one] @ theta @ x[0, other] + c @ x[0, other] + t @ x[0, one] + t0
            np.testing.assert_allclose(found[0, one, :, other], wanted, atol=1e-10)


def test_the_gauge_changes_no_score(rng):
    rotation = frequencies(6, base=30.0, rotated=4).rotation
    query, key, query_bias, key_bias = factors(rng)
    scores = Rotary.of_factors(query, key, rotation, query_bias=query_bias, key_bias=key_bias)
    z = rng.standard_normal((2, 1, 2)) + 1j * rng.standard_normal((2, 1, 2))
    g = rng.standard_normal((2, 2, 2))

    def turned(factor, by, mix):
        pairs = (factor[..., :2] + 1j * factor[..., 2:4]) * by
        return np.concatenate([pairs.real, pairs.imag, factor[..., 4:] @ mix], axis=-1)

    moved = Rotary(
        turned(scores.a, z, g),
        turned(scores.b, 1 / z.conj(), np.swapaxes(np.linalg.inv(g), 1, 2)),
        rotation,
    )
    x = rng.standard_normal((3, 4, 5))
    np.testing.assert_allclose(logits(moved, x), logits(scores, x), atol=1e-9)
    one, other = moved.canonical(), scores.canonical()
    np.testing.assert_allclose(one.a, other.a, atol=1e-9)
    np.testing.assert_allclose(one.b, other.b, atol=1e-9)
    np.testing.assert_allclose(logits(one, x), logits(scores, x), atol=1e-9)


def test_a_common_shift_of_the_positions_changes_nothing(rng):
    query, key, query_bias, key_bias = factors(rng)
    scores = Rotary.of_factors(
        query, key, Rotation((1.0, 0.3, 0.1)), query_bias=query_bias, key_bias=key_bias
    )
    x = rng.standard_normal((2, 4, 5))
    np.testing.assert_allclose(logits(scores, x, np.arange(4) + 7), logits(scores, x), atol=1e-10)
    each = logits(scores, x, np.array([[0, 1, 2, 3], [5, 6, 7, 8]]))
    np.testing.assert_allclose(each, logits(scores, x), atol=1e-10)


def test_wrong_sizes_are_said_in_one_line(rng):
    query, key, *_ = factors(rng)
    with pytest.raises(ValueError, match="query: must have heads of width 4"):
        Rotary.of_factors(query, key, Rotation((1.0, 0.1)))
    with pytest.raises(ValueError, match="pairing: must be one of half-split, interleaved"):
        Rotation((1.0, 0.1)).order("zigzag")
    scores = Rotary.of_factors(query, key, Rotation((1.0, 0.3, 0.1)))
    with pytest.raises(ValueError, match="positions: must be numbers of shape"):
        logits(scores, rng.standard_normal((2, 4, 5)), [1, 2])
