"""How well the examples determine a layer: the smallest singular value of its Jacobian, free of any gauge.

Parameters are (Theta, c, W, b) themselves, or with `rank` the tangent space of matrices of that rank at Theta_i,
so no gauge is left. If a layer near this one differs from it by e in the parameters and its outputs by rho on
the examples (root of the sum of squares), then to first order ‖J e‖ <= rho. With the coordinates
t = (preconditioned scores, L^T [W; b]), L L^T = P^T P, of `_precondition` and `_regress`:

    ‖t‖ <= rho / sqrt(lambda),   lambda the smallest eigenvalue of the Gauss-Newton matrix in these coordinates
    ‖e_i‖ <= ‖block i of the map t -> e‖ rho / sqrt(lambda)        for each head and each parameter

The blocks are small matrices with exact norms; lambda comes from Lanczos.

Guaranteed: Lanczos never goes below the smallest eigenvalue, so on its own it errs on the wrong side. From a
random start, however, after q steps in dimension p the estimate exceeds lambda by more than the fraction eps of
the spectrum's width with probability at most 1.648 sqrt(p) exp(-sqrt(eps) (2 q - 1)) (Kuczynski and Wozniakowski,
1992, in exact arithmetic). `lower` is what remains after subtracting that eps at delta = 1e-6.
Where that takes too many steps and the unknowns are few, the matrix is written out instead, in float64: `lower` then is its
smallest eigenvalue less the rounding.
Only estimated: Lanczos has products in float32, so eigenvalues below about 1e-6 of the largest are not resolved; and all
of it is the linear model: curvature is neglected, and other layers far away with the same outputs are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Whitening, added, cut, on_threads, product, whitening
from attnlearn.solve._curvature import second_derivative
from attnlearn.solve._linearize import (
    Linearization,
    Local,
    forward_derivative,
    linearize,
    reverse_derivative,
)
from attnlearn.solve._precondition import Preconditioner, precondition
from attnlearn.solve._regress import Columns, checked_examples, inverse_factor
from attnlearn.solve._scores import Scores, split_linear


@dataclass(frozen=True)
class Conditioning:
    """How outputs bind parameters: a relative error is at most its entry here times rho (see the module).

    `theta` and `w` hold one number per head, relative to that head's own norm (a Theta of zero has none: to the
    largest of the layer, and if all are zero to `unit`, the norm of a Theta whose logits on these tokens have variance
    one); `query_bias` (one per head) and
    `output_bias` are absolute, for a bias may be zero. `smallest` = 1 / max(theta, w): every head's Theta and W are
    known to rho / smallest. `eigenvalue` is the Lanczos estimate, `lower` the guaranteed value that all others use;
    `equations` and `unknowns` are counted on the `examples` that were looked at. `curvature` bounds the second derivative
    in the coordinates of `lower`, up to steps of length `reach` (`_curvature`); it is infinite at a given rank.
    """

    smallest: float
    theta: Float[np.ndarray, "m"]
    w: Float[np.ndarray, "m"]
    query_bias: Float[np.ndarray, "m"]
    output_bias: float
    eigenvalue: float
    lower: float
    lanczos_steps: int
    equations: int
    unknowns: int
    examples: int
    unit: float
    curvature: float = np.inf
    reach: float = 0.0


class Point(NamedTuple):
    """A layer on some examples in white coordinates, ready for derivatives."""

    at: Linearization
    by: Preconditioner
    white: Whitening
    gauge: Any | None
    factor: np.ndarray
    rows: int
    examples: int


def smallest_singular(
    layer: AttentionLayer,
    x: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    rank: int | None = None,
    seed: int = 0,
    delta: float = calibration.DELTA,
    on_step: Callable[..., None] | None = None,
) -> Conditioning:
    """Bounds on parameter errors per unit of output error, from at most a few examples per unknown.

    Only the first examples are looked at, as many as `refine` starts with, and more if these determine the layer badly
    (`Conditioning.examples`); rho is to be taken over these. `on_step` is told how far Lanczos came.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((60, 5, 4))
    >>> found = smallest_singular(layer, x)
    >>> bool(0 < found.lower <= found.eigenvalue), found.equations > found.unknowns
    (True, True)
    """
    with on_threads():
        point = prepare(layer, x, mask, rank, joint=False)
        unknowns = point.at.scores.unknowns() + point.at.linear.size
        spectrum = _Spectrum(0.0, 0.0, 0)
        if point.rows * layer.out_dim >= unknowns:
            share = delta / 2  # of the confidence, halved with every attempt: together they stay below delta
            while (found := _spectrum(point, seed, share, point.examples < len(x), on_step)) is None:
                point = prepare(layer, x, mask, rank, joint=False, sequences=2 * point.examples)
                share /= 2
            spectrum = found
            if spectrum.lower == 0 and _size(point) <= calibration.DENSE_MOST:
                exact = prepare(layer, x, mask, rank, False, point.examples, dtype=np.float64)
                spectrum = _dense_spectrum(exact, on_step)
        equations = point.rows * layer.out_dim
    lower = spectrum.lower
    unit = layer.dim / max(float(np.sum(point.white.basis**2)), np.finfo(float).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        theta, query_bias, w, output_bias = (block / np.sqrt(lower) for block in _blocks(point))
        sizes = np.linalg.norm(layer.theta, axis=(1, 2))
        theta = theta / np.where(sizes > 0, sizes, sizes.max() or unit)
        w = w / np.linalg.norm(layer.w, axis=(1, 2))
    theta, w = (np.where(np.isnan(block), np.inf, block) for block in (theta, w))
    worst = float(max(theta.max(), w.max()))
    return Conditioning(
        smallest=1 / worst if worst > 0 else np.inf,
        theta=theta,
        w=w,
        query_bias=query_bias,
        output_bias=float(output_bias),
        eigenvalue=spectrum.estimate,
        lower=lower,
        lanczos_steps=spectrum.steps,
        equations=equations,
        unknowns=unknowns,
        examples=point.examples,
        unit=unit,
        **_bent(point),
    )


def _bent(point: Point) -> dict[str, float]:
    """The curvature of whole Theta_i in the coordinates of the spectrum, and how far it holds."""
    if point.at.scores.b is not None:
        return {}
    theta, query_bias, w = _white_blocks(point)
    m = len(theta)
    norms = np.linalg.norm(point.at.linear[:-1].reshape(m, -1, point.at.linear.shape[1]), ord=2, axis=(1, 2))
    chunks = point.at.chunks
    tokens = np.concatenate([chunk.x for chunk in chunks])
    keep = None if chunks[0].keep is None else np.concatenate([chunk.keep for chunk in chunks])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = second_derivative(tokens.astype(np.float64), keep, theta, query_bias, w, norms)
        return {"curvature": found, "reach": float(np.min(norms / w))}


def _white_blocks(point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Norms of the maps from coordinates to Theta_i, c_i and W_i of the layer on white tokens."""
    m, d = point.at.scores.c.shape

    def columns(matrix: np.ndarray) -> np.ndarray:
        return np.stack(np.split(np.asarray(matrix, np.float64), m, axis=1))

    theta = _norms(np.asarray(point.by.a_left, np.float64)) * _norms(columns(point.by.a_right))
    return theta, _norms(columns(point.by.c)), _norms(columns(point.factor[:, : m * d]))


def prepare(
    layer: AttentionLayer,
    x: ArrayLike,
    mask: ArrayLike | None,
    rank: int | None,
    joint: bool,
    sequences: int | None = None,
    dtype: Any = np.float32,
) -> Point:
    """Linearize a layer on the first examples, by default as many as `refine` starts with, in white coordinates."""
    x = np.asarray(x)
    x, y, keep = checked_examples(x, np.zeros((*x.shape[:2], layer.out_dim), x.dtype), mask, layer.dim)
    white = whitening(x, keep)
    inside = white.enter(layer.parameters)
    eps = float(np.finfo(layer.dtype).eps)
    scores = Scores.from_theta(inside.theta, inside.query_bias, rank, eps)
    tokens, out = x.shape[1] if keep is None else keep.sum() / len(keep), layer.out_dim
    wanted = sequences or int(np.ceil(scores.sequences_wanted(out, tokens, layer.causal)))
    used = min(wanted, len(x))
    keep = None if keep is None else keep[:used]
    double = cut(white.tokens(x[:used].astype(np.float64)), y[:used], keep)
    matrix, _ = Columns(scores.astype(np.float64), double, layer.causal).gram()
    factor = inverse_factor(matrix, calibration.RIDGE_DOUBLE)
    linear = np.concatenate([inside.w.reshape(-1, out), inside.output_bias[None]])
    at = linearize(scores, linear, factor, double.astype(dtype), layer.causal)
    by = precondition(at, joint=joint)
    gauge = None if scores.b is None else _gauge_basis(scores, by).astype(dtype)
    rows = used * x.shape[1] if keep is None else int(keep.sum())
    return Point(at, by, white, gauge, factor, rows, used)


def _gauge_basis(scores: Scores, by: Preconditioner) -> np.ndarray:
    """Orthonormal columns (m, d, r): coordinates of da_i orthogonal to them count every dTheta_i once."""
    root = np.linalg.inv(np.asarray(by.a_left, np.float64))
    return np.linalg.qr(root @ np.asarray(scores.a, np.float64))[0] * _used(scores)


def _used(scores: Scores) -> Any:
    """1 for the columns (m, 1, r) of the factors that a head of smaller rank has, 0 for the others."""
    return (abs(scores.a).max(axis=1, keepdims=True) > 0).astype(np.float32)


class Joint(NamedTuple):
    """Coordinates of all parameters: preconditioned scores and L^T [W; b]."""

    scores: Scores
    linear: np.ndarray

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([self.scores.flat(), self.linear.reshape(-1)])


def _free(point: Point, t: np.ndarray) -> Joint:
    """The coordinates in a vector, without gauge directions a_i -> a_i g and columns that a head does not have."""
    size = t.size - point.at.linear.size
    scores, linear = point.at.scores.shaped(t[:size]), t[size:].reshape(point.at.linear.shape)
    if point.gauge is None:
        return Joint(scores, linear)
    used = _used(point.at.scores)
    a = scores.a - point.gauge @ (point.gauge.transpose(0, 2, 1) @ scores.a)
    return Joint(scores._replace(a=a * used, b=scores.b * used), linear)


def joint_product(point: Point, t: np.ndarray) -> np.ndarray:
    """The Gauss-Newton matrix of all parameters in preconditioned, gauge-free coordinates."""
    at, by = point.at, point.by
    free = _free(point, t)
    tangent, linear = by.apply(free.scores), product(at.factor.T, free.linear)

    def part(local: Local, _extra: None) -> tuple[np.ndarray, np.ndarray]:
        u = forward_derivative(tangent, local)
        u += (local.p @ linear).reshape(u.shape)
        return reverse_derivative(u, local).flat(), u.reshape(len(local.p), -1).T @ local.p

    scores, moment = added(at.over_chunks(part))
    back = Joint(by.transpose(at.scores.shaped(scores)), product(moment, at.factor.T).T)
    return _free(point, back.flat()).flat()


def _size(point: Point) -> int:
    """Coordinates of all parameters, gauge included."""
    return point.at.scores.flat().size + point.at.linear.size


class _Spectrum(NamedTuple):
    estimate: float
    lower: float
    steps: int


class _Krylov(NamedTuple):
    """The last two Lanczos vectors and the last off-diagonal entry."""

    previous: np.ndarray
    current: np.ndarray
    beta: np.float32


def _lanczos(point: Point, state: _Krylov, steps: int) -> tuple[_Krylov, list[np.float32], list[np.float32]]:
    """So many further steps, and the diagonal and off-diagonal entries that they add."""
    diagonal, beside = [], []
    for _ in range(steps):
        previous, current, beta = state
        image = joint_product(point, current)
        image -= beta * previous
        alpha = image @ current
        image -= alpha * current
        # Rounding leaves a trace of the gauge, which would grow into a false eigenvalue 0.
        image = _free(point, image).flat()
        beta = np.linalg.norm(image)
        state = _Krylov(current, image / max(beta, np.finfo(np.float32).tiny), beta)
        diagonal.append(alpha)
        beside.append(beta)
    return state, diagonal, beside


def _spectrum(
    point: Point, seed: int, delta: float, more: bool, on_step: Callable[..., None] | None
) -> _Spectrum | None:
    """Smallest eigenvalue by Lanczos from a random start, with its guaranteed part.

    None where a guarantee would take many steps and there are `more` examples, with which it takes fewer.
    """
    dimension = _size(point)
    most = min(calibration.LANCZOS_MOST, 2 * dimension)  # with fewer products the matrix is written out
    rng = np.random.default_rng([seed, 0x1A2C])
    first = _free(point, rng.standard_normal(dimension).astype(np.float32)).flat()
    state = _Krylov(np.zeros_like(first), first / np.linalg.norm(first), np.float32(0))
    diagonal, beside = np.zeros(0), np.zeros(0)
    exponent = np.log(1.648 * np.sqrt(dimension) / delta)
    while True:
        state, alpha, beta = _lanczos(point, state, calibration.LANCZOS_BLOCK)
        diagonal, beside = np.append(diagonal, alpha), np.append(beside, beta)
        if not (np.isfinite(diagonal).all() and np.isfinite(beside).all()):
            # Curvature that is zero to rounding makes the coordinates overflow float32: nothing is resolved.
            return _Spectrum(0.0, 0.0, len(diagonal))
        values = scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1])
        smallest, largest = float(values[0]), float(values[-1])
        steps = len(diagonal)
        eps = (exponent / (2 * steps - 1)) ** 2
        # smallest - lambda <= eps (Lambda - lambda) and Lambda <= largest / (1 - eps).
        lower = max(0.0, (smallest - eps * largest / (1 - eps)) / (1 - eps)) if eps < 1 else 0.0
        if on_step is not None:
            on_step(products=steps, eigenvalue=smallest, guaranteed=lower)
        # The least number of steps that can give a guarantee, for the estimate only falls.
        needed = exponent / 2 / np.sqrt(max(smallest, np.finfo(float).tiny) / largest)
        if more and steps >= calibration.LANCZOS_LOOK and needed > calibration.LANCZOS_PATIENCE:
            return None
        if lower >= calibration.LANCZOS_SHARE * smallest or max(steps, needed) >= most:
            return _Spectrum(max(smallest, 0.0), float(lower), steps)


def _dense_spectrum(point: Point, on_step: Callable[..., None] | None) -> _Spectrum:
    """Smallest eigenvalue of the matrix itself, column by column; gauge directions, which count for nothing, have one."""
    size = _size(point)
    matrix = np.empty((size, size))
    for place, unit in enumerate(np.eye(size)):
        matrix[place] = joint_product(point, unit) + unit - _free(point, unit).flat()
        if on_step is not None and place % calibration.LANCZOS_BLOCK == 0:
            on_step(products=place + 1, of=size)
    if not np.isfinite(matrix).all():
        return _Spectrum(0.0, 0.0, size)
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    smallest, rounding = float(values[0]), calibration.DENSE_ROUNDING * float(values[-1])
    return _Spectrum(max(smallest, 0.0), max(smallest - rounding, 0.0), size)


def _norms(blocks: np.ndarray) -> np.ndarray:
    """Spectral norms, infinite where a block is not finite: what has no curvature is bound by nothing."""
    finite = np.isfinite(blocks).all(axis=(-2, -1), keepdims=True)
    norms = np.linalg.norm(np.where(finite, blocks, 0), ord=2, axis=(-2, -1))
    return np.where(finite[..., 0, 0], norms, np.inf)


def _blocks(point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Norms of the maps from coordinates to Theta_i, c_i, W_i and b, in the coordinates of the tokens."""
    scores, by, white = point.at.scores, point.by, point.white
    by = Preconditioner(*(None if part is None else np.asarray(part, np.float64) for part in by))
    m, d = scores.c.shape
    tokens = _norms(white.inverse.T @ by.a_left)

    def columns(matrix: np.ndarray) -> np.ndarray:
        return np.stack(np.split(matrix, m, axis=1))

    if scores.b is None:
        theta = tokens * _norms(columns(by.a_right) @ white.inverse)
    else:
        a, b = np.asarray(scores.a, np.float64), np.asarray(scores.b, np.float64)
        from_a = tokens * _norms(columns(by.a_right) @ np.swapaxes(b, 1, 2) @ white.inverse)
        from_b = _norms(white.inverse.T @ a @ np.swapaxes(by.b_right, 1, 2)) * _norms(
            np.swapaxes(by.b_left, 1, 2) @ white.inverse
        )
        theta = np.hypot(from_a, from_b)
    mean = float(np.linalg.norm(white.mean))
    query_bias = _norms(columns(by.c) @ white.inverse) + mean * theta
    linear = point.factor[:, : m * d]
    w = _norms(white.inverse.T @ np.swapaxes(columns(linear), 1, 2))
    total = white.inverse.T @ columns(linear).sum(axis=0).T
    output_bias = np.linalg.norm(point.factor[:, -1] - white.mean @ total)
    return theta, query_bias, w, output_bias


def original(point: Point, scores: Scores, linear: Any) -> Parameters:
    """A direction of the parameters in white coordinates as one of the layer on the tokens themselves."""
    scores, at = scores.astype(np.float64), point.at.scores.astype(np.float64)
    theta = scores.a
    if scores.b is not None:
        theta = scores.a @ np.swapaxes(at.b, 1, 2) + at.a @ np.swapaxes(scores.b, 1, 2)
    w, b = split_linear(np.asarray(linear, np.float64), scores.c.shape[0])
    return point.white.leave(Parameters(theta, w, scores.c, b))
