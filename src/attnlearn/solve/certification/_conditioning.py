"""How well the examples determine a layer: the smallest singular value of its Jacobian, free of any gauge.

Parameters are (Theta, c, W, b) themselves, or with `rank` the tangent space of matrices of that rank at Theta_i,
so no gauge is left. If a layer near this one differs from it by e in the parameters and its outputs by rho on
the examples (root of the sum of squares), then to first order ‖J e‖ <= rho. With the coordinates t of the scores
(`_precondition`) and w = L^T [W; b], L L^T = P^T P (`_regress`), and with the matrices S and A of `_point`:

    ‖t‖^2 <= rho^2 / lambda                   lambda the smallest eigenvalue of S: W and b can undo no more
    ‖w‖^2 <= rho^2 (1 + Lambda / lambda)      Lambda the largest eigenvalue of A - S: what W and b can undo
    ‖e_i‖ <= ‖block i of the map t -> e, or w -> e‖ times that, for each head and each parameter

For the second, split the difference u = J t + Q w of the outputs, Q = P L^-T with orthonormal columns, into Q^T u and the rest u_1:
w = Q^T u - Q^T J t, ‖Q^T J t‖^2 = t^T (A - S) t <= Lambda ‖t‖^2 and ‖t‖^2 <= ‖u_1‖^2 / lambda. Together ‖(t, w)‖^2 <= rho^2 (1 + lambda + Lambda) /
lambda: the smallest eigenvalue for all parameters is at least lambda / (1 + lambda + Lambda).
A sharp look has S >= lambda + tau A instead: then t^T (A - S) t <= (1 / tau - 1) ‖u_1‖^2, and Lambda / lambda is replaced by 1 / tau - 1. (The
direction that W and b undo most is not the one that the outputs bind least.)
The blocks are small matrices with exact norms; lambda, tau and Lambda come from `_spectrum`.

A `rough` look takes lambda from a few combinations of the outputs, whose S is at most that of all: lambda is no larger, Lambda no smaller, and the
bounds hold. Both looks weigh the sequences (`_point`): rho is then the root of the sum of the weighted squares.

All of it is the linear model: curvature is bounded apart (`_curvature`), and other layers far away with the same outputs are
not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._types import ArrayLike
from attnlearn.scores import Bilinear
from attnlearn.scores._kronecker import spectral_norms
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._attend import split_linear
from attnlearn.solve._chunks import on_threads
from attnlearn.solve._curvature import second_derivative
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import score_sizes
from attnlearn.solve._white import Whitening
from attnlearn.solve.certification._point import Point, prepare, size_of
from attnlearn.solve.certification._spectrum import (
    Spectrum,
    dense_spectrum,
    lanczos_spectrum,
    largest_undone,
    spared_share,
)


@dataclass(frozen=True)
class Conditioning:
    """How outputs bind parameters: a relative error is at most its entry here times rho (see the module).

    - `theta`, `w`: one number per head, relative to that head's own norm. A Theta of zero has none: its number is relative to the
      largest Theta, and if all are zero to `unit`, the norm of a Theta whose logits on these tokens have variance one.
    - `query_bias` (one per head) and `output_bias` are absolute, for a bias may be zero.
    - `smallest` = 1 / max(theta, w): every head's Theta and W are known to rho / smallest.
    - `eigenvalue` is the estimate of lambda, `guaranteed` the part of it that is certain.
    - `lower` is what is guaranteed of the smallest eigenvalue for all parameters together.
    - `curvature` bounds the second derivative in the coordinates of `lower`, up to steps of length `reach` (`_curvature`). It is
      infinite at a given rank.
    - `equations` and `unknowns` are counted on the `examples` that were looked at, `weights` are those of their sequences in rho.
    """

    smallest: float
    theta: Float[np.ndarray, "m"]
    w: Float[np.ndarray, "m"]
    query_bias: Float[np.ndarray, "m"]
    output_bias: float
    eigenvalue: float
    guaranteed: float
    lower: float
    lanczos_steps: int
    equations: int
    unknowns: int
    examples: int
    tokens: int
    unit: float
    weights: Float[np.ndarray, "n"]
    curvature: float = np.inf
    reach: float = 0.0


def smallest_singular(
    layer: AttentionLayer,
    x: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    rank: int | None = None,
    seed: int = 0,
    delta: float = calibration.DELTA,
    on_step: Callable[..., None] | None = None,
    deadline: float | None = None,
    hurried: bool = False,
    rough: bool = False,
    good: Callable[[Conditioning], bool] | None = None,
) -> Conditioning | None:
    """Bounds on parameter errors per unit of output error, from at most a few examples per unknown; None after the deadline.

    Where the bounds would take many products, a `hurried` call gives up, and they are infinite. A `rough` call gives bounds of the
    right order for a fraction of the products' price. Bounds that are `good` need not become sharper.

    Only the first examples are looked at, as many as `refine` starts with, and more if these determine the layer badly
    (`Conditioning.examples`); rho is to be taken over these. `on_step` is told how far Lanczos came.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((60, 5, 4))
    >>> found = smallest_singular(layer, x)
    >>> bool(0 < found.lower <= found.eigenvalue), found.equations > found.unknowns
    (True, True)
    """
    make = partial(prepare, layer, x, mask, rank, joint=False, rough=rough, even=True)
    enough = calibration.ENOUGH_SHARE if rough else 1 - calibration.ENOUGH_SHARE
    with on_threads():
        judge = _Judge(layer, make(), good)
        spectrum, undone = Spectrum(0.0, 0.0, 0), np.inf
        if judge.point.rows * layer.out_dim >= judge.unknowns:
            chance = delta / 4  # halved with every attempt: all of them and that of Lambda stay below delta
            more = judge.point.examples < len(x)
            spared = 0.0 if rough else spared_share(judge.point, seed, deadline)
            while (
                found := lanczos_spectrum(
                    judge.point, seed, chance, more, on_step, deadline, hurried, enough, spared, judge.is_good
                )
            ) is None:
                judge = _Judge(layer, make(sequences=2 * judge.point.examples), good)
                chance, more = chance / 2, judge.point.examples < len(x)
            spectrum = found
            if spectrum.lower == 0 and judge.small and not passed(deadline):
                judge = _Judge(layer, make(sequences=judge.point.examples, dtype=np.float64), good)
                spectrum = dense_spectrum(judge.point, on_step, deadline)
            undone = judge.undone(spectrum, seed, delta / 4, deadline)
    return None if passed(deadline) else judge.conditioning(spectrum, undone)


class _Judge:
    """What turns guaranteed eigenvalues at one point into bounds, and says whether these are good; computed when first needed."""

    def __init__(
        self, layer: AttentionLayer, point: Point, good: Callable[[Conditioning], bool] | None
    ) -> None:
        self.layer, self.point, self.good = layer, point, good
        self.unknowns = point.at.scores.unknowns() + point.linear.size
        self.small = size_of(point) <= calibration.MATRIX_MOST

    def is_good(self, spectrum: Spectrum) -> bool:
        """Whether the bounds that follow without a look at Lambda are good."""
        if self.good is None or not (spectrum.lower > 0 and spectrum.spared > 0):
            return False
        return self.good(self.conditioning(spectrum, 1 / spectrum.spared - 1))

    def undone(self, spectrum: Spectrum, seed: int, delta: float, deadline: float | None) -> float:
        """What t^T (A - S) t is at most for a t^T S t of one; infinite where nothing is guaranteed."""
        if not spectrum.lower > 0:
            return np.inf
        known = 1 / spectrum.spared - 1 if spectrum.spared else np.inf
        if self.is_good(spectrum):
            return known
        return min(known, largest_undone(self.point, seed, delta, deadline) / spectrum.lower)

    @cached_property
    def blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Norms of the maps from coordinates to parameters."""
        return _blocks(self.point)

    @cached_property
    def bent(self) -> dict[str, float]:
        """The curvature, where it is bounded."""
        return _bent(self.point)

    def conditioning(self, spectrum: Spectrum, undone: float) -> Conditioning:
        """The bounds from S >= `spectrum.lower` and A - S <= `undone` S."""
        return _conditioning(self.layer, self.point, self.blocks, self.bent, spectrum, undone, self.unknowns)


def _conditioning(
    layer: AttentionLayer,
    point: Point,
    blocks: tuple[np.ndarray, np.ndarray, np.ndarray, float],
    bent: dict[str, float],
    spectrum: Spectrum,
    undone: float,
    unknowns: int,
) -> Conditioning:
    unit = layer.dim / max(float(np.sum(point.white.basis**2)), np.finfo(float).tiny)
    theta, query_bias, w, output_bias = blocks
    with np.errstate(divide="ignore", invalid="ignore"):
        of_scores, of_linear = 1 / np.sqrt(spectrum.lower), np.sqrt(1 + undone)
        theta, query_bias = theta * of_scores, query_bias * of_scores
        w, output_bias = w * of_linear, output_bias * of_linear
        sizes = score_sizes(layer, point.tokens).theta
        theta = theta / np.where(sizes > 0, sizes, sizes.max() or unit)
        w = w / np.linalg.norm(layer.w, axis=(1, 2))
        lower = 1 / (1 / np.float64(spectrum.lower) + 1 + undone)
    theta, w = (np.where(np.isnan(block), np.inf, block) for block in (theta, w))
    worst = float(max(theta.max(), w.max()))
    return Conditioning(
        smallest=1 / worst if worst > 0 else np.inf,
        theta=theta,
        w=w,
        query_bias=query_bias,
        output_bias=float(output_bias),
        eigenvalue=spectrum.estimate,
        guaranteed=spectrum.lower,
        lower=float(lower),
        lanczos_steps=spectrum.steps,
        equations=point.rows * layer.out_dim,
        unknowns=unknowns,
        examples=point.examples,
        tokens=point.tokens,
        unit=unit,
        weights=point.weights,
        **bent,
    )


def _bent(point: Point) -> dict[str, float]:
    """The curvature of whole Theta_i in the coordinates of the spectrum, and how far it holds."""
    if not isinstance(point.at.scores, Bilinear) or point.at.scores.rank is not None:
        return {}
    theta, query_bias, w = _white_blocks(point)
    m = len(theta)
    norms = np.linalg.norm(split_linear(point.linear, m)[0], ord=2, axis=(1, 2))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        parts = [
            second_derivative(
                chunk.x.astype(np.float64), chunk.keep, theta, query_bias, w, norms, chunk.weight
            )
            for chunk in point.at.chunks
        ]
        return {"curvature": float(np.linalg.norm(parts)), "reach": float(np.min(norms / w))}


def _white_blocks(point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Norms of the maps from coordinates to Theta_i, c_i and W_i of the layer on white tokens."""
    scores = point.at.scores
    same = np.eye(scores.dim)
    theta, query_bias = scores.reach(point.by, Whitening(np.zeros(scores.dim), same, same))
    linear = _columns(point.factor[:, : scores.heads * scores.dim], scores.heads)
    return theta, query_bias, spectral_norms(linear)


def _columns(matrix: np.ndarray, m: int) -> np.ndarray:
    return np.stack(np.split(np.asarray(matrix, np.float64), m, axis=1))


def _blocks(point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Norms of the maps from coordinates to Theta_i, c_i, W_i and b, in the coordinates of the tokens."""
    scores, white = point.at.scores, point.white
    theta, query_bias = scores.reach(point.by, white)
    linear = _columns(point.factor[:, : scores.heads * scores.dim], scores.heads)
    w = spectral_norms(white.inverse.T @ np.swapaxes(linear, 1, 2))
    total = white.inverse.T @ linear.sum(axis=0).T
    output_bias = float(np.linalg.norm(point.factor[:, -1] - white.mean @ total))
    return theta, query_bias, w, output_bias
