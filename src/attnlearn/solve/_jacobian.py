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
Only estimated: products are in float32, so eigenvalues below about 1e-6 of the largest are not resolved; and all
of it is the linear model: curvature is neglected, and other layers far away with the same outputs are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from attnlearn._forward import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn._precision import precision
from attnlearn._types import ArrayLike
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import Whitening, stack_chunks, whitening
from attnlearn.solve._linearize import (
    Linearization,
    forward_derivative,
    linearize,
    over_chunks,
    reverse_derivative,
)
from attnlearn.solve._precondition import Preconditioner, precondition
from attnlearn.solve._regress import checked_examples, gram, inverse_factor, single_blas
from attnlearn.solve._scores import Scores, split_linear
from attnlearn.solve._step import tree_norm


@dataclass(frozen=True)
class Conditioning:
    """How outputs bind parameters: a relative error is at most its entry here times rho (see the module).

    `theta` and `w` hold one number per head, relative to that head's own norm (a Theta of zero has none: to the
    largest of the layer, and if all are zero to `unit`, the norm of a Theta whose logits on these tokens have variance
    one); `query_bias` (one per head) and
    `output_bias` are absolute, for a bias may be zero. `smallest` = 1 / max(theta, w): every head's Theta and W are
    known to rho / smallest. `eigenvalue` is the Lanczos estimate, `lower` the guaranteed value that all others use;
    `equations` and `unknowns` are counted on the `examples` that were looked at.
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

    Only the first examples are looked at, as many as `refine` starts with (`Conditioning.examples`); rho is to be
    taken over these. Over more examples the value would only be larger. `on_step` is told how far Lanczos came.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((60, 5, 4))
    >>> found = smallest_singular(layer, x)
    >>> bool(0 < found.lower <= found.eigenvalue), found.equations > found.unknowns
    (True, True)
    """
    with precision(np.float64), single_blas():
        point = prepare(layer, x, mask, rank, joint=False)
        unknowns = point.at.scores.unknowns() + point.at.linear.size
        equations = point.rows * layer.out_dim
        spectrum = _Spectrum(0.0, 0.0, 0)
        if equations >= unknowns:
            spectrum = _spectrum(point, layer.causal, seed, delta, on_step)
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
    )


def prepare(
    layer: AttentionLayer, x: ArrayLike, mask: ArrayLike | None, rank: int | None, joint: bool
) -> Point:
    """Linearize a layer on the first examples, in white coordinates."""
    x = np.asarray(x)
    x, y, keep = checked_examples(x, np.zeros((*x.shape[:2], layer.out_dim), x.dtype), mask, layer.dim)
    white = whitening(x, keep)
    inside = white.enter(layer.parameters)
    eps = float(np.finfo(layer.dtype).eps)
    scores = Scores.from_theta(inside.theta, inside.query_bias, rank, eps)
    tokens, out = x.shape[1] if keep is None else keep.sum() / len(keep), layer.out_dim
    used = int(min(np.ceil(scores.sequences_wanted(out, tokens, layer.causal)), len(x)))
    keep = None if keep is None else keep[:used]
    double = stack_chunks(white.tokens(x[:used].astype(np.float64)), y[:used], keep).astype(np.float64)
    matrix, _ = gram(scores.astype(np.float64), double, layer.causal)
    factor = inverse_factor(np.asarray(matrix), calibration.RIDGE_DOUBLE)
    linear = np.concatenate([inside.w.reshape(-1, out), inside.output_bias[None]])
    single = double.astype(np.float32)
    at = linearize(scores, linear, factor, single.x, single.keep, layer.causal)
    by = precondition(at, layer.causal, joint=joint)
    gauge = None if scores.b is None else _gauge_basis(scores, by)
    rows = used * x.shape[1] if keep is None else int(keep.sum())
    return Point(at, by, white, gauge, factor, rows, used)


def _gauge_basis(scores: Scores, by: Preconditioner) -> np.ndarray:
    """Orthonormal columns (m, d, r): coordinates of da_i orthogonal to them count every dTheta_i once."""
    root = np.linalg.inv(np.asarray(by.a_left, np.float64))
    return (np.linalg.qr(root @ np.asarray(scores.a, np.float64))[0] * _used(scores)).astype(np.float32)


def _used(scores: Scores) -> Any:
    """1 for the columns (m, 1, r) of the factors that a head of smaller rank has, 0 for the others."""
    return (abs(scores.a).max(axis=1, keepdims=True) > 0).astype(np.float32)


class Joint(NamedTuple):
    """Coordinates of all parameters: preconditioned scores and L^T [W; b]."""

    scores: Scores
    linear: Any


def _free(point: Point, t: Joint) -> Joint:
    """Remove the gauge directions a_i -> a_i g from the coordinates, and columns that a head does not have."""
    if point.gauge is None:
        return t
    used = _used(point.at.scores)
    a = t.scores.a - point.gauge @ (point.gauge.transpose(0, 2, 1) @ t.scores.a)
    return Joint(t.scores._replace(a=a * used, b=t.scores.b * used), t.linear)


def joint_product(point: Point, t: Joint, causal: bool) -> Joint:
    """The Gauss-Newton matrix of all parameters in preconditioned, gauge-free coordinates."""
    at, by = point.at, point.by
    t = _free(point, t)
    tangent, linear = by.apply(t.scores), at.factor.T @ t.linear

    def add(total, local, _keep, _extra):
        u = forward_derivative(tangent, local)
        u = u + (local.p @ linear).reshape(u.shape)
        # Turned, because u^T p runs a quarter faster than p^T u.
        back = Joint(reverse_derivative(u, local), u.reshape(len(local.p), -1).T @ local.p)
        return jax.tree.map(jnp.add, total, back), None

    start = Joint(jax.tree.map(jnp.zeros_like, at.scores), jnp.zeros_like(at.linear.T))
    total, _ = over_chunks(at, causal, add, start, None)
    return _free(point, Joint(by.transpose(total.scores), at.factor @ total.linear.T))


class _Spectrum(NamedTuple):
    estimate: float
    lower: float
    steps: int


@partial(jax.jit, static_argnames=("causal", "steps"))
def _lanczos(point: Point, state: Any, causal: bool, steps: int) -> tuple[Any, tuple[jax.Array, jax.Array]]:
    def advance(state, _):
        previous, current, beta = state
        image = joint_product(point, current, causal)
        image = jax.tree.map(lambda p, q: p - beta * q, image, previous)
        alpha = jax.tree.reduce(jnp.add, jax.tree.map(lambda p, q: jnp.sum(p * q), image, current))
        # Rounding leaves a trace of the gauge, which would grow into a false eigenvalue 0.
        image = _free(point, jax.tree.map(lambda p, q: p - alpha * q, image, current))
        beta = tree_norm(image)
        following = jax.tree.map(lambda p: p / jnp.maximum(beta, jnp.finfo(p.dtype).tiny), image)
        return (current, following, beta), (alpha, beta)

    return jax.lax.scan(advance, state, None, length=steps)


def _spectrum(
    point: Point, causal: bool, seed: int, delta: float, on_step: Callable[..., None] | None
) -> _Spectrum:
    """Smallest eigenvalue by Lanczos from a random start, with its guaranteed part."""
    like = Joint(point.at.scores, point.at.linear)
    rng = np.random.default_rng([seed, 0x1A2C])
    first = _free(point, jax.tree.map(lambda z: rng.standard_normal(z.shape).astype(np.float32), like))
    norm = np.linalg.norm([np.linalg.norm(leaf) for leaf in jax.tree.leaves(first)])
    first = jax.tree.map(lambda z: z / np.float32(norm), first)
    dimension = sum(leaf.size for leaf in jax.tree.leaves(like))
    traced = point._replace(white=None, factor=None, rows=0, examples=0)
    state = (jax.tree.map(np.zeros_like, first), first, np.float32(0))
    diagonal, beside = np.zeros(0), np.zeros(0)
    exponent = np.log(1.648 * np.sqrt(dimension) / delta)
    while True:
        state, (alpha, beta) = _lanczos(traced, state, causal, calibration.LANCZOS_BLOCK)
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
        if lower >= calibration.LANCZOS_SHARE * smallest or max(steps, needed) >= calibration.LANCZOS_MOST:
            return _Spectrum(max(smallest, 0.0), float(lower), steps)


def _norms(blocks: np.ndarray) -> np.ndarray:
    """Spectral norms, infinite where a block is not finite: what has no curvature is bound by nothing."""
    finite = np.isfinite(blocks).all(axis=(-2, -1), keepdims=True)
    norms = np.linalg.norm(np.where(finite, blocks, 0), ord=2, axis=(-2, -1))
    return np.where(finite[..., 0, 0], norms, np.inf)


def _blocks(point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Norms of the maps from coordinates to Theta_i, c_i, W_i and b, in the coordinates of the tokens."""
    scores, by, white = point.at.scores, point.by, point.white
    by = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), by)
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
    scores, at = (jax.tree.map(lambda z: np.asarray(z, np.float64), s) for s in (scores, point.at.scores))
    theta = scores.a
    if scores.b is not None:
        theta = scores.a @ np.swapaxes(at.b, 1, 2) + at.a @ np.swapaxes(scores.b, 1, 2)
    w, b = split_linear(np.asarray(linear, np.float64), scores.c.shape[0])
    return point.white.leave(Parameters(theta, w, scores.c, b))
