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

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.scores import Scores
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Pieces, on_threads
from attnlearn.solve._linearize import Local, gradient, moment, projected
from attnlearn.solve._step import solve_normal
from attnlearn.solve.certification._point import Point, original, prepare


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
    draws: int = calibration.DRAWS,
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
    squares = []
    with on_threads():
        point = prepare(layer, x, mask, rank, joint=True)
        for draw in range(draws):
            scores, linear = _response(point, np.random.default_rng([seed, draw]))
            error = original(point, scores, linear)
            squares.append([np.sum(part**2, axis=tuple(range(1, part.ndim))) for part in error[:3]])
            squares[-1].append(np.sum(error.output_bias**2))
    theta, w, query_bias, output_bias = (
        noise * np.sqrt(np.mean([draw[part] for draw in squares], axis=0)) for part in range(4)
    )
    return StandardErrors(theta, w, query_bias, float(output_bias), point.examples)


def _response(point: Point, rng: np.random.Generator) -> tuple[Scores, np.ndarray]:
    """Linear response of the parameters to one draw of unit noise."""
    at, by = point.at, point.by
    out = at.linear.shape[1]
    noise = []
    for chunk in at.chunks:
        drawn = rng.standard_normal((*chunk.x.shape[:2], out), np.float32)
        drawn = drawn if chunk.keep is None else drawn * chunk.keep[..., None]
        noise.append(drawn.reshape(-1, out))

    drawn = Pieces.of(noise)
    direct = projected(at, at.local.sum(_moment, drawn))
    rest = at.local.derive(_left, drawn, given=(direct,))
    slope = by.transpose(gradient(at, rest)).flat()
    found = solve_normal(at, by, slope, 0.0, calibration.ROUGH, calibration.INNER_MOST)
    return by.apply(at.scores.shaped(found.t)), direct - found.follow


def _moment(local: Local, drawn: np.ndarray) -> np.ndarray:
    return moment(drawn, local)


def _left(local: Local, drawn: np.ndarray, direct: np.ndarray) -> np.ndarray:
    return drawn - local.p @ direct
