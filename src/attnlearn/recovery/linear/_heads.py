"""Heads from coefficients: the lowest rank D with a given symmetric part.

F_a[o] = sum x_a[u] G_a[p, q] D[(u, p), (q, o)] with D = sum_i vec(Theta_i) vec(W_i)^T, and G is symmetric, so only S = D + swap(D)
shows. Swap deflation (D <- best rank-m approximation of S - swap(D)) gives a start, and alternating least squares, whose two
systems have m d unknowns, ends at rounding. The heads are fixed up to an invertible m x m mixing.

A lower bound on m needs no search: with G = a a^T the map from queries to outputs is M(a) = sum_i (Theta_i a) (a^T W_i), whose rank
is at most m for every a. What can fail: alternating least squares may end in a local minimum, so the rank found is an upper
bound; M(a) bounds m by at most min(d + 1, d_out).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from attnlearn.recovery.linear import _calibration as calibration


class Heads(NamedTuple):
    """Theta (m, u, d) and W (m, d, o) of the heads, and the relative residual of S."""

    theta: np.ndarray
    w: np.ndarray
    residual: float


def symmetric_part(coefficients: np.ndarray, queries: int, rank: int) -> np.ndarray:
    """S[u, p, q, o] of the coefficients c[(u, p <= q), o] of the monomials.

    >>> symmetric_part(np.array([[1.0], [2.0], [3.0]]), 1, 2)[0, :, :, 0].tolist()
    [[2.0, 2.0], [2.0, 6.0]]
    """
    p, q = np.triu_indices(rank)
    given = coefficients.reshape(queries, len(p), -1)
    full = np.zeros((queries, rank, rank, given.shape[2]))
    full[:, p, q] += given
    full[:, q, p] += given
    return full


def from_symmetric_part(theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """S of heads."""
    d = np.einsum("iup,iqo->upqo", theta, w)
    return d + d.transpose(0, 2, 1, 3)


def fewest_heads(s: np.ndarray, error: float, rng: np.random.Generator) -> tuple[int, float]:
    """A lower bound on the number of heads, and the share of `error` that the last counted singular value of M(a) exceeds it by.

    `error` bounds the Frobenius norm of the error of M(a) for unit vectors a.
    """
    best, margin = 0, np.inf
    for _ in range(calibration.DIRECTIONS):
        a = rng.standard_normal(s.shape[1])
        a /= np.linalg.norm(a)
        values = np.linalg.svd(np.einsum("upqo,p,q->uo", s, a, a) / 2, compute_uv=False)
        above = int(np.sum(values > error))
        ratio = float(values[above - 1] / max(error, np.finfo(float).tiny)) if above else np.inf
        if above > best or (above == best and ratio > margin):
            best, margin = above, ratio
    return best, margin


def decompose(s: np.ndarray, heads: int, rng: np.random.Generator, exact: bool = True) -> Heads:
    """Heads with this symmetric part, as well as `heads` of them can; several starts where an exact answer may exist."""
    size = float(np.linalg.norm(s))
    u, r, _, o = s.shape
    if size == 0.0:
        return Heads(np.zeros((heads, u, r)), np.zeros((heads, r, o)), 0.0)
    best: Heads | None = None
    for start in range(calibration.STARTS if exact else 1):
        theta = deflated(s, heads) if start == 0 else rng.standard_normal((heads, u, r))
        found = alternate(s, theta, size)
        best = found if best is None or found.residual < best.residual else best
        if best.residual <= calibration.CONVERGED:
            break
    assert best is not None
    return best


def deflated(s: np.ndarray, heads: int) -> np.ndarray:
    """The Theta side of D after swap deflation, (heads, u, r)."""
    u, r, _, o = s.shape
    d, left = s / 2, np.zeros((u * r, heads))
    for _ in range(calibration.DEFLATIONS):
        rest = (s - d.transpose(0, 2, 1, 3)).reshape(u * r, r * o)
        vectors, values, right = np.linalg.svd(rest, full_matrices=False)
        left = vectors[:, :heads]
        d = ((left * values[:heads]) @ right[:heads]).reshape(u, r, r, o)
    return left.T.reshape(-1, u, r)


def alternate(s: np.ndarray, theta: np.ndarray, size: float) -> Heads:
    """Alternating least squares from a start, until it is exact or stalls."""
    turned, before = s.transpose(3, 1, 2, 0), np.inf
    best = Heads(theta, np.zeros((len(theta), s.shape[1], s.shape[3])), 1.0)
    for step in range(calibration.ALTERNATIONS):
        w = orthonormal(other_side(s, orthonormal(best.theta if step else theta)))
        # S is the same with queries and outputs exchanged, so one solver serves both sides.
        theta = other_side(turned, w.transpose(0, 2, 1)).transpose(0, 2, 1)
        residual = float(np.linalg.norm(s - from_symmetric_part(theta, w))) / size
        best = Heads(theta, w, residual)
        if residual <= calibration.CONVERGED:
            break
        if (step + 1) % calibration.LOOKS == 0:
            if residual > (1 - calibration.STALLED) * before:
                break
            before = residual
    return best


def polished(s: np.ndarray, heads: Heads) -> Heads:
    """Gauss-Newton steps from heads that are nearly right, as long as each helps; directions that only mix heads stay as they are."""
    size, best = float(np.linalg.norm(s)), heads
    best = best._replace(residual=float(np.linalg.norm(s - from_symmetric_part(best.theta, best.w))) / size)
    for _ in range(calibration.POLISHES):
        if best.residual <= calibration.CONVERGED:
            break
        theta, w = (part + change for part, change in zip(best[:2], _newton_step(s, best.theta, best.w)))
        residual = float(np.linalg.norm(s - from_symmetric_part(theta, w))) / size
        if not residual < best.residual:
            break
        best = Heads(theta, w, residual)
    return best


def _newton_step(s: np.ndarray, theta: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest change of Theta and W that removes the residual of S to first order."""
    cut = theta.size

    def forward(change: np.ndarray) -> np.ndarray:
        first, second = change[:cut].reshape(theta.shape), change[cut:].reshape(w.shape)
        return (from_symmetric_part(first, w) + from_symmetric_part(theta, second)).ravel()

    def backward(values: np.ndarray) -> np.ndarray:
        rest = values.reshape(s.shape)
        rest = rest + rest.transpose(0, 2, 1, 3)
        first = np.einsum("upqo,iqo->iup", rest, w, optimize=True)
        second = np.einsum("upqo,iup->iqo", rest, theta, optimize=True)
        return np.concatenate([first.ravel(), second.ravel()])

    unknowns = theta.size + w.size
    operator: Any = LinearOperator((s.size, unknowns), forward, backward, dtype=np.float64)  # type: ignore[call-arg]
    rest = (s - from_symmetric_part(theta, w)).ravel()
    eps = float(np.finfo(float).eps)
    change = lsmr(operator, rest, atol=eps, btol=eps, conlim=0, maxiter=calibration.INNER * unknowns)[0]
    return change[:cut].reshape(theta.shape), change[cut:].reshape(w.shape)


def orthonormal(stack: np.ndarray) -> np.ndarray:
    """The same span of matrices (m, a, b), orthonormal."""
    basis, _ = np.linalg.qr(stack.reshape(len(stack), -1).T)
    return np.ascontiguousarray(basis.T).reshape(-1, *stack.shape[1:])


def other_side(s: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """W (m, r, o) that best explains S[u, p, q, o] = sum_i Theta_i[u, p] W_i[q, o] + Theta_i[u, q] W_i[p, o]."""
    m, _, r = theta.shape
    inner = np.einsum("iup,jup->ij", theta, theta)
    crossed = np.einsum("iuq,jup->ipjq", theta, theta)
    normal = (inner[:, None, :, None] * np.eye(r)[None, :, None, :] + crossed).reshape(m * r, m * r)
    products = np.einsum("iup,upqo->iqo", theta, s).reshape(m * r, -1)
    values, vectors = np.linalg.eigh(normal)
    keep = values > m * r * np.finfo(float).eps * max(values[-1], np.finfo(float).tiny)
    solved = vectors[:, keep] @ ((vectors[:, keep].T @ products) / values[keep, None])
    return solved.reshape(m, r, -1)
