"""Linear attention: random layers by `method="linear"`, and data on which no layer is the only one.

Layers have 1 to 8 heads of rank 1, 2, 4 or full, with and without biases, causal and not. The error is taken on fresh sequences of another
length and three times the size. *Degenerate* tokens make the smallest eigenvalue zero, so that "unique" (claim U) would be false.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn import LinearAttentionLayer, recover

EXAMPLES = {8: 1_500, 16: 4_200}
TOKENS, LAYERS, DEGENERATE_DIM = 5, 20, 5
KINDS = ("one token repeated", "opposite tokens", "few directions", "signs", "unit length", "few words")


def cases(tier: str) -> list[dict[str, Any]]:
    """Twenty layers of each dimension, five draws of each degenerate kind; few of both in the short tiers."""
    layers, draws = {"quick": (3, 1), "bench": (10, 3), "full": (LAYERS, 5)}[tier]
    dims = (8,) if tier == "quick" else tuple(EXAMPLES)
    chosen: list[dict[str, Any]] = [{"kind": kind, "seed": seed} for kind in KINDS for seed in range(draws)]
    return chosen + [{"dim": dim, "seed": seed} for dim in dims for seed in range(layers)]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Whether the run is certified, with the right heads and a small error; for degenerate tokens whether U is claimed."""
    rng, seed = np.random.default_rng([case["seed"], 0x11EA]), case["seed"]
    if "kind" in case:
        truth = LinearAttentionLayer.random(2, DEGENERATE_DIM, seed=seed)
        x = degenerate(case["kind"], rng)
        solution = recover(x, truth(x), method="linear", seed=seed, raise_on_failure=False)
        return {
            "outcome": solution.outcome.name,
            "unique": bool(solution.certificate.claim("U").established),
            "smallest_eigenvalue": solution.certificate.check("U.lambda").value,
        }
    dim, heads = case["dim"], 1 + seed % 8
    rank = min((1, 2, 4, dim)[seed % 4], dim)
    truth = LinearAttentionLayer.random(
        heads, dim, rank=rank, seed=seed, bias=seed % 2 == 1, causal=seed % 3 == 1
    )
    x = rng.standard_normal((EXAMPLES[dim], TOKENS, dim))
    started = time.process_time()
    solution = recover(x, truth(x), method="linear", seed=seed, raise_on_failure=False)
    spent = time.process_time() - started
    fresh = 3 * rng.standard_normal((500, TOKENS + 2, dim))
    true = truth(fresh)
    found = np.full_like(true, np.nan) if solution.layer is None else solution.layer(fresh)
    return {
        "certified": solution.certified,
        "heads": heads,
        "found": None if solution.layer is None else solution.layer.num_heads,
        "error": float(np.linalg.norm(found - true) / np.linalg.norm(true)),
        "cpu_seconds": spent,
    }


def degenerate(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Tokens on which another linear layer is the same function."""
    n, d = 2_000, DEGENERATE_DIM
    plain = rng.standard_normal((n, TOKENS, d))
    if kind == "one token repeated":
        return np.repeat(plain[:, :1], TOKENS, axis=1)
    if kind == "opposite tokens":
        return np.concatenate([plain[:, :1], -plain[:, :1]], axis=1)
    if kind == "few directions":
        return plain[:, :, : d - 1] @ rng.standard_normal((d - 1, d))
    if kind == "signs":
        return np.sign(plain)
    if kind == "unit length":
        return plain / np.linalg.norm(plain, axis=2, keepdims=True)
    return rng.standard_normal((4, d))[rng.integers(4, size=(n, TOKENS))]


def summary(lines: list[dict[str, Any]]) -> str:
    """What the lines say in one sentence."""
    learned = [line["result"] for line in lines if "dim" in line["case"]]
    claimed = [line["result"]["unique"] for line in lines if "kind" in line["case"]]
    right = sum(found["certified"] and found["heads"] == found["found"] for found in learned)
    worst = max((found["error"] for found in learned), default=float("nan"))
    return f"{right} of {len(learned)} certified with the right heads, worst error {worst:.1g}; {sum(claimed)} of {len(claimed)} degenerate ones called unique"
