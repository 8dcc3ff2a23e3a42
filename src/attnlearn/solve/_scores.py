"""The parameters of the scores, Theta_i and c_i, and what follows from them on one chunk.

Theta_i is kept as a_i b_i^T with a_i, b_i (d, r), or whole (then b is None and a = Theta). Query biases c_i are
free: they need not lie in the span of b_i. For a chunk of n sequences with the patterns alpha (n, query, m, key) the
mixed tokens P = [alpha_1 X, ..., alpha_m X, 1] are the columns that W and b multiply: F = P [W; b].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._attention import mix, pair_tokens, project, weigh
from attnlearn._types import QueryBias, Theta
from attnlearn.solve import _calibration as calibration


class Scores(NamedTuple):
    """Score parameters: a (m, d, r), b (m, d, r) or None, c (m, d). Also the shape of their tangents."""

    a: Any
    b: Any | None
    c: Any

    @classmethod
    def from_theta(
        cls, theta: Theta, query_bias: QueryBias, rank: int | None, eps: float = float(np.finfo(float).eps)
    ) -> Scores:
        """Whole (rank None) or as the balanced best approximation of the given rank.

        Where a head has less, up to rounding by `eps`, its last columns are zero on both sides. They have no
        gradient and stay so: of a product of two small columns Gauss-Newton would see no curvature.
        """
        if rank is None or rank >= theta.shape[-1]:
            return cls(theta, None, query_bias)
        u, s, vt = np.linalg.svd(theta)
        s = np.where(s > calibration.ROUNDING_EPS * eps * s[:, :1], s, 0)
        root = np.sqrt(s[:, None, :rank])
        return cls(u[:, :, :rank] * root, np.swapaxes(vt[:, :rank], 1, 2) * root, query_bias)

    @property
    def rank(self) -> int | None:
        """Columns of the factors; None when Theta is whole."""
        return None if self.b is None else self.b.shape[-1]

    def theta(self) -> Any:
        """The matrices Theta_i (m, d, d)."""
        return self.a if self.b is None else self.a @ np.swapaxes(self.b, 1, 2)

    def astype(self, dtype: Any) -> Scores:
        """The same parameters in another precision."""
        return Scores(*(None if part is None else np.asarray(part, dtype) for part in self))

    def flat(self) -> np.ndarray:
        """All numbers as one vector."""
        return np.concatenate([part.reshape(-1) for part in self if part is not None])

    def shaped(self, vector: np.ndarray) -> Scores:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        parts, start = [], 0
        for part in self:
            parts.append(None if part is None else vector[start : start + part.size].reshape(part.shape))
            start += 0 if part is None else part.size
        return Scores(*parts)

    def lowered(self, residual: float) -> Scores | None:
        """The same scores at the rank that they turn out to have, or None when they use the rank they were given.

        At the relative residual `residual` a singular value below RANK_OPEN residuals of its head's largest may as
        well be zero. Factors of too large a rank leave Gauss-Newton without curvature and its convergence linear.
        """
        theta = np.asarray(self.theta(), np.float64)
        values = np.linalg.svd(theta, compute_uv=False)
        rank = int(np.max(np.sum(values > calibration.RANK_OPEN * residual * values[:, :1], axis=1)))
        given = theta.shape[-1] // 2 if self.rank is None else self.rank - 1
        if not 1 <= rank <= given:
            return None
        clear = np.all(values[:, rank] <= calibration.DIGIT * values.max(axis=0)[rank - 1])
        return Scores.from_theta(theta, np.asarray(self.c, np.float64), rank) if clear else None

    def unknowns(self) -> int:
        """Free numbers: the gauge a -> a g, b -> b g^-T is not counted."""
        m, d, r = self.a.shape
        return m * (d * d + d) if self.b is None else m * (2 * d * r - r * r + d)

    def directions(self, tokens: float, causal: bool) -> float:
        """Output directions in which a row can change with the scores: differences of values, on average over the queries."""
        seen = (tokens - 1) / 2 if causal else tokens - 1  # keys beside the first
        return max(1.0, len(self.c) * seen)

    def sequences_wanted(
        self,
        out: int,
        tokens: float,
        causal: bool,
        equations: float = calibration.EQUATIONS_PER_UNKNOWN,
        least_rows: int = calibration.LEAST_ROWS,
    ) -> float:
        """Sequences of so many tokens that determine scores, W and b, with so many equations per unknown.

        The scores, whose equations are counted in the directions that a row can change in, get twice as many.
        """
        width, telling = self.c.size + 1, min(out, self.directions(tokens, causal))
        rows = max(
            equations * (self.unknowns() + width * out) / out,
            2 * equations * self.unknowns() / telling,
            least_rows,
        )
        return rows / tokens


def project_back(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The adjoint of `project`: x (n, k, d), g (n, k, m, r) give (m, d, r)."""
    n, k, m, r = g.shape
    d = x.shape[-1]
    return (x.reshape(n * k, d).T @ g.reshape(n * k, m * r)).reshape(d, m, r).transpose(1, 0, 2)


def turned_keys(turned: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """b_i^T x_b (n, m, r, k) and c_i^T x_b (n, 1, m, k) from turned tokens (n, d, k)."""
    n, d, k = turned.shape
    m, _, r = b.shape
    stacked = np.concatenate([b.transpose(0, 2, 1).reshape(m * r, d), c])
    found = stacked @ turned
    return found[:, : m * r].reshape(n, m, r, k), found[:, None, m * r :]


def pair(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Inner products (n, query, m, key) of queries (n, query, m, r) and turned keys (n, m, r, key)."""
    n, k, m, _ = queries.shape
    found = np.empty((n, k, m, keys.shape[-1]), queries.dtype)
    np.matmul(queries.transpose(0, 2, 1, 3), keys, out=found.transpose(0, 2, 1, 3))
    return found


class Patterns(NamedTuple):
    """Attention weights (n, query, m, key), projected queries (n, k, m, r) and, of factors, turned keys (n, m, r, k)."""

    alpha: np.ndarray
    queries: np.ndarray
    keys: np.ndarray | None


def patterns(
    scores: Scores, x: np.ndarray, turned: np.ndarray, keep: np.ndarray | None, causal: bool
) -> Patterns:
    """The patterns of one chunk, zero for padded queries, from its tokens and its turned tokens."""
    queries, keys = project(x, scores.a), None
    if scores.b is None:
        alpha, bias = pair_tokens(queries, turned), (scores.c @ turned)[:, None]
    else:
        keys, bias = turned_keys(turned, scores.b, scores.c)
        alpha = pair(queries, keys)
    alpha += bias
    return Patterns(weigh(alpha, keep, causal), queries, keys)


def mixed(alpha: np.ndarray, x: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    """The columns P (n k, m d + 1) that W and b multiply."""
    rows = mix(alpha, x).reshape(len(x) * x.shape[1], -1)
    ones = np.ones((len(rows), 1), rows.dtype) if keep is None else keep.reshape(-1, 1)
    return np.concatenate([rows, ones], axis=1)


def split_linear(linear: Any, m: int) -> tuple[Any, Any]:
    """[W; b] (m d + 1, o) as W (m, d, o) and b (o,)."""
    return linear[:-1].reshape(m, -1, linear.shape[1]), linear[-1]
