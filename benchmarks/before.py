"""The code before a change as a rival: the rows of `recover`, in one run with a checkout of an earlier commit.

Both sides get the same problems, one after the other in processes of their own, and each checkout makes the problem with its own copy
of the suite `recover`. CPU seconds count, because they do not depend on what else the machine does; wall seconds stand
beside them. The later side also says what `explain` and `recover` itself had planned; CPU seconds are compared with the plans, so
`NPROC=1` makes both those of one core. The earlier commit is checked out under `build/`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks import recover

ROOT = Path(__file__).parents[1]
BEFORE = "536c128"
"""The last commit before `recover` was rebuilt."""
SEEDS = {"quick": 0, "bench": 1, "full": 5}
SCRIPT = """
import json, sys, time
from benchmarks.recover import problem
import attnlearn
case = json.loads(sys.argv[1])
layer, x, y = problem(case)
planned = None
if hasattr(attnlearn, "explain"):
    planned = attnlearn.explain(x, y, seed=case["seed"]).plan.seconds
attnlearn.recover(x[:400], y[:400], raise_on_failure=False, progress=False)  # imports are no part of the time
cpu, wall = time.process_time(), time.perf_counter()
found = attnlearn.recover(x, y, seed=case["seed"], raise_on_failure=False, progress=False)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
own = getattr(found.stats.get("plan"), "seconds", None)
print(json.dumps({"cpu": cpu, "wall": wall, "certified": found.certified, "outcome": found.outcome.name, "planned": planned, "own_plan": own}))
"""


def cases(tier: str) -> list[dict[str, Any]]:
    """Rows on random layers and the antibody layers, without students, and the first seeds of each."""
    rows: dict[str, dict[str, Any]] = {}
    for case in recover.cases("full"):
        small = case["layer"] == "random" and case["dim"] <= 64
        if not case["rival"] and (small or (case["layer"].startswith("sapiens") and case["k"] == 8)):
            rows.setdefault(json.dumps(case | {"seed": 0}, sort_keys=True), case)
    return [row | {"seed": seed, "before": BEFORE} for seed in range(SEEDS[tier]) for row in rows.values()]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Both sides on one problem."""
    before, now = (side(tree, SCRIPT, case) for tree in (checkout(case["before"]), ROOT))
    return {
        "before": before,
        "now": now,
        "cpu_ratio": now["cpu"] / before["cpu"],
        "wall_ratio": now["wall"] / before["wall"],
    }


def checkout(commit: str) -> Path:
    """A working tree of that commit."""
    tree = ROOT / "build" / f"before-{commit}"
    if not tree.is_dir():
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], cwd=ROOT, check=True
        )
    return tree


def side(tree: Path, script: str, case: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    """What a script prints that runs one case on the code of a working tree.

    A process that takes more than `most` CPU seconds is ended: those are then a lower bound, and `capped` says so.
    """
    given = {name: value for name, value in case.items() if name != "before"}
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    limit = (
        "" if most is None else f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({most}, {most}))"
    )
    command = [sys.executable, "-c", limit + script, json.dumps(given)]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=most is None
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"cpu": float(most), "capped": True}
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def summary(lines: list[dict[str, Any]]) -> str:
    """The median ratio of every row, the geometric mean of the medians, and how far plans were off."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        row = {name: value for name, value in line["case"].items() if name not in ("seed", "before", "rival")}
        rows.setdefault(json.dumps(row, sort_keys=True), []).append(line["result"])
    text, medians = [], []
    for row, found in rows.items():
        medians.append(median(result["cpu_ratio"] for result in found))
        certified = [sum(result[side]["certified"] for result in found) for side in ("before", "now")]
        planned, own = (_share(found, name) for name in ("planned", "own_plan"))
        text.append(
            f"{medians[-1]:.2f} of the time before, certified {certified[0]} and {certified[1]} of {len(found)}, "
            f"{planned:.2f} of the plan of explain and {own:.2f} of that of recover: {row}"
        )
    if medians:
        text.append(
            f"geometric mean of the medians {geometric_mean(medians):.3f}, largest {max(medians):.2f}"
        )
    return "\n".join(text)


def _share(found: list[dict[str, Any]], plan: str) -> float:
    """CPU seconds over those of a plan, the median; lines of earlier code know only the plan of `explain`."""
    ratios = [result["now"]["cpu"] / result["now"][plan] for result in found if result["now"].get(plan)]
    return median(ratios) if ratios else float("nan")
