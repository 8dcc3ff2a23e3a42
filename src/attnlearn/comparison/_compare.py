"""`compare`: which head of one layer is which head of another, and how far apart they are, on the tokens that matter.

Weights that tokens never see may differ at will: LayerNorm alone leaves one direction open. So layers are compared on the affine span
of given tokens, on the span that a recovered layer's file keeps, or, without either, everywhere.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnlearn._canonical import Support
from attnlearn._distance import Distance, distance
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import require_finite, to_numpy
from attnlearn._storage import load_support
from attnlearn.convert import load
from attnlearn.data import Examples, Recorded
from attnlearn.data._intake import is_data_model
from attnlearn.solve._white import whitening

SAMPLED = 2_000
"""Sequences that are looked at: a span of hundreds of directions is full long before."""


@dataclass(frozen=True)
class Comparison:
    """Matched heads and their distances.

    `distance` is relative to the heads of `b`. `directions` is the number in which the tokens vary, None where the layers were compared everywhere;
    `support_from` says where that span came from. `function_error` is the largest difference of the outputs on the given tokens over the typical output
    of `b`, None without tokens.

    >>> layer = AttentionLayer.random(2, 4)
    >>> compare(layer, layer).distance.max
    0.0
    """

    distance: Distance
    dim: int
    directions: int | None
    support_from: str | None
    function_error: float | None

    def rows(self) -> list[dict[str, Any]]:
        """One row for every pair of heads, those without a partner last."""
        return [asdict(match) for match in self.distance.heads]

    def frame(self):
        """The rows as a pandas data frame (needs the extra `report`)."""
        import pandas

        return pandas.DataFrame(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        named = {
            name: getattr(self.distance, name) for name in ("theta", "w", "query_bias", "output_bias", "max")
        }
        own = {name: getattr(self, name) for name in ("dim", "directions", "support_from", "function_error")}
        return {
            "schema": "attnlearn/comparison",
            "version": 1,
            **own,
            "distance": named,
            "heads": self.rows(),
        }

    def __str__(self) -> str:
        where = "on all tokens"
        if self.directions is not None:
            where = f"on tokens that vary in {self.directions} of {self.dim} directions ({self.support_from})"
        lines = [f"largest distance {self.distance.max:.3g} {where}"]
        if self.function_error is not None:
            lines.append(f"outputs differ by at most {self.function_error:.3g} of the typical output")
        lines.append("   a    b     theta         w  query bias")
        for match in self.distance.heads:
            names = ("–" if head is None else str(head) for head in (match.head, match.other))
            lines.append(
                "{:>4} {:>4}".format(*names) + f" {match.theta:9.3g} {match.w:9.3g} {match.query_bias:11.3g}"
            )
        return "\n".join(lines)


def compare(a: Any, b: Any, data: Any = None) -> Comparison:
    """Match the heads of two layers and measure how far apart they are.

    `a` and `b` are layers, or files that `attnlearn.load` reads. `data` are tokens (n, k, d), recorded examples or their path, or a data model: only what such
    tokens can show is compared. Without them the span that a file keeps is used (the command line saves it with every recovered layer), if
    there is one.

    >>> layer = AttentionLayer.random(2, 4)
    >>> print(compare(layer.replace(w=1.1 * layer.w), layer))
    largest distance 0.1 on all tokens
       a    b     theta         w  query bias
       0    0         0       0.1           0
       1    1         0       0.1           0
    """
    supports = [("the file of " + name, _kept(thing)) for name, thing in (("a", a), ("b", b))]
    a, b = _layer(a, "a"), _layer(b, "b")
    x, mask = (None, None) if data is None else _tokens(data, a.dim)
    source, support = next(((name, kept) for name, kept in supports if kept is not None), (None, None))
    error = None
    if x is not None:
        source, support = "the given tokens", whitening(x, mask).support
        error = _difference(a, b, x, mask)
    found = distance(a, b, support=support)
    return Comparison(found, a.dim, None if support is None else support.basis.shape[1], source, error)


def _difference(a: AttentionLayer, b: AttentionLayer, x: np.ndarray, mask: np.ndarray | None) -> float:
    """The largest difference of two sequences' outputs, over the root mean square of those of b."""
    ours, theirs = (layer(x.astype(layer.dtype, copy=False), mask).astype(np.float64) for layer in (a, b))
    sizes = np.linalg.norm(theirs, axis=(1, 2))
    largest = float(np.linalg.norm(ours - theirs, axis=(1, 2)).max())
    return largest / max(float(np.sqrt(np.mean(sizes**2))), np.finfo(float).tiny)


def _layer(thing: Any, name: str) -> AttentionLayer:
    if isinstance(thing, (str, os.PathLike)):
        return load(thing)
    require(
        isinstance(thing, AttentionLayer),
        name,
        "must be an AttentionLayer or a file of one",
        type(thing).__name__,
    )
    return thing


def _kept(thing: Any) -> Support | None:
    return load_support(thing) if isinstance(thing, (str, os.PathLike)) else None


def _tokens(data: Any, dim: int) -> tuple[np.ndarray, np.ndarray | None]:
    mask = None
    if isinstance(data, (str, os.PathLike)):
        data = Recorded(data)
    if isinstance(data, Examples):
        part = data.take(np.arange(min(data.num, SAMPLED)))
        data, mask = part.x, part.mask
    elif is_data_model(data):
        data = data.sample(SAMPLED)
    x = to_numpy(data, "data")
    require(x.ndim == 3 and x.shape[2] == dim, "data", f"must have shape (n, k, {dim})", x)
    require_finite(x, "data")
    return x[:SAMPLED], mask
