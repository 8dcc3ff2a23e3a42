"""Standard errors of a fitted layer when the outputs carry noise: what the examples can tell at best.

With independent noise of standard deviation s on every output the least-squares estimate has, to first order,
the covariance s^2 (J^T J)^{-1} (the Cramer-Rao bound for Gaussian noise). Its d^4 entries are never formed:
noise is drawn, its linear response solved for with the machinery of `refine`, and the response of each head
averaged over a few draws. A head has many numbers, so few draws suffice; the result is an estimate, its own
relative error about 1/sqrt(2 draws x effective numbers of the head). What it cannot see: curvature, noise that
depends on the token or the sequence, and a fit that is not at its optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import precision
from attnlearn._types import ArrayLike
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._jacobian import Point, original, prepare
from attnlearn.solve._linearize import gradient, over_chunks
from attnlearn.solve._regress import single_blas
from attnlearn.solve._scores import Scores
from attnlearn.solve._step import solve_normal


@dataclass(frozen=True)
class StandardErrors:
    """Root mean square error per head, in Frobenius norm (not relative), and of b; `examples` they rest on."""

    theta: Float[np.ndarray, "m"]
    w: Float[np.ndarray, "m"]
    query_bias: Float[np.ndarray, "m"]
    output_bias: float
    examples: int


def standard_errors(
    layer: AttentionLayer,
    x: ArrayLike,
    noise: float,
    *,
    mask: ArrayLike | None = None,
    rank: int | None = None,
    draws: int = 4,
    seed: int = 0,
) -> StandardErrors:
    """Expected errors of Theta_i, W_i, c_i and b when outputs carry noise of standard deviation `noise`.

    They hold for a fit to the `examples` that are looked at (the first ones, a few per unknown), and shrink like
    1/sqrt(examples): multiply by sqrt(examples / n) for a fit to n.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((60, 5, 4))
    >>> errors = standard_errors(layer, x, noise=1e-3)
    >>> errors.theta.shape, bool((errors.theta > 0).all())
    ((2,), True)
    """
    require(np.isfinite(noise) and noise >= 0, "noise", "must be a finite number >= 0", noise)
    require(draws >= 1, "draws", "must be at least 1", draws)
    squares = []
    with precision(np.float64), single_blas():
        point = prepare(layer, x, mask, rank, joint=True)
        traced = point._replace(white=None, factor=None, rows=0, examples=0, gauge=None)
        for key in jax.random.split(jax.random.key(seed), draws):
            scores, linear = _response(traced, key, layer.causal)
            error = original(point, scores, linear)
            squares.append([np.sum(part**2, axis=tuple(range(1, part.ndim))) for part in error[:3]])
            squares[-1].append(np.sum(error.output_bias**2))
    theta, w, query_bias, output_bias = (
        noise * np.sqrt(np.mean([draw[part] for draw in squares], axis=0)) for part in range(4)
    )
    return StandardErrors(theta, w, query_bias, float(output_bias), point.examples)


@partial(jax.jit, static_argnames="causal")
def _response(point: Point, key: jax.Array, causal: bool) -> tuple[Scores, Any]:
    """Linear response of the parameters to one draw of unit noise."""
    at, by = point.at, point.by
    keys = jax.random.split(key, len(at.keep))
    out = at.linear.shape[1]

    def draw(keep, key):
        return jax.random.normal(key, (*keep.shape, out), jnp.float32) * keep[..., None]

    def first(total, local, keep, key):
        return total + local.p.T @ draw(keep, key).reshape(len(local.p), -1), None

    moment, _ = over_chunks(at, causal, first, jnp.zeros_like(at.linear), keys)
    direct = at.factor.T @ (at.factor @ moment)

    def second(total, local, keep, key):
        return total, draw(keep, key).reshape(len(local.p), -1) - local.p @ direct

    _, rest = over_chunks(at, causal, second, 0, keys)
    slope = by.transpose(gradient(at, rest, causal))
    accuracy = jnp.float32(calibration.PROBE_ACCURACY)
    found = solve_normal(at, by, slope, jnp.float32(0), accuracy, calibration.PROBE_STEPS, causal)
    return by.apply(found.t), direct - found.follow
