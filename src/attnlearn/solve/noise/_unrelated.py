"""Whether the outputs have anything to do with the tokens: the test of fit, applied to the outputs themselves.

Outputs in another order than their tokens, or those of another layer's tokens, look like noise. The families of `_features` that need
no layer are enough to tell them from the outputs of any layer that was tried:

| 3 seeds each, 100 to 3,000 sequences, 6 to 66 dimensions | largest z of a family |
|---|---|
| noise, or outputs in another order (36 cases) | at most 2.1 |
| random layers (18 cases) | at least 5.7 |
| random layers whose projections cancel (18 cases) | at least 5.2 |

Cost: some tenths of a second.
"""

from __future__ import annotations

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve._diagnose import Cause
from attnlearn.solve.noise._test_of_fit import TestOfFit, some_sequences, threshold

OF_TOKENS = ("own token", "products", "position")
"""The families that need no layer."""
LEAST_SEQUENCES = 100
"""Fewer sequences do not tell."""


def unrelated(held: Batch, causal: bool) -> Cause | None:
    """The cause "unrelated" where nothing in the outputs follows the tokens; None where something does, or may.

    >>> x, y = np.random.default_rng(0).standard_normal((2, 300, 4, 3))
    >>> unrelated(Batch(x, y), causal=False).name
    'unrelated'
    >>> unrelated(Batch(x, x + y), causal=False) is None
    True
    """
    some = held.first(some_sequences(held.num, held.x.shape[1]))
    if some.num < LEAST_SEQUENCES:
        return None
    d, o = some.x.shape[2], some.y.shape[2]
    nothing = AttentionLayer(np.zeros((1, d, d)), np.zeros((1, d, o)), causal=causal)
    real = 1.0 if some.mask is None else some.mask[..., None]
    rest = (some.y - np.average(some.y, axis=(0, 1), weights=np.broadcast_to(real, some.y.shape))) * real
    if TestOfFit(nothing, some, only=OF_TOKENS)(rest).clearest.z > threshold() / 2:
        return None
    text = (
        f"nothing in the outputs of {some.num:,} sequences follows their tokens: check that x and y are in the same order, "
        "and that y are the outputs for x"
    )
    return Cause("unrelated", 1.0, text)
