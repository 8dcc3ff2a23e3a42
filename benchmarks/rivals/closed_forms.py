"""The rivals of narrower heads and of shared keys and values: published closed forms, written again from their formulas.

| name | what it does |
|---|---|
| clover | truncated singular values of every Theta_i and W_i, tokens as they are (CLOVER) |
| whitened | the same in white coordinates of the tokens, centred, the query bias as a row of Theta: the objective of A3 and KQ-SVD |
| mean pooling | keys and values of a group are averaged, as the model's own weights stand (grouped-query conversion) |
| procrustes | keys and values of a group are rotated onto the first ones before they are averaged; queries and outputs turn with them |

Pooling is of consecutive heads, as converters do it. None of them fits anything to outputs, and what they say about each other's papers is not
repeated here: only the formulas are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.convert import from_qkvo
from attnlearn.convert._qkvo import QKVO
from attnlearn.solve._white import whitening


def truncated(matrices: np.ndarray, width: int) -> np.ndarray:
    """The best approximation of each matrix of that rank."""
    u, s, vt = np.linalg.svd(matrices.astype(np.float64), full_matrices=False)
    return (u[:, :, :width] * s[:, None, :width]) @ vt[:, :width]


def narrowed(layer: AttentionLayer, x: np.ndarray, width: int) -> dict[str, AttentionLayer]:
    """The rivals at heads of that width."""
    return {"clover": clover(layer, width), "whitened": whitened(layer, x, width)}


def clover(layer: AttentionLayer, width: int) -> AttentionLayer:
    """Every [Theta_i; c_i] and W_i truncated as they are."""
    both = truncated(np.concatenate([layer.theta, layer.query_bias[:, None]], axis=1), width)
    return _made(layer, Parameters(both[:, :-1], truncated(layer.w, width), both[:, -1], layer.output_bias))


def whitened(layer: AttentionLayer, x: np.ndarray, width: int) -> AttentionLayer:
    """Every [Theta_i; c_i] and W_i truncated in white coordinates of the tokens."""
    white = whitening(x, None)
    inside = white.enter(layer.parameters)
    both = truncated(np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1), width)
    return _made(
        layer,
        white.leave(Parameters(both[:, :-1], truncated(inside.w, width), both[:, -1], inside.output_bias)),
    )


def _made(layer: AttentionLayer, found: Parameters) -> AttentionLayer:
    return AttentionLayer(*(np.asarray(part, layer.dtype) for part in found), causal=layer.causal)


def pooled(own: QKVO, kv_heads: int, dtype: np.dtype, causal: bool = False) -> dict[str, AttentionLayer]:
    """The rivals with so many keys and values, from the model's own per-head weights."""
    share = len(own.wq) // kv_heads
    turned = _turned(own, share)
    return {
        name: from_qkvo(*_mean(arrays, share), causal=causal).astype(dtype)
        for name, arrays in (("mean pooling", own), ("procrustes", turned))
    }


def _mean(arrays: QKVO, share: int) -> QKVO:
    def average(part: np.ndarray | None) -> np.ndarray | None:
        return None if part is None else part.reshape(-1, share, *part.shape[1:]).mean(axis=1)

    pooled = {name: average(getattr(arrays, name)) for name in ("wk", "wv", "bk", "bv")}
    return arrays._replace(**pooled)


def _turned(own: QKVO, share: int) -> QKVO:
    """Keys and values of each head rotated onto those of the first head of its group; the layer is the same."""
    found = {name: np.array(getattr(own, name)) for name in ("wq", "wk", "wv", "wo", "bq", "bv")}
    for head in range(len(own.wq)):
        first = head - head % share
        key, value = (_rotation(getattr(own, name)[head], getattr(own, name)[first]) for name in ("wk", "wv"))
        for name, turn in (("wk", key), ("wq", key), ("wv", value), ("bq", key), ("bv", value)):
            found[name][head] = found[name][head] @ turn
        found["wo"][head] = value.T @ found["wo"][head]
    return own._replace(**found, bk=None)


def _rotation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The rotation R with the least ‖one R - other‖."""
    u, _, vt = np.linalg.svd(one.T @ other)
    return u @ vt


NAMES = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "attention.dense"))
"""How the files of the benchmarks call the four maps, each stored (out, in)."""


def own_weights(path: Path, num_heads: int) -> QKVO:
    """The per-head weights of a file, in the gauge that the model has."""
    from safetensors.numpy import load_file

    tensors = load_file(path)

    def tensor(names: tuple[str, ...], kind: str) -> np.ndarray:
        return next(a for n, a in tensors.items() if any(f"{name}.{kind}" in n for name in names)).astype(
            np.float64
        )

    weights, biases = ([tensor(names, kind) for names in NAMES] for kind in ("weight", "bias"))
    d = weights[0].shape[1]
    r = len(weights[0]) // num_heads
    wq, wk, wv = (weight.reshape(num_heads, r, d).transpose(0, 2, 1) for weight in weights[:3])
    bq, bk, bv = (bias.reshape(num_heads, r) for bias in biases[:3])
    return QKVO(wq, wk, wv, weights[3].T.reshape(num_heads, r, -1), bq, bk, bv, biases[3], r**-0.5)
