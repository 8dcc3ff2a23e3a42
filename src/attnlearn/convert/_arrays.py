"""Weights as NumPy float32 or float64; half precision is widened, which is exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._precision import to_numpy


def to_floats(value: Any, name: str) -> np.ndarray:
    """Like `to_numpy`, but bfloat16 and float16 weights arrive as float32, which holds both exactly."""
    kind = str(getattr(value, "dtype", ""))
    if kind.removeprefix("torch.") in ("bfloat16", "float16"):
        value = value.float() if hasattr(value, "detach") else np.asarray(value).astype(np.float32)
    return to_numpy(value, name)
