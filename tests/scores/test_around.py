"""Soft caps and sinks: their definitions through torch, in a layer as well."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.scores import Bilinear, Capped, Rotary, Sinks, frequencies

torch = pytest.importorskip("torch")
M, D, K = 2, 5, 4
ROTATION = frequencies(6, base=30.0).rotation


@pytest.fixture
def base(rng):
    return Rotary(*rng.standard_normal((2, M, D + 1, 6)), ROTATION)


def logits(scores, x):
    return scores.logits(x, np.swapaxes(x, 1, 2).copy())


def test_a_cap_is_that_of_torch_with_its_derivatives(base, rng):
    x, change = rng.standard_normal((3, K, D)), rng.standard_normal((3, K, M, K))
    plain, inside = logits(base, x)
    given = torch.tensor(plain.copy(), requires_grad=True)
    out = 2.0 * torch.tanh(given / 2.0)
    out.backward(torch.tensor(change))
    scores = Capped(base, 2.0)
    found, kept = logits(scores, x)
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(
        scores.vjp(change, kept).flat(), base.vjp(given.grad.numpy(), inside).flat(), atol=1e-10
    )


def test_a_sink_takes_its_share_of_every_row(base, rng):
    sink, x = rng.standard_normal(M), rng.standard_normal((3, K, D))
    layer = AttentionLayer.from_scores(
        Sinks(base, sink, np.zeros((M, D))), rng.standard_normal((M, D, D)), causal=True
    )
    scores = torch.tensor(np.swapaxes(logits(base, x)[0], 1, 2).copy())
    scores = scores.masked_fill(torch.triu(torch.ones(K, K, dtype=torch.bool), 1), -torch.inf)
    last = torch.tensor(sink)[None, :, None, None].expand(3, M, K, 1)
    wanted = torch.softmax(torch.cat([scores, last], dim=-1), dim=-1)[..., :-1]
    np.testing.assert_allclose(layer.patterns(x), wanted.numpy(), atol=1e-12)
    assert layer.scores(x).shape == (3, M, K, K)
    mask = np.ones((3, K), bool)
    mask[1, -1] = False
    np.testing.assert_allclose(layer(x, mask)[1, :-1], layer(x[1, :-1]), atol=1e-12)


def test_distance_sees_sinks_and_refuses_other_rules(base, rng):
    w = rng.standard_normal((M, D, D))
    layer = AttentionLayer.from_scores(Sinks(base, np.zeros(M), np.zeros((M, D))), w)
    assert distance(layer, layer.replace(sink=np.ones(M))).query_bias > 1e-2
    assert distance(layer, layer.replace(sink=np.ones(M))).theta == 0
    with pytest.raises(ValueError, match="b: must make scores as a does"):
        distance(layer, layer.replace(form=base))
    capped = [AttentionLayer.from_scores(Capped(base, cap), w) for cap in (2.0, 3.0)]
    with pytest.raises(ValueError, match="b: must make scores as a does"):
        distance(*capped)


def test_what_does_not_fit_is_said_in_one_line(base):
    with pytest.raises(ValueError, match="cap: must be a finite number above 0"):
        Capped(base, -1.0)
    with pytest.raises(ValueError, match=r"sink: must have shape \(2,\)"):
        Sinks(base, np.zeros(3), np.zeros((M, D)))
    plain = Bilinear.whole(np.zeros((M, D, D)), np.zeros((M, D)))
    with pytest.raises(ValueError, match="base: must keep what a query adds to all its keys"):
        Capped(plain, 2.0)
