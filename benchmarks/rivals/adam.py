"""The rivals of recovery: students of the right shape trained by Adam, compiled by JAX.

Both are given the number of heads and the causal mask, which recovery has to find. One learns Theta and W as they are; the
other is told the rank as well and learns factors Wq, Wk, Wv, Wo. Batch 256, cosine schedule from one of three rates to
zero, several lengths; the same data, dtype and threads. Steps run in compiled blocks, the error on fresh examples is
looked at between blocks, and a run ends when it reaches the target. Of the grid the fastest run that reached the target
counts, with its own time alone; compilation is timed apart. A run that takes longer than another took to the target has
lost and ends; longer lengths of a rate that has reached the target are slower and not run.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlearn import AttentionLayer
from attnlearn._precision import precision
from attnlearn.reproduce._student import block, start, student, train_once, zeros

RATES = (3e-3, 1e-2, 3e-2)
LENGTHS = (2_000, 6_000, 18_000)


def train_student(
    truth: AttentionLayer,
    x: np.ndarray,
    y: np.ndarray,
    fresh: np.ndarray,
    *,
    rank: int | None,
    target: float,
    seed: int = 0,
    rates: tuple[float, ...] = RATES,
    lengths: tuple[int, ...] = LENGTHS,
    max_seconds: float = float("inf"),
) -> dict[str, Any]:
    """Every run of the grid, and the best one's time to the target; `reached` is false when none got there.

    `truth` gives the shapes and judges on `fresh`; the student never sees it. `max_seconds` ends each run.
    """
    answer = truth(fresh)
    runs = []
    with precision(x.dtype):
        tokens, outputs, held = jnp.asarray(x), jnp.asarray(y), jnp.asarray(fresh)
        compiled = _compilation(truth, rank, seed, tokens, outputs, held)
        for rate in rates:
            for length in lengths:
                run = train_once(
                    truth, rank, seed, tokens, outputs, held, answer, rate, length, target, max_seconds
                )
                runs.append(run)
                if run["reached"]:
                    max_seconds = min(max_seconds, run["seconds"])
                    break
    best = min((run for run in runs if run["reached"]), key=lambda run: run["seconds"], default=None)
    return {
        "reached": best is not None,
        "seconds": None if best is None else best["seconds"],
        "rate": None if best is None else best["rate"],
        "error": min(run["error"] for run in runs),
        "compile_seconds": compiled,
        "runs": runs,
    }


def _compilation(truth, rank, seed, tokens, outputs, held) -> float:
    """Seconds of the first block and the first look at the error, which compile both; the result is thrown away."""
    began = time.perf_counter()
    params = start(truth, rank, seed, tokens.dtype)
    key = jax.random.key(seed)
    params, _ = block(params, zeros(params), 0, tokens, outputs, truth.causal, key, RATES[0], LENGTHS[0])
    jax.block_until_ready(student(params, held, truth.causal))
    return time.perf_counter() - began
