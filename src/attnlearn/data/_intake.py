"""The one door through which learners take examples: every way of getting them wrong is one clear line."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._precision import as_mask, promoted
from attnlearn._types import ArrayLike, Mask
from attnlearn.data._base import DataModel
from attnlearn.data._calibration import PEEK_VALUES
from attnlearn.data._examples import ArrayPart, Chunk, Examples
from attnlearn.data._recorded import Recorded
from attnlearn.data._shapes import as_floats, check_shapes


def as_examples(
    x: ArrayLike | Examples | str | os.PathLike[str],
    y: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    min_tokens: int = 2,
    memory: int | None = None,
) -> Examples:
    """Examples from arrays x (n, k, d) and y (n, k, d_out), a `Recorded`, or the path of one.

    Arrays of one dtype are neither copied nor changed; of two dtypes one is promoted. Recorded data stays on disk. Sequences of one token show only the
    sum of the projections, hence `min_tokens`. A file that would unpack to more than `memory` bytes is refused.

    >>> as_examples(np.ones((5, 3, 2)), np.ones((5, 3, 4)))
    Examples(num=5, tokens=3, dim=2, out_dim=4, masked=False, dtype=float64)
    >>> as_examples(np.ones((5, 3, 2)), np.ones((5, 7, 4)))
    Traceback (most recent call last):
    ValueError: y: must have one row per token of x (3), got an array of shape (5, 7, 4) and dtype float64
    """
    if isinstance(x, (str, os.PathLike)):
        x = Recorded(x, memory=memory)
    if isinstance(x, Examples):
        for name, other in (("y", y), ("mask", mask)):
            require(other is None, name, "must be left out, recorded examples bring their own", other)
        examples = x
    else:
        examples = _from_arrays(x, y, mask)
    rule = f"must have at least {min_tokens} tokens a sequence (fewer cannot show the attention)"
    require(examples.tokens >= min_tokens, "x", rule, examples.tokens)
    examples.require_finite()
    return examples


def _from_arrays(x: ArrayLike, y: ArrayLike | None, mask: ArrayLike | None) -> Examples:
    require(not isinstance(y, (Examples, str, os.PathLike)), "y", "must be an array of outputs", y)
    require(y is not None, "y", "must be given when x is an array", y)
    tokens, outputs = as_floats(x, "x"), as_floats(y, "y")
    check_shapes(tokens, outputs)
    tokens, outputs = promoted(tokens, outputs)
    _check_swapped(tokens, outputs)
    return Examples([ArrayPart(Chunk(tokens, outputs, _checked_mask(mask, tokens)))])


def _check_swapped(x: np.ndarray, y: np.ndarray) -> None:
    """Outputs of attention are averages: only tokens are exactly ±1 everywhere."""
    first_x, first_y = (a[: -(-PEEK_VALUES // a[0].size)] for a in (x, y))
    if (np.abs(first_y) == 1).all() and not (np.abs(first_x) == 1).all():
        raise ValueError("y: must hold outputs, got only ±1 while x does not (are x and y swapped?)")


def _checked_mask(mask: ArrayLike | None, x: np.ndarray) -> Mask | None:
    if mask is None:
        return None
    keep = as_mask(mask, x)
    return None if keep.all() else keep


def is_data_model(value: Any) -> bool:
    """Whether `value` draws tokens rather than being tokens.

    >>> from attnlearn.data import Gaussian
    >>> is_data_model(Gaussian(4, 3)), is_data_model(np.zeros((2, 4, 3)))
    (True, False)
    """
    # Recorded examples stream too, but bring their outputs.
    return isinstance(value, DataModel) and not isinstance(value, Examples)
