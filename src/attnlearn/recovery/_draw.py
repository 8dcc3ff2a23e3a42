"""Examples on demand: a data model gives the tokens, an oracle the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.data import Examples, as_examples
from attnlearn.oracle import Oracle

_CHUNK = 4096

Chooser = Callable[[Any, Oracle, int], float]
"""From a data model, an oracle and a seed to the factor by which tokens are multiplied."""


class Drawn(NamedTuple):
    """Examples drawn on demand, and the factor by which the model's tokens were multiplied."""

    examples: Examples
    scale: float


def draw_examples(model: Any, oracle: Any, num: int, seed: int, choose: Chooser | None) -> Drawn:
    """`num` examples (X, oracle(X)), asked for chunk by chunk, at the scale that `choose` finds (1 without it)."""
    require(oracle is not None, "y", "must be an oracle when x is a data model", oracle)
    asked = Oracle.wrap(oracle)
    scale = 1.0 if choose is None else choose(model, asked, seed)
    tokens, outputs, start = None, None, 0
    for x in model.stream(num, _CHUNK, seed=seed):
        require(not isinstance(x, tuple), "x", "must be a data model without labels", model)
        x = x if scale == 1.0 else (scale * x).astype(x.dtype)
        y = asked(x)
        if tokens is None or outputs is None:  # written in place: large layers could not be held twice
            tokens, outputs = (np.empty((num, *part.shape[1:]), part.dtype) for part in (x, y))
        tokens[start : start + len(x)], outputs[start : start + len(x)] = x, y
        start += len(x)
    return Drawn(as_examples(tokens, outputs), scale)
