"""Scale: data larger than memory, and large layers from examples drawn on demand.

Every case runs in a process of its own, so that its peak resident memory (`ru_maxrss`, pages of mapped files included)
is its own. `disk` cases write shards first, in another process, and remove them afterwards; the writing is not timed.
`drawn` cases recover a layer from a data model and an oracle; layers are of low rank with a large query bias, as trained
ones are, and the score's standard deviation is `scale`. `growth` cases do so with one size varied at a time; exponents are fitted
to their CPU seconds and to the memory that they take beyond that of the imports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DISK = {"kind": "disk", "dim": 64, "k": 8, "heads": 8, "rank": 8, "scale": 2.0, "seed": 0}
DRAWN = {"kind": "drawn", "k": 8, "heads": 8, "scale": 2.0, "seed": 0}
GROWTH = {
    "dim": [{"dim": dim, "heads": 4, "num": 20_000, "k": 8} for dim in (32, 64, 128)],
    "heads": [{"dim": 32, "heads": heads, "num": 20_000, "k": 8} for heads in (2, 4, 8, 16)],
    "num": [{"dim": 32, "heads": 4, "num": num, "k": 8} for num in (10_000, 40_000, 160_000)],
    "k": [{"dim": 32, "heads": 4, "num": 4_000, "k": k} for k in (8, 32, 128, 512)],
}
"""Sizes of one quantity, the others held."""


def cases(tier: str) -> list[dict[str, Any]]:
    """The cases of a tier, smallest first."""
    disk = [DISK | {"gigabytes": size} for size in (0.25, 1.0, 4.0)]
    drawn = [
        DRAWN | {"dim": 64, "rank": 8, "num": 20_000},
        DRAWN | {"dim": 128, "rank": 16, "num": 20_000},
        DRAWN | {"dim": 256, "rank": 32, "num": 20_000},
        DRAWN | {"dim": 384, "rank": 32, "num": 30_000},
        DRAWN | {"dim": 384, "heads": 12, "rank": 64, "num": 40_000},
        DRAWN | {"dim": 512, "rank": 32, "num": 40_000},
        DRAWN | {"dim": 512, "rank": 64, "num": 40_000},
        *(DRAWN | {"dim": 128, "rank": 16, "num": 20_000, "scale": scale} for scale in (0.5, 6.0)),
    ]
    growth = [
        {"kind": "growth", "of": name, "rank": 8, "scale": 2.0, "seed": 0} | size
        for name, sizes in GROWTH.items()
        for size in sizes
    ]
    if tier == "quick":
        return [disk[0]]
    return [*disk[:2], *drawn[:2]] if tier == "bench" else [*disk, *drawn, *growth]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if case["kind"] == "disk":
            _child("write", case, folder)
        try:
            return _child("recover", case, folder)
        finally:
            shutil.rmtree(Path(folder) / "data", ignore_errors=True)


def _child(what: str, case: dict[str, Any], folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", what, json.dumps(case), folder]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def write(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Shards of examples of a random layer, of the size that the case asks for."""
    from attnlearn.data import Gaussian, RecordedWriter

    layer = truth(case)
    num = int(case["gigabytes"] * 1e9 / (8 * case["k"] * 2 * case["dim"]))
    with RecordedWriter(Path(folder) / "data") as writer:
        for x in Gaussian(case["k"], case["dim"]).stream(num, 8192, seed=case["seed"]):
            writer.write(x, layer(x))
    return {"sequences": num}


def truth(case: dict[str, Any]):
    """A layer of low rank with a query bias as large as its scores."""
    from attnlearn import AttentionLayer

    return AttentionLayer.random(
        case["heads"], case["dim"], rank=case["rank"], scale=case["scale"], bias=True, seed=case["seed"]
    )


def recovered(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """Recover, and say what it took."""
    import resource
    import time

    from attnlearn import SpectralConfig, data, distance, recover

    layer = truth(case)
    imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, used = time.perf_counter(), time.process_time()
    if case["kind"] == "disk":
        solution = recover(Path(folder) / "data", seed=case["seed"], progress="plain", raise_on_failure=False)
    else:
        solution = recover(
            data.Gaussian(case["k"], case["dim"]),
            layer,
            config=SpectralConfig(num_examples=case["num"]),
            seed=case["seed"],
            progress="plain",
            raise_on_failure=False,
        )
    plan = solution.stats["plan"]
    result = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "gigabytes_beyond_imports": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - imports)
        * 1024
        / 1e9,
        "planned_seconds": plan.seconds,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "planned_gigabytes": plan.memory_bytes / 1e9,
        "examples": solution.stats["examples"],
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "phases": {phase.name: phase.seconds for phase in solution.phases},
        "needed": solution.stats.get("examples_needed"),
    }
    if solution.layer is not None:
        result |= {
            "heads_found": solution.layer.num_heads,
            "parameter_error": distance(solution.layer, layer, support=solution.stats["support"]).max,
        }
    return result


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size that the values grow by: the slope of their logarithms.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def summary(lines: list[dict[str, Any]]) -> str:
    """Examples, seconds and memory by dimension."""
    rows = ["kind   dim heads  examples  seconds  planned  peak GB  planned  outcome     error"]
    for line in lines:
        case, result = line["case"], line["result"]
        error = result.get("parameter_error")
        rows.append(
            f"{case['kind']:5} {case['dim']:4} {case['heads']:5} {result['examples']:9} {result['seconds']:8.0f} "
            f"{result['planned_seconds']:8.0f} {result['peak_gigabytes']:8.2f} {result['planned_gigabytes']:8.2f}  "
            f"{result['outcome']:10}  {'' if error is None else f'{error:.1e}'}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    what, case, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    print(json.dumps((write if what == "write" else recovered)(case, folder)))
