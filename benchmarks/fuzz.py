"""Damaged files by the thousand: every one must be read or refused in one line, quickly and in little memory.

Counted for every kind of file: refusals, files that were accepted, internal errors (any exception that is neither a
ValueError nor an error of attnlearn, or a message of several lines), hangs (30 s), the slowest input and the growth of the
process at its peak. Input i of a case depends on the case's seed and i alone, so that a find can be repeated.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz._loop import fuzz

INPUTS = {
    "safetensors": 10_000,
    "recorded": 5_000,
    "npz": 5_000,
    "npz train": 5_000,
    "result JSON": 5_000,
    "checkpoint": 5_000,
    "answers": 5_000,
    "pt": 1_000,
    "npz, whole recover": 5_000,
    "npz, whole train": 5_000,
}
"""Inputs of the full tier."""
SHARES = {"quick": 0.02, "bench": 0.1, "full": 1.0}
PIECE = 1_000
"""Inputs of one case: the full tier runs in pieces of a minute or less."""


def cases(tier: str) -> list[dict[str, Any]]:
    listed = []
    for name, inputs in INPUTS.items():
        total = max(1, round(SHARES[tier] * inputs))
        pieces = [min(PIECE, total - done) for done in range(0, total, PIECE)]
        listed += [{"target": name, "inputs": piece, "seed": seed} for seed, piece in enumerate(pieces)]
    return listed


def run(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        tally = asdict(fuzz(case["target"], Path(folder), case["seed"], case["inputs"]))
    return tally | {"internal": tally["internal"][:20], "internal_errors": len(tally["internal"])}


def summary(lines: list[dict[str, Any]]) -> str:
    rows = []
    for name in INPUTS:
        found = [line["result"] for line in lines if line["case"]["target"] == name]
        if found:
            sums = {key: sum(r[key] for r in found) for key in ("inputs", "refused", "accepted", "hangs")}
            broken = sum(r["internal_errors"] for r in found)
            slowest, peak, resident = (
                max(r[key] for r in found) for key in ("slowest", "peak_mb", "resident_mb")
            )
            counted = ", ".join(f"{key} {number}" for key, number in sums.items())
            rows.append(
                f"{name}: {counted}, internal errors {broken}, slowest {slowest:.2f} s, grew {peak:.0f} MB to {resident:.0f} MB"
            )
    return "\n".join(rows)
