"""The derivative of a layer in its scores, chunk by chunk and in closed form, with W and b eliminated.

For a head with patterns alpha and values V = X W the derivative in a direction that changes its scores by dS is

    dalpha = alpha * (dS - rowsum(alpha * dS)),   dF = sum_i dalpha_i V_i

Eliminating W and b (Kaufman's variable projection) replaces J by (I - P P^+) J. The products below are
J~^T (I - P P^+) J~ with J~ = J times the preconditioner of `_precondition`, two passes over the chunks each:
the first sums P^T J t, the second subtracts the projection and applies J^T. Per row and head this costs
d r (factors) or d^2 (whole Theta) plus m d d_out for the projection, a few times each.

Everything runs in the precision of the chunks, which is float32 as a rule: Gauss-Newton corrects with residuals evaluated in
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import permute, reshape
from attnlearn._attention import row_sums
from attnlearn.scores import Scores, Visible
from attnlearn.scores._products import product, project, turn
from attnlearn.solve._attend import mixed, patterns, split_linear
from attnlearn.solve._chunks import Chunk, Chunks, Pieces, cache_bytes


class Local(NamedTuple):
    """What the derivative on one chunk needs: the scores and what they keep, alpha (n, query, m, key), values V (n, m k, o),
    also turned, as small products want them, and mixed tokens p (n k, m d + 1)."""

    scores: Scores
    x: np.ndarray
    alpha: np.ndarray
    kept: Any
    values: np.ndarray
    turned_values: np.ndarray
    p: np.ndarray


class Linearization(NamedTuple):
    """A layer at which derivatives are taken: scores, [W; b], L^-1 of P^T P, chunks, and the local arrays of each."""

    scores: Scores
    linear: np.ndarray
    factor: np.ndarray
    chunks: Chunks
    causal: bool | Visible
    local: Pieces


def local_arrays(chunk: Chunk, scores: Scores, linear: np.ndarray, causal: bool | Visible) -> Local:
    """Patterns, values and mixed tokens of one chunk."""
    x = chunk.x
    alpha, kept = patterns(scores, x, turn(x), chunk.keep, causal)
    values = values_of(x, split_linear(linear, scores.heads)[0], chunk.weight)
    p = mixed(alpha, x, chunk.keep, chunk.weight)
    return Local(scores, x, alpha, kept, values, turn(values), p)


def values_of(x: np.ndarray, w: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """The values V (n, m k, o) of all heads on one chunk, times the weight (n, 1, 1) of each sequence."""
    n, k, _ = x.shape
    m, _, o = w.shape
    values = reshape(permute(project(x, w), (0, 2, 1, 3)), (n, m * k, o))
    return values if weight is None else values * weight


def linearize(
    scores: Scores, linear: Any, factor: Any, chunks: Chunks, causal: bool | Visible
) -> Linearization:
    """Prepare derivatives in the precision of the chunks; the local arrays are kept if they fit into `cache_bytes()`."""
    dtype = chunks.dtype
    scores, linear, factor = scores.astype(dtype), np.asarray(linear, dtype), np.asarray(factor, dtype)
    width = scores.dim if scores.rank is None else scores.rank
    longest = max(chunk.x.shape[1] for chunk in chunks)
    per_row = scores.heads * (longest + scores.dim + 2 * linear.shape[1] + 2 * width)
    fits = dtype.itemsize * chunks.rows * per_row <= cache_bytes()
    work = chunks.multiplications(len(linear))
    local = chunks.derive(local_arrays, given=(scores, linear, causal), keep=fits, work=work)
    return Linearization(scores, linear, factor, chunks, causal, local)


def forward_derivative(tangent: Scores, at: Local) -> np.ndarray:
    """dF (n, k, o) of one chunk along a direction of the scores."""
    return weights_derivative(tangent, at) @ at.values


def reverse_derivative(u: np.ndarray, at: Local) -> Scores:
    """The adjoint: gradient in the scores of <u, F> for u (n, k, o)."""
    return weights_adjoint(u @ at.turned_values, at)


def weights_derivative(tangent: Scores, at: Local) -> np.ndarray:
    """dalpha (n, query, m key) of one chunk along a direction of the scores."""
    n, k, m, keys = at.alpha.shape
    changed = through_softmax(at.scores.jvp(tangent, at.kept), at.alpha)
    return reshape(changed, (n, k, m * keys))


def weights_adjoint(change: np.ndarray, at: Local) -> Scores:
    """The adjoint: gradient in the scores of <change, alpha>, in the memory of `change` (n, query, m key)."""
    change = reshape(change, at.alpha.shape)
    return at.scores.vjp(through_softmax(change, at.alpha), at.kept)


def through_softmax(change: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """alpha * (change - rowsum(alpha * change)), in the memory of `change`: the derivative of softmax, its own adjoint."""
    change *= alpha
    change -= alpha * row_sums(change)
    return change


def linear_response(at: Linearization, tangent: Scores) -> tuple[np.ndarray, Pieces]:
    """P^+ J of a direction of the scores, the change of -[W; b] that goes with it, and J of it by chunk."""
    moved = at.local.derive(_moved, given=(tangent,))
    return projected(at, moved.sum(moment, at.local)), moved


def _moved(local: Local, tangent: Scores) -> np.ndarray:
    return forward_derivative(tangent, local)


def moment(u: np.ndarray, local: Local) -> np.ndarray:
    """u^T P (o, m d + 1) of one chunk."""
    return reshape(u, (local.p.shape[0], -1)).T @ local.p


def projected(at: Linearization, moment: np.ndarray) -> np.ndarray:
    """(P^T P)^-1 of P^T u, which is given as (o, m d + 1).

    Two triangular products instead of one with the inverse: the error grows with cond(P), not its square.
    """
    return product(product(moment, at.factor.T), at.factor).T


def normal_product(at: Linearization, tangent: Scores, spared: float = 0.0) -> tuple[Scores, np.ndarray]:
    """J^T (I - P P^+) J of a direction of the scores, and on the way P^+ J of it; less the share `spared` of J^T J."""
    follow, moved = linear_response(at, tangent)
    return moved.sum(_pulled_rest, at.local, given=(-follow, spared)), follow


def _pulled_rest(u: np.ndarray, local: Local, against: np.ndarray, spared: float) -> Scores:
    rest = reshape(local.p @ against, u.shape)
    rest += (1 - spared) * u if spared else u
    return reverse_derivative(rest, local)


def gradient(at: Linearization, rest: Pieces | Sequence[np.ndarray]) -> Scores:
    """J^T rest for residuals (s k, o) by chunk, orthogonal to the columns of P."""
    return at.local.sum(_pulled, Pieces.of(rest))


def _pulled(local: Local, u: np.ndarray) -> Scores:
    n, k, _ = local.x.shape
    return reverse_derivative(reshape(u, (n, k, -1)), local)
