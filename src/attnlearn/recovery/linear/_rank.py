"""From the regression to a layer: as few heads as have its function, proved to be needed where M(a) shows it.

The rank found is the smallest that was tried whose select error is that of the regression. What can fail: where the regression is not
exact (noise, or a function that is no linear attention) D has full rank, and as many heads as it takes are returned.
Cost: a decomposition for every number of heads that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnlearn._linear import LinearAttentionLayer
from attnlearn.recovery.linear import _calibration as calibration
from attnlearn.recovery.linear._heads import Heads, decompose, fewest_heads, symmetric_part
from attnlearn.recovery.linear._regress import Regression, residual_of
from attnlearn.solve._held import Held


@dataclass(frozen=True)
class Found:
    """The layer, its select error and that of the regression, and the number of heads that M(a) proves to be needed.

    `apart`: how far layer and regression are from each other on the select side, as a share of the outputs. `margin`: how many times the last counted singular value of M(a) exceeds the bound on its error.
    """

    layer: LinearAttentionLayer
    error: float
    best: float
    fewest: int
    margin: float
    apart: float


def find_heads(regression: Regression, select: Held, exact: float, num_heads: int | None, seed: int) -> Found:
    """The layer with the fewest heads found that is as good as the regression, or the best found with `num_heads`."""
    rng = np.random.default_rng([seed, 0x11EA])
    coordinates = regression.coordinates
    plain = regression.coefficients / coordinates.scale[:, None]
    monomials = plain[:-1] if coordinates.biases else plain
    s = symmetric_part(monomials, coordinates.queries, coordinates.rank)
    fewest, margin = fewest_heads(s, _error_of_maps(regression), rng) if regression.determined else (0, 0.0)
    search = Search(regression, select, s, residual_of(regression, select), exact, rng)
    layer, error = search.smallest(max(1, fewest)) if num_heads is None else search.tried(num_heads)
    return Found(layer, error, search.best, fewest, margin, difference(regression, layer, select))


Tried = tuple[LinearAttentionLayer, float]
"""A layer and its select error."""


@dataclass(frozen=True)
class Search:
    """The search for the number of heads; `best` is the select error of the regression."""

    regression: Regression
    select: Held
    s: np.ndarray
    best: float
    exact: float
    rng: np.random.Generator

    @property
    def limit(self) -> float:
        """The select error at which a layer is as good as the regression."""
        return max(calibration.SAME * self.best, self.exact)

    def tried(self, number: int) -> Tried:
        """The best layer found with so many heads, in white coordinates or in the tokens' own."""
        whiten = self.regression.coordinates.whiten
        thorough = self.regression.determined and self.best <= self.exact
        tries: list[Tried] = []
        for t in (whiten, np.eye(len(whiten))):
            own = self.s if t is whiten else _unwhitened(self.s, whiten)
            tries.append(self._judged(decompose(own, number, self.rng, thorough), t))
            if tries[-1][1] <= self.limit:
                break
        return min(tries, key=lambda one: one[1])

    def smallest(self, fewest: int) -> Tried:
        """The least number of heads that is as good as the regression: doubled, then halved; all heads of D if none is."""
        coordinates = self.regression.coordinates
        failed, number = 0, fewest if self.best <= self.exact else 1
        most = max(fewest, calibration.WIDEST * coordinates.rank)
        while (answer := self.tried(number))[1] > self.limit:
            if number == most:
                return self._judged(_whole(self.s), coordinates.whiten)
            failed, number = number, min(2 * number, most)
        while number - failed > 1 and number > fewest:
            middle = (number + failed) // 2
            other = self.tried(middle)
            if other[1] <= self.limit:
                number, answer = middle, other
            else:
                failed = middle
        return answer

    def _judged(self, heads: Heads, t: np.ndarray) -> Tried:
        layer = _layer(self.regression, heads, t, self.select.x.dtype)
        return layer, relative_error(layer, self.select)


def relative_error(layer: LinearAttentionLayer, side: Held) -> float:
    """Root mean square error over that of the outputs, in float64."""
    outputs = side.visible.astype(np.float64)
    rest = layer.astype(np.float64)(side.x.astype(np.float64), side.mask) - outputs
    size = float(np.linalg.norm(outputs))
    return float(np.linalg.norm(rest)) / size if size > 0 else 0.0


def difference(regression: Regression, layer: LinearAttentionLayer, side: Held) -> float:
    """Root mean square difference between layer and regression over the size of the outputs."""
    double = layer.astype(np.float64)
    answers = double(side.x.astype(np.float64), side.mask)
    answers = answers.reshape(-1, layer.out_dim) if side.mask is None else answers[side.mask]
    fitted = np.concatenate(
        [part.features @ regression.coefficients for part in regression.coordinates.rows(side)]
    )
    size = float(np.linalg.norm(side.visible.astype(np.float64)))
    return float(np.linalg.norm(fitted - answers)) / size if size > 0 else 0.0


def _error_of_maps(regression: Regression) -> float:
    """A bound on the error of M(a), |a| = 1: two fits with these residuals differ by at most 2 residual / sqrt(smallest).

    Outputs are known to rounding only, so the residual counts as at least that.
    """
    residual = max(regression.residual, np.finfo(float).eps * regression.size)
    return 2 * residual / np.sqrt(regression.smallest) / float(regression.coordinates.scale.min())


def _whole(s: np.ndarray) -> Heads:
    """As many heads as D = S / 2 has singular values above rounding."""
    u, r, _, o = s.shape
    left, values, right = np.linalg.svd(s.reshape(u * r, r * o) / 2, full_matrices=False)
    keep = max(1, int(np.sum(values > np.finfo(float).eps * values[0])))
    return Heads((left[:, :keep] * values[:keep]).T.reshape(-1, u, r), right[:keep].reshape(-1, r, o), 0.0)


def _unwhitened(s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """S in the tokens' own coordinates, in which heads may be of more equal sizes."""
    r = t.shape[1]
    keys = np.einsum("upqo,ap,bq->uabo", s, t, t, optimize=True)
    return np.concatenate([np.tensordot(t, keys[:r], 1), keys[r:]])


def _layer(regression: Regression, heads: Heads, t: np.ndarray, dtype: np.dtype) -> LinearAttentionLayer:
    """The layer of heads whose coordinates are x t, for the tokens x; Theta and W of each head have equal norms."""
    coordinates, r = regression.coordinates, t.shape[1]
    theta = t @ heads.theta[:, :r] @ t.T
    query = heads.theta[:, r] @ t.T if coordinates.biases else None
    w = t @ heads.w
    size, other = (np.linalg.norm(part, axis=(1, 2)) for part in (theta, w))
    factor = np.sqrt(np.where((size > 0) & (other > 0), other / np.where(size > 0, size, 1.0), 1.0))
    bias = regression.coefficients[-1] / coordinates.scale[-1] if coordinates.biases else None
    layer = LinearAttentionLayer(
        theta * factor[:, None, None], w / factor[:, None, None],
        None if query is None else query * factor[:, None], bias, coordinates.causal,
    )  # fmt: skip
    return layer.astype(dtype)
