"""The dtype policy: float64 in means float64 computed and out, float32 likewise.

JAX silently turns float64 into float32 unless its x64 mode is on. `precision` switches that mode for one
block and one thread, so neither importing nor calling attnlearn changes the caller's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from attnlearn._errors import describe, require
from attnlearn._types import ArrayLike, Mask, Tokens

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def precision(dtype: Any) -> AbstractContextManager[Any]:
    """A context in which JAX computes in `dtype`, float32 or float64.

    >>> import jax.numpy as jnp
    >>> with precision(np.float64):
    ...     str(jnp.zeros(2).dtype)
    'float64'
    """
    from attnlearn._jax import jax

    dtype = np.dtype(dtype)
    require(dtype in FLOATS, "dtype", "must be float32 or float64", str(dtype))
    return jax.enable_x64(dtype == np.float64)


def to_numpy(value: Any, name: str) -> np.ndarray:
    """`value` as a NumPy float32 or float64 array; NumPy, JAX, torch and DLPack objects are understood, integers become float64.

    >>> to_numpy(np.ones((2, 3), np.float32), "x").dtype, to_numpy([1, -1], "x").dtype
    (dtype('float32'), dtype('float64'))
    """
    array = _import(value, name)
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    require(
        array.dtype in FLOATS,
        name,
        "must be float32 or float64 (cast it yourself, so that the precision is your choice)",
        str(array.dtype),
    )
    return array


def _import(value: Any, name: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch, which refuses __array__ under autograd
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            raise ValueError(f"{name}: must be float32 or float64, got torch bfloat16 (use .float())")
        return value.numpy()
    if hasattr(value, "__array__") or isinstance(value, (list, tuple, float, int)):
        try:
            return np.asarray(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: must be a rectangular numeric array, got {describe(value)}") from error
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise ValueError(f"{name}: must be an array (NumPy, JAX, torch or DLPack), got {type(value).__name__}")


def common_dtype(arrays: Mapping[str, np.ndarray | None]) -> np.dtype:
    """The dtype to which NumPy promotes all of these arrays together.

    >>> common_dtype({"x": np.ones(2), "y": np.ones(2, np.float32), "mask": None})
    dtype('float64')
    """
    return np.result_type(*(array.dtype for array in arrays.values() if array is not None))


def promoted(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays in the dtype to which NumPy promotes them together; those that have it already are not copied.

    >>> [array.dtype.name for array in promoted(np.ones(2), np.ones(2, np.float32))]
    ['float64', 'float64']
    """
    dtype = np.result_type(*arrays)
    return [array.astype(dtype, copy=False) for array in arrays]


def require_finite(array: np.ndarray, name: str) -> None:
    """Refuse NaN and infinity, naming the first place.

    >>> require_finite(np.array([1.0, np.nan]), "x")
    Traceback (most recent call last):
    ValueError: x: must be finite, got nan at index (1,)
    """
    # A sum is finite unless an entry is not (or it overflows): one pass without a temporary mask.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise ValueError(f"{name}: must be finite, got {array[index]} at index {index}")


def as_mask(mask: ArrayLike, tokens: Tokens) -> Mask:
    """`mask` as booleans (n, k), True where a token is real; every sequence needs one real token.

    >>> as_mask([[True, False]], np.ones((1, 2, 3)))
    array([[ True, False]])
    """
    keep = _import(mask, "mask")
    keep = keep[None] if keep.ndim == 1 else keep
    require(keep.dtype == np.bool_, "mask", "must be boolean (True where a token is real)", str(keep.dtype))
    require(keep.shape == tokens.shape[:2], "mask", f"must have shape {tokens.shape[:2]} to go with x", keep)
    require(bool(keep.any(axis=1).all()), "mask", "must keep at least one token of every sequence", keep)
    return keep
