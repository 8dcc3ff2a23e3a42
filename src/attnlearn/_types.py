"""Array shapes used in annotations, in one place.

Dimensions: `n` examples, `k` tokens of a sequence, `d` token dimension, `o` output dimension, `m` heads,
`r` rank of a head. Stored arrays are NumPy; traced ones are JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Float

ArrayLike: TypeAlias = Any
"""Anything `to_numpy` understands: NumPy, JAX, torch, DLPack."""

Tokens: TypeAlias = Float[np.ndarray, "n k d"]
Outputs: TypeAlias = Float[np.ndarray, "n k o"]
Mask: TypeAlias = Bool[np.ndarray, "n k"]
Theta: TypeAlias = Float[np.ndarray, "m d d"]
Projection: TypeAlias = Float[np.ndarray, "m d o"]
QueryBias: TypeAlias = Float[np.ndarray, "m d"]
OutputBias: TypeAlias = Float[np.ndarray, "o"]

Set = TypeVar("Set")
if TYPE_CHECKING:
    Later = Annotated[Set, "None until its phase has run"]
else:
    Later = Optional
"""The type of a state's field that is None until its phase has run.

A static checker takes the field as set, because a phase that reads it comes after the one that sets it; at run time None is
allowed. `LATER` is its default."""
LATER: Any = None
