"""Start: a layer that is nearly right takes the place of the search.

Weights from a file, before quantization, from another route or another week: `recover(x, y, start=layer)` moves them
to the examples with the shared refine and certifies the result as for any other route. A start too far away ends in
a misfit like any wrong layer; the certificate does not know where an answer came from.

Cost: the pass of prepare over the fit examples, then refine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.data import Examples
from attnlearn.engine import Tools, array_hash
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.spectral._state import Problem, State


def begin_at(start: AttentionLayer) -> Callable[[Problem, State, Tools], tuple[State, dict[str, Any]]]:
    """The phase that puts `start` where a route would leave its answer.

    >>> from attnlearn.data import as_examples
    >>> from attnlearn.solve._split import Split
    >>> problem = Problem(as_examples(np.ones((40, 3, 6)), np.ones((40, 3, 6))), Split.make(40))
    >>> state, evidence = begin_at(AttentionLayer.random(2, 6, rank=2))(problem, State(), None)
    >>> state.rank, evidence["heads"]
    (2, 2)
    """

    def begin(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        rank = low_rank(start)
        found = start.astype(problem.examples.dtype).parameters._asdict()
        state = dataclasses.replace(state, causal=start.causal, rank=rank, **found)
        return state, {"heads": start.num_heads, "rank": start.dim if rank is None else rank}

    return begin


def low_rank(layer: AttentionLayer) -> int | None:
    """The rank of the heads' Theta where factors of it have fewer unknowns than Theta itself, otherwise None."""
    values = np.linalg.svd(layer.theta, compute_uv=False)
    rank = int(np.sum(values > calibration.START_RANK * values[:, :1], axis=1).max())
    return rank if 0 < 2 * rank < layer.dim else None


def start_hash(start: AttentionLayer) -> str:
    """What a checkpoint keeps of the start."""
    return array_hash(np.concatenate([part.ravel() for part in start.parameters]))


def check_start(
    start: AttentionLayer, examples: Examples, causal: bool | None, num_heads: int | None
) -> None:
    """One line for a start that does not belong to these examples."""
    shape, wanted = (start.dim, start.out_dim), (examples.dim, examples.out_dim)
    require(shape == wanted, "start", f"must map {wanted[0]} to {wanted[1]} coordinates like the data", shape)
    fits = num_heads in (None, start.num_heads)
    require(fits, "num_heads", f"must be that of start ({start.num_heads}) or left out", num_heads)
    agrees = causal in (None, start.causal)
    require(agrees, "causal", f"must be that of start ({start.causal}) or left out", causal)
