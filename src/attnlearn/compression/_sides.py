"""The activations on which a layer is compressed, as fit, select and certify sides.

Only tokens are read; the outputs to be matched are the layer's own. Recorded data stay on disk but for the sequences
that are used: as many as the unknowns ask for, chosen at random.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import as_mask, common_dtype, require_finite, to_numpy
from attnlearn._types import ArrayLike, Mask, Tokens
from attnlearn.compression import _calibration as calibration
from attnlearn.data import Examples, Recorded
from attnlearn.data._intake import is_data_model
from attnlearn.solve._batch import Batch
from attnlearn.solve._sequences import merged_units, sequence_names, without_copies
from attnlearn.solve._split import Split, sequences_in_all


@dataclass(frozen=True)
class Sides:
    """Disjoint examples: what is fitted, what judges, and what the certificate is read from."""

    fit: Batch
    select: Batch
    certify: Batch
    unit: str = "input"

    @property
    def seen(self) -> Batch:
        """Fit and select examples together: all that an answer may be made of."""
        return joined(self.fit, self.select)


def joined(one: Batch, other: Batch) -> Batch:
    """Two batches as one, without their units."""
    mask = None if one.mask is None or other.mask is None else np.concatenate([one.mask, other.mask])
    return Batch(np.concatenate([one.x, other.x]), np.concatenate([one.y, other.y]), mask)


def sequences_wanted(layer: AttentionLayer, num_heads: int, tokens: int) -> int:
    """Sequences for all three sides: enough fit rows for every column that W multiplies."""
    rows = calibration.ROWS_PER_FEATURE * (num_heads * layer.dim + 1)
    return max(calibration.SEQUENCES_LEAST, int(np.ceil(sequences_in_all(rows / tokens))))


def read_sides(
    layer: AttentionLayer,
    data: Any,
    mask: ArrayLike | None,
    num_heads: int,
    num_examples: int | None,
    seed: int,
) -> Sides:
    """Sides from an array (n, k, d), recorded examples or their path, or a data model."""
    x, keep = _tokens(layer, data, mask, num_heads, num_examples, seed)
    require(x.shape[2] == layer.dim, "tokens", f"must hold tokens of dimension {layer.dim}", x)
    require(x.shape[1] >= 2, "tokens", "must have at least 2 tokens a sequence", x)
    require_finite(x, "tokens")
    x = x.astype(common_dtype({"layer": layer.w, "tokens": x}), copy=False)
    y = layer(x, keep)
    units = merged_units(sequence_names(x, keep), None)
    unit = "input" if units is None else "distinct input"
    split = Split.make(len(x), groups=units, unit=unit, seed=seed, name="tokens")

    whole = Batch(x, y, keep, units)
    seen = np.concatenate([split.select, split.fit])
    certify = without_copies(whole.take(split.certify), x[seen], None if keep is None else keep[seen])
    return Sides(whole.take(split.fit), whole.take(split.select), certify, unit)


def _tokens(
    layer: AttentionLayer, data: Any, mask: ArrayLike | None, num_heads: int, limit: int | None, seed: int
) -> tuple[Tokens, Mask | None]:
    if isinstance(data, (str, os.PathLike)):
        data = Recorded(data)
    if isinstance(data, Examples):
        require(mask is None, "mask", "must be left out, recorded examples bring their own", mask)
        chosen = _choose(data.num, limit or sequences_wanted(layer, num_heads, data.tokens), seed)
        part = data.take(chosen)
        return np.ascontiguousarray(part.x), part.mask
    if is_data_model(data):
        require(mask is None, "mask", "must be left out, a data model draws no padding", mask)
        drawn = data.sample(limit or sequences_wanted(layer, num_heads, data.tokens), seed=seed)
        require(not isinstance(drawn, tuple), "tokens", "must be a data model without labels", data)
        return np.asarray(drawn).astype(layer.dtype, copy=False), None
    x = to_numpy(data, "tokens")
    require(x.ndim == 3 and len(x) >= 1, "tokens", "must have shape (n, k, d)", x)
    chosen = _choose(len(x), limit or sequences_wanted(layer, num_heads, x.shape[1]), seed)
    return x[chosen], None if mask is None else as_mask(mask, x)[chosen]


def _choose(num: int, most: int, seed: int) -> np.ndarray:
    if num <= most:
        return np.arange(num)
    return np.sort(np.random.default_rng([seed, 0xC0]).choice(num, most, replace=False))
