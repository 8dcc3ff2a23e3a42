"""Weights as NumPy float32 or float64; half precision is widened, which is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import common_dtype, to_numpy


def to_floats(value: Any, name: str) -> np.ndarray:
    """Like `to_numpy`, but bfloat16 and float16 weights arrive as float32, which holds both exactly."""
    kind = str(getattr(value, "dtype", ""))
    if kind.removeprefix("torch.") in ("bfloat16", "float16"):
        value = value.float() if hasattr(value, "detach") else np.asarray(value).astype(np.float32)
    require("int" not in kind, name, "must be float32 or float64 (quantized weights lack their scale)", kind)
    return to_numpy(value, name)


def assemble_wide(
    assemble: Callable[..., AttentionLayer],
    tensors: Mapping[str, np.ndarray],
    *settings: Any,
    check: Callable[[AttentionLayer], None] | None = None,
) -> AttentionLayer:
    """Assemble and check a layer in float64, then round it to the dtype of its tensors.

    In float32 a check could not see the Theta of a layer with a large query bias.
    """
    dtype = common_dtype(tensors)
    layer = assemble({name: tensor.astype(np.float64) for name, tensor in tensors.items()}, *settings)
    if check is not None:
        check(layer)
    return layer.astype(dtype)
