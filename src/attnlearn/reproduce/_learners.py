"""Every learner on one layer with ±1 tokens, under one budget: what it learned and what that cost.

Spectral and Adam see EXAMPLES examples, sculpting up to SCULPT_EXAMPLES drawn on demand, queries ask what they ask for.
Adam and sculpting are told the number of heads, the others find it. Two tokens never determine parameters
(docs/mathematics.md, section 1), so *learned* is a relative function error of at most SUCCESS on fresh examples.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, data
from attnlearn._precision import precision
from attnlearn.extraction import extract
from attnlearn.recovery import recover
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.reproduce._student import train_once

SUCCESS = 0.1
"""Relative function error that counts as learned: knowing everything but the parity leaves 0.7."""
EXAMPLES, FRESH, SCULPT_EXAMPLES, SCULPT_HELD = 20_000, 2_000, 300_000, 20_000
ADAM_RATES, ADAM_STEPS = (3e-3, 1e-2), 3_000
LONGER_SCULPT, LONGER_ADAM = 10, 4
"""Factors on the budgets of sculpting and Adam with `long`."""
LEARNERS = ("spectral", "sculpt", "queries", "Adam")


def learn(
    layer: AttentionLayer, learner: str, *, tokens: int, seed: int, long: bool = False
) -> dict[str, Any]:
    """One learner on one layer with ±1 tokens: function error on fresh examples, outcome, cost."""
    source = data.Boolean(tokens, layer.dim)
    fresh = source.sample(FRESH, seed=seed + 10_000)
    began = time.perf_counter()
    if learner == "Adam":
        return _adam(layer, source, fresh, seed, long)
    options: dict[str, Any] = {"seed": seed, "progress": False, "raise_on_failure": False}
    if learner == "queries":
        found = extract(layer, layer.dim, **options)
    elif learner == "sculpt":
        most = SCULPT_EXAMPLES * (LONGER_SCULPT if long else 1)
        config = SculptConfig(num_examples=most, held_examples=SCULPT_HELD)
        options |= {"method": "sculpt", "num_heads": layer.num_heads, "config": config}
        found = recover(source, layer, **options)
    else:
        x = source.sample(EXAMPLES, seed=seed + 20_000)
        found = recover(
            x, layer(x), method="moment", **options
        )  # statistical queries, as the bound speaks of
    seconds = time.perf_counter() - began
    return {
        "error": 1.0 if found.layer is None else function_error(found.layer, layer, fresh),
        "outcome": found.outcome.name,
        "certified": found.certified,
        "examples": found.stats.get("sequences", found.stats.get("examples", 0)),
        "seconds": seconds,
    }


def function_error(found: AttentionLayer, truth: AttentionLayer, x: np.ndarray) -> float:
    """‖found - truth‖ over the spread of the true outputs around their mean; 1 is no better than a constant."""
    answer = truth(x)
    spread = np.linalg.norm(answer - answer.mean(axis=(0, 1)))
    return min(1e3, float(np.linalg.norm(found.astype(truth.dtype)(x) - answer) / max(spread, 1e-300)))


def _adam(layer: AttentionLayer, source: Any, fresh: np.ndarray, seed: int, long: bool) -> dict[str, Any]:
    """The best of two rates; float32, which is what one would use."""
    x = source.sample(EXAMPLES, seed=seed + 20_000).astype(np.float32)
    single = layer.astype(np.float32)
    answer, length = single(fresh.astype(np.float32)), ADAM_STEPS * (LONGER_ADAM if long else 1)
    began, runs = time.perf_counter(), []
    with precision(np.float32):
        for rate in ADAM_RATES:
            arrays = x, single(x), fresh.astype(np.float32)
            runs.append(train_once(single, layer.dim, seed, *arrays, answer, rate, length, SUCCESS, np.inf))
            if runs[-1]["reached"]:
                break
    return {
        "error": min(1e3, min(run["error"] for run in runs)),
        "outcome": "trained",
        "certified": False,
        "examples": EXAMPLES,
        "seconds": time.perf_counter() - began,
    }
