"""A preconditioner for Gauss-Newton on the scores: Kronecker products with the heads' coupling in them.

Row a changes by x_a^T dTheta_i C_a^i W_i with C_a^i = sum_b alpha_ab x_b (x_b - xbar_a)^T. Were the query
independent of the spread C_a, the Gauss-Newton block between heads i and j would be exactly

    E[x_a x_a^T]  (x)  G_ij,     G_ij = sum_a C_a^i W_i W_j^T C_a^j^T         (G is one (m d) x (m d) matrix)

so with Cholesky factors of both the whole matrix is inverted by small products. For factors Theta_i = a_i b_i^T
the block of all a_i is E[x x^T] (x) [b_i^T G_ij b_j], that of b_i is (a_i^T E[x x^T] a_i) (x) G_ii, that of all
c_i is G; the blocks are treated as independent, which they are (in that model) up to the gauge and other heads.

G is summed without forming any C: with the k x k matrices K_ij = V_i V_j^T of one sequence,
sum_a (diag(alpha_a^i) - alpha_a^i alpha_a^i^T) K_ij (diag(alpha_a^j) - alpha_a^j alpha_a^j^T) costs k^3 per pair. It is
(A^T A) * K + Z + Z^T for the patterns A (k, m k) of all heads, Z_ij = alpha_i^T (s_ij alpha_j / 2 - (alpha_i K_ij) * alpha_j)
and s_ij the row sums of (alpha_i K_ij) * alpha_j.
In preconditioned coordinates the curvature is about 1 for strong and weak heads alike, which also makes the
damping of Levenberg-Marquardt fair to weak heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn.solve._calibration import RIDGE, in_precision
from attnlearn.solve._chunks import added, product
from attnlearn.solve._linearize import Linearization, Local
from attnlearn.solve._regress import inverse_factor
from attnlearn.solve._scores import Scores


class Preconditioner(NamedTuple):
    """Inverse Cholesky factors; `apply` maps preconditioned coordinates to directions of the scores."""

    a_left: Any
    a_right: Any
    b_left: Any | None
    b_right: Any | None
    c: Any

    def apply(self, t: Scores) -> Scores:
        """Direction of the scores for preconditioned coordinates t."""
        a = _joint(t.a, self.a_left, self.a_right)
        b = None if t.b is None else self.b_left @ t.b @ self.b_right
        return Scores(a, b, (t.c.reshape(-1) @ self.c).reshape(t.c.shape))

    def transpose(self, g: Scores) -> Scores:
        """The adjoint of `apply`: gradient in preconditioned coordinates."""
        a = _joint(g.a, self.a_left.T, self.a_right.T)
        b = None
        if g.b is not None:
            b = self.b_left.transpose(0, 2, 1) @ g.b @ self.b_right.transpose(0, 2, 1)
        return Scores(a, b, (self.c @ g.c.reshape(-1)).reshape(g.c.shape))


def _joint(z: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    m, d, r = z.shape
    flat = product(left @ z.transpose(1, 0, 2).reshape(d, m * r), right)
    return flat.reshape(d, m, r).transpose(1, 0, 2)


def _coupling(at: Local) -> np.ndarray:
    """The contribution (m d, m d) of one chunk to G."""
    n, k, m, _ = at.alpha.shape
    d, rows = at.x.shape[-1], at.alpha.reshape(n, k, m * k)
    kernel = at.values @ at.turned_values
    seen = (at.alpha.transpose(0, 2, 1, 3) @ kernel.reshape(n, m, k, m * k)) * rows[:, None]
    sums = seen.reshape(n, m, k, m, k).sum(axis=-1, keepdims=True)
    half = (0.5 * sums * at.alpha[:, None]).reshape(seen.shape) - seen
    z = (at.alpha.transpose(0, 2, 3, 1) @ half).reshape(n, m * k, m * k)
    inner = (rows.transpose(0, 2, 1) @ rows) * kernel + z + z.transpose(0, 2, 1)
    i, j = np.triu_indices(m)  # G is symmetric
    by_pair = inner.reshape(n, m, k, m, k)[:, i, :, j].transpose(1, 2, 0, 3).reshape(n, k * len(i), k)
    right = (by_pair @ at.x).reshape(n * k, len(i) * d)
    found = (at.x.reshape(n * k, d).T @ right).reshape(d, len(i), d)
    whole = np.empty((m, d, m, d), found.dtype)
    whole[j, :, i] = found.transpose(1, 2, 0)
    whole[i, :, j] = found.transpose(1, 0, 2)
    return whole.reshape(m * d, m * d)


def curvature(at: Linearization) -> tuple[np.ndarray, np.ndarray]:
    """G (m d, m d) and the second moment E[x x^T] (d, d) of the query tokens."""

    def part(local: Local, _extra: None) -> tuple[np.ndarray, np.ndarray]:
        flat = local.x.reshape(-1, local.x.shape[-1])  # padded tokens are zero
        return _coupling(local), flat.T @ flat

    coupling, second = added(at.over_chunks(part))
    return coupling, second / np.float32(at.chunks.real)


def precondition(at: Linearization, joint: bool = True) -> Preconditioner:
    """The preconditioner at a linearization; `joint` False drops the coupling of heads in the factors a."""
    coupling, second = (np.asarray(array, np.float64) for array in curvature(at))
    m, d = at.scores.c.shape
    ridge = in_precision(RIDGE, np.float32)
    whole, tokens = inverse_factor(coupling, ridge), inverse_factor(second, ridge)
    if at.scores.b is None:
        return _single(Preconditioner(tokens.T, whole, None, None, whole))
    a, b = np.asarray(at.scores.a, np.float64), np.asarray(at.scores.b, np.float64)
    r, blocks = a.shape[-1], coupling.reshape(m, d, m, d)
    inner = np.einsum("ipr,ipjq,jqs->irjs", b, blocks, b, optimize=True)
    if not joint:
        inner = inner * np.eye(m)[:, None, :, None]
    own = [inverse_factor(blocks[i, :, i, :], ridge).T for i in range(m)]
    sides = [inverse_factor(a[i].T @ second @ a[i], ridge) for i in range(m)]
    a_right = inverse_factor(inner.reshape(m * r, m * r), ridge)
    return _single(Preconditioner(tokens.T, a_right, np.stack(own), np.stack(sides), whole))


def _single(found: Preconditioner) -> Preconditioner:
    return Preconditioner(*(None if part is None else np.asarray(part, np.float32) for part in found))
