"""The bound on the second derivative against second differences of the layer, and the ball that follows from it."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._curvature import kantorovich, second_derivative
from attnlearn.solve.certification._conditioning import smallest_singular


def random_case(rng: np.random.Generator) -> tuple[AttentionLayer, np.ndarray, np.ndarray | None]:
    """A layer, tokens that are sometimes far from the origin or heavy-tailed, and sometimes a mask."""
    heads, dim, keys, out = rng.integers(1, 4), rng.integers(1, 5), rng.integers(2, 6), rng.integers(1, 4)
    size = 10 ** rng.uniform(-1, 0.7)
    layer = AttentionLayer(
        size * rng.standard_normal((heads, dim, dim)),
        rng.standard_normal((heads, dim, out)),
        size * rng.standard_normal((heads, dim)),
        rng.standard_normal(out),
        causal=bool(rng.random() < 0.3),
    )
    x = rng.standard_normal((3, keys, dim)) if rng.random() < 0.7 else rng.standard_t(2, (3, keys, dim))
    mask = np.arange(keys) < rng.integers(1, keys + 1, 3)[:, None] if rng.random() < 0.5 else None
    return layer, x + rng.choice([0.0, 3.0]), mask


def direction(layer: AttentionLayer, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random direction; some of its blocks are zero, so that each term of the bound is looked at alone too."""
    blocks = {name: getattr(layer, name) for name in ("theta", "query_bias", "w", "output_bias")}
    return {name: rng.choice([0.0, 1.0, 1.0]) * rng.standard_normal(a.shape) for name, a in blocks.items()}


def outputs(layer: AttentionLayer, way: dict[str, np.ndarray], step: float, x, mask) -> np.ndarray:
    moved = layer.replace(**{name: getattr(layer, name) + step * block for name, block in way.items()})
    y = moved(x, mask)
    return y if mask is None else y * mask[..., None]


def bound(layer: AttentionLayer, way: dict[str, np.ndarray], x, mask) -> float:
    sizes = [np.linalg.norm(way[name], ord=2, axis=(1, 2)) for name in ("theta", "w")]
    biases = np.linalg.norm(way["query_bias"], axis=1)
    norms = np.linalg.norm(layer.w, ord=2, axis=(1, 2))
    return second_derivative(x, mask, sizes[0], biases, sizes[1], norms)


def test_no_second_difference_exceeds_the_bound(rng):
    """A second difference is a mean of second derivatives on the way, on which no W doubles."""
    ratios = []
    for _ in range(300):
        layer, x, mask = random_case(rng)
        way, step = direction(layer, rng), 1e-3
        before, here, after = (outputs(layer, way, t, x, mask) for t in (-step, 0.0, step))
        found = np.linalg.norm(after - 2 * here + before) / step**2
        most = bound(layer, way, x, mask)
        assert found <= most * (1 + 1e-6) + 1e-7
        if most > 1e-3:
            ratios.append(found / most)
    assert max(ratios) > 0.03  # not larger than it has to be by orders of magnitude


def test_the_bound_is_reached_within_its_factors():
    """Two keys a distance D apart with equal weights: 2 Cov(dl, x) dW is exactly dl D / 2 times dW."""
    x = np.array([[[1.0], [-1.0]]])
    layer = AttentionLayer(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    way = {"theta": np.ones((1, 1, 1)), "query_bias": np.zeros((1, 1)), "w": np.ones((1, 1, 1))}
    here, after, before = (outputs(layer, way, step, x, None) for step in (0.0, 1e-3, -1e-3))
    found = np.linalg.norm(after - 2 * here + before) / 1e-6
    assert found == pytest.approx(bound(layer, way, x, None), rel=1e-4)


def test_padded_tokens_do_not_enter_the_bound(rng):
    x = rng.standard_normal((5, 4, 3))
    mask = np.broadcast_to(np.arange(4) < 3, (5, 4))
    ones = np.ones(2)
    short = second_derivative(x[:, :3], None, ones, ones, ones, ones)
    x[:, 3] = 1e6
    assert second_derivative(x, mask, ones, ones, ones, ones) == pytest.approx(short, rel=1e-12)
    assert second_derivative(x, None, ones, ones, ones, ones) > 1e6 * short


def test_one_key_has_no_curvature(rng):
    ones = np.ones(2)
    assert second_derivative(rng.standard_normal((5, 1, 3)), None, ones, ones, ones, ones) == 0.0


def test_the_curvature_of_a_conditioning_is_finite_for_whole_theta_only(rng):
    layer = AttentionLayer.random(num_heads=2, dim=4, rank=2, seed=0)
    x = rng.standard_normal((100, 4, 4))
    whole, low = smallest_singular(layer, x), smallest_singular(layer, x, rank=2)
    assert np.isfinite(whole.curvature)
    assert whole.reach > 0
    assert np.isinf(low.curvature)


# --- Newton-Kantorovich ---


@pytest.mark.parametrize("rho", [0.0, 1e-12, 1e-4, 4.9e-4])
def test_both_radii_solve_the_quadratic(rho):
    sigma, curvature = 0.1, 10.0
    ball = kantorovich(rho, sigma, curvature)
    for radius in ball:
        assert sigma * radius == pytest.approx(rho + curvature * radius**2 / 2, rel=1e-9, abs=1e-300)
    assert ball.inner <= sigma / curvature <= ball.outer
    middle = (ball.inner + ball.outer) / 2
    assert sigma * middle > rho + curvature * middle**2 / 2  # nothing lies in between
    assert ball.inner >= rho / sigma  # never below the linear bound


def test_no_ball_where_the_residual_is_too_large():
    sigma, curvature = 0.1, 10.0
    edge = sigma**2 / (2 * curvature)
    assert kantorovich(0.999 * edge, sigma, curvature) is not None
    assert kantorovich(edge, sigma, curvature) is None
    assert kantorovich(2 * edge, sigma, curvature) is None


@pytest.mark.parametrize("curvature", [np.inf, np.nan])
def test_no_ball_without_a_curvature(curvature):
    assert kantorovich(1e-9, 0.1, curvature) is None


def test_no_ball_without_a_singular_value_or_a_residual():
    assert kantorovich(0.0, 0.0, 1.0) is None
    assert kantorovich(np.nan, 0.1, 1.0) is None


def test_the_shell_ends_where_the_curvature_does():
    free, short = kantorovich(1e-4, 0.1, 10.0), kantorovich(1e-4, 0.1, 10.0, most=0.005)
    assert short.inner == free.inner
    assert short.outer == 0.005 < free.outer
    assert kantorovich(1e-4, 0.1, 10.0, most=free.inner) is None


def test_a_linear_model_gives_the_linear_bound():
    ball = kantorovich(1e-3, 0.1, 0.0)
    assert ball.inner == pytest.approx(1e-2)
    assert ball.outer > 1e300
