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
from attnlearn.recovery.linear._heads import Heads, decompose, fewest_heads, polished, symmetric_part
from attnlearn.recovery.linear._regress import Regression, residual_of
from attnlearn.solve._batch import Batch


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


@dataclass
class Search:
    """Layers with a given number of heads, beside the regression that they are to be as good as."""

    regression: Regression
    select: Batch
    exact: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        coordinates = self.regression.coordinates
        plain = self.regression.coefficients / coordinates.scale[:, None]
        monomials = plain[:-1] if coordinates.biases else plain
        self.s = symmetric_part(monomials, coordinates.queries, coordinates.rank)
        self.best = residual_of(self.regression, self.select)
        self.limit = max(calibration.SAME * self.best, self.exact)

    def layer(self, heads: Heads) -> tuple[LinearAttentionLayer, float]:
        """The layer of heads in white coordinates, and its select error."""
        layer = _layer(self.regression, heads, self.regression.coordinates.whiten, self.select.x.dtype)
        return layer, relative_error(layer, self.select)

    def tried(self, number: int) -> tuple[LinearAttentionLayer, float]:
        """The best layer found with that many heads.

        Alternating least squares converges where heads are of about equal sizes: in white coordinates or in the tokens' own. White
        ones have the smallest error, so an answer in the others is the start of a few Gauss-Newton steps there.
        """
        exact, whiten = (
            self.regression.determined and self.best <= self.exact,
            self.regression.coordinates.whiten,
        )
        white = self.layer(decompose(self.s, number, self.rng, exact))
        if white[1] <= self.limit:
            return white
        own = decompose(_unwhitened(self.s, whiten), number, self.rng, exact)
        moved = Heads(*_in_white(own, whiten), own.residual)
        other = self.layer(polished(self.s, moved) if exact else moved)
        return min(white, other, key=lambda one: one[1])


def find_heads(
    regression: Regression, select: Batch, exact: float, num_heads: int | None, seed: int
) -> Found:
    """The layer with the fewest heads found that is as good as the regression, or the best found with `num_heads`."""
    rng = np.random.default_rng([seed, 0x11EA])
    search = Search(regression, select, exact, rng)
    fewest, margin = 0, 0.0
    if regression.determined:
        fewest, margin = fewest_heads(search.s, _error_of_maps(regression), rng)
    if num_heads is not None:
        layer, error = search.tried(num_heads)
    else:
        layer, error = _fewest(search, max(1, fewest) if search.best <= exact else 1)
    return Found(layer, error, search.best, fewest, margin, difference(regression, layer, select))


def _fewest(search: Search, least: int) -> tuple[LinearAttentionLayer, float]:
    """Double the number of heads from `least` on until they are enough, then bisect."""
    failed, number = least - 1, least
    most = calibration.WIDEST * search.regression.coordinates.rank
    while (found := search.tried(number))[1] > search.limit:
        if number >= most:
            return search.layer(_whole(search.s))
        failed, number = number, min(2 * number, most)
    while number - failed > 1:
        middle = (number + failed) // 2
        other = search.tried(middle)
        if other[1] <= search.limit:
            number, found = middle, other
        else:
            failed = middle
    return found


def relative_error(layer: LinearAttentionLayer, side: Batch) -> float:
    """Root mean square error over that of the outputs, in float64."""
    outputs = side.visible.astype(np.float64)
    rest = layer.astype(np.float64)(side.x.astype(np.float64), side.mask) - outputs
    size = float(np.linalg.norm(outputs))
    return float(np.linalg.norm(rest)) / size if size > 0 else 0.0


def difference(regression: Regression, layer: LinearAttentionLayer, side: Batch) -> float:
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


def _in_white(heads: Heads, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Theta and W of heads in the tokens' own coordinates x, for the coordinates x t."""
    d, back = t.shape[0], np.linalg.pinv(t)
    theta = np.concatenate([back @ heads.theta[:, :d], heads.theta[:, d:]], axis=1) @ back.T
    return theta, back @ heads.w


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
