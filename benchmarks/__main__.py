"""One code path for the three tiers: run the cases of every suite and append one JSON line each.

    python -m benchmarks quick            # two minutes
    python -m benchmarks bench            # fifteen minutes, about three seeds a row
    python -m benchmarks full --suite recover --minutes 60
    python -m benchmarks render           # docs/benchmarks.md and the README's table from the lines

A suite is a module of this package with `cases(tier) -> list[dict]` and `run(case) -> dict`. Lines go to
`results/<tier>-<suite>.jsonl` with commit, versions and time. The full tier skips cases that have a line for
this version, so that it can run in pieces; the others start afresh.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attnlearn
from attnlearn._certificate import jsonable
from attnlearn._serialize import provenance
from attnlearn.engine import Engine

RESULTS = Path(__file__).parent / "results"
SUITES = (
    "honesty",
    "training_honesty",
    "refine",
    "recover",
    "before",
    "certify",
    "pairs",
    "heads",
    "positions",
    "families",
    "recorded",
    "published",
    "extract",
    "training",
    "sculpt",
    "papers",
    "text_task",
    "linear",
    "bounds",
    "compress",
    "whole",
    "scale",
    "conditions",
    "hardness",
    "install",
    "fuzz",
    "kills",
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("tier", choices=("quick", "bench", "full", "render"))
    parser.add_argument("--suite", action="append", help="only this suite (may be repeated)")
    parser.add_argument(
        "--match",
        action="append",
        default=[],
        help="only cases whose JSON contains this text (all, if repeated)",
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop starting cases after this long"
    )
    parser.add_argument(
        "--engine",
        help="where cases run: a number of local processes, or dask:ADDRESS; times then share machines",
    )
    arguments = parser.parse_args(argv)
    if arguments.tier == "render":
        return publish()
    suites = [name for name in SUITES if (Path(__file__).parent / f"{name}.py").is_file()]
    deadline = time.monotonic() + 60 * arguments.minutes
    failures = 0
    for name in arguments.suite or suites:
        failures += run_suite(name, arguments.tier, arguments.match, deadline, Engine.parse(arguments.engine))
    if arguments.tier != "quick":
        publish()
    return 1 if failures else 0


def publish() -> int:
    """Write what is published from the lines; 1 when a ratio to a rival fell by more than a third."""
    from benchmarks.render import render

    fell = render()
    print(
        "\n".join(
            ["wrote docs/benchmarks.md and the table of README.md", *(f"FELL  {line}" for line in fell)]
        )
    )
    return 1 if fell else 0


def run_suite(name: str, tier: str, match: list[str], deadline: float, engine: Engine) -> int:
    """Run the cases of one suite that have no line yet; returns how many failed."""
    suite = importlib.import_module(f"benchmarks.{name}")
    path = RESULTS / f"{tier}-{name}.jsonl"
    RESULTS.mkdir(exist_ok=True)
    if tier != "full" and not match:
        path.unlink(missing_ok=True)
    done = finished(path)
    failures = 0

    def wanted() -> Iterator[dict[str, Any]]:
        for case in suite.cases(tier):
            key = json.dumps(case, sort_keys=True)
            if key not in done and all(text in key for text in match) and time.monotonic() <= deadline:
                yield case

    for line in engine.stream(partial(measure, name), wanted()):
        key = json.dumps(line["case"], sort_keys=True)
        failures += "failed" in line
        with path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line, allow_nan=False) + "\n")
        print(f"{name} {key} -> {json.dumps(line.get('result', line.get('failed')))[:400]}", flush=True)
    if hasattr(suite, "summary") and path.is_file():
        lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
        print(suite.summary([line for line in lines if "result" in line]), flush=True)
    return failures


def measure(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """One line: the case, what it gave or how it failed, and what made it."""
    suite = importlib.import_module(f"benchmarks.{name}")
    line: dict[str, Any] = {
        "suite": name,
        "case": case,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **provenance(),
    }
    started = time.perf_counter()
    try:
        line["result"] = jsonable(suite.run(case))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        line["failed"] = f"{type(error).__name__}: {error}"
    line["seconds"] = round(time.perf_counter() - started, 3)
    return line


def finished(path: Path) -> set[str]:
    """Cases that have a line from this version."""
    if not path.is_file():
        return set()
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    return {
        json.dumps(line["case"], sort_keys=True)
        for line in lines
        if "result" in line and line["versions"]["attnlearn"] == attnlearn.__version__
    }


def commit() -> str:
    """The commit that is checked out, with a + when code differs from it; the lines that are being added do not count."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        status = subprocess.run(
            [
                "git",
                "status",
                "--porcelain",
                "-uno",
                "--",
                "src",
                "benchmarks/*.py",
                "tests/problems",
                "tests/fuzz",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return head.stdout.strip() + ("+" if status.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
