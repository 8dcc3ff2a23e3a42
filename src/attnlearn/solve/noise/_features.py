"""What the residual of a fit is compared with: features of the tokens, and directions in which other kinds of attention differ.

| family | what it holds | what shows up in it |
|---|---|---|
| own token | the query's token, and the mean of the tokens that it sees | a residual connection, a skip, a further linear map |
| products | products of two and three coordinates of tokens | a missing head, a perceptron, a second layer |
| position | the same, weighted with the distance of query and key | rotary and relative positions |
| scores | what powers of a head's scores, or lengths of tokens, in place of the scores would change | a soft cap, two heads in the place of one |
| distance | what scores that grow with the distance, or are multiplied by it, would change | relative positions, windows |
| sink | what one more key without a value would change | attention sinks |
| output | powers of the outputs, and what of them is beyond some sizes | clipped outputs, ranges that saturate, a function behind the layer |

The first three are random combinations with coefficients of their own for every output. The next three have one coefficient for
each head: with s the scores of a head, alpha its patterns and V its values, the outputs change by sum_b alpha_b (g_b - mean g) V_b when the
scores change by g. The last has the same coefficients for all outputs.

Cost: one pass over the sequences, a few hundred numbers for every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, visible_keys
from attnlearn.solve._unknowns import combinations
from attnlearn.solve._white import whitening

COMBINATIONS = calibration.PIECE // 2
"""Random products of each kind."""
LARGEST_SCORE = 50.0
"""A sink changes nothing beside scores beyond e^50."""
OF_HEADS = ("scores", "distance", "sink")
FAMILIES = ("own token", "products", "position", *OF_HEADS, "output")
BEYOND = 0.9, 0.99, 0.999
"""Shares of all outputs that are smaller than the sizes beyond which an output counts as large."""


@dataclass(frozen=True)
class Family:
    """Columns (rows, q) that explain every output apart, or (rows * outputs, q) that explain all of them together."""

    name: str
    columns: Float[np.ndarray, "rows q"]
    outputs: Float[np.ndarray, "o c"] | None = None
    """The combinations of outputs that the columns explain together; None: every output is explained apart."""


def families(layer: AttentionLayer, held: Batch, seed: int = 0) -> Iterator[Family]:
    """The families on the tokens of `held`; padded rows are zero.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> x = np.random.default_rng(0).standard_normal((8, 3, 4))
    >>> [family.columns.shape[0] for family in families(layer, Batch(x, layer(x)))]
    [24, 24, 24, 96, 96, 96, 96]
    """
    sees = _weights(held, layer.causal)
    z = whitening(held.x, held.mask).tokens(held.x.astype(np.float64)).astype(np.float32)
    yield from _of_tokens(z, sees, np.random.default_rng([seed, 0xF17]))
    few = min(layer.out_dim, calibration.LANCZOS_BLOCK)
    outputs = np.eye(few) if few == layer.out_dim else combinations(layer.out_dim, few, seed)
    yield from _of_heads(layer, held, np.linalg.norm(z, axis=2), sees, outputs)
    yield _of_outputs(layer, held, few, seed)


def _weights(held: Batch, causal: bool) -> Float[np.ndarray, "#n k k"]:
    """1 over the number of keys that a query sees, 0 where it sees none."""
    k = held.x.shape[1]
    sees = visible_keys(k, held.mask, causal)
    sees = np.ones((1, k, k), np.float32) if sees is None else sees.astype(np.float32)
    return sees / np.maximum(sees.sum(axis=2, keepdims=True), 1)


def _offsets(k: int) -> Float[np.ndarray, "k k"]:
    """Distance of query and key, as a share of the longest."""
    places = np.arange(k, dtype=np.float32)
    return (places[None] - places[:, None]) / max(1, k - 1)


def _of_tokens(z: np.ndarray, sees: np.ndarray, rng: np.random.Generator) -> Iterator[Family]:
    n, k, r = z.shape
    real = (sees.sum(axis=2) > 0).astype(np.float32)[..., None]

    def some(kinds: int) -> list[np.ndarray]:
        drawn = rng.standard_normal((kinds, r, COMBINATIONS)).astype(np.float32) / np.sqrt(r)
        return [z @ one for one in drawn]

    few = rng.standard_normal((r, calibration.PIECE)).astype(np.float32) / np.sqrt(r)
    own = z if r <= calibration.PIECE else z @ few
    yield _family("own token", [own, sees @ own, np.ones((n, k, 1), np.float32)], real)
    a, b, c, d, e, f, g = some(7)
    yield _family("products", [a * b, a * (sees @ c), sees @ (d * e), g * (sees @ (d * f)), a * a * b], real)
    offset = _offsets(k)
    signed, away = sees * offset, sees * np.abs(offset)
    parts = [part for weights in (signed, away) for part in (weights @ a, g * (weights @ (d * f)))]
    yield _family("position", parts, real)


def _family(name: str, parts: list[np.ndarray], real: np.ndarray) -> Family:
    columns = np.concatenate(parts, axis=2) * real
    return Family(name, columns.reshape(-1, columns.shape[2]))


def _of_heads(
    layer: AttentionLayer, held: Batch, lengths: np.ndarray, sees: np.ndarray, outputs: np.ndarray
) -> Iterator[Family]:
    """The families with a coefficient for each head, made some sequences at a time: patterns are large."""
    n, k, _ = held.x.shape
    some = max(1, calibration.SCAN_COORDINATES // (layer.num_heads * k * max(k, layer.dim)))
    w = layer.w.astype(np.float64) @ outputs
    sees = np.broadcast_to(sees, (n, k, k))
    pieces = [slice(start, start + some) for start in range(0, n, some)]
    parts = [_moved(layer, w, held.x[piece], lengths[piece], sees[piece]) for piece in pieces]
    for place, name in enumerate(OF_HEADS):
        yield Family(name, np.concatenate([part[place] for part in parts]), outputs)


def _of_outputs(layer: AttentionLayer, held: Batch, few: int, seed: int) -> Family:
    """Powers and large parts of some outputs, in units of each output and of all."""
    chosen = np.sort(np.random.default_rng([seed, 0x007]).permutation(layer.out_dim)[:few])
    outputs = np.eye(layer.out_dim)[:, chosen]
    own = (layer(held.x, held.mask).astype(np.float64) @ outputs).reshape(-1, few)
    units = np.sqrt(np.mean(own**2, axis=0)), np.full(few, np.sqrt(np.mean(own**2)))
    columns = []
    for unit in units:
        t = own / np.maximum(unit, np.finfo(float).tiny)
        sizes = np.abs(t)
        columns += [t * t, t * t * t, t * sizes]
        columns += [np.sign(t) * np.maximum(sizes - size, 0) for size in np.quantile(sizes, BEYOND)]
    real = np.ones((len(own), 1)) if held.mask is None else held.mask.reshape(-1, 1)
    return Family(
        "output", np.stack([column * real for column in columns], axis=2).reshape(-1, len(columns)), outputs
    )


def _moved(
    layer: AttentionLayer, w: np.ndarray, x: np.ndarray, lengths: np.ndarray, sees: np.ndarray
) -> list[np.ndarray]:
    """How the outputs of some sequences (rows * outputs, heads * kinds) move with the scores, the distance and a sink.

    Two heads around one, whose scores differ by random ones, move the outputs as squares of these differences would: on
    average as the squared lengths of query and key.
    """
    x, m = x.astype(np.float64), layer.num_heads
    scores, hidden = layer.scores(x).astype(np.float64), sees[:, None] == 0
    top = np.max(np.where(hidden, -np.inf, scores), axis=3, keepdims=True, initial=-np.finfo(np.float64).max)
    weights = np.where(hidden, 0.0, np.exp(np.minimum(scores - top, 0.0)))
    total = weights.sum(axis=3, keepdims=True)
    alpha = weights / np.maximum(total, np.finfo(float).tiny)
    values = np.einsum("nbd,mdo->nmbo", x, w)

    def rows(outputs: np.ndarray) -> np.ndarray:
        return np.moveaxis(outputs, 1, 3).reshape(-1, m)

    def changed(change: np.ndarray) -> np.ndarray:
        change = alpha * change
        return rows((change - alpha * change.sum(axis=3, keepdims=True)) @ values)

    offset = _offsets(x.shape[1])
    by_distance = [offset, np.abs(offset), offset * scores, np.abs(offset) * scores]
    keys = np.broadcast_to(lengths[:, None, None, :] ** 2 / w.shape[1], scores.shape)
    pairs = keys * lengths[:, None, :, None] ** 2
    share = 1 / (total * np.exp(np.clip(top, -LARGEST_SCORE, LARGEST_SCORE)) + (total == 0))
    return [
        np.concatenate([changed(scores**2), changed(scores**3), changed(pairs), changed(keys)], axis=1),
        np.concatenate([changed(g) for g in by_distance], axis=1),
        rows(share * (alpha @ values)),
    ]
