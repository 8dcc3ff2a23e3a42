"""Bilinear scores x_a^T Theta_i x_b + c_i^T x_b: attention without positions.

Theta_i is kept as a_i b_i^T with a_i, b_i (d, r), or whole (then b is None and a = Theta). Query biases c_i are free: they need
not lie in the span of b_i. Gauge of the factors: a -> a g, b -> b g^-T; whole matrices have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import by_head, namespace, permute, reshape
from attnlearn.scores import _meet
from attnlearn.scores._kronecker import Kronecker, kronecker
from attnlearn.scores._products import key_scores, mix, pair, pair_tokens, project, project_back
from attnlearn.scores._protocol import Affine, Curvature, Reach, Shown


class Kept(NamedTuple):
    """What derivatives on one chunk need: tokens, also turned, projected queries (n, k, m, r) and, of factors, keys alike."""

    x: np.ndarray
    turned: np.ndarray
    queries: np.ndarray
    keys: np.ndarray | None


class Bilinear(NamedTuple):
    """Score parameters: a (m, d, r), b (m, d, r) or None, c (m, d). Also the shape of their tangents."""

    a: Any
    b: Any
    c: Any

    KIND = "bilinear"  # without annotations: a named tuple takes annotated names as fields
    rule, sink_value, exact = (), None, False

    def described(self) -> dict[str, Any]:
        """Nothing: all numbers are free."""
        return {}

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """Theta_i and c_i."""
        del description
        return ("theta", "query_bias")

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Bilinear:
        """The scores again from their matrices."""
        del description, base
        return cls.whole(arrays["theta"], arrays["query_bias"])

    def words(self) -> str:
        """The kind in words."""
        return "no positions"

    @classmethod
    def whole(cls, theta: Any, query_bias: Any) -> Bilinear:
        """Matrices Theta_i as they are."""
        return cls(theta, None, query_bias)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.c.shape[0]

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.c.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        return self.c.dtype

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([part.reshape(-1) for part in self if part is not None])

    def shaped(self, vector: np.ndarray) -> Bilinear:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        parts, start = [], 0
        for part in self:
            parts.append(None if part is None else vector[start : start + part.size].reshape(part.shape))
            start += 0 if part is None else part.size
        return Bilinear(*parts)

    def astype(self, dtype: Any) -> Bilinear:
        """The same parameters in another precision."""
        return Bilinear(*(None if part is None else np.asarray(part, dtype) for part in self))

    def theta(self) -> Any:
        """The matrices Theta_i (m, d, d)."""
        return self.a if self.b is None else self.a @ np.swapaxes(self.b, 1, 2)

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return {"theta": self.theta(), "query_bias": self.c}

    def at(self, offset: float) -> Shown:
        """Theta_i and c_i, which are the same at every offset."""
        del offset
        return self.shown()

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds by its offset alone: nothing."""
        del offset
        return np.zeros(self.c.shape, self.dtype), np.zeros(self.heads, self.dtype)

    def canonical(self) -> Bilinear:
        """The same scores as whole matrices, which have no gauge."""
        return Bilinear.whole(self.theta(), self.c)

    def seen_through(self, shift: np.ndarray, matrix: np.ndarray) -> Bilinear:
        """The scores as a function of z where the tokens are x = shift + matrix z; what a query alone adds is invisible."""
        a = np.swapaxes(matrix, 0, 1) @ self.a
        if self.b is None:
            return Bilinear(a @ matrix, None, (self.c + shift @ self.a) @ matrix)
        moved = self.c + np.einsum("mr,mdr->md", shift @ self.a, self.b)
        return Bilinear(a, np.swapaxes(matrix, 0, 1) @ self.b, moved @ matrix)

    def moved(self, step: Bilinear) -> Bilinear:
        """The scores after a step."""
        return self.shaped(self.flat() + step.flat())

    # --- forward and derivatives --------------------------------------------------------------------------
    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Kept]:
        """Scores (n, query, m, key) of one chunk, from its tokens and its turned tokens; positions do not matter."""
        del positions
        queries, keys = project(x, self.a), None
        if self.b is None:
            found = pair_tokens(queries, turned)
        else:
            keys = project(x, self.b)
            found = pair(queries, keys)
        found += key_scores(x, self.c)
        return found, Kept(x, turned, queries, keys)

    def jvp(self, tangent: Bilinear, kept: Kept) -> np.ndarray:
        """x_a^T dTheta x_b + dc^T x_b."""
        queries = project(kept.x, tangent.a)
        if kept.keys is None:
            change = pair_tokens(queries, kept.turned)
        else:
            change = pair(queries, kept.keys)
            change += pair(kept.queries, project(kept.x, tangent.b))
        change += key_scores(kept.x, tangent.c)
        return change

    def vjp(self, change: np.ndarray, kept: Kept) -> Bilinear:
        """The adjoint of `jvp`."""
        n, k, m, _ = change.shape
        xp = namespace(change)
        by_key = reshape(permute(xp.sum(change, axis=1), (1, 0, 2)), (m, n * k))
        c = by_key @ reshape(kept.x, (n * k, self.dim))
        if kept.keys is None:
            return Bilinear(project_back(kept.x, mix(change, kept.x)), None, c)
        change, queries, keys = (permute(part, (0, 2, 1, 3)) for part in (change, kept.queries, kept.keys))
        a, b = by_head(change, keys), by_head(change.mT, queries)
        return Bilinear(project_back(kept.x, a), project_back(kept.x, b), c)

    def ordered(self, factor: np.ndarray) -> np.ndarray:
        """The columns as they are."""
        return factor

    reordered = ordered

    def meet(
        self, queries: np.ndarray, keys: np.ndarray, positions: Any = None
    ) -> tuple[np.ndarray, _meet.Met]:
        """Inner products of queries and keys."""
        del positions
        return pair(queries, keys), _meet.Met(queries, keys)

    def along(self, queries: np.ndarray, keys: np.ndarray, met: _meet.Met) -> np.ndarray:
        """The change of the inner products when queries and keys change by these."""
        return _meet.along(queries, keys, met)

    def part(self, change: np.ndarray, met: _meet.Met) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        return _meet.part(change, met)

    def beyond(self) -> np.ndarray:
        """Nothing: Theta_i and c_i are all that shows."""
        return np.zeros((self.heads, 0), self.dtype)

    # --- rank and counts ----------------------------------------------------------------------------------
    @property
    def rank(self) -> int | None:
        """Columns of the factors; None when Theta is whole."""
        return None if self.b is None else self.b.shape[-1]

    def of_rank(self, rank: int | None, rounding: float = 0.0) -> Bilinear:
        """Whole (rank None) or as the balanced best approximation of the given rank.

        Where a head has less, up to the relative error `rounding`, its last columns are zero on both sides. They have no
        gradient and stay so: of a product of two small columns Gauss-Newton would see no curvature.
        """
        theta = self.theta()
        if rank is None or rank >= self.dim:
            return Bilinear.whole(theta, self.c)
        u, s, vt = np.linalg.svd(theta)
        s = np.where(s > rounding * s[:, :1], s, 0)
        root = np.sqrt(s[:, None, :rank])
        return Bilinear(u[:, :, :rank] * root, np.swapaxes(vt[:, :rank], 1, 2) * root, self.c)

    def unknowns(self) -> int:
        """Free numbers: the gauge a -> a g, b -> b g^-T is not counted."""
        m, d, r = self.a.shape
        return m * (d * d + d) if self.b is None else m * (2 * d * r - r * r + d)

    # --- coordinates, gauge, and what shows ---------------------------------------------------------------
    def preconditioner(self, curvature: Curvature) -> Kronecker:
        """Kronecker products of the second moment of the queries and the coupling of the keys."""
        a = np.asarray(self.a, np.float64)
        b = None if self.b is None else np.asarray(self.b, np.float64)
        return kronecker(a, b, curvature)

    def gauge(self, by: Kronecker) -> np.ndarray | None:
        """Orthonormal columns (m, d, r): coordinates of da_i orthogonal to them count every dTheta_i once."""
        if self.b is None:
            return None
        root = np.linalg.inv(np.asarray(by.a_left, np.float64))
        basis = np.linalg.qr(root @ np.asarray(self.a, np.float64))[0] * self._used()
        return basis.astype(self.dtype)

    def without_gauge(self, t: Bilinear, gauge: np.ndarray | None) -> Bilinear:
        """The coordinates without directions a_i -> a_i g and columns that a head does not have."""
        if gauge is None:
            return t
        used = self._used()
        a = t.a - gauge @ (gauge.transpose(0, 2, 1) @ t.a)
        return t._replace(a=a * used, b=t.b * used)

    def _used(self) -> Any:
        """1 for the columns (m, 1, r) of the factors that a head of smaller rank has, 0 for the others."""
        return (abs(self.a).max(axis=1, keepdims=True) > 0).astype(np.float32)

    def shown(self, tangent: Bilinear | None = None) -> Shown:
        """Theta_i and c_i, or their change along a tangent."""
        if tangent is None:
            return Shown(self.theta(), self.c)
        if self.b is None:
            return Shown(tangent.a, tangent.c)
        changed = tangent.a @ np.swapaxes(self.b, 1, 2) + self.a @ np.swapaxes(tangent.b, 1, 2)
        return Shown(changed, tangent.c)

    def reach(self, by: Kronecker, white: Affine) -> Reach:
        """Norms of the maps from coordinates to Theta_i and c_i, in the coordinates of the tokens."""
        a, b = (None if part is None else np.asarray(part, np.float64) for part in (self.a, self.b))
        return by.reach(a, b, self.heads, white)
