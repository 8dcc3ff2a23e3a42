"""What a caller may choose, and its defaults."""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY = 0.05
"""Default of `accuracy=`: claims about outputs with noise that are less exact than five per cent are not established."""


@dataclass(frozen=True)
class SpectralConfig:
    """How examples are drawn when the data come from a model and an oracle.

    `num_examples` are drawn, with the model's tokens times `token_scale`, by default the factor at which the layer shows itself
    best. What the certificate says of inputs, it then says of those tokens.

    >>> SpectralConfig().num_examples
    20000
    """

    num_examples: int = 20_000
    token_scale: float | None = None
