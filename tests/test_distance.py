"""Distance: zero on equal functions, right on known changes, honest about missing heads and supports."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Support, distance
from attnlearn._canonical import on_support


def test_each_field_measures_its_own_error(seed: int, rng) -> None:
    layer = AttentionLayer.random(3, 5, bias=True, seed=seed)

    def moved(name: str, amount: float) -> AttentionLayer:
        array = getattr(layer, name).copy()
        part = array if name == "output_bias" else array[1]
        noise = rng.standard_normal(part.shape)
        part += amount * noise * np.linalg.norm(part) / np.linalg.norm(noise)
        return layer.replace(**{name: array})

    for name in ("theta", "w", "query_bias", "output_bias"):
        found = distance(moved(name, 1e-3), layer)
        assert getattr(found, name) == pytest.approx(1e-3)
        assert found.max == pytest.approx(1e-3)


def test_missing_and_extra_heads_count_as_one() -> None:
    layer = AttentionLayer.random(3, 5)
    fewer = AttentionLayer(layer.theta[:2], layer.w[:2])
    found = distance(fewer, layer)
    assert found.max == 1.0
    assert len(found.unmatched) == 1
    assert distance(layer, fewer).max == 1.0


def test_zero_bias_is_measured_against_the_layer() -> None:
    layer = AttentionLayer.random(2, 4)
    other = layer.replace(output_bias=np.full(4, 1e-6))
    expected = 2e-6 / (1e-3 * np.linalg.norm(layer.w))
    assert distance(other, layer).output_bias == pytest.approx(expected)


def test_zero_theta_is_measured_against_the_largest() -> None:
    layer = AttentionLayer.random(2, 4)
    flat = layer.replace(theta=layer.theta * np.array([1.0, 0.0])[:, None, None])
    tiny = layer.replace(theta=layer.theta * np.array([1.0, 1e-9])[:, None, None])
    assert distance(tiny, flat).theta == pytest.approx(1e-9)
    assert distance(flat, tiny).theta == pytest.approx(1e-9)
    assert distance(flat, layer).theta == pytest.approx(1.0)


def test_support_hides_what_such_tokens_cannot_show(seed: int, rng) -> None:
    layer = AttentionLayer.random(2, 6, bias=True, seed=seed)
    mean, basis = rng.standard_normal(6), rng.standard_normal((6, 4))
    support = Support(mean, basis)
    outside = np.eye(6) - support.projector()
    normal = outside @ mean
    normal /= normal @ mean  # v.x = 1 on every token
    u, shift = rng.standard_normal(6), rng.standard_normal(6)
    same = layer.replace(
        theta=layer.theta + np.outer(u, normal) + np.outer(normal, shift),
        query_bias=layer.query_bias - shift,
    )
    x = mean + rng.standard_normal((3, 5, 4)) @ basis.T
    np.testing.assert_allclose(same(x), layer(x), atol=1e-10)
    assert distance(same, layer).max > 0.1
    assert distance(same, layer, support=support).max < 1e-10
    np.testing.assert_allclose(on_support(layer, support)(x), layer(x), atol=1e-10)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="b: must map 4 to 4 dimensions"):
        distance(AttentionLayer.random(2, 4), AttentionLayer.random(2, 5))
    with pytest.raises(ValueError, match="b: must be an AttentionLayer"):
        distance(AttentionLayer.random(2, 4), None)
