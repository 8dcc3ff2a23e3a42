"""Shapes of examples: what a user can get wrong about the axes of x and y, each with its remedy in one line.

Arrays in memory and arrays of a file go through the same rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._errors import describe, require
from attnlearn._precision import to_numpy


def as_floats(value: Any, name: str) -> np.ndarray:
    """The array of floats behind `value`; numbers of tokens are refused, for the layer sees vectors.

    >>> as_floats(np.ones((2, 3), int), "x")
    Traceback (most recent call last):
    ValueError: x: must hold vectors (n, k, d), not integers (embed token ids first), got an array of shape (2, 3) and dtype int64
    """
    kind = str(getattr(value, "dtype", ""))
    if "int" in kind and getattr(value, "ndim", 3) < 3:
        rule = "must hold vectors (n, k, d), not integers (embed token ids first)"
        raise ValueError(f"{name}: {rule}, got {describe(value)}")
    return to_numpy(value, name)


def check_shapes(x: np.ndarray, y: np.ndarray) -> None:
    """Refuse anything but x (n, k, d) and y (n, k, d_out).

    >>> check_shapes(np.ones((5, 3, 2)), np.ones((5, 2)))
    Traceback (most recent call last):
    ValueError: y: must have shape (n, k, d_out), the output of every token and no average of them, got an array of shape (5, 2) and dtype float64
    """
    _check_ranks(x, y)
    require(min(x.shape) >= 1, "x", "must not be empty", x)
    require(min(y.shape) >= 1, "y", "must not be empty", y)
    require(x.shape[0] == y.shape[0], "y", f"must have as many sequences as x ({x.shape[0]})", y)
    if x.shape[1] == y.shape[1]:
        return
    if x.shape[2] == y.shape[1]:
        require(False, "x", "must be (n, k, d), tokens before coordinates; try x.swapaxes(1, 2)", x)
    if x.shape[1] == y.shape[2]:
        require(False, "y", "must be (n, k, d_out), tokens before coordinates; try y.swapaxes(1, 2)", y)
    require(False, "y", f"must have one row per token of x ({x.shape[1]})", y)


def _check_ranks(x: np.ndarray, y: np.ndarray) -> None:
    if x.ndim < 3 and y.ndim == 3:
        swap = " (are x and y swapped?)" if x.ndim < 2 else "; one sequence is x[None], y[None]"
        require(False, "x", f"must have shape (n, k, d){swap}", x)
    hint = "; one sequence is x[None], y[None]" if x.ndim == 2 else ""
    require(x.ndim == 3, "x", f"must have shape (n, k, d){hint}", x)
    hints = {1: " (labels are for train.fit)", 2: ", the output of every token and no average of them"}
    require(y.ndim == 3, "y", f"must have shape (n, k, d_out){hints.get(y.ndim, '')}", y)
