"""Display data of a learned layer: maps of every head, their spectra, and what each head attends to.

Everything is averaged down to at most `MAP_SIZE` cells a side: enough to draw, never the weights. With many heads the
maps get smaller still, so that a result with its maps stays a few megabytes. Cost: one SVD per matrix and one forward
pass over a few dozen inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnlearn._summary import singular_values
from attnlearn._types import Mask, Tokens

if TYPE_CHECKING:
    from attnlearn._layer import AttentionLayer

MAP_SIZE = 96
"""Cells a side of a map, at most (the contract's limit for display data)."""

MAP_CELLS = 150_000
"""Cells of all maps of a result together: ten characters each in the JSON and one and a half in the pictures, so at
most 1.7 MB of a report's 5 MB. Up to 8 heads keep 96 cells a side."""

INPUTS = 64
"""Inputs over which patterns are averaged: a share of attention is then known to about 1/8 of its spread."""

SHOWN = 3
"""Inputs whose patterns are shown one by one."""

PATTERN_CELLS = 4_000_000
"""Attention weights computed at most for the display (32 MB in float64)."""


class SampleInputs(NamedTuple):
    """A few inputs the layer was learned from, kept to show what its heads attend to.

    >>> SampleInputs(np.zeros((5, 3, 2))).to_json()
    {'inputs': 5, 'tokens': 3}
    """

    x: Tokens
    mask: Mask | None = None
    words: tuple[tuple[str, ...], ...] = ()
    """The tokens of the first of them as text, where they were recorded."""

    def to_json(self) -> dict[str, int]:
        """Their number and length; the tokens themselves are the user's data."""
        return {"inputs": self.x.shape[0], "tokens": self.x.shape[1]}


def map_size(num_maps: int) -> int:
    """Cells a side so that `num_maps` square maps stay within the budget.

    >>> map_size(16), map_size(256)
    (96, 24)
    """
    return max(8, min(MAP_SIZE, int(np.sqrt(MAP_CELLS / max(num_maps, 1)))))


def shrink(matrix: np.ndarray, size: int = MAP_SIZE) -> np.ndarray:
    """Block averages of a matrix, at most `size` a side, four significant digits.

    >>> shrink(np.ones((200, 10))).shape
    (96, 10)
    """
    for axis in (0, 1):
        length = matrix.shape[axis]
        if length > size:
            edges = np.linspace(0, length, size + 1).astype(int)[:-1]
            counts = np.diff([*edges, length])
            matrix = np.add.reduceat(matrix, edges, axis=axis) / np.expand_dims(counts, 1 - axis)
    return np.array([[float(f"{value:.4g}") for value in row] for row in matrix])


def head_maps(singular: dict[str, np.ndarray] | None = None, /, **stacks: np.ndarray) -> list[dict[str, Any]]:
    """For every head and every named stack (m, rows, columns): the map, and its singular values as `name_singular`.

    `singular` may hold the singular values by name, when the caller has them already.

    >>> maps = head_maps(theta=np.ones((2, 3, 3)), w=np.ones((2, 3, 4)))
    >>> len(maps), sorted(maps[0]), maps[0]["theta_singular"][0]
    (2, ['theta', 'theta_singular', 'w', 'w_singular'], 3.0)
    """
    heads = len(next(iter(stacks.values())))
    singular = singular or singular_values(**stacks)
    size = map_size(heads * len(stacks))
    found: list[dict[str, Any]] = [{} for _ in range(heads)]
    for name, stack in stacks.items():
        for entry, matrix, values in zip(found, stack.astype(float), singular[name]):
            entry[name] = shrink(matrix, size).tolist()
            entry[f"{name}_singular"] = [float(f"{value:.6g}") for value in values[:MAP_SIZE]]
    return found


def attention_json(layer: AttentionLayer, stats: dict[str, Any]) -> dict[str, Any]:
    """What each head attends to: on recorded inputs if there are any, otherwise on Gaussian ones.

    >>> from attnlearn import AttentionLayer
    >>> found = attention_json(AttentionLayer.random(2, 4), {"sequence_length": 3})
    >>> found["source"], found["tokens"], len(found["heads"])
    ('Gaussian inputs', 3, 2)
    """
    source, inputs = _inputs(layer, stats)
    k = inputs.x.shape[1]
    most = max(1, PATTERN_CELLS // (layer.num_heads * k * k))
    x, mask = inputs.x[:most], None if inputs.mask is None else inputs.mask[:most]
    patterns = np.asarray(layer.patterns(x.astype(layer.dtype), mask), float)
    found = patterns_json(patterns, mask)
    for entry, shares in zip(found["heads"], output_shares(layer, patterns, x, mask)):
        entry.update(shares)
    named = {"words": [list(words) for words in inputs.words[:SHOWN]]} if inputs.words else {}
    return {"source": source, **found, **named}


def output_shares(
    layer: AttentionLayer, patterns: np.ndarray, x: Tokens, mask: Mask | None
) -> list[dict[str, float]]:
    """What each head does to the outputs, whose mean does not count.

    `share` is the covariance of the head's part with the whole output over the output's variance. The shares of all heads add up to 1;
    a head that works against the others has a negative one. `ablation` is the relative change of the outputs when the head's
    part is replaced by its mean.

    >>> from attnlearn import AttentionLayer
    >>> layer, x = AttentionLayer.random(2, 4), np.random.default_rng(0).standard_normal((8, 3, 4))
    >>> shares = output_shares(layer, layer.patterns(x), x, None)
    >>> round(sum(entry["share"] for entry in shares), 6)
    1.0
    """
    real = np.ones(x.shape[:2], bool) if mask is None else mask.astype(bool)

    def part(head: int) -> np.ndarray:
        moved = ((patterns[:, head] @ x.astype(float)) @ layer.w[head].astype(float))[real]
        return moved - moved.mean(axis=0)

    whole = sum(part(head) for head in range(layer.num_heads))
    size = float(np.sum(np.square(whole))) or 1.0
    found = []
    for head in range(layer.num_heads):
        own = part(head)
        share, square = float(np.sum(own * whole)) / size, float(np.sum(own**2)) / size
        found.append({"share": float(f"{share:.4g}"), "ablation": float(f"{np.sqrt(square):.4g}")})
    return found


def patterns_json(patterns: np.ndarray, mask: np.ndarray | None = None) -> dict[str, Any]:
    """Averages and single patterns of (n, heads, queries, keys), with the figures that sum them up.

    >>> found = patterns_json(np.full((5, 1, 4, 4), 0.25))
    >>> found["heads"][0]["effective_tokens"], round(found["heads"][0]["own_share"], 6)
    (4.0, 0.25)
    """
    n, heads, queries, keys = patterns.shape
    real = np.ones((n, queries)) if mask is None or mask.shape[1] != queries else mask.astype(float)
    real = real / real.sum()
    size = map_size(heads * (SHOWN + 1) * 2)
    entropy = -np.sum(patterns * np.log(np.maximum(patterns, 1e-300)), axis=-1)
    entries = []
    for head in range(heads):
        own = patterns[:, head]
        weights = real[:, None, :]
        entry: dict[str, Any] = {
            "mean": shrink(own.mean(axis=0), size).tolist(),
            "samples": [shrink(pattern, size).tolist() for pattern in own[:SHOWN]],
            "effective_tokens": float(np.exp((entropy[:, head] * real).sum())),
            "largest": float((own.max(axis=-1) * real).sum()),
        }
        if queries == keys:
            diagonal = np.diagonal(own, axis1=1, axis2=2)
            entry["own_share"] = float((diagonal * real).sum())
            entry["by_offset"] = by_offset(own, real * n)
        entry["by_position"] = [float(f"{v:.4g}") for v in (weights @ own).sum(axis=(0, 1))[:MAP_SIZE]]
        entries.append(entry)
    return {"inputs": n, "tokens": keys, "heads": entries}


def by_offset(patterns: np.ndarray, real: np.ndarray | None = None) -> dict[str, list[float]]:
    """The mean attention (n, query, key) that a query gives a key at each offset p_b - p_a, over the queries that have one.

    `real` (n, query) are weights of the queries. At most `MAP_SIZE` offsets, the nearest.

    >>> by_offset(np.array([[[1.0, 0.0], [0.25, 0.75]]]))
    {'offset': [-1, 0, 1], 'share': [0.25, 0.875, 0.0]}
    """
    n, k, _ = patterns.shape
    weights = np.ones((n, k)) if real is None else real
    summed, most = np.einsum("nab,na->ab", patterns, weights), min(k - 1, (MAP_SIZE - 1) // 2)
    offsets, found = range(-most, most + 1), []
    for offset in offsets:
        first, last = max(0, -offset), min(k, k - offset)  # queries with a key at that offset
        total = float(weights[:, first:last].sum())
        found.append(float(f"{np.trace(summed, offset) / total:.4g}") if total > 0 else 0.0)
    return {"offset": list(offsets), "share": found}


def _inputs(layer: AttentionLayer, stats: dict[str, Any]) -> tuple[str, SampleInputs]:
    recorded = stats.get("sample_inputs")
    if isinstance(recorded, SampleInputs):
        return "inputs it was learned from", recorded
    k = stats.get("sequence_length")
    k = int(k) if isinstance(k, int) and 2 <= k <= 512 else 8
    z = np.random.default_rng(0).standard_normal((INPUTS, k, layer.dim))
    support: Any = stats.get("support")
    if getattr(support, "basis", None) is not None and support.basis.shape[0] == layer.dim:
        z = support.mean + z[..., : support.basis.shape[1]] @ support.basis.T
    scale = stats.get("token_scale")
    return "Gaussian inputs", SampleInputs(z * (scale if isinstance(scale, float) else 1.0))
