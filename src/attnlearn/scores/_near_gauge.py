"""Coordinates of rotary scores in which the curvature is about one, also along changes that hardly show.

With g of size (width, width), a -> a g and b -> b g^-T changes Theta(D) = a R(D) b^T by a [g, R(D)] b^T. Where g commutes with every
R(D) this is the gauge. Where it mixes pairs of slow frequencies it is nearly one: R(D) is about 1 on them at all offsets of a short
sequence. Two frequencies 0.01 and 0.001 leave 1e-4 of the curvature at 16 tokens, and conjugate gradients would hardly progress there.

Model of the curvature of head i: with weights p_D of the offsets, S the second moment of the queries and C_i the curvature of the keys,

    sum_D p_D ‖ S^(1/2) (da R(D) b^T + a R(D) db^T) C_i^(1/2) ‖^2

In coordinates with S = C_i = 1, let da = A alpha + what is orthogonal to A, an orthonormal basis of the columns of a; db and B alike. The
orthogonal parts meet one (width, width) matrix each; (alpha, beta) meets one of size 2 width^2, whose null space is the gauge. The key
bias lambda is one more row of b. All keys share it, so only R(D) less its mean over the offsets shows. All are factored. Steps are taken along the orbits of g (`_pairs.moved`): the first-order change of a long step may be small and its second-order one
large, because a g g b^T has no reason to hardly show.
Cost: a Cholesky factor of size 2 width^2 + width for each head: 0.3 s at width 32, and 34 MB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from attnlearn.scores._kronecker import spectral_norms
from attnlearn.scores._protocol import Affine, Curvature, Reach
from attnlearn.scores._rotation import Rotation

RIDGE = 1e-9
"""Least ridge of the curvature of (alpha, beta, lambda), relative to its mean eigenvalue: amplitudes of 3e-5, which float32 tells from zero."""
SHOWN = 0.05
"""Share of the squared residual below which curvature counts as none: a change of the size of the factors would show less than the
residual. Of 0.01 to 10 the values from 0.01 to 0.1 took the fewest steps (two heads, d = 12, four frequencies, 16 tokens)."""
HALVED = 0.5
IDLE = 1e-6
"""Curvature of a head that has none, relative to the mean of all heads."""


class Head(NamedTuple):
    """The maps of one head, in float32: inverse factors of S and C, bases, factors of what is orthogonal to them, and of the rest."""

    queries: np.ndarray
    keys: np.ndarray
    a_basis: np.ndarray
    b_basis: np.ndarray
    a_side: np.ndarray
    b_side: np.ndarray
    inside: np.ndarray
    """Inverse of a Cholesky factor of the curvature of (alpha, beta, lambda), transposed."""
    null: np.ndarray
    """Orthonormal coordinates (2 (d + 1) width, number) of the changes that no input shows."""
    offset_least: float
    """The least weight of an offset that occurs."""
    constant: float
    """The curvature of what is the same for all keys."""

    def apply(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Directions (d + 1, width) of both factors from coordinates."""
        parts, a, b = self._apart(a, b)
        return self._joined(
            self.inside @ parts, a @ self.a_side, b @ self.b_side, self.queries.T, self.keys.T
        )

    def transpose(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `apply`."""
        parts, a, b = self._apart(self.queries @ a, np.concatenate([self.keys @ b[:-1], b[-1:]]))
        return self._joined(parts @ self.inside, a @ self.a_side.T, b @ self.b_side.T)

    def _apart(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(alpha, beta, lambda) as one vector, and what is orthogonal to the bases."""
        alpha, beta = self.a_basis.T @ a, self.b_basis.T @ b[:-1]
        parts = np.concatenate([alpha.reshape(-1), beta.reshape(-1), b[-1]])
        return parts, a - self.a_basis @ alpha, b[:-1] - self.b_basis @ beta

    def _joined(
        self, parts: np.ndarray, a: np.ndarray, b: np.ndarray, queries: Any = None, keys: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both sides again, times the given matrices."""
        h = a.shape[1]
        a = a + self.a_basis @ parts[: h * h].reshape(h, h)
        b = b + self.b_basis @ parts[h * h : 2 * h * h].reshape(h, h)
        a = a if queries is None else queries @ a
        b = b if keys is None else keys @ b
        return a, np.concatenate([b, parts[None, 2 * h * h :]])

    def shown(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates without those that no input shows."""
        both = np.concatenate([a.reshape(-1), b.reshape(-1)])
        both = both - self.null @ (self.null.T @ both)
        return both[: a.size].reshape(a.shape), both[a.size :].reshape(b.shape)


class Coordinates(NamedTuple):
    """The maps of all heads, and the relative residual for which they were made."""

    heads: tuple[Head, ...]
    residual: float

    def serves(self, residual: float) -> bool:
        """Until the residual is half of what it was: then changes matter that did not before."""
        return residual > HALVED * self.residual

    def apply(self, t: Any) -> Any:
        """Direction of the scores for preconditioned coordinates t."""
        found = [head.apply(a, b) for head, a, b in zip(self.heads, t.a, t.b)]
        return type(t)(*(np.stack(part) for part in zip(*found)), t.rotation)

    def transpose(self, g: Any) -> Any:
        """The adjoint of `apply`."""
        found = [head.transpose(a, b) for head, a, b in zip(self.heads, g.a, g.b)]
        return type(g)(*(np.stack(part) for part in zip(*found)), g.rotation)

    def reach(self, white: Affine) -> Reach:
        """How far a unit step moves Theta_i(D) at any one offset that occurs: by the model's own curvature, over its weight.

        The model of a unit step is at most 1, so at one offset it is at most the root of 1 / p_D.
        """
        found = []
        for head in self.heads:
            left = spectral_norms(white.inverse.T @ np.asarray(head.queries, np.float64).T)
            right = spectral_norms(np.asarray(head.keys, np.float64) @ white.inverse[:-1])
            alone = 1 / np.sqrt(head.constant)
            found.append(left * np.array([right, np.hypot(right, alone)]) / np.sqrt(head.offset_least))
        return Reach(*np.array(found).T)


def coordinates(a: np.ndarray, b: np.ndarray, rotation: Rotation, curvature: Curvature) -> Coordinates:
    """From factors (m, d + 1, width) and the curvature there."""
    coupling, second, met, invert, _, residual = curvature
    m, d = a.shape[0], a.shape[1] - 1
    blocks = coupling.reshape(m, d, m, d)
    tokens = np.eye(d + 1)
    tokens[:d, :d] = second
    queries = invert(tokens)
    turns = np.stack([rotation.matrix(offset) for offset in range(1 - met.shape[0], met.shape[0])])
    # A head without values has no curvature of its own.
    least = IDLE * max(float(np.trace(coupling)) / len(coupling), np.finfo(np.float32).tiny)
    ridge, found = max(RIDGE, SHOWN * residual**2), []
    for i in range(m):
        weights, own = _weights(met[:, i]), blocks[i, :, i] + least * np.eye(d)
        seen = Seen(weights[weights > 0], turns[weights > 0], np.trace(own) / d)
        found.append(_head(a[i], b[i], rotation, queries, invert(own), seen, ridge))
    return Coordinates(tuple(found), residual)


class Seen(NamedTuple):
    """Weights p_D and turns R(D) of the offsets that occur, and the curvature of what is the same for all keys."""

    weights: np.ndarray
    turns: np.ndarray
    constant: float

    @property
    def varying(self) -> np.ndarray:
        """R(D) without its mean: what all keys of a query share shows in no softmax."""
        return self.turns - np.tensordot(self.weights, self.turns, axes=1)


def _weights(met: np.ndarray) -> np.ndarray:
    """Weights of the offsets 1-k .. k-1 from what pairs of places (query, key) meet; they sum to one."""
    k = len(met)
    found = np.array([np.trace(met, offset) for offset in range(1 - k, k)], np.float64)
    total = found.sum()
    return found / total if total > 0 and np.isfinite(total) else np.full(2 * k - 1, 1 / (2 * k - 1))


def _head(
    a: np.ndarray,
    b: np.ndarray,
    rotation: Rotation,
    queries: np.ndarray,
    keys: np.ndarray,
    seen: Seen,
    ridge: float,
) -> Head:
    last = np.asarray(b[-1], np.float64)
    (a_basis, a), (b_basis, b) = _orthonormal(_white(queries, a)), _orthonormal(_white(keys, b[:-1]))
    p, turns, varying = seen.weights, seen.turns, seen.varying
    of_a = np.einsum("o,oij,qj,ql,okl->ik", p, turns, b, b, turns, optimize=True)
    of_a += seen.constant * np.einsum("o,oij,j,l,okl->ik", p, varying, last, last, varying, optimize=True)
    of_b = np.einsum("o,oji,qj,ql,olk->ik", p, turns, a, a, turns, optimize=True)
    gauge = [
        np.concatenate([(a @ g).reshape(-1), -(b @ g.T).reshape(-1), -g @ last]) for g in commuting(rotation)
    ]
    rest = np.eye(2 * rotation.width**2 + rotation.width)[len(gauge[0]) - rotation.still :]
    whole = _inside(a, b, last, of_a, of_b, seen, np.stack([*gauge, *rest], axis=1), ridge)
    null = _null(whole.T @ np.stack([*gauge, *rest], axis=1), a_basis, b_basis)
    sides = [_inverse(_factor(matrix)) for matrix in (of_a, of_b)]
    parts = (queries, keys, a_basis, b_basis, *sides, _inverse(whole).T, null)
    single = [np.asarray(part, np.float32) for part in parts]
    return Head(*single, offset_least=float(p.min()), constant=float(seen.constant))  # type: ignore[misc]


def _orthonormal(factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis (d, width) of the columns and the factor in it; heads wider than d have columns of zeros."""
    basis, small = np.linalg.qr(factor)
    missing = factor.shape[1] - basis.shape[1]
    return np.pad(basis, ((0, 0), (0, missing))), np.pad(small, ((0, missing), (0, 0)))


def _inverse(factor: np.ndarray) -> np.ndarray:
    return scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True, check_finite=False)


def _white(inverse: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """L^T times a factor, given L^-1."""
    return scipy.linalg.solve_triangular(
        inverse, np.asarray(factor, np.float64), lower=True, trans=1, check_finite=False
    )


def _inside(
    a: np.ndarray,
    b: np.ndarray,
    last: np.ndarray,
    of_a: np.ndarray,
    of_b: np.ndarray,
    seen: Seen,
    null: np.ndarray,
    ridge: float,
) -> np.ndarray:
    """The factor of the curvature of (alpha, beta, lambda); changes that no input shows get the mean curvature of the others."""
    h, (p, turns, constant), varying = len(of_a), seen, seen.varying
    square = h * h
    matrix = np.zeros((2 * square + h, 2 * square + h))
    matrix[:square, :square] = np.kron(np.eye(h), of_a)
    matrix[square : 2 * square, square : 2 * square] = np.kron(np.eye(h), of_b)
    cross = np.einsum("o,ojs,qs,rt,otl->rjql", p, turns, b, a, turns, optimize=True)
    matrix[:square, square : 2 * square] = cross.reshape(square, square)
    turned = np.einsum("rt,otl->orl", a, varying)
    matrix[2 * square :, 2 * square :] = constant * np.einsum(
        "o,orl,ork->lk", p, turned, turned, optimize=True
    )
    cross = constant * np.einsum("o,ojs,s,orl->rjl", p, varying, last, turned, optimize=True)
    matrix[:square, 2 * square :] = cross.reshape(square, h)
    matrix = np.triu(matrix) + np.triu(matrix, 1).T
    mean = float(np.trace(matrix)) / len(matrix)
    basis = np.linalg.qr(null)[0]
    return _factor(matrix + mean * (basis @ basis.T), ridge)


def _null(inside: np.ndarray, a_basis: np.ndarray, b_basis: np.ndarray) -> np.ndarray:
    """Orthonormal coordinates of changes that no input shows, from their (alpha, beta, lambda) in coordinates."""
    h = a_basis.shape[1]
    alpha, beta = (part.reshape(h, h, -1) for part in (inside[: h * h], inside[h * h : 2 * h * h]))
    sides = [np.einsum("dr,rjn->djn", basis, part) for basis, part in ((a_basis, alpha), (b_basis, beta))]
    flat = [*(side.reshape(-1, inside.shape[1]) for side in sides), inside[2 * h * h :]]
    return np.linalg.qr(np.concatenate(flat))[0]


def _factor(matrix: np.ndarray, ridge: float = RIDGE) -> np.ndarray:
    """A lower Cholesky factor, with as small a ridge as it takes; of a matrix that is not finite NaN."""
    size = max(float(np.trace(matrix)) / len(matrix), np.finfo(np.float64).tiny)
    if not np.isfinite(size):
        return np.full_like(matrix, np.nan)
    while True:
        try:
            return np.linalg.cholesky(matrix + ridge * size * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            ridge *= 10


def commuting(rotation: Rotation) -> list[np.ndarray]:
    """Matrices g (width, width) that commute with every turn: complex numbers of each pair, anything among coordinates at rest.

    >>> len(commuting(Rotation((1.0, 0.1), still=2)))
    8
    """
    p, h = rotation.pairs, rotation.width
    found = []
    for j in range(p):
        scale, turn = np.zeros((2, h, h))
        scale[j, j] = scale[j + p, j + p] = 1
        turn[j, j + p], turn[j + p, j] = 1, -1
        found += [scale, turn]
    for i in range(2 * p, h):
        for j in range(2 * p, h):
            one = np.zeros((h, h))
            one[i, j] = 1
            found.append(one)
    return found
