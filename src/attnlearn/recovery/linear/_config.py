"""Choices of the linear route."""

from __future__ import annotations

from dataclasses import dataclass

from attnlearn._errors import require


@dataclass(frozen=True)
class LinearConfig:
    """Choices of `recover(..., method="linear")`.

    `biases` adds a query bias and an output bias to the class of layers. `num_examples` are drawn when the data come from a
    model and an oracle.

    >>> LinearConfig().biases
    True
    """

    biases: bool = True
    num_examples: int = 20_000

    def __post_init__(self) -> None:
        require(self.num_examples >= 1, "num_examples", "must be at least 1", self.num_examples)
