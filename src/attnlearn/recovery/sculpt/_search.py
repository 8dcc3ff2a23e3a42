"""Phase 7: which points of the hull are the heads.

Heads are tuples of points on the affine hull. For given points the W_i follow by least squares, so a tuple costs one
small linear system: the mixed tokens of every point of an epsilon-net are computed once, their Gram matrix holds the
normal equations of all tuples, and a tuple's squared residual is read off a submatrix.
  m = 1   the hull is the head.
  m = 2   the net on the line, all pairs.
  m >= 3  random tuples of net points, improved by exchanging one point at a time.
The best tuples are polished by variable projection (Gauss-Newton on their m (m - 1) coordinates, W eliminated) and
judged on *select* examples.

Cost: (points d)^2 rows for the Gram matrix, (m d)^3 per tuple. What can fail: a hull that misses a head; then no
tuple fits, which the select error shows.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._forward import mixed_rows, pattern_rows
from attnlearn._jax import jax, jnp
from attnlearn._layer import AttentionLayer
from attnlearn._precision import precision
from attnlearn.engine import Tools
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._rows import as_batch
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._batch import Batch, example_scale, unit_errors
from attnlearn.solve._lm import Fit, Stopping, descend
from attnlearn.solve._regress import regress


def search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The tuple of hull points that explains the select examples best; evidence: residuals of the candidates."""
    m = state.num_heads
    config = problem.config
    chunk = problem.examples.take(problem.split.fit[: config.search_sequences])
    fit = HullFit(as_batch(chunk, state.whitening, bool(state.causal)), state)
    candidates = [np.zeros((1, 0))] if m == 1 else _candidates(fit, state, config, tools.rng("starts"))
    polished = [fit.polish(points) for points in candidates]
    select = Batch.of(problem.examples, problem.split.select)
    scale = example_scale(Batch.of(problem.examples, problem.split.fit[: config.search_sequences]))
    judged = []
    for points, _ in polished:
        layer = layer_at(state, points, chunk)
        errors = unit_errors(layer, select, scale)
        judged.append((float(np.sqrt(np.mean(errors**2))), float(errors.max()), layer))
    best = int(np.argmin([entry[0] for entry in judged]))
    info = {
        "candidates": len(candidates),
        "fit_residuals": [residual for _, residual in polished],
        "select_errors": [entry[0] for entry in judged],
        "select_error": judged[best][0],
        "select_worst": judged[best][1],
        "coordinates": polished[best][0],
        "answer": judged[best][2].parameters._asdict(),
    }
    return dataclasses.replace(state, **info["answer"]), info


def layer_at(state: State, points: Float[np.ndarray, "m q"], chunk: Any) -> AttentionLayer:
    """The layer with heads at these points of the hull, in the caller's coordinates, W by least squares."""
    heads = state.base + np.einsum("mq,qfe->mfe", points, state.directions)
    out = chunk.y.shape[2]
    zero = np.zeros((len(heads), state.root.shape[1], out))
    found = state.whitening.leave(Parameters(heads[:, :-1], zero, heads[:, -1], np.zeros(out)))
    theta, bias = (array.astype(chunk.x.dtype) for array in (found.theta, found.query_bias))
    w, b, _ = regress(theta, bias, chunk.x, chunk.y, mask=chunk.mask, causal=bool(state.causal))
    return AttentionLayer(theta, w, bias, b, causal=bool(state.causal))


def _candidates(fit: HullFit, state: State, config: Any, rng: np.random.Generator) -> list[np.ndarray]:
    m = state.num_heads
    pairs = m - 1 == 1
    # Incoherent heads of equal norm lie at this distance from the point of their hull nearest to 0.
    reach = calibration.NET_REACH * np.sqrt(m - 1) * np.linalg.norm(state.base)
    side = config.net_points if pairs else max(3, round(calibration.NET_TOTAL ** (1 / (m - 1))))
    axis = np.linspace(-reach, reach, side)
    net = np.stack(np.meshgrid(*[axis] * (m - 1), indexing="ij"), axis=-1).reshape(-1, m - 1)
    cost = _TupleCost(fit.gram(net))
    if pairs:
        tuples = list(itertools.combinations(range(len(net)), 2))
    else:
        starts = [rng.choice(len(net), m, replace=False) for _ in range(config.starts)]
        tuples = [_exchange(cost, start) for start in starts]
    costs = np.array([cost(chosen) for chosen in tuples])
    found: list[tuple[int, ...]] = []
    for place in np.argsort(costs, kind="stable"):
        if tuple(sorted(tuples[place])) not in found:
            found.append(tuple(sorted(tuples[place])))
        if len(found) == calibration.POLISHED:
            break
    return [net[list(chosen)] for chosen in found]


class Grams(NamedTuple):
    """Gram matrix of the mixed tokens of all net points and the constant, products with y, ‖y‖^2, columns of a point."""

    gram: Float[np.ndarray, "s s"]
    right: Float[np.ndarray, "s o"]
    total: float
    width: int


class _TupleCost:
    """Squared residual of the best W for a tuple of net points, from the Gram matrix of all of them."""

    def __init__(self, grams: Grams) -> None:
        self.gram, self.right, self.total, self.width = grams

    def __call__(self, chosen: Any) -> float:
        places = np.concatenate(
            [np.arange(self.width) + self.width * i for i in chosen] + [[len(self.gram) - 1]]
        )
        block = self.gram[np.ix_(places, places)]
        ridge = calibration.NET_RIDGE * np.trace(block) / len(block) * np.eye(len(block))
        right = self.right[places]
        return float(self.total - np.sum(right * np.linalg.solve(block + ridge, right)))


def _exchange(cost: _TupleCost, start: np.ndarray) -> tuple[int, ...]:
    """Replace one point at a time by the best net point until nothing improves."""
    chosen, points = list(start), (len(cost.gram) - 1) // cost.width
    best = cost(chosen)
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            costs = [np.inf if i in others else cost([*others, i]) for i in range(points)]
            if min(costs) < best * (1 - 1e-9):
                best, chosen = min(costs), [*others, int(np.argmin(costs))]
                improved = True
    return tuple(chosen)


class HullFit:
    """Search examples in white coordinates, with the hull."""

    def __init__(self, batch: Any, state: State) -> None:
        self.batch, self.causal = batch, bool(state.causal)
        keep = batch.seen.any(axis=2)
        self.keep = keep.astype(np.float64)
        self.y = (batch.outputs * self.keep[..., None]).reshape(-1, batch.outputs.shape[2])
        self.base, self.directions = state.base, state.directions
        centred = self.y - self.y.sum(axis=0) / keep.sum()
        self.scale = float(np.sum(centred[keep.reshape(-1)] ** 2))

    def gram(self, net: Float[np.ndarray, "g q"]) -> Grams:
        """Gram matrix of the mixed tokens of all net points (and the constant), and their products with y."""
        heads = self.base + np.einsum("gq,qfe->gfe", net, self.directions)
        size, width = len(net) * self.base.shape[1] + 1, self.base.shape[1]
        gram, right = np.zeros((size, size)), np.zeros((size, self.y.shape[1]))
        k = self.batch.tokens.shape[1]
        step = max(1, calibration.GRAM_NUMBERS // (size * k))
        with precision(np.float32):
            heads = jnp.asarray(heads, jnp.float32)
            for start in range(0, len(self.keep), step):
                rows = slice(start, start + step)
                p = _mix(
                    heads,
                    *(jnp.asarray(a[rows], jnp.float32) for a in (self.batch.tokens, self.keep)),
                    self.causal,
                )
                p = np.asarray(p, np.float64)
                gram += p.T @ p
                right += p.T @ self.y[start * k : start * k + len(p)]
        return Grams(gram, right, float(np.sum(self.y**2)), width)

    def polish(self, points: Float[np.ndarray, "m q"]) -> tuple[np.ndarray, float]:
        """Levenberg-Marquardt on the coordinates; returns them and the relative residual."""
        stopping = Stopping(calibration.POLISH_STEPS if points.size else 0, calibration.POLISHED_ENOUGH)
        with precision(np.float64):
            found = descend(_Coordinates(self), points[None], calibration.POLISH_DAMPING, stopping)
        return found.unknowns[0], float(np.sqrt(found.fit[0][0] / self.scale))


class _Coordinates:
    """The points of the heads as unknowns of one least-squares problem."""

    def __init__(self, fit: HullFit) -> None:
        arrays = (fit.base, fit.directions, fit.batch.tokens, fit.keep, fit.y)
        self.arrays, self.causal = [jnp.asarray(array) for array in arrays], fit.causal

    def evaluate(self, points: Float[np.ndarray, "1 m q"], _which: np.ndarray) -> Fit:
        """The squared residual, the points and the residual."""
        rest = np.array(_residual(jnp.asarray(points[0]), *self.arrays, self.causal))
        return np.array([rest @ rest]), points, rest[None]

    def step(self, fit: Fit, damping: np.ndarray) -> Float[np.ndarray, "1 m q"]:
        """The damped Gauss-Newton step, by normal equations."""
        _, points, (rest,) = fit
        slopes = np.asarray(_slopes(jnp.asarray(points[0]), *self.arrays, self.causal))
        jacobian = slopes.reshape(len(rest), -1)
        normal = jacobian.T @ jacobian
        damped = normal + damping[0] * np.diag(np.diag(normal))
        return -np.linalg.solve(damped, jacobian.T @ rest).reshape(points.shape)


@partial(jax.jit, static_argnames="causal")
def _mix(heads: jax.Array, tokens: jax.Array, keep: jax.Array, causal: bool) -> jax.Array:
    """The columns [alpha_1 X, ..., 1] of heads [Theta_i; c_i^T] (m, d + 1, d)."""
    alpha = pattern_rows(heads[:, :-1], heads[:, -1], tokens, keep > 0, causal)
    # A sequence of padding has no allowed key, and its softmax is 0/0.
    rows = mixed_rows(jnp.where(keep[:, :, None, None] > 0, alpha, 0), tokens).reshape(keep.size, -1)
    return jnp.concatenate([rows, keep.reshape(-1, 1)], axis=1)


@partial(jax.jit, static_argnames="causal")
def _residual(points, base, directions, tokens, keep, y, causal):
    heads = base + jnp.einsum("mq,qfe->mfe", points, directions)
    p = _mix(heads, tokens, keep, causal)
    gram = p.T @ p
    ridge = calibration.NET_RIDGE * jnp.trace(gram) / len(gram) * jnp.eye(len(gram))
    return (p @ jnp.linalg.solve(gram + ridge, p.T @ y) - y).reshape(-1)


_slopes = partial(jax.jit, static_argnames="causal")(jax.jacfwd(_residual))
