"""The preconditioner of `_newton`: a Kronecker product for every factor of every head.

A factor f (d, r) changes the outputs by inputs (d) and signals (r). Were these independent, its block of the Gauss-Newton matrix would be
E[input input^T] (x) E[signal signal^T]. Inputs are tokens, weighted by the squares of the signals that they meet; signals are those
that random outputs send back. Blocks of different factors are treated as independent.

On a layer of four heads (d = 24, rank 6) steps to a tenth took 5 to 16 products.
Cost: one pass over a few chunks, and m inverses of (d, d). What can fail: nothing but speed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.wide._tangent import Factors, Local, Tangent, signals
from attnlearn.scores import Bilinear
from attnlearn.solve._chunks import added

Sides = tuple[np.ndarray, ...]
"""One array (m, side, side) for each of a, b, c and the values."""


class Blocks(NamedTuple):
    """Left (m, d, d) and right (m, r, r) sides of all Kronecker products, and their inverses."""

    left: Sides
    right: Sides
    left_inverse: Sides
    right_inverse: Sides

    @classmethod
    def of(cls, at: Tangent) -> Blocks:
        """Second moments on a few chunks."""
        few = at.local[:: max(1, len(at.local) // calibration.SPARE)]
        rng = np.random.default_rng(0)
        draws = [rng.standard_normal(one.rest.shape, dtype=np.float32) for one in few]
        found = added(in_order(lambda pair: _moments(at, *pair), list(zip(few, draws, strict=True))))
        share = sum(len(one.rest) for one in at.local) / sum(len(one.rest) for one in few)
        sides = found[:4], tuple(share * side for side in found[4:])
        left, right = (
            tuple(_definite(side) for side in some) for some in (map(_mean_one, sides[0]), sides[1])
        )
        inverse = (tuple(np.linalg.inv(side) for side in some) for some in (left, right))
        return cls(*(tuple(side.astype(np.float32) for side in some) for some in (left, right, *inverse)))

    def times(self, t: Factors) -> Factors:
        """The preconditioner times a direction."""
        return _applied(t, self.left, self.right)

    def solve(self, t: Factors) -> Factors:
        """Its inverse times a direction."""
        return _applied(t, self.left_inverse, self.right_inverse)


def _applied(t: Factors, left: Sides, right: Sides) -> Factors:
    assert isinstance(t.scores, Bilinear), "a preconditioner of plain factors"
    parts = (t.scores.a, t.scores.b, t.scores.c[..., None], t.values)
    a, b, c, values = (one @ part @ other for part, one, other in zip(parts, left, right, strict=True))
    return Factors(Bilinear(a, b, c[..., 0]), values)


def _mean_one(side: Float[np.ndarray, "m s s"]) -> np.ndarray:
    """Blocks whose mean eigenvalue is one."""
    mean = np.trace(side, axis1=1, axis2=2) / side.shape[-1]
    return side / np.maximum(mean, np.finfo(side.dtype).tiny)[:, None, None]


def _definite(side: Float[np.ndarray, "m s s"]) -> np.ndarray:
    """Blocks without directions far below the mean of their own head, or of all heads, in float64."""
    side = np.asarray(side, np.float64)
    mean = np.trace(side, axis1=1, axis2=2) / side.shape[-1]
    least = np.maximum(mean, calibration.NEGLIGIBLE * mean.max())
    return side + calibration.NEGLIGIBLE * least[:, None, None] * np.eye(side.shape[-1])


def _moments(at: Tangent, one: Local, draw: Float[np.ndarray, "rows o"]) -> Sides:
    """On one chunk: second moments of the inputs of a, b, c and the values, and of the signals that they meet."""
    heads = len(at.student.values)
    tokens = one.chunk.x.reshape(-1, one.chunk.x.shape[2])
    to_scores, to_values = signals(one, draw @ at.outputs.T)
    weights = to_scores.swapaxes(1, 2)  # n, m, query, key
    queries, keys = (part.swapaxes(1, 2) for part in (one.seen.kept.queries, one.seen.kept.keys))  # pyright: ignore[reportAttributeAccessIssue]
    met = (
        weights @ keys,
        weights.swapaxes(2, 3) @ queries,
        weights.sum(axis=2)[..., None],
        to_values.swapaxes(1, 2),
    )
    sent = [part.swapaxes(0, 1).reshape(heads, len(tokens), -1) for part in met]

    def inputs(signal: np.ndarray) -> np.ndarray:
        sizes = np.linalg.norm(signal, axis=2)
        return np.stack([(tokens * size[:, None]).T @ (tokens * size[:, None]) for size in sizes])

    return tuple(map(inputs, sent)) + tuple(signal.swapaxes(1, 2) @ signal for signal in sent)
