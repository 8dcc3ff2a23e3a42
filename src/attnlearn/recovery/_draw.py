"""Examples on demand: a data model gives the tokens, an oracle the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn.data import Examples, as_examples
from attnlearn.oracle import Oracle

_CHUNK = 4096


def is_data_model(value: Any) -> bool:
    """Whether `value` draws tokens rather than being tokens.

    >>> from attnlearn.data import Gaussian
    >>> is_data_model(Gaussian(4, 3)), is_data_model(np.zeros((2, 4, 3)))
    (True, False)
    """
    drawn = all(hasattr(value, name) for name in ("sample", "stream", "tokens", "dim"))
    return drawn and not isinstance(value, Examples)  # recorded examples stream too, but bring their outputs


def draw_examples(model: Any, oracle: Any, num: int, seed: int) -> Examples:
    """`num` examples (X, oracle(X)), asked for chunk by chunk."""
    require(oracle is not None, "y", "must be an oracle when x is a data model", oracle)
    asked = Oracle.wrap(oracle)
    tokens, outputs = [], []
    for x in model.stream(num, _CHUNK, seed=seed):
        require(not isinstance(x, tuple), "x", "must be a data model without labels", model)
        tokens.append(x)
        outputs.append(asked(x))
    return as_examples(np.concatenate(tokens), np.concatenate(outputs))
