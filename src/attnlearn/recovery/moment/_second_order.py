"""Second order: the heads inside the span, by linear algebra.

The moment is linear in the scores, so it shows the span of the heads and not the heads. Their squares do. With s_j the scores on
the span's basis and v_l the values on it, centred over the keys that a query sees, and r the residual outputs,

    tensor[i, j, l] = mean over rows a, keys b != a of  s_i(a,b) s_j(a,b) <v_l(b), r_a>

is even in the query, which no odd order of the heads' scores survives; of an even function of a head's score with coordinates A_h
Gaussian tokens leave its second Hermite coefficient times A_hi A_hj. So, with A_h and C_h the coordinates of Theta_h and W_h,

    tensor[i, j, l] = sum_h A_hi A_hj C_hl    up to a factor for each head.

Such a sum has one decomposition: eigenvectors of a pencil of two combinations of its slices begin it, alternating least squares
complete it. The signs of the A_h are lost in squares and come from the moment, sum_h A_hj C'_hl = s_j 1[j=l]: C'_h must point where
C_h does. The ratio of their lengths would tell the size of the scores, but only of weak ones, so sizes are left to the fit.

Cost: a pass over 200 m^2 pairs of tokens, O(m d (d + d_out + k) + m^3) for each row, and m^4 a step of the decomposition. What can
fail: nothing is lost, because it is only where `count` begins; strong correlation between tokens, fewer than four keys and query
biases leave other terms beside the sum, and then the optimum lies elsewhere.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._rows import RowSource
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment._moment import Moment
from attnlearn.scores._products import turn
from attnlearn.solve._batch import WhiteBatch
from attnlearn.solve._chunks import added

Tensor = Float[np.ndarray, "l l l"]
Coordinates = Float[np.ndarray, "m l"]


def second_order_start(
    problem: Problem, signals: Signals, moment: Moment, heads: int, rng: np.random.Generator
) -> Coordinates | None:
    """Unit coordinates of so many heads on as many basis vectors; None where no pencil has eigenvectors."""
    k = problem.examples.tokens
    wanted = int(np.ceil(calibration.TENSOR_PAIRS * heads**2 / (k * max(1, k - 1))))
    chosen = np.sort(rng.permutation(signals.fit)[: max(wanted, calibration.SAMPLE)])
    source = RowSource(problem.examples, signals, chosen)
    left, right = (
        np.ascontiguousarray(basis[:heads].transpose(order).reshape(basis.shape[order[0]], -1), np.float32)
        for basis, order in ((moment.query_basis, (1, 0, 2)), (moment.value_basis, (2, 0, 1)))
    )
    found = decompose(added(in_order(partial(_squares, left, right, heads), source.chunks(heads))), rng)
    if found is None:
        return None
    a, c = found
    towards = np.linalg.pinv(a).T * moment.values[:heads]
    return np.where(np.einsum("hl,hl->h", towards, c) < 0, -1, 1)[:, None] * a


def _squares(left: np.ndarray, right: np.ndarray, heads: int, rows: WhiteBatch) -> Tensor:
    """The sum of one chunk."""
    z, residual, visible = rows
    n, k, r = z.shape
    turned, own = turn(z), np.arange(k)
    seen = np.ones((1, k, k), np.float32) if visible is None else visible.astype(np.float32)
    seen = (seen / np.maximum(seen.sum(axis=2, keepdims=True), 1))[:, :, None]
    queries = np.concatenate([z, np.ones((n, k, 1), np.float32)], axis=2)

    def centred(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        stacked = (vectors.reshape(n * k, -1) @ matrix).reshape(n, k * heads, r)
        found = (stacked @ turned).reshape(n, k, heads, k)
        found -= (found * seen).sum(axis=3, keepdims=True)
        if visible is not None:
            found *= seen > 0
        return found

    scores, values = centred(queries, left), centred(residual, right)
    values[:, own, :, own] = 0
    scores, values = (part.transpose(2, 0, 1, 3).reshape(heads, -1) for part in (scores, values))
    total = np.empty((heads, heads, heads))
    for i in range(heads):
        total[i, i:] = total[i:, i] = (scores[i:] * scores[i]) @ values.T
    return total


def decompose(tensor: Tensor, rng: np.random.Generator) -> tuple[Coordinates, Coordinates] | None:
    """Unit vectors A_h and vectors C_h with tensor = sum_h A_h A_h C_h, as nearly as there are; None if no pencil begins it.

    The best of several beginnings, for least squares have local optima; two that agree end the search.

    >>> rng = np.random.default_rng(0)
    >>> a, c = rng.standard_normal((2, 3, 3))
    >>> a /= np.linalg.norm(a, axis=1, keepdims=True)
    >>> found, _ = decompose(np.einsum("hi,hj,hl->ijl", a, a, c), rng)
    >>> bool(np.allclose(np.abs(found @ a.T).max(axis=0), 1))
    True
    """
    ends: list[_Sum] = []
    for _ in range(calibration.SPARE):
        pencils = [begun for _ in range(2 * calibration.SPARE) if (begun := _pencil(tensor, rng)) is not None]
        if pencils:
            ends.append(_alternated(tensor, min(pencils, key=lambda begun: begun.misfit)))
        least = min((end.misfit for end in ends), default=0.0)
        if sum(end.misfit <= (1 + calibration.ALIKE) * least for end in ends) > 1:
            break
    if not ends:
        return None
    best = min(ends, key=lambda end: end.misfit)
    return best.a, best.c


class _Sum(NamedTuple):
    a: Coordinates
    c: Coordinates
    misfit: float

    @classmethod
    def of(cls, tensor: Tensor, a: Coordinates) -> _Sum:
        return cls(a, *_third(tensor, a, a))


def _pencil(tensor: Tensor, rng: np.random.Generator) -> _Sum | None:
    """A beginning: the eigenvectors of two random combinations of slices."""
    first, second = np.einsum("ijl,lw->wij", tensor, rng.standard_normal((len(tensor), 2)))
    values: Any
    vectors: Any
    try:
        values, vectors = np.linalg.eig(np.linalg.solve(first, second))
        # Eigenvectors that noise made complex span, in pairs, what two real ones would.
        inverse = np.linalg.inv(np.where(values.imag < 0, vectors.imag, vectors.real))
    except np.linalg.LinAlgError:
        return None
    found = _Sum.of(tensor, _unit(inverse)) if np.isfinite(inverse).all() else None
    return found if found is not None and np.isfinite(found.misfit) else None


def _alternated(tensor: Tensor, found: _Sum) -> _Sum:
    """Alternating least squares, both sides made one after each step."""
    for _ in range(calibration.STEPS_MOST):
        b = _unit(_side(tensor, found.a, found.c))
        a = _side(tensor, b, _third(tensor, b, found.a)[0])
        same = np.where(np.einsum("hi,hi->h", a, b) < 0, -1, 1)[:, None]
        better = _Sum.of(tensor, _unit(_unit(a) + same * b))
        if not better.misfit < (1 - calibration.NEGLIGIBLE) * found.misfit:
            break
        found = better
    return found


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)


def _third(tensor: Tensor, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The best C for given sides, and the norm of what it leaves."""
    products = np.einsum("hi,hj->hij", a, b).reshape(len(a), -1)
    flat = tensor.reshape(-1, tensor.shape[2])
    c = np.linalg.pinv((a @ a.T) * (b @ b.T), hermitian=True) @ (products @ flat)
    return c, float(np.linalg.norm(products.T @ c - flat))


def _side(tensor: Tensor, other: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The best first side for a given second one and C."""
    right = np.einsum("ijl,hj,hl->hi", tensor, other, c, optimize=True)
    return np.linalg.pinv((other @ other.T) * (c @ c.T), hermitian=True) @ right
