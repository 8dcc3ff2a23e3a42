"""One representative of all layers with the same function: merged heads, balanced factors, affine supports.

What input and output cannot show is removed here and nowhere else, so that two layers can be compared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer, Factors
from attnlearn._parts import require_plain
from attnlearn.scores import build, describe


class Support(NamedTuple):
    """The affine span of the tokens: every token is mean + basis @ z for some z.

    >>> float(Support(np.zeros(3), np.eye(3)[:, :2]).projector().trace())
    2.0
    """

    mean: Float[np.ndarray, "d"]
    basis: Float[np.ndarray, "d r"]

    def projector(self) -> Float[np.ndarray, "d d"]:
        """The orthogonal projector P = B B^+ on the directions in which tokens vary."""
        orthonormal, singular, _ = np.linalg.svd(self.basis, full_matrices=False)
        keep = orthonormal[
            :, singular > singular.max(initial=0.0) * max(self.basis.shape) * np.finfo(float).eps
        ]
        return keep @ keep.T

    def to_json(self) -> dict[str, int]:
        """Its size; the arrays themselves are no display data."""
        return {"dim": self.basis.shape[0], "rank": self.basis.shape[1]}


def canonical(layer: AttentionLayer, tolerance: float | None) -> AttentionLayer:
    """See `AttentionLayer.canonical`."""
    tolerance = 100 * float(np.finfo(layer.dtype).eps) if tolerance is None else tolerance
    require(tolerance >= 0, "tolerance", "must be >= 0", tolerance)
    largest = max(head_norms(_put_out(layer)).max(), np.finfo(layer.dtype).tiny)
    layer = merged(layer.replace(form=layer.form.canonical()), tolerance)
    projections, stacked = layer.w.copy(), _stacked(layer)
    size = head_norms(stacked)
    norms = head_norms(_put_out(layer))
    visible = [head for head in range(layer.num_heads) if norms[head] > tolerance * largest]
    if not visible:  # a layer that is constant: one head that does nothing
        visible = [0]
        projections[0] = 0
    # Six digits of the size, then the entries themselves: heads of equal size keep one order, whatever their own.
    order = sorted(visible, key=lambda h: (-float(f"{size[h] * norms[h]:.6g}"), stacked[h].ravel().tolist()))
    return layer.chosen(order, projections[order])


def merged(layer: AttentionLayer, tolerance: float) -> AttentionLayer:
    """The layer with heads whose (Theta, c) agree to `tolerance` (relative) as one: the scores of the first, the sum of their W.

    >>> merged(AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3))), 0.1).w[0, 0, 0].item()
    2.0
    """
    stacked = _stacked(layer).astype(np.float64)
    stacked /= max(float(np.abs(stacked).max()), np.finfo(np.float64).tiny)  # no norm overflows
    size = np.linalg.norm(stacked, axis=(1, 2))
    projections, kept = layer.w.copy(), []
    values = None if layer.form.sink_value is None else layer.form.sink_value.copy()
    for head in range(layer.num_heads):
        same = next(
            (
                other
                for other in kept
                if np.linalg.norm(stacked[head] - stacked[other]) <= tolerance * max(size[head], size[other])
            ),
            None,
        )
        if same is None:
            kept.append(head)
        else:
            projections[same] += projections[head]
            if values is not None:
                values[same] += values[head]
    found = layer.chosen(kept, projections[kept])
    return found if values is None else found.replace(sink_value=values[kept])


def head_norms(matrices: Float[np.ndarray, "m p q"]) -> Float[np.ndarray, "m"]:
    """Frobenius norms in float64 that overflow only if an entry does.

    >>> head_norms(np.full((1, 2, 2), 1e200)).tolist()
    [2e+200]
    """
    wide = matrices.astype(np.float64)
    largest = max(float(np.abs(wide).max(initial=0.0)), np.finfo(np.float64).tiny)
    return largest * np.linalg.norm(wide / largest, axis=(1, 2))


def _stacked(layer: AttentionLayer) -> np.ndarray:
    """All numbers of the scores of every head (m, 1, numbers): Theta and c, or factors in their one gauge and tables."""
    arrays = (array for name, array in layer.form.arrays().items() if name != "sink_value")
    return np.concatenate([array.reshape(layer.num_heads, 1, -1) for array in arrays], axis=2)


def _put_out(layer: AttentionLayer) -> np.ndarray:
    """What a head puts out (m, d or d + 1, d_out): W, and the value of its sink."""
    sinks = layer.form.sink_value
    return layer.w if sinks is None else np.concatenate([layer.w, sinks[:, None]], axis=1)


def on_support(layer: AttentionLayer, support: Support) -> AttentionLayer:
    """The representative of `layer` among all that agree on tokens mean + basis @ z.

    Theta -> P Theta P; c -> P(c + Theta^T mu) - P Theta^T P mu; W -> P W; b -> b + (mu - P mu)^T sum_i W_i.
    """
    mean = np.asarray(support.mean, layer.dtype)
    projector = support.projector().astype(layer.dtype)
    require(mean.shape == (layer.dim,), "support", f"mean must have shape ({layer.dim},)", mean)
    require(
        projector.shape == (layer.dim, layer.dim), "support", f"basis must have {layer.dim} rows", projector
    )
    rest = mean - projector @ mean
    form = layer.form.seen_through(rest, projector)
    output_bias = layer.output_bias + rest @ layer.w.sum(axis=0)
    if form.sink_value is not None:  # a query has less of this bias where it looks at its sink
        form = build(describe(form), {**form.arrays(), "sink_value": form.sink_value - rest @ layer.w})
    return layer.replace(form=form, w=projector @ layer.w, output_bias=output_bias)


def balanced_factors(layer: AttentionLayer, rank: int | None, tolerance: float) -> Factors:
    """See `AttentionLayer.factors`. The key space also has to carry the query bias."""
    require_plain(layer, "layer")
    scores = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1).astype(np.float64)
    query, key = _split(scores, rank, tolerance, "theta")
    value, output = _split(layer.w.astype(np.float64), rank, tolerance, "w")
    width = max(query.shape[2], value.shape[2]) if rank is None else rank

    def widen(array: np.ndarray, axis: int) -> np.ndarray:
        shape = [(0, 0)] * 3
        shape[axis] = (0, width - array.shape[axis])
        return np.pad(array, shape).astype(layer.dtype)

    query, key = widen(query, 2), widen(key, 2)
    return Factors(
        query[:, :-1],
        key,
        widen(value, 2),
        widen(np.swapaxes(output, 1, 2), 1),
        query[:, -1],
        layer.output_bias.copy(),
    )


def _split(
    matrices: np.ndarray, rank: int | None, tolerance: float, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Balanced factors left right^T of each matrix, truncated to `rank` or to what `tolerance` allows."""
    u, s, vt = np.linalg.svd(matrices, full_matrices=False)
    total = np.maximum(np.linalg.norm(s, axis=1), np.finfo(float).tiny)
    tails = np.sqrt(np.cumsum(s[:, ::-1] ** 2, axis=1))[:, ::-1]  # tails[i, r]: what rank r loses
    tails = np.concatenate([tails, np.zeros((len(s), 1))], axis=1)
    fits = (tails <= tolerance * total[:, None]).all(axis=0)
    smallest = max(1, int(np.argmax(fits)))
    width = min(smallest if rank is None else rank, s.shape[1])
    require(
        rank is None or rank >= smallest,
        "rank",
        f"must be at least {smallest} to hold {name} to a relative {tolerance:g} (or pass a larger tolerance)",
        rank,
    )
    root = np.sqrt(s[:, None, :width])
    return u[:, :, :width] * root, np.swapaxes(vt[:, :width], 1, 2) * root
