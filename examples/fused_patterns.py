"""
Attention patterns of a block whose kernel hides them
=====================================================

``torch.nn.functional.scaled_dot_product_attention`` never forms the attention weights, so a hook cannot read them.
Record the block's inputs and outputs, recover the layer, and ask the recovered layer for its patterns.
"""

# %%
from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

import attnlearn
from attnlearn import data


class Block(torch.nn.Module):
    """A pre-norm attention block; its kernel is fused."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        self.attention = torch.nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, attend, add: the weights of the attention never exist."""
        tokens = self.norm(x)
        return x + self.attention(tokens, tokens, tokens, need_weights=False)[0]


# %%
# A block with attention sharp enough to matter.
torch.manual_seed(0)
dim, heads, length = 16, 4, 8
model = Block(dim, heads).double()
with torch.no_grad():
    model.attention.in_proj_weight[: 2 * dim] *= 2.5
    model.norm.weight.uniform_(0.7, 1.3)
    model.norm.bias.normal_(0, 0.2)

# %%
# Record: inputs and outputs of the attention itself, before the residual.
with tempfile.TemporaryDirectory() as folder:
    batches = [torch.randn(500, length, dim, dtype=torch.float64) for _ in range(16)]
    recorded = data.record(model, "attention", batches, Path(folder) / "recorded")
    print(f"recorded {len(recorded):,} sequences of {length} tokens")
    solution = attnlearn.recover(recorded, raise_on_failure=False)
    print(solution)

# %%
# The patterns of the recovered layer beside the true ones, which only this script can compute.
x = model.norm(torch.randn(200, length, dim, dtype=torch.float64))
with torch.no_grad():
    _, truth = model.attention(x, x, x, average_attn_weights=False)
patterns = solution.layer.patterns(x.detach().numpy())
cost = np.abs(patterns[:, :, None] - truth.numpy()[:, None]).max(axis=(0, 3, 4))  # heads come in any order
error = float(cost.min(axis=0).max())
print(f"patterns within {error:.1e} of the truth")
assert error < 1e-4

# %%
# One sequence: the pattern of a true head, and of the recovered head that belongs to it.
import matplotlib.pyplot as plt

from attnlearn.reporting import Heatmap

partner = int(cost[:, 0].argmin())
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
shown = (
    ("true head 0", truth[0, 0].numpy(), left),
    (f"recovered head {partner}", patterns[0, partner], right),
)
for name, pattern, ax in shown:
    Heatmap(name, matrix=pattern, signed=False, x_label="key", y_label="query").plot(ax)
plt.show()
