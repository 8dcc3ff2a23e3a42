"""Heads as tokens can show them, compared with plain linear algebra: the judge's own canonical form.

With an orthonormal basis U of the differences of tokens and o the part of a token that never changes, a layer is, on these tokens,
Theta -> U^T Theta U, c -> U^T (c + Theta^T o), W -> U^T W, b -> b + o^T sum_i W_i, for tokens U^T x.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from tests.problems._plain import attended
from tests.problems._problem import Fresh

EQUAL = 1e-13
"""Heads with (Theta, c) equal to this share of their size are one head, and a W smaller than this is none."""
SPAN = {"float64": 1e-11, "float32": 3e-6}
"""Directions in which tokens vary less than this share of the largest are rounding."""
SMALL_BIAS = 1e-3
"""A bias is measured against its own norm or this share of the layer's, whichever is larger: the definition of `distance`."""
TOKENS = 200_000
"""Tokens that are looked at for their span."""


class Place(NamedTuple):
    """The affine span of the tokens: the part that never changes, and an orthonormal basis of the differences."""

    still: np.ndarray
    basis: np.ndarray


class Heads(NamedTuple):
    """A layer on the span of the tokens; `origin` is the index of each head in the layer it came from."""

    theta: np.ndarray
    query_bias: np.ndarray
    w: np.ndarray
    output_bias: np.ndarray
    causal: bool
    origin: np.ndarray

    @property
    def num(self) -> int:
        """Number of heads."""
        return len(self.theta)


def span(x: np.ndarray, mask: np.ndarray | None = None) -> Place:
    """Where tokens lie, by singular values of their differences from one of them."""
    tokens = (x.reshape(-1, x.shape[2]) if mask is None else x[mask])[:TOKENS].astype(np.float64)
    middle = tokens.mean(axis=0)
    values, basis = np.linalg.svd(tokens - middle, full_matrices=False)[1:]
    limit = SPAN[x.dtype.name] * max(values.max(), np.finfo(float).tiny)
    limit = max(limit, np.finfo(x.dtype).eps * np.linalg.norm(middle) * np.sqrt(len(tokens)))
    basis = basis[values > limit].T
    return Place(middle - basis @ (basis.T @ middle), basis)


def reduced(layer: Any, place: Place) -> Heads:
    """The heads of a layer on the span, equal ones as one, those without effect left out."""
    theta, w, c, b = (
        np.asarray(a, np.float64) for a in (layer.theta, layer.w, layer.query_bias, layer.output_bias)
    )
    basis, still = place.basis, place.still
    scores = basis.T @ theta @ basis
    bias = (c + np.einsum("mde,d->me", theta, still)) @ basis
    values = basis.T @ w
    kept: list[int] = []
    for head in range(len(theta)):
        twin = next((other for other in kept if _apart(scores, bias, head, other) <= EQUAL), None)
        if twin is None:
            kept.append(head)
        else:
            values[twin] = values[twin] + values[head]
    norms = np.linalg.norm(values, axis=(1, 2))
    kept = [head for head in kept if norms[head] > EQUAL * norms.max()] or kept[:1]
    return Heads(
        scores[kept],
        bias[kept],
        values[kept],
        b + still @ w.sum(axis=0),
        bool(layer.causal),
        np.array(kept, int),
    )


def _apart(theta: np.ndarray, bias: np.ndarray, i: int, j: int) -> float:
    """Distance of the scores of two heads over the larger of both."""
    sizes = [np.hypot(np.linalg.norm(theta[h]), np.linalg.norm(bias[h])) for h in (i, j)]
    difference = np.hypot(np.linalg.norm(theta[i] - theta[j]), np.linalg.norm(bias[i] - bias[j]))
    return float(difference / max(sizes)) if max(sizes) > 0 else 0.0


def apart(heads: Heads) -> float:
    """The closest two heads; infinite for one head."""
    pairs = [(i, j) for i in range(heads.num) for j in range(i)]
    return min((_apart(heads.theta, heads.query_bias, i, j) for i, j in pairs), default=np.inf)


def errors(found: Heads, true: Heads) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Rows of `found` matched to the heads of `true`, the worse of the errors of Theta and W, of the query bias, and of b."""
    sizes = np.linalg.norm(true.theta, axis=(1, 2))
    present = np.logical_and.outer(found.theta.any(axis=(1, 2)), sizes > 0)
    theta = _table(found.theta, true.theta, np.where(present, sizes, sizes.max()))
    w = _table(found.w, true.w, np.linalg.norm(true.w, axis=(1, 2)))
    floor = SMALL_BIAS * np.linalg.norm(true.theta)
    bias = _table(
        found.query_bias, true.query_bias, np.maximum(np.linalg.norm(true.query_bias, axis=1), floor)
    )
    rows, columns = linear_sum_assignment(np.minimum(theta + w + bias, 1e6))
    floor = SMALL_BIAS * np.linalg.norm(true.w)
    output = np.linalg.norm(found.output_bias - true.output_bias)
    output = output / max(np.linalg.norm(true.output_bias), floor, np.finfo(float).tiny)
    return rows, np.maximum(theta, w)[rows, columns], bias[rows, columns], float(output)


def _table(first: np.ndarray, second: np.ndarray, norms: np.ndarray) -> np.ndarray:
    difference = first[:, None] - second[None]
    norms = np.maximum(norms, np.finfo(float).tiny)
    return np.linalg.norm(difference.reshape(len(first), len(second), -1), axis=2) / norms


def visibility(heads: Heads, seen: Fresh, place: Place, fraction: float) -> np.ndarray:
    """What each head changes, when the W of the others and b are refitted, on at least `fraction` of the inputs.

    In units of the typical output norm: the root mean square over sequences.
    """
    x = seen.x.astype(np.float64) @ place.basis
    read = attended(heads, x, seen.mask)
    shown = np.ones(x.shape[:2], bool) if seen.mask is None else seen.mask
    outputs = np.einsum("nmkd,mdo->nko", read, heads.w) + heads.output_bias
    typical = np.sqrt(np.mean(np.sum((outputs * shown[..., None]) ** 2, axis=(1, 2))))
    members = np.repeat(np.arange(len(x)), shown.sum(axis=1))
    sizes = []
    for head in range(heads.num):
        others = np.delete(read, head, axis=1).transpose(0, 2, 1, 3)
        design = np.concatenate([others.reshape(*x.shape[:2], -1), np.ones((*x.shape[:2], 1))], axis=2)[shown]
        rest = outputs[shown] - design @ np.linalg.lstsq(design, outputs[shown])[0]
        squares = np.bincount(members, weights=np.sum(rest**2, axis=1), minlength=len(x))
        sizes.append(np.quantile(np.sqrt(squares), 1 - fraction) / max(typical, np.finfo(float).tiny))
    return np.array(sizes)
