"""What the phases of sculpting share: the problem, and the state they build up.

Inside, tokens are white: x = shift + root z. A row's query is (z_a, 1), so that the query bias is the last row of
[Theta; c^T], and the sum of projections is [S; b], applied to (z, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn._types import LATER, Later
from attnlearn.data import Examples
from attnlearn.engine import storable
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._source import Source
from attnlearn.solve._split import Split
from attnlearn.solve._white import Whitening


@dataclass(frozen=True)
class Problem:
    """Examples in memory, how they are split, the source of more fit examples, and what the caller knows."""

    examples: Examples
    split: Split
    source: Source
    config: SculptConfig
    causal: bool | None = None
    num_heads: int | None = None
    target: float | None = None


@storable
@dataclass(frozen=True)
class State:
    """What each phase leaves for the next ones; fields are None until their phase has run.

    crude sum: shift, root, unroot (white coordinates), sum [S; b], sum_spread (difference of two halves' sums).
    carve: pair_* (rows in which two tokens explain the output), single_* (rows in which one does), the tolerance
    of the best round, batches_read, minimum_norm. span: base, directions, num_heads. search and refine: the layer.
    recheck: slabs_proved, slabs_violated.

    >>> State().num_heads is None
    True
    """

    causal: bool | None = None
    shift: Later[Float[np.ndarray, "d"]] = LATER
    root: Later[Float[np.ndarray, "d e"]] = LATER
    unroot: Later[Float[np.ndarray, "e d"]] = LATER
    sum: Later[Float[np.ndarray, "e1 o"]] = LATER
    sum_spread: Later[Float[np.ndarray, "e1 o"]] = LATER
    sum_scale: Later[float] = LATER
    pair_tokens: Later[Float[np.ndarray, "p k e"]] = LATER
    pair_outputs: Later[Float[np.ndarray, "p o"]] = LATER
    pair_query: Later[Int[np.ndarray, "p"]] = LATER
    pair_keys: Later[Bool[np.ndarray, "p k"]] = LATER
    single_tokens: Later[Float[np.ndarray, "s k e"]] = LATER
    single_outputs: Later[Float[np.ndarray, "s o"]] = LATER
    single_query: Later[Int[np.ndarray, "s"]] = LATER
    single_keys: Later[Bool[np.ndarray, "s k"]] = LATER
    tolerance: Later[float] = LATER
    batches_read: int = 0
    examples_read: int = 0
    minimum_norm: Later[Float[np.ndarray, "e1 e"]] = LATER
    base: Later[Float[np.ndarray, "e1 e"]] = LATER
    directions: Later[Float[np.ndarray, "q e1 e"]] = LATER
    num_heads: Later[int] = LATER
    reached: bool = False
    slabs_violated: Later[float] = LATER
    slabs_proved: Later[int] = LATER
    theta: Later[Float[np.ndarray, "m d d"]] = LATER
    w: Later[Float[np.ndarray, "m d o"]] = LATER
    query_bias: Later[Float[np.ndarray, "m d"]] = LATER
    output_bias: Later[Float[np.ndarray, "o"]] = LATER

    @property
    def whitening(self) -> Whitening:
        """The white coordinates, as the solvers take them."""
        return Whitening(self.shift, self.root, self.unroot)
