"""Maps X -> Y that are not one attention layer, though each looks a little like one."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer


def normalise(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """LayerNorm with gain and bias."""
    centred = y - y.mean(axis=-1, keepdims=True)
    gain, bias = rng.uniform(0.5, 2.0, y.shape[-1]), rng.standard_normal(y.shape[-1])
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * gain + bias


def with_score_bias(layer: AttentionLayer, x: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The layer with a term added to its scores (k, k): positions, windows."""
    scores = layer.scores(x) + bias
    patterns = np.exp(scores - scores.max(axis=-1, keepdims=True))
    patterns /= patterns.sum(axis=-1, keepdims=True)
    return np.einsum("nmab,nbd,mdo->nao", patterns, x, layer.w, optimize=True)


def gaps(k: int) -> np.ndarray:
    return np.abs(np.subtract.outer(np.arange(k), np.arange(k)))


def mlp(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A two-layer perceptron on the flattened sequence."""
    n, k, d = x.shape
    hidden = np.tanh(x.reshape(n, k * d) @ rng.standard_normal((k * d, 4 * d)) / np.sqrt(k * d))
    return (hidden @ rng.standard_normal((4 * d, k * d)) / np.sqrt(4 * d)).reshape(n, k, d)


def dropout(layer: AttentionLayer, x: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """The layer with attention weights dropped at random and rescaled."""
    patterns = layer.patterns(x)
    patterns = patterns * (rng.random(patterns.shape) >= rate) / (1 - rate)
    return np.einsum("nmab,nbd,mdo->nao", patterns, x, layer.w, optimize=True)
