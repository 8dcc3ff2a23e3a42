"""Examples in memory, as given or in white coordinates, and how far a layer is from them.

`Batch` is what learners hold and judge. Three containers stay apart: `data.Chunk` is what a source of examples yields (`data` does
not import the solvers), `solve._chunks.Chunk` has its mask as numbers for products, and `training` has labels and weights.

Errors are relative. The error of an example is divided by the smaller of its output's norm and the typical norm, so that
it bounds the error relative to either. Outputs below a floor, by default `SMALL_ERROR` of the typical norm, are measured
against that floor, which every claim prints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn._layer import AttentionLayer
from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.data import Examples
from attnlearn.solve import _calibration as calibration


@dataclass(frozen=True)
class Batch:
    """Some examples, such as those on one side of the split.

    `groups` names the unit to which each sequence belongs (None: every sequence is a unit of its own). `copied` marks the
    sequences that nearly repeat one on another side of the split (None: none does), and `hidden` is the share that may do so unseen.

    >>> Batch(np.zeros((4, 3, 2)), np.zeros((4, 3, 2))).num
    4
    """

    x: Tokens
    y: Outputs
    mask: Mask | None = None
    groups: np.ndarray | None = None
    copied: np.ndarray | None = None
    hidden: float = 0.0

    @classmethod
    def of(cls, examples: Examples, indices: Int[np.ndarray, "i"], units: np.ndarray | None = None) -> Batch:
        """The examples at `indices`; `units` has an entry for every example there is.

        >>> from attnlearn.data import as_examples
        >>> Batch.of(as_examples(np.ones((4, 3, 2)), np.ones((4, 3, 2))), np.arange(2)).num
        2
        """
        return cls(*examples.take(indices), None if units is None else units[indices])

    @property
    def num(self) -> int:
        """Number of sequences."""
        return len(self.x)

    @property
    def visible(self) -> Outputs:
        """The outputs, zero where a token is padded."""
        return self.y if self.mask is None else self.y * self.mask[..., None]

    def first(self, number: int) -> Batch:
        """The first sequences, as many as `number`, without their units."""
        return Batch(self.x[:number], self.y[:number], None if self.mask is None else self.mask[:number])

    def take(self, chosen: Int[np.ndarray, "i"]) -> Batch:
        """The sequences at `chosen`, with their units."""
        mask, groups = (None if part is None else part[chosen] for part in (self.mask, self.groups))
        return Batch(self.x[chosen], self.y[chosen], mask, groups)

    def astype(self, dtype: Any) -> Batch:
        """The same examples in another precision."""
        return replace(self, x=self.x.astype(dtype, copy=False), y=self.y.astype(dtype, copy=False))

    def fingerprint(self) -> str:
        """SHA-256 of the examples: what was looked at, on record."""
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.mask):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class WhiteBatch(NamedTuple):
    """Sequences in white coordinates, their outputs as a learner sees them, and the keys that each query sees (None: all)."""

    tokens: Float[np.ndarray, "n k r"]
    outputs: Float[np.ndarray, "n k o"]
    visible: Bool[np.ndarray, "#n k k"] | None

    @property
    def seen(self) -> Bool[np.ndarray, "n q k"]:
        """The keys that each query sees, written out; a batch of rows has fewer queries than keys."""
        n, k, _ = self.tokens.shape
        shape = (n, self.outputs.shape[1], k)
        return np.broadcast_to(True if self.visible is None else self.visible, shape)

    def written_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, outputs and `seen`."""
        return self.tokens, self.outputs, self.seen


def visible_keys(k: int, mask: Mask | None, causal: bool) -> Bool[np.ndarray, "n k k"] | None:
    """Which keys each query sees, (n or 1, query, key); queries that are padding see none. None: all."""
    allowed = np.tril(np.ones((k, k), bool))[None] if causal else None
    if mask is not None:
        pairs = mask[:, :, None] & mask[:, None, :]
        allowed = pairs if allowed is None else allowed & pairs
    return allowed


def unit_errors(
    layer: Callable[[Any, Any], Any], held: Batch, scale: float, small: float = calibration.SMALL_ERROR
) -> np.ndarray:
    """Relative error of every sequence, or of every unit's worst sequence; `scale` is the typical norm of an output."""
    outputs = held.visible
    error = np.linalg.norm((layer(held.x, held.mask) - outputs).astype(np.float64), axis=(1, 2))
    relative = error / clipped_norms(outputs, scale, small)
    return relative if held.groups is None else largest_of_groups(relative, held.groups)


def largest_of_groups(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The largest value in every group; NaN stays NaN.

    >>> largest_of_groups(np.array([1.0, 3.0, 2.0]), np.array(["a", "b", "a"])).tolist()
    [2.0, 3.0]
    """
    names, members = np.unique(groups, return_inverse=True)
    worst = np.zeros(len(names))
    with np.errstate(invalid="ignore"):  # NaN
        np.maximum.at(worst, members, values)
    return worst


def clipped_norms(outputs: Outputs, scale: float, small: float = calibration.SMALL_ERROR) -> np.ndarray:
    """The norm of every output, not below the share `small` of `scale`, and not above `scale` unless that is the floor."""
    size = np.linalg.norm(outputs.astype(np.float64), axis=(1, 2))
    return np.clip(size, small * scale, scale if small < 1 else None)


def typical_error(layer: AttentionLayer, held: Batch, scale: float) -> float:
    """Root mean square of the sequences' errors over `scale`, the typical norm of an output: in the units of a fit's residual."""
    errors = (layer(held.x, held.mask) - held.visible).astype(np.float64)
    return float(np.linalg.norm(errors) / (np.sqrt(held.num) * scale))


def example_scale(held: Batch) -> float:
    """Root mean square over examples of the norm of an example's output."""
    squares = np.sum(held.visible.astype(np.float64) ** 2, axis=(1, 2))
    return float(max(np.sqrt(squares.mean()), np.finfo(np.float64).tiny))


def rounding_floor(
    layer: AttentionLayer, held: Batch, scale: float, precision: np.dtype | None = None
) -> float:
    """How exact the outputs of this layer can be in the precision of the outputs (None: the layer's), as a relative error.

    The float32 forward is compared with the float64 one; rounding errors are proportional to the machine
    epsilon, so the float64 floor follows from it.
    """
    sample = held.first(calibration.SAMPLE)
    single, double = (
        layer.astype(dtype)(sample.x.astype(dtype), sample.mask).astype(np.float64)
        for dtype in (np.float32, np.float64)
    )
    relative = np.linalg.norm(single - double, axis=(1, 2)) / clipped_norms(double, scale)
    eps = np.finfo(layer.dtype if precision is None else precision).eps
    return float(max(relative.max() * eps / np.finfo(np.float32).eps, eps))


def exactness_limit(floor: float, dtype: np.dtype) -> float:
    """The largest certify error that still counts as exact to rounding."""
    least = calibration.EXACT if np.dtype(dtype) == np.float64 else 0.0
    return min(max(calibration.ROUNDING_SLACK * floor, least), calibration.SMALL_ERROR)
