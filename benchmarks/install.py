"""A core install, and how fast it starts.

size     the project and its dependencies in an empty environment, pip left out
import   processor time of `import attnlearn` over that of `python -c pass`, both in fresh processes
help     the same of `attnlearn --help`

Times are the least of twenty, taken in turns, so that what else runs on the machine falls out.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPEATS = 20
WORDS = {"import": ("-c", "import attnlearn"), "help": ("-m", "attnlearn.cli.__main__", "--help")}
WANTED = {"size": 300, "import": 3, "help": 6}
"""Megabytes, and times `python -c pass`."""


def cases(tier: str) -> list[dict[str, Any]]:
    return [] if tier == "quick" else [{"measure": name} for name in WANTED]


def run(case: dict[str, Any]) -> dict[str, Any]:
    return size() if case["measure"] == "size" else start(WORDS[case["measure"]])


def size() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "site"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), str(ROOT)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
        used = sum(path.stat().st_blocks * 512 for path in files) / 2**20
        largest = sorted(
            (
                (sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) / 2**20, p.name)
                for p in place.iterdir()
                if p.is_dir()
            ),
            reverse=True,
        )[:5]
    return {
        "megabytes": used,
        "files": len(files),
        "largest": {name: round(size, 1) for size, name in largest},
    }


def start(words: tuple[str, ...]) -> dict[str, Any]:
    least = {"ours": float("inf"), "nothing": float("inf")}
    for _ in range(REPEATS):
        for name, call in (("nothing", ("-c", "pass")), ("ours", words)):
            before = _spent()
            subprocess.run([sys.executable, *call], check=True, capture_output=True)
            least[name] = min(least[name], _spent() - before)
    return {"ratio": least["ours"] / least["nothing"], **least}


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(lines: list[dict[str, Any]]) -> str:
    return "\n".join(f"{line['case']['measure']}: {said(line['result'])}" for line in lines)


def said(result: dict[str, Any]) -> str:
    """A measurement in words."""
    if "megabytes" in result:
        return f"{result['megabytes']:.0f} MB"
    return f"{result['ratio']:.1f} times `python -c pass`"
