"""Passes over the examples in fixed blocks of sequences, computed wherever the engine is and added in order.

Shards on disk travel by name, arrays by value; what comes back is one sum per block. The sums are the same numbers
whether the blocks are computed here or by any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TypeVar

from jaxtyping import Int
from numpy import ndarray

from attnlearn.data import Examples
from attnlearn.engine import Engine, blocks
from attnlearn.recovery import _calibration as calibration

Value = TypeVar("Value")
LOCAL = Engine()


def over_blocks(
    function: Callable[[Examples, ndarray], Value],
    examples: Examples,
    indices: Int[ndarray, "i"],
    combine: Callable[[Value, Value], Value],
    engine: Engine = LOCAL,
) -> Value:
    """Combine `function(examples, indices of a block)` over the blocks, from the left.

    >>> import numpy as np
    >>> from attnlearn.data import as_examples
    >>> examples = as_examples(np.ones((9, 3, 2)), np.ones((9, 3, 2)))
    >>> over_blocks(lambda part, chosen: len(chosen), examples, np.arange(7), lambda a, b: a + b)
    7
    """
    cut = blocks(len(indices), 2 * calibration.LEAST_ROWS)
    if engine.in_process:
        return reduce(combine, (function(examples, indices[block]) for block in cut))
    packed = (examples.portion(indices[block]) for block in cut)
    return engine.reduce(partial(_apply, function), packed, combine)


def _apply(function: Callable[[Examples, ndarray], Value], packed: tuple[Examples, ndarray]) -> Value:
    return function(*packed)
