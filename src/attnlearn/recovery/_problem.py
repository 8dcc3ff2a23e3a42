"""What everything in `recover` shares: the problem, and what a proposer may answer.

A proposer answers with a candidate, which the fit then refines and judges, or with what it needs (an outcome, and the
number of examples with which it should do better).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.data import Examples
from attnlearn.engine import storable
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._config import ACCURACY
from attnlearn.scores import Visible, build, describe
from attnlearn.solve._batch import Batch
from attnlearn.solve._split import Split, sequences_in_all

storable(Outcome)


@dataclass(frozen=True)
class Problem:
    """Examples, how they are split, and what the caller already knows; proposers never read the certify side.

    >>> from attnlearn.data import as_examples
    >>> Problem(as_examples(np.ones((40, 3, 2)), np.ones((40, 3, 2))), Split.make(40)).causal is None
    True
    """

    examples: Examples
    split: Split
    causal: bool | None = None
    num_heads: int | None = None
    target: float | None = None
    accuracy: float = ACCURACY
    precision: np.dtype | None = None
    """The precision that the outputs have (None: that of their dtype)."""

    @property
    def rounded_to(self) -> np.dtype:
        """The precision to which the outputs are exact if nothing else is wrong with them."""
        return self.examples.dtype if self.precision is None else self.precision

    @property
    def equations(self) -> int:
        """Scalar equations on the fit side."""
        return len(self.split.fit) * self.examples.tokens * self.examples.out_dim

    def fit_side(self, most: int | None = None, units: np.ndarray | None = None) -> Batch:
        """The first fit examples as arrays, with their units where these are given."""
        return Batch.of(self.examples, self.split.fit[:most], units)

    def select_side(self) -> Batch:
        """The select examples as arrays."""
        return Batch.of(self.examples, self.split.select)


@storable
@dataclass(frozen=True)
class Weights:
    """The arrays of a layer, its kind of scores and its mask, as a checkpoint keeps them."""

    scores: tuple[tuple[str, np.ndarray], ...]
    kind: dict[str, Any]
    w: Float[np.ndarray, "m d o"]
    output_bias: Float[np.ndarray, "o"]
    visible: tuple[Any, ...]

    @classmethod
    def of(cls, layer: AttentionLayer) -> Weights:
        """The arrays of `layer`."""
        form = layer.form
        return cls(
            tuple(form.arrays().items()), describe(form), layer.w, layer.output_bias, tuple(layer.visible)
        )

    @property
    def layer(self) -> AttentionLayer:
        """The layer with these arrays."""
        form = build(self.kind, dict(self.scores))
        return AttentionLayer.from_scores(form, self.w, self.output_bias, causal=Visible(*self.visible))

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.w)


@storable
@dataclass(frozen=True)
class Candidate:
    """A start for the fit: a layer, the largest rank of its Theta (None: free), and who proposed it.

    A misfit of a `tentative` candidate says nothing about the data: its number of heads was only tried. `clear_view` is
    the number of examples with which the moment would show each of its heads clearly.
    """

    weights: Weights
    rank: int | None
    by: str
    tentative: bool = False
    clear_view: int | None = None
    refined: bool = False
    """Whether the layer is an answer already, which the fit judges as it is."""
    at_optimum: bool = False
    """Whether its proposer took it to the optimum in float64: it is an answer if it is exact."""


@storable
@dataclass(frozen=True)
class Need:
    """Why a proposer has no candidate, and the number of examples with which it should have one.

    `heads`: the number of heads that it saw all the same. `cause`: the likeliest cause, where the outputs are no attention.
    """

    outcome: Outcome
    examples: int | None = None
    heads: int | None = None
    cause: str | None = None
    final: bool = False
    """Whether nothing else need be tried."""
    evidence: dict[str, Any] = field(default_factory=dict)


def examples_for(unknown: int, scalars: int) -> int:
    """Sequences of so many scalar outputs that determine the unknowns and can be certified, all sides of the split included."""
    fitted = calibration.EQUATIONS_PER_UNKNOWN * unknown / scalars
    return max(calibration.CERTIFIED_LEAST, int(np.ceil(sequences_in_all(fitted))))


def memorised(fit_error: float, select_error: float) -> bool:
    """Whether the fit overfits: the select error is noticeable and more than three times the fit error.

    >>> memorised(1e-3, 1.1e-3), memorised(1e-4, 0.02), memorised(1e-16, 1e-15)
    (False, True, False)
    """
    return select_error > max(calibration.FAR_MORE * fit_error, calibration.NOTICEABLE)
