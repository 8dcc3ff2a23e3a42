"""What the phases of sculpting share: the problem, and the state they build up.

Inside, tokens are white: x = shift + root z. A row's query is (z_a, 1), so that the query bias is the last row of
[Theta; c^T], and the sum of projections is [S; b], applied to (z, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

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
    shift: Float[np.ndarray, "d"] | None = None
    root: Float[np.ndarray, "d e"] | None = None
    unroot: Float[np.ndarray, "e d"] | None = None
    sum: Float[np.ndarray, "e1 o"] | None = None
    sum_spread: Float[np.ndarray, "e1 o"] | None = None
    sum_scale: float | None = None
    pair_tokens: Float[np.ndarray, "p k e"] | None = None
    pair_outputs: Float[np.ndarray, "p o"] | None = None
    pair_query: Int[np.ndarray, "p"] | None = None
    pair_keys: Int[np.ndarray, "p k"] | None = None
    single_tokens: Float[np.ndarray, "s k e"] | None = None
    single_outputs: Float[np.ndarray, "s o"] | None = None
    single_query: Int[np.ndarray, "s"] | None = None
    single_keys: Int[np.ndarray, "s k"] | None = None
    tolerance: float | None = None
    batches_read: int = 0
    examples_read: int = 0
    minimum_norm: Float[np.ndarray, "e1 e"] | None = None
    base: Float[np.ndarray, "e1 e"] | None = None
    directions: Float[np.ndarray, "q e1 e"] | None = None
    num_heads: int | None = None
    reached: bool = False
    slabs_violated: float | None = None
    slabs_proved: int | None = None
    theta: Float[np.ndarray, "m d d"] | None = None
    w: Float[np.ndarray, "m d o"] | None = None
    query_bias: Float[np.ndarray, "m d"] | None = None
    output_bias: Float[np.ndarray, "o"] | None = None

    @property
    def whitening(self) -> Whitening:
        """The white coordinates, as the solvers take them."""
        return Whitening(self.shift, self.root, self.unroot)
