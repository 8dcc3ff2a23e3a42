"""`attnlearn doctor`: what is installed, what it runs on, what is missing."""

from __future__ import annotations

from typing import Any

from attnlearn.cli._console import Console, Json
from attnlearn.cli._outputs import require_outputs

CORE = ("numpy", "scipy", "safetensors", "joblib", "jinja2")


def _devices() -> list[str]:
    """Where training and sculpting run if JAX is installed; everything else runs on the processor."""
    from attnlearn._extras import installed

    if not installed("train"):
        return ["cpu"]
    from attnlearn._jax import jax

    return [str(device) for device in jax.devices()]


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def doctor(*, json: Json = None) -> None:
    """Show versions, devices, extras and threads, and run one forward in each precision."""
    import os
    import platform

    import numpy as np

    from attnlearn import AttentionLayer, __version__
    from attnlearn._extras import EXTRAS, installed

    require_outputs(json=json)

    versions = {"attnlearn": __version__, "python": platform.python_version()}
    versions |= {package: _version(package) for package in CORE}
    extras = {name: installed(name) for name in EXTRAS}
    layer = AttentionLayer.random(2, 8, seed=1)
    x = np.random.default_rng(0).standard_normal((4, 3, 8))
    gap = float(np.abs(layer(x) - layer.astype(np.float32)(x.astype(np.float32))).max())
    found = {
        "schema": "attnlearn/doctor",
        "version": 1,
        "versions": versions,
        "extras": extras,
        "devices": _devices(),
        "cpus": os.cpu_count(),
        "float32_against_float64": gap,
        "healthy": bool(layer(x).dtype == np.float64 and 0 < gap < 1e-4),
    }
    console = Console(json)
    _tell(console, found)
    console.json(found)


def _tell(console: Console, found: dict[str, Any]) -> None:
    for package, number in found["versions"].items():
        console.text(f"{package:<14}{number}")
    for name, present in found["extras"].items():
        missing = f"not installed (pip install 'attnlearn[{name}]')"
        console.text(f"extra {name:<8}{'installed' if present else missing}")
    console.text(f"devices       {', '.join(found['devices'])}; {found['cpus']} CPUs")
    console.text(
        f"self-check    {'both precisions work' if found['healthy'] else 'FAILED: float32 and float64 disagree'}"
    )
