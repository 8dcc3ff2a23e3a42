"""Size of a core install: the project and its dependencies in an empty environment, pip left out."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def cases(tier: str) -> list[dict[str, Any]]:
    return [] if tier == "quick" else [{"extras": "none"}]


def run(case: dict[str, Any]) -> dict[str, Any]:
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


def summary(lines: list[dict[str, Any]]) -> str:
    return "\n".join(f"core install {line['result']['megabytes']:.0f} MB" for line in lines)
