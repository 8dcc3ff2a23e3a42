"""Helpers shared by the recording tests."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 2e-6
"""Both sides round in float32, the model once per projection: sums of 16 products, about ten units."""


def strong(model: Any, seed: int) -> Any:
    """Weights large enough for the attention to be far from uniform, biases included."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def relative_error(layer: Any, recorded: Any) -> float:
    """Largest difference of the layer's outputs from the recorded ones, over the largest output."""
    x, y, mask = recorded.take(np.arange(len(recorded)))
    return float(np.abs(layer(x, mask) - y).max() / np.abs(y).max())
