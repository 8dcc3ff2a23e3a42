"""A preconditioner for bilinear scores: Kronecker products with the heads' coupling in them.

Row a changes by x_a^T dTheta_i C_a^i W_i with C_a^i = sum_b alpha_ab x_b (x_b - xbar_a)^T. Were the query
independent of the spread C_a, the Gauss-Newton block between heads i and j would be exactly

    E[x_a x_a^T]  (x)  G_ij,     G_ij = sum_a C_a^i W_i W_j^T C_a^j^T         (G is one (m d) x (m d) matrix)

so with Cholesky factors of both the whole matrix is inverted by small products. For factors Theta_i = a_i b_i^T
the block of all a_i is E[x x^T] (x) [b_i^T G_ij b_j], that of b_i is (a_i^T E[x x^T] a_i) (x) G_ii, that of all
c_i is G; the blocks are treated as independent, which they are (in that model) up to the gauge and other heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn.scores._products import product
from attnlearn.scores._protocol import Affine, Curvature, Reach


class Kronecker(NamedTuple):
    """Inverse Cholesky factors; `apply` maps preconditioned coordinates to directions of the scores."""

    a_left: Any
    a_right: Any
    b_left: Any
    b_right: Any
    c: Any

    def apply(self, t: Any) -> Any:
        """Direction of the scores for preconditioned coordinates t."""
        a = _joint(t.a, self.a_left, self.a_right)
        b = None if t.b is None else self.b_left @ t.b @ self.b_right
        return type(t)(a, b, (t.c.reshape(-1) @ self.c).reshape(t.c.shape))

    def transpose(self, g: Any) -> Any:
        """The adjoint of `apply`: gradient in preconditioned coordinates."""
        a = _joint(g.a, self.a_left.T, self.a_right.T)
        b = None
        if g.b is not None:
            b = self.b_left.transpose(0, 2, 1) @ g.b @ self.b_right.transpose(0, 2, 1)
        return type(g)(a, b, (self.c @ g.c.reshape(-1)).reshape(g.c.shape))

    def serves(self, residual: float) -> bool:
        """Always: it changes little with the scores."""
        del residual
        return True

    def reach(self, a: np.ndarray | None, b: np.ndarray | None, heads: int, white: Affine) -> Reach:
        """Norms of the maps from coordinates to Theta_i and c_i of the layer on the tokens themselves."""
        left, right, c = (np.asarray(part, np.float64) for part in (self.a_left, self.a_right, self.c))

        def columns(matrix: np.ndarray) -> np.ndarray:
            return np.stack(np.split(matrix, heads, axis=1))

        tokens = spectral_norms(white.inverse.T @ left)
        if b is None:
            theta = tokens * spectral_norms(columns(right) @ white.inverse)
        else:
            b_left, b_right = np.asarray(self.b_left, np.float64), np.asarray(self.b_right, np.float64)
            from_a = tokens * spectral_norms(columns(right) @ np.swapaxes(b, 1, 2) @ white.inverse)
            from_b = spectral_norms(white.inverse.T @ a @ np.swapaxes(b_right, 1, 2)) * spectral_norms(
                np.swapaxes(b_left, 1, 2) @ white.inverse
            )
            theta = np.hypot(from_a, from_b)
        mean = float(np.linalg.norm(white.mean))
        return Reach(theta, spectral_norms(columns(c) @ white.inverse) + mean * theta)


def kronecker(
    a: np.ndarray,
    b: np.ndarray | None,
    curvature: Curvature,
) -> Kronecker:
    """The preconditioner of factors a, b (or of whole Theta_i)."""
    coupling, second, invert = curvature.coupling, curvature.second, curvature.invert
    whole, tokens = invert(coupling), invert(second)
    if b is None:
        return _single(Kronecker(tokens.T, whole, None, None, whole))
    m, d, r = a.shape
    blocks = coupling.reshape(m, d, m, d)
    inner = np.einsum("ipr,ipjq,jqs->irjs", b, blocks, b, optimize=True)
    if not curvature.joint:
        inner = inner * np.eye(m)[:, None, :, None]
    own = [invert(blocks[i, :, i, :]).T for i in range(m)]
    sides = [invert(a[i].T @ second @ a[i]) for i in range(m)]
    return _single(
        Kronecker(tokens.T, invert(inner.reshape(m * r, m * r)), np.stack(own), np.stack(sides), whole)
    )


def spectral_norms(blocks: np.ndarray) -> np.ndarray:
    """Spectral norms, infinite where a block is not finite: what has no curvature is bound by nothing."""
    finite = np.asarray(np.isfinite(blocks).all(axis=(-2, -1)))
    norms = np.linalg.norm(np.where(finite[..., None, None], blocks, 0), ord=2, axis=(-2, -1))
    return np.where(finite, norms, np.inf)


def _joint(z: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    m, d, r = z.shape
    flat = product(left @ z.transpose(1, 0, 2).reshape(d, m * r), right)
    return flat.reshape(d, m, r).transpose(1, 0, 2)


def _single(found: Kronecker) -> Kronecker:
    return Kronecker(*(None if part is None else np.asarray(part, np.float32) for part in found))
