"""
Put a layer with fewer heads back into a torch model
====================================================

Record what a block sees, compress its attention to half the heads on those activations, and put the result back.
"""

# %%
from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch

import attnlearn
from attnlearn import data
from attnlearn.convert import from_torch, to_torch


class Block(torch.nn.Module):
    """A pre-norm attention block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        self.attention = torch.nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, attend, add."""
        tokens = self.norm(x)
        return x + self.attention(tokens, tokens, tokens, need_weights=False)[0]


# %%
# A block of four heads, of which two do nearly the same as the other two, as happens in trained models.
torch.manual_seed(0)
dim, heads, length = 16, 4, 8
model = Block(dim, heads).double()
with torch.no_grad():
    weights = model.attention.in_proj_weight
    weights[: 2 * dim] *= 3
    for part in range(2):  # queries and keys
        first = weights[part * dim : part * dim + dim // 2]
        weights[part * dim + dim // 2 : (part + 1) * dim] = first + 0.02 * torch.randn_like(first)

# %%
# Record the attention's inputs, then compress on them. Heads of width dim / 2 fit torch's module.
with tempfile.TemporaryDirectory() as folder:
    batches = [torch.randn(500, length, dim, dtype=torch.float64) for _ in range(8)]
    recorded = data.record(model, "attention", batches, Path(folder) / "recorded")
    layer = from_torch(model.attention)
    solution = attnlearn.compress(layer, recorded, num_heads=2, head_dim=dim // 2)
print(solution)
for row in solution.stats["curve"]:
    print(f"{row['heads']} heads, {row['kv_floats']} floats kept for each token: error {row['error']:.3g}")

# %%
# Back into the model, and how far its outputs moved.
smaller = copy.deepcopy(model)
smaller.attention = to_torch(solution.layer)
x = torch.randn(200, length, dim, dtype=torch.float64)
with torch.no_grad():
    error = float((smaller(x) - model(x)).norm() / (model(x) - x).norm())
print(
    f"{smaller.attention.num_heads} heads instead of {heads}: the block's update changed by {100 * error:.1f} %"
)
assert error < 0.05

# %%
# The error for every number of heads.
import matplotlib.pyplot as plt

curve = solution.stats["curve"]
plt.semilogy([row["heads"] for row in curve], [max(row["error"], 1e-16) for row in curve], "o-")
plt.xlabel("heads kept")
plt.ylabel("relative error of the outputs")
plt.show()
