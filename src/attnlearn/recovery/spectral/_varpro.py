"""Variable projection on the span: the m^2 numbers that turn basis scores into heads.

Theory, section 3 (Unmix): Theta_i = sum_j A_ij U_j and W_i = sum_l C_il V_l. The scores on the basis and the
projected values are computed once; for given A the best C is linear least squares, so only A is searched, by
Levenberg-Marquardt with Kaufman's Jacobian. What a layer with constant attention explains is projected out of
both sides, so the sum of the W_i need not lie in the span. A few random output directions and a few hundred
sequences suffice: the unknowns do not grow with the dimension.

Cost: O(rows m^2 (m^2 + features)) per step. What can fail: a start may end in a worse optimum (compare starts).
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._rows import Rows, linear_features


class Fit(NamedTuple):
    """Attention on the basis, features and their normal matrix, C, residual vector and its share of the target."""

    patterns: np.ndarray
    features: np.ndarray
    normal: np.ndarray
    mixing: Float[np.ndarray, "m l"]
    residual: np.ndarray
    share: float


class SpanModel:
    """Attention heads confined to the span, on some rows and some output directions."""

    def __init__(
        self,
        rows: Rows,
        left: Float[np.ndarray, "l u r"],
        right: Float[np.ndarray, "l r o"],
        directions: Float[np.ndarray, "o q"],
        queries: np.ndarray,
    ) -> None:
        z, residual, visible = rows
        n, k, r = z.shape
        self.l, self.q = len(left), directions.shape[1]
        self.n, self.a = n, len(queries)
        asked = np.concatenate([z[:, queries], np.ones((n, self.a, 1), np.float32)], axis=2)
        stacked = asked.reshape(-1, r + 1) @ left.transpose(1, 0, 2).reshape(r + 1, -1).astype(np.float32)
        scores = stacked.reshape(n, self.a * self.l, r) @ np.swapaxes(z, 1, 2)
        self.scores = np.ascontiguousarray(scores.reshape(n, self.a, self.l, k).transpose(2, 0, 1, 3))
        self.visible = None if visible is None else visible[:, queries]
        self.spread = self.scores.std(axis=(1, 2, 3)).astype(np.float64)
        values = (right @ directions).transpose(1, 0, 2).reshape(r, -1).astype(np.float32)
        self.values = (z.reshape(-1, r) @ values).reshape(n, k, self.l * self.q)
        nuisance = linear_features(z, visible)[:, queries].reshape(n * self.a, -1)
        self.nuisance = np.linalg.qr(nuisance[:, np.abs(nuisance).max(axis=0) > 0])[0]
        target = residual[:, queries].reshape(n * self.a, -1) @ directions.astype(np.float32)
        self.target = self._free(target).reshape(-1)
        self.size = float(self.target @ self.target)

    def leading(self, count: int) -> SpanModel:
        """The model on the first `count` basis vectors only; shares memory."""
        if count == self.l:
            return self
        part = copy.copy(self)
        part.l, part.spread = count, self.spread[:count]
        part.scores = self.scores[:count]
        part.values = np.ascontiguousarray(self.values[:, :, : count * self.q])
        return part

    def thinned(self, share: float) -> SpanModel:
        """The model on the first of its sequences only."""
        part = copy.copy(self)
        part.n = max(1, int(np.ceil(share * self.n)))
        rows = part.n * self.a
        part.scores, part.values = self.scores[:, : part.n], self.values[: part.n]
        part.visible = None if self.visible is None else self.visible[: part.n]
        part.nuisance = np.linalg.qr(self.nuisance[:rows])[0]
        part.target = part._free(self.target.reshape(-1, self.q)[:rows]).reshape(-1)
        part.size = float(part.target @ part.target)
        return part

    def _free(self, columns: np.ndarray) -> np.ndarray:
        """`columns` without what the nuisance features explain."""
        return columns - self.nuisance @ (self.nuisance.T @ columns)

    def _columns(self, values: np.ndarray) -> np.ndarray:
        """(n, a, unknowns, q) as a matrix with one row per scalar equation."""
        unknowns = values.shape[2]
        free = self._free(values.reshape(self.n * self.a, unknowns * self.q))
        columns = free.reshape(self.n * self.a, unknowns, self.q).transpose(0, 2, 1)
        return np.ascontiguousarray(columns).reshape(-1, unknowns)

    def patterns(self, a: Float[np.ndarray, "m l"]) -> Float[np.ndarray, "m n a k"]:
        """Attention of heads with coordinates `a`."""
        scores = np.tensordot(a.astype(np.float32), self.scores, axes=1)
        if self.visible is not None:
            scores = np.where(self.visible, scores, -np.inf)
        top = scores.max(axis=3, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
        return weights / np.maximum(weights.sum(axis=3, keepdims=True), np.finfo(np.float32).tiny)

    def features(self, patterns: Float[np.ndarray, "m n a k"]) -> np.ndarray:
        """One column per pair (head, value basis matrix)."""
        m, n, a, k = patterns.shape
        mixed = patterns.transpose(1, 2, 0, 3).reshape(n, a * m, k) @ self.values
        return self._columns(mixed.reshape(n, a, m * self.l, self.q))

    def solve(self, a: Float[np.ndarray, "m l"]) -> Fit:
        """The best C for given A."""
        patterns = self.patterns(a)
        features = self.features(patterns)
        normal = (features.T @ features).astype(np.float64)
        normal += calibration.SOLVE_RIDGE * np.trace(normal) / len(normal) * np.eye(len(normal))
        mixing = np.linalg.solve(normal, (features.T @ self.target).astype(np.float64))
        residual = self.target - features @ mixing.astype(np.float32)
        share = float(residual @ residual) / self.size
        return Fit(patterns, features, normal, mixing.reshape(len(a), self.l), residual, share)

    def judge(self, a: Float[np.ndarray, "m l"], mixing: Float[np.ndarray, "m l"]) -> float:
        """Residual share of given A and C on these rows."""
        residual = self.target - self.features(self.patterns(a)) @ mixing.reshape(-1).astype(np.float32)
        return float(residual @ residual) / self.size

    def _curvature(self, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
        """J^T J and J^T residual, J the derivative of the fitted values in A, C held fixed and the features projected out."""
        m, n, a, k = fit.patterns.shape
        values = self.values.reshape(n, k, self.l, self.q)
        columns = np.empty((n, a, m, self.l, self.q), np.float32)
        for i in range(m):
            head = np.tensordot(values, fit.mixing[i].astype(np.float32), axes=((2,), (0,)))
            output = fit.patterns[i] @ head
            weighted = fit.patterns[i] * self.scores
            moved = weighted.transpose(1, 2, 0, 3).reshape(n, a * self.l, k) @ head
            columns[:, :, i] = moved.reshape(n, a, self.l, self.q)
            columns[:, :, i] -= weighted.sum(axis=3).transpose(1, 2, 0)[..., None] * output[:, :, None]
        jacobian = self._columns(columns.reshape(n, a, m * self.l, self.q))
        shared = (fit.features.T @ jacobian).astype(np.float64)
        gauss = (jacobian.T @ jacobian).astype(np.float64) - shared.T @ np.linalg.solve(fit.normal, shared)
        return gauss, (jacobian.T @ fit.residual).astype(np.float64)

    def descend(
        self, a: Float[np.ndarray, "m l"], steps: int = calibration.LM_STEPS
    ) -> tuple[np.ndarray, Fit, int]:
        """Levenberg-Marquardt from `a`: the optimum, its fit and the number of steps."""
        damping, fit = calibration.LM_DAMPING, self.solve(a)
        for step in range(steps):
            gauss, gradient = self._curvature(fit)
            scale = np.diag(gauss) + 1e-9 * np.trace(gauss) / len(gauss)
            before = fit.share
            for _ in range(6):
                change = np.linalg.solve(gauss + damping * np.diag(scale), gradient).reshape(a.shape)
                change *= min(1.0, calibration.LM_LARGEST_STEP / np.abs(change * self.spread).max())
                trial = self.solve(a + change)
                if trial.share < fit.share:
                    a, fit, damping = a + change, trial, damping / calibration.LM_FACTOR
                    break
                damping *= calibration.LM_FACTOR
            if before - fit.share < calibration.LM_TOLERANCE * before:
                return a, fit, step + 1
        return a, fit, steps


def random_start(
    rng: np.random.Generator, heads: int, spread: Float[np.ndarray, "l"]
) -> Float[np.ndarray, "m l"]:
    """Random directions in the span whose scores have standard deviation START_SCORES."""
    directions = np.linalg.qr(rng.standard_normal((max(heads, len(spread)), len(spread))).T)[0].T[:heads]
    return calibration.START_SCORES * directions / np.median(spread)
