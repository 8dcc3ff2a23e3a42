"""Attention on one chunk of examples, in NumPy, and the evaluation of a layer chunk by chunk.

F(X) = sum_i softmax(X Theta_i X^T + 1 (X c_i)^T) X W_i + b. Per chunk of n sequences it costs O(n k m (d^2 + d d_out + k
d)) operations and O(n m k (d + k)) memory, so the number of sequences in a chunk, not in the batch, sets the memory. NumPy
rather than JAX: there is nothing to compile for every new shape, and BLAS is no slower than XLA on a CPU. Chunks run side
by side on all cores, one BLAS thread each, so the bytes do not depend on their number. `_forward` has the same map for what
differentiates it.

Arrays run (sequence, query, head, key): then every product is one over all rows or one per sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlearn._arrays import exponential, hide, namespace, reshape
from attnlearn.engine._threads import in_order, limited_blas
from attnlearn.scores import Held, Visible, as_visible
from attnlearn.scores._products import mix, turn

CHUNK_BYTES = 4 * 2**20
"""Working memory of one evaluated chunk, of which every core has one: large enough for full speed, and near the caches. 2,000
sequences at d = 64, m = 12 take 49 ms on two cores; with 1 MiB 76, with 16 MiB 100."""
EXPONENT = 60.0
"""Scores up to here are exponentiated as they are: exp(60) = 1e26, and sums of such numbers, are far inside float32."""


class Parameters(NamedTuple):
    """The arrays of a layer, in the order in which every function of the package takes them."""

    theta: Any
    w: Any
    query_bias: Any
    output_bias: Any


def row_sums(weights: np.ndarray) -> np.ndarray:
    """Sums over the keys, kept as an axis of one; as a product, because NumPy's own sum is slow on short rows.

    OpenBLAS sometimes warns of an "invalid value" in such narrow products although all values are finite; the warning is suppressed.
    """
    xp = namespace(weights)
    *others, keys = weights.shape
    with np.errstate(invalid="ignore"):
        ones = xp.ones(keys, dtype=weights.dtype, device=weights.device)
        sums = reshape(weights, (-1, keys)) @ ones
    return reshape(sums, (*others, 1))


def bounded(logits: np.ndarray) -> bool:
    """Whether scores may be exponentiated as they are. Then there is nothing to shift, and the largest of each short row is
    what takes NumPy the time; to be asked before keys are masked by -inf.
    """
    xp = namespace(logits)
    return bool(xp.max(logits) < EXPONENT and xp.min(logits) > -EXPONENT)


def softmax(logits: np.ndarray, shift: bool = True) -> np.ndarray:
    """Softmax over the last axis, in the memory of the scores; -inf has no weight, and a row of nothing else is zero.

    >>> softmax(np.array([[0.0, -np.inf], [-np.inf, -np.inf]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    xp = namespace(logits)
    if shift:
        top = xp.max(logits, axis=-1, keepdims=True)
        logits -= xp.where(top == -xp.inf, xp.zeros_like(top), top)
    logits = exponential(logits)
    sums = row_sums(logits)
    logits /= xp.where(sums > 0, sums, xp.ones_like(sums))
    return logits


def weigh(logits: np.ndarray, keep: np.ndarray | None, causal: bool | Visible) -> np.ndarray:
    """Attention weights in the memory of the scores (n, query, m, key): softmax over the keys that a query may see.

    Under a causal mask it sees none after itself (a `Visible` may say more), and nobody sees padding (`keep` zero); rows of padded queries are
    zero. Keys beyond the tokens are sinks: they take their share and are cut off.

    >>> weigh(np.zeros((1, 2, 1, 2)), np.array([[True, False]]), False).tolist()
    [[[[1.0, 0.0]], [[0.0, 0.0]]]]
    """
    k, shift = logits.shape[1], not bounded(logits)
    hidden, sinks = as_visible(causal).hidden(k), logits.shape[-1] - k
    if hidden is not None:
        logits = hide(logits, _before(sinks, hidden)[:, None, :])
    if keep is not None:
        logits = hide(logits, _before(sinks, keep == 0)[:, None, None, :])
    logits = softmax(logits, shift)
    if keep is not None:
        logits *= keep[:, :, None, None]
    return np.ascontiguousarray(logits[..., :k]) if sinks else logits


def _before(sinks: int, hidden: np.ndarray) -> np.ndarray:
    """What is hidden (..., key), followed by sinks, which nobody hides."""
    return np.pad(hidden, [(0, 0)] * (hidden.ndim - 1) + [(0, sinks)]) if sinks else hidden


class Attention(NamedTuple):
    """A layer as it is evaluated: scores of any kind, W (m, d, o), b (o,), which keys a query sees, and where the tokens are."""

    scores: Held
    w: np.ndarray
    output_bias: np.ndarray
    causal: bool | Visible
    positions: np.ndarray | None = None

    def logits(self, x: np.ndarray, _mask: np.ndarray | None = None) -> np.ndarray:
        """Scores before the softmax (n, query, heads, key) of one chunk, sinks last."""
        return self.scores.logits(x, turn(x), self.positions)[0]

    def patterns(self, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Attention weights (n, query, heads, key) of one chunk."""
        return weigh(self.logits(x), mask, self.causal)

    def on(self, rows: slice) -> Attention:
        """The layer for some of the sequences, when each has positions of its own."""
        each = self.positions is not None and self.positions.ndim == 2
        return self._replace(positions=self.positions[rows]) if each else self  # type: ignore[index]

    def outputs(self, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Outputs (n, k, o) of one chunk; rows of padded queries are zero."""
        n, k, _ = x.shape
        m, d, o = self.w.shape
        patterns = self.patterns(x, mask)
        mixed = mix(patterns, x).reshape(n * k, m * d)
        outputs = (mixed @ self.w.reshape(m * d, o)).reshape(n, k, o)
        if self.scores.sink_value is not None:
            outputs += (1 - row_sums(patterns)[..., 0]) @ self.scores.sink_value
        outputs += self.output_bias
        if mask is not None:
            outputs *= mask[..., None]
        return outputs


KERNELS: dict[str, Callable[..., np.ndarray]] = {
    "outputs": Attention.outputs,
    "patterns": lambda layer, x, mask: layer.patterns(x, mask).swapaxes(1, 2),
    "scores": lambda layer, x, mask: layer.logits(x, mask)[..., : x.shape[1]].swapaxes(1, 2),
}


def chunk_size(k: int, d: int, m: int, itemsize: int) -> int:
    """Sequences per chunk."""
    return max(1, CHUNK_BYTES // (2 * m * k * (k + d) * itemsize))


def evaluate(
    kernel: str, layer: Attention, x: np.ndarray, mask: np.ndarray | None, tail: tuple[int, ...]
) -> np.ndarray:
    """Apply a kernel to x (n, k, d) chunk by chunk; `tail` is the shape of one example's result."""
    n, k, d = x.shape
    size = chunk_size(k, d, layer.scores.heads, x.dtype.itemsize)
    result = np.empty((n, *tail), x.dtype)

    def part(rows: slice) -> np.ndarray:
        return KERNELS[kernel](
            layer.on(rows), np.ascontiguousarray(x[rows]), None if mask is None else mask[rows]
        )

    pieces = [slice(start, start + size) for start in range(0, n, size)]
    with np.errstate(all="ignore"):  # what overflows is in the result for everyone to see
        if len(pieces) == 1:
            return part(pieces[0]).reshape(result.shape)
        with limited_blas(1):
            for rows, found in zip(pieces, in_order(part, pieces)):
                result[rows] = found
    return result
