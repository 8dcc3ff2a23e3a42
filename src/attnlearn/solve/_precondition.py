"""The curvature behind the preconditioner of Gauss-Newton on the scores, which each kind of scores makes of it.

Row a changes by x_a^T dTheta_i C_a^i W_i with C_a^i = sum_b alpha_ab x_b (x_b - xbar_a)^T. The keys enter by the coupling

    G_ij = sum_a C_a^i W_i W_j^T C_a^j^T         (G is one (m d) x (m d) matrix)

and the queries by their second moment. G is summed without forming any C: with the k x k matrices K_ij = V_i V_j^T of one
sequence, sum_a (diag(alpha_a^i) - alpha_a^i alpha_a^i^T) K_ij (diag(alpha_a^j) - alpha_a^j alpha_a^j^T) costs k^3 per pair. It is
(A^T A) * K + Z + Z^T for the patterns A (k, m k) of all heads, Z_ij = alpha_i^T (s_ij alpha_j / 2 - (alpha_i K_ij) * alpha_j)
and s_ij the row sums of (alpha_i K_ij) * alpha_j.
In preconditioned coordinates the curvature is about 1 for strong and weak heads alike, which also makes the
damping of Levenberg-Marquardt fair to weak heads.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlearn._arrays import namespace, permute, reshape
from attnlearn.scores import Curvature, Preconditioner
from attnlearn.solve._calibration import RIDGE, in_precision
from attnlearn.solve._linearize import Linearization, Local
from attnlearn.solve._regress import inverse_factor


def _coupling(at: Local) -> np.ndarray:
    """The contribution of one chunk to the blocks (d, pairs, d) of G for heads i <= j; G is symmetric."""
    xp = namespace(at.x)
    n, k, m, _ = at.alpha.shape
    d, rows = at.x.shape[-1], reshape(at.alpha, (n, k, m * k))
    kernel = at.values @ at.turned_values
    by_head = permute(at.alpha, (0, 2, 1, 3))
    seen = (by_head @ reshape(kernel, (n, m, k, m * k))) * rows[:, None, :, :]
    sums = xp.sum(reshape(seen, (n, m, k, m, k)), axis=-1, keepdims=True)
    half = reshape(0.5 * sums * at.alpha[:, None, :, :, :], seen.shape) - seen
    z = reshape(by_head.mT @ half, (n, m * k, m * k))
    inner = (rows.mT @ rows) * kernel + z + z.mT
    blocks = permute(reshape(inner, (n, m, k, m, k)), (0, 2, 1, 3, 4))
    i, j = np.triu_indices(m)
    by_pair = xp.take(reshape(blocks, (n, k, m * m, k)), xp.asarray(m * i + j, device=at.x.device), axis=2)
    right = reshape(reshape(by_pair, (n, k * len(i), k)) @ at.x, (n * k, len(i) * d))
    return reshape(reshape(at.x, (n * k, d)).T @ right, (d, len(i), d))


def _curved(local: Local, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    flat = reshape(local.x, (-1, local.x.shape[-1]))  # padded tokens are zero
    return _coupling(local), flat.T @ flat, _met(local, longest)


def _met(local: Local, longest: int) -> np.ndarray:
    """The sum of alpha (1 - alpha) over the sequences, (longest, m, longest): chunks may be shorter."""
    xp = namespace(local.x)
    found = xp.sum(local.alpha * (1 - local.alpha), axis=0)
    k, m, _ = found.shape
    like = {"dtype": found.dtype, "device": local.x.device}
    wide = xp.concat([found, xp.zeros((k, m, longest - k), **like)], axis=2)
    return xp.concat([wide, xp.zeros((longest - k, m, longest), **like)], axis=0)


def curvature(at: Linearization) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G (m d, m d), the second moment E[x x^T] (d, d) of the query tokens, and how much pairs of places (query, m, key) meet."""
    longest = max(chunk.x.shape[1] for chunk in at.chunks)
    blocks, second, met = at.local.sum(_curved, given=(longest,))
    m, d = at.scores.heads, at.scores.dim
    i, j = np.triu_indices(m)
    coupling = np.empty((m, d, m, d), blocks.dtype)
    coupling[j, :, i] = blocks.transpose(1, 2, 0)
    coupling[i, :, j] = blocks.transpose(1, 0, 2)
    return coupling.reshape(m * d, m * d), second / np.float32(at.chunks.real), met


def precondition(at: Linearization, joint: bool = True, residual: float = 0.0) -> Preconditioner:
    """The preconditioner at a linearization; `joint` False drops the coupling of heads where the scores allow it."""
    coupling, second, met = (np.asarray(array, np.float64) for array in curvature(at))
    invert = partial(inverse_factor, ridge=in_precision(RIDGE, np.float32))
    return at.scores.preconditioner(Curvature(coupling, second, met, invert, joint, residual))
