"""Variable projection on the span: the m^2 numbers that turn basis scores into heads.

Theta_i = sum_j A_ij U_j and W_i = sum_l C_il V_l. The scores on the basis and the
projected values are computed once; for given A the best C is linear least squares, so only A is searched, by
Levenberg-Marquardt with Kaufman's Jacobian. What a layer with constant attention explains is projected out of
both sides, so the sum of the W_i need not lie in the span. A few random output directions and a few hundred
sequences suffice: the unknowns do not grow with the dimension.

Cost: O(rows m^2 (m^2 + features)) per step. What can fail: a start may end in a worse optimum (compare starts).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import bounded, row_sums, softmax
from attnlearn.engine._threads import in_order
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._rows import linear_features
from attnlearn.solve._batch import WhiteBatch
from attnlearn.solve._calibration import in_precision
from attnlearn.solve._chunks import added


class Columns(NamedTuple):
    """A matrix with one row per scalar equation, and its coefficients on the nuisance features, which count for nothing."""

    rows: np.ndarray
    nuisance: np.ndarray

    def inner(self, other: Columns) -> np.ndarray:
        """Inner products of the columns less what the nuisance features explain, made without forming such columns."""
        return self.rows.T @ other.rows - self.nuisance.T @ other.nuisance

    def square(self) -> np.ndarray:
        """Their own inner products, in float64, and on the diagonal a ridge relative to the columns as they are: where nuisance
        explains everything, as it does when rows are few, the difference is rounding of either sign.
        """
        ridge = (
            in_precision(calibration.RIDGE, np.float32)
            * float(np.vdot(self.rows, self.rows))
            / self.rows.shape[1]
        )
        return self.inner(self).astype(np.float64) + ridge * np.eye(self.rows.shape[1])


class Fit(NamedTuple):
    """Attention on the basis, features by slice and their normal matrix, C, residuals by slice, their share of the target."""

    patterns: np.ndarray
    features: list[Columns]
    normal: np.ndarray
    mixing: Float[np.ndarray, "m l"]
    residual: list[np.ndarray]
    share: float


class SpanModel:
    """Attention heads confined to the span, on some rows and some output directions."""

    def __init__(
        self,
        rows: WhiteBatch,
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
        self.uniform: Any = (
            np.float32(1 / k)
            if self.visible is None
            else softmax(np.where(self.visible, np.float32(0), -np.inf))
        )
        self.spread = self.scores.std(axis=(1, 2, 3)).astype(np.float64)
        values = (right @ directions).transpose(1, 0, 2).reshape(r, -1).astype(np.float32)
        self.values = (z.reshape(-1, r) @ values).reshape(n, k, self.l, self.q)
        nuisance = linear_features(z, visible)[:, queries].reshape(n * self.a, -1)
        self.nuisance = np.linalg.qr(nuisance[:, np.abs(nuisance).max(axis=0) > 0])[0]
        target = residual[:, queries].reshape(n * self.a, -1) @ directions.astype(np.float32)
        self.target = self._free(target)
        self.size = float(np.vdot(self.target, self.target))
        # Equations of different output directions have nothing in common but the unknowns: threads share them.
        step = calibration.OUTPUT_DIRECTIONS // 2
        self.slices = [slice(start, start + step) for start in range(0, self.q, step)]

    def thinned(self, share: float) -> SpanModel:
        """The model on the first of its sequences only."""
        part = copy.copy(self)
        part.n = max(1, int(np.ceil(share * self.n)))
        rows = part.n * self.a
        part.scores, part.values = self.scores[:, : part.n], self.values[: part.n]
        if self.visible is not None and len(self.visible) > 1:
            part.visible, part.uniform = self.visible[: part.n], self.uniform[: part.n]
        part.nuisance = np.linalg.qr(self.nuisance[:rows])[0]
        part.target = part._free(self.target[:rows])
        part.size = float(np.vdot(part.target, part.target))
        return part

    def _free(self, columns: np.ndarray) -> np.ndarray:
        """`columns` without what the nuisance features explain."""
        return columns - self.nuisance @ (self.nuisance.T @ columns)

    def _columns(self, values: np.ndarray) -> Columns:
        """(n, a, unknowns, directions) as the columns of the equations."""
        *_, unknowns, q = values.shape
        flat = values.reshape(self.n * self.a, unknowns * q)
        both = (part.reshape(-1, unknowns, q).transpose(0, 2, 1) for part in (flat, self.nuisance.T @ flat))
        return Columns(*(part.reshape(-1, unknowns) for part in both))

    def patterns(self, a: Float[np.ndarray, "m l"]) -> Float[np.ndarray, "m n a k"]:
        """Attention of heads with coordinates `a`."""
        scores = np.tensordot(a.astype(np.float32), self.scores, axes=1)
        shift = not bounded(scores)
        if self.visible is not None:
            np.copyto(scores, -np.inf, where=~self.visible)
        return softmax(scores, shift)

    def features(self, patterns: Float[np.ndarray, "m n a k"], directions: slice) -> Columns:
        """One column per pair (head, value basis matrix), for some of the output directions."""
        m, n, a, k = patterns.shape
        values = self.values[..., directions]
        # Uniform attention is nuisance: without it, weak attention does not drown in what `Columns.inner` takes off.
        beyond = (patterns - self.uniform).transpose(1, 2, 0, 3)
        mixed = beyond.reshape(n, a * m, k) @ values.reshape(n, k, -1)
        return self._columns(mixed.reshape(n, a, m * self.l, -1))

    def solve(self, a: Float[np.ndarray, "m l"]) -> Fit:
        """The best C for given A."""
        patterns = self.patterns(a)

        def part(directions: slice) -> tuple[Columns, np.ndarray, np.ndarray]:
            features = self.features(patterns, directions)
            right = features.rows.T @ self.target[:, directions].reshape(-1)  # the target is free of nuisance
            return features, features.square(), right.astype(np.float64)

        features, normals, rights = zip(*in_order(part, self.slices))
        normal = added(normals)
        mixing = np.linalg.solve(normal, added(rights))
        single = mixing.astype(np.float32)
        fitted = [(columns.rows @ single).reshape(self.n * self.a, -1) for columns in features]
        residual = [
            (self.target[:, directions] - self._free(found)).reshape(-1)
            for found, directions in zip(fitted, self.slices)
        ]
        share = sum(float(part @ part) for part in residual) / self.size
        return Fit(patterns, list(features), normal, mixing.reshape(len(a), self.l), residual, share)

    def judge(self, a: Float[np.ndarray, "m l"], mixing: Float[np.ndarray, "m l"]) -> float:
        """Residual share of given A and C on these rows."""
        explained = added(
            pattern @ self._outputs(row) for pattern, row in zip(self.patterns(a), mixing.astype(np.float32))
        )
        residual = self.target - self._free(explained.reshape(self.n * self.a, -1))
        return float(np.vdot(residual, residual)) / self.size

    def _outputs(self, mixing: Float[np.ndarray, "l"], directions: slice = slice(None)) -> np.ndarray:
        """Values (n, k, directions) of a head with this row of C."""
        return np.tensordot(self.values[..., directions], mixing, axes=((2,), (0,)))

    def _curvature(self, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
        """J^T J and J^T residual, J the derivative of the fitted values in A, C held fixed and the features projected out."""
        weighted = [pattern * self.scores for pattern in fit.patterns]
        sums = [row_sums(head).transpose(1, 2, 0, 3) for head in weighted]
        stacked = [
            np.ascontiguousarray(head.transpose(1, 2, 0, 3)).reshape(self.n, self.a * self.l, -1)
            for head in weighted
        ]

        def part(place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            directions = self.slices[place]
            columns = []
            for pattern, moved, total, row in zip(fit.patterns, stacked, sums, fit.mixing.astype(np.float32)):
                head = self._outputs(row, directions)
                change = (moved @ head).reshape(self.n, self.a, self.l, -1)
                change -= total * (pattern @ head)[:, :, None]
                columns.append(change)
            jacobian = self._columns(np.concatenate(columns, axis=2))
            slope = jacobian.rows.T @ fit.residual[place]
            shared = fit.features[place].inner(jacobian)
            return jacobian.square(), shared.astype(np.float64), slope.astype(np.float64)

        gauss, shared, slope = added(in_order(part, range(len(self.slices))))
        return gauss - shared.T @ np.linalg.solve(fit.normal, shared), slope

    def descend(
        self, a: Float[np.ndarray, "m l"], steps: int = calibration.STEPS_MOST
    ) -> tuple[np.ndarray, Fit, int]:
        """Levenberg-Marquardt from `a`: the optimum, its fit and the number of steps."""
        damping, fit = calibration.ROUGH, self.solve(a)
        for step in range(steps):
            gauss, gradient = self._curvature(fit)
            scale = np.diag(gauss) + np.sqrt(np.finfo(float).eps) * np.trace(gauss) / len(gauss)
            before = fit.share
            for _ in range(calibration.SHORT_STEPS):
                change = np.linalg.solve(gauss + damping * np.diag(scale), gradient).reshape(a.shape)
                change *= min(1.0, calibration.FAR_MORE / np.abs(change * self.spread).max())
                trial = self.solve(a + change)
                if trial.share < fit.share:
                    a, fit, damping = a + change, trial, damping / calibration.GROWTH
                    break
                damping *= calibration.GROWTH
            if before - fit.share < calibration.NEGLIGIBLE * before:
                return a, fit, step + 1
        return a, fit, steps


def random_start(
    rng: np.random.Generator, heads: int, spread: Float[np.ndarray, "l"]
) -> Float[np.ndarray, "m l"]:
    """Random directions in the span whose scores have standard deviation 1."""
    directions = np.linalg.qr(rng.standard_normal((max(heads, len(spread)), len(spread))).T)[0].T[:heads]
    return directions / np.median(spread)
