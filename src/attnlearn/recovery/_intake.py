"""What is checked before a run: sizes of the numbers, independent units, a given start."""

from __future__ import annotations

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Solution
from attnlearn._types import ArrayLike
from attnlearn.data import Examples
from attnlearn.engine import array_hash
from attnlearn.recovery import _calibration as calibration
from attnlearn.solve._calibration import SCAN_COORDINATES
from attnlearn.solve._rank import largest_rank
from attnlearn.solve._sequences import merged_units, sequence_names


def independent_units(examples: Examples, groups: ArrayLike | None) -> tuple[np.ndarray | None, str]:
    """The unit of every sequence (None: each is one) and what a unit is called; one streaming pass over the tokens.

    Identical sequences are one unit, and so are the sequences of a group.
    """
    members = None if groups is None else np.asarray(groups)
    if members is not None and members.shape != (examples.num,):
        return members, "group"  # the split says what is wrong with it
    rows = max(1, SCAN_COORDINATES // max(1, examples.tokens * examples.dim))
    names = [sequence_names(x, mask) for x, _, mask in examples.chunks(rows)]
    units = merged_units(np.concatenate(names), members)
    return units, "group" if groups is not None else "input" if units is None else "distinct input"


def few_distinct(distinct: int, examples: Examples) -> Solution:
    """The end of a run on so few different sequences that they cannot be split."""
    sample = examples.take(np.arange(min(examples.num, calibration.LEAST_ROWS)))
    tokens = sample.x.reshape(-1, examples.dim) if sample.mask is None else sample.x[sample.mask]
    if (tokens == tokens[:1]).all():
        return Solution.failed(Outcome.TOKENS_DEGENERATE, distinct=distinct, because="all tokens are equal")
    told = f"only {distinct} of the {examples.num:,} sequences differ from each other"
    needed = calibration.CERTIFIED_LEAST
    return Solution.failed(Outcome.TOO_FEW_EXAMPLES, distinct=distinct, examples_needed=needed, because=told)


def check_range(examples: Examples) -> None:
    """Refuse tokens or outputs so large or so small that products of them leave the range in which they can be computed."""
    sample = examples.take(np.arange(min(examples.num, calibration.LEAST_ROWS)))
    largest = calibration.RANGE[examples.dtype.name]
    for name, array in (("x", sample.x), ("y", sample.y)):
        size = float(np.abs(array).max(initial=0.0))
        rule = f"must have entries of ordinary size ({1 / largest:.0e} to {largest:.0e}): multiply it by a constant"
        require(size == 0 or 1 / largest <= size <= largest, name, rule, f"a largest entry of {size:.2g}")


def low_rank(layer: AttentionLayer) -> int | None:
    """The rank of the heads' Theta where factors of it have fewer unknowns than Theta itself, otherwise None.

    Singular values below a thousandth of the largest do not count: a start need not be exact.

    >>> low_rank(AttentionLayer.random(2, 8, rank=2)), low_rank(AttentionLayer.random(2, 8)) is None
    (2, True)
    """
    rank = largest_rank(layer.theta, calibration.NEGLIGIBLE)
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
