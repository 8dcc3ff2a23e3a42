"""Normalised queries and keys: the definition through torch's own norm, autodiff, and the gauge."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.scores import Normalised, Rotary, frequencies

torch = pytest.importorskip("torch")
M, D, K, WIDTH = 2, 5, 4, 6
ROTATION = frequencies(WIDTH, base=30.0).rotation


def make(rng, eps=0.05):
    a, b = rng.standard_normal((2, M, D + 1, WIDTH))
    return Normalised(Rotary(a, b, ROTATION), *(1 + rng.standard_normal((2, M, WIDTH)) / 3), eps, eps)


def logits(scores, x):
    return scores.logits(x, np.swapaxes(x, 1, 2).copy())


def test_scores_and_derivatives_are_those_of_torch(rng):
    scores = make(rng)
    x, change = rng.standard_normal((3, K, D)), rng.standard_normal((3, K, M, K))
    extended = torch.tensor(np.concatenate([x, np.ones((3, K, 1))], axis=-1))
    turns = torch.tensor(np.stack([ROTATION.matrix(p) for p in range(K)]))
    given = [torch.tensor(part, requires_grad=True) for part in list(scores.arrays().values())[:4]]

    def forward(a, b, g, h):
        sides = []
        for factor, gain in ((a, g), (b, h)):
            raw = torch.einsum("nke,meh->nkmh", extended, factor)
            unit = torch.nn.functional.rms_norm(raw, (WIDTH,), eps=0.05)
            sides.append(torch.einsum("nkmh,khj->nkmj", unit * gain, turns))
        return torch.einsum("namj,nbmj->namb", *sides)

    found, kept = logits(scores, x)
    out = forward(*given)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-10)
    out.backward(torch.tensor(change))
    back = list(scores.vjp(change, kept).arrays().values())
    for own, wanted in zip(back, given):
        np.testing.assert_allclose(own, wanted.grad.numpy(), atol=1e-10)
    tangent = scores.shaped(rng.standard_normal(scores.flat().size))
    directions = tuple(torch.tensor(part) for part in list(tangent.arrays().values())[:4])
    pushed = torch.autograd.functional.jvp(forward, tuple(p.detach() for p in given), directions)[1]
    np.testing.assert_allclose(scores.jvp(tangent, kept), pushed.numpy(), atol=1e-10)


def halves(part):
    return part[..., :3], part[..., 3:]


@pytest.mark.parametrize("equal", [False, True], ids=["gains of their own", "equal gains"])
def test_the_gauge_changes_no_score(rng, equal):
    scores = make(rng)
    factors, gains = [scores.base.a, scores.base.b], list(scores.own.values())
    if equal:
        gains = [np.tile(np.abs(gain[:, :3]), (1, 2)) for gain in gains]
        scores = Normalised(scores.base, *gains, *scores.eps)
    turned = np.exp(1j * rng.standard_normal((M, 1, 3))) if equal else np.full((M, 1, 3), 1j)
    sizes, ratio = [2.0, 0.3], np.tile(np.exp(rng.standard_normal((M, 3))), (1, 2))
    signs = np.where(rng.standard_normal((2, M, WIDTH)) < 0, -1.0, 1.0)
    moved_factors, moved_gains, eps = [], [], []
    for side in range(2):
        real, imaginary = halves(factors[side])
        pairs = (real + 1j * imaginary) * turned
        moved = np.concatenate([pairs.real, pairs.imag], axis=-1)
        gain = gains[side] if equal else np.concatenate(halves(gains[side])[::-1], axis=-1)
        moved_factors.append(moved * sizes[side] * signs[side][:, None])
        moved_gains.append(gain * signs[side] * (ratio if side == 0 else 1 / ratio))
        eps.append(scores.eps[side] * sizes[side] ** 2)
    other = Normalised(Rotary(*moved_factors, ROTATION), *moved_gains, *eps)
    x = rng.standard_normal((3, K, D))
    np.testing.assert_allclose(logits(other, x)[0], logits(scores, x)[0], atol=1e-10)
    for one, two in zip(other.canonical().arrays().values(), scores.canonical().arrays().values()):
        np.testing.assert_allclose(one, two, atol=1e-10)
    np.testing.assert_allclose(other.beyond(), scores.beyond(), atol=1e-10)
    np.testing.assert_allclose(other.at(-2).theta, scores.at(-2).theta, atol=1e-10)


def test_what_does_not_fit_is_said_in_one_line(rng):
    base = Rotary(*rng.standard_normal((2, M, D + 1, WIDTH)), ROTATION)
    with pytest.raises(ValueError, match=r"query_gain: must have shape \(2, 6\)"):
        Normalised(base, np.ones((M, 3)), np.ones((M, WIDTH)), 0.0, 0.0)
    resting = Rotary(*rng.standard_normal((2, M, D + 1, WIDTH)), frequencies(WIDTH, rotated=4).rotation)
    with pytest.raises(ValueError, match="base: must keep what a query adds to all its keys"):
        Normalised(resting, np.ones((M, WIDTH)), np.ones((M, WIDTH)), 0.0, 0.0)
