"""Activations recorded from a small trained transformer: every attention layer recovered from what passed through it.

Scikit-learn's digits as sequences of eight rows, a pre-norm transformer of two blocks (d = 32, four heads, position
embeddings) trained by Adam for `EPOCHS` epochs, about a quarter of a minute; then inputs and outputs of each attention
module on the images, slightly jittered copies of them included. Nothing about such tokens is independent or Gaussian.
The truth is read from the module's weights and compared on the directions in which its tokens vary.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import convert, data, distance, recover
from benchmarks.recover import relative_error
from tests.problems import broken_claims

DIM, HEADS, BLOCKS, EPOCHS, COPIES = 32, 4, 2, 40, 4
JITTER = 0.02


def cases(tier: str) -> list[dict[str, Any]]:
    """Every layer, by seed of the training and precision of the recording."""
    seeds = {"quick": 0, "bench": 1, "full": 3}[tier]
    return [
        {"layer": layer, "precision": precision, "seed": seed}
        for seed in range(seeds)
        for precision in ("float64", "float32")
        for layer in range(BLOCKS)
    ]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train, record one layer, recover it, and judge it against the module's weights and on fresh images."""
    import torch

    model, images, accuracy = trained(case["seed"])
    model = model.to(getattr(torch, case["precision"]))
    name = f"blocks.{case['layer']}.attention"
    generator = torch.Generator().manual_seed(case["seed"])
    seen = [images + JITTER * torch.randn(images.shape, generator=generator) for _ in range(COPIES + 1)]
    seen = [batch.to(getattr(torch, case["precision"])) for batch in seen]
    truth = convert.from_torch(model.get_submodule(name))
    with tempfile.TemporaryDirectory() as folder:
        recorded = data.record(model, name, seen[:-1], Path(folder) / "recorded")
        fresh = data.record(model, name, seen[-1:], Path(folder) / "fresh")
        tokens = np.concatenate([chunk.x for chunk in fresh.chunks(512)])
        groups = np.tile(np.arange(len(images)), COPIES)  # copies of one image stay on one side of the split
        began = time.perf_counter()
        solution = recover(recorded, groups=groups, seed=case["seed"], raise_on_failure=False)
        result = {
            "seconds": time.perf_counter() - began,
            "accuracy": accuracy,
            "sequences": len(recorded),
            "outcome": solution.outcome.name,
            "certified": solution.certified,
        }
    if solution.layer is not None:
        result |= {
            "heads_found": solution.layer.num_heads,
            "directions": int(solution.stats["support"].basis.shape[1]),
            "parameter_error": distance(solution.layer, truth, support=solution.stats["support"]).max,
            "fresh_error": relative_error(solution.layer, truth, tokens),
            "broken": broken_claims(solution.certificate, solution.layer, truth, (tokens, truth(tokens))),
        }
    return result


def trained(seed: int):
    """A small transformer that reads digits row by row, the images as sequences, and its held-out accuracy."""
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images / 16 - 0.3, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    fit, held = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    model = _transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for rows in fit[torch.randperm(len(fit))].split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = float((model(images[held]).argmax(dim=1) == labels[held]).float().mean())
    return model.eval(), images, accuracy


def _transformer():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
            self.wide = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

        def forward(self, x):
            tokens = self.before(x)
            x = x + self.attention(tokens, tokens, tokens, need_weights=False)[0]
            return x + self.wide(self.between(x))

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Linear(8, DIM), nn.Parameter(torch.randn(8, DIM) / 4)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.answer = nn.Linear(DIM, 10)

        def forward(self, x):
            x = self.embed(x) + self.place
            for block in self.blocks:
                x = block(x)
            return self.answer(x.mean(dim=1))

    return Reader()


def summary(lines: list[dict[str, Any]]) -> str:
    """One row per recorded layer."""
    rows = []
    for line in lines:
        case, result = line["case"], line["result"]
        rows.append(
            f"layer {case['layer']}, {case['precision']}, seed {case['seed']}: {result['outcome']}, certified "
            f"{result['certified']}, parameters {result.get('parameter_error', np.nan):.1e}, function "
            f"{result.get('fresh_error', np.nan):.1e}"
        )
    return "\n".join(rows)
