"""Views of a solution: JSON after the shipped schema, one screen of text, a table for notebooks."""

from __future__ import annotations

import hashlib
import html
import json
import os
import platform
from dataclasses import asdict
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._certificate import jsonable
from attnlearn._layer import AttentionLayer
from attnlearn._result import Solution
from attnlearn._summary import head_similarity, summarize
from attnlearn._version import __version__

SCHEMA_NAME, SCHEMA_VERSION = "attnlearn/solution", 1
MAP_SIZE = 96
"""Maps in the JSON are averaged down to at most this many cells a side: display data, never the weights."""


def solution_json(solution: Solution, layer_path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """See `Solution.to_json`."""
    return {
        "schema": SCHEMA_NAME,
        "version": SCHEMA_VERSION,
        "attnlearn": __version__,
        "outcome": solution.outcome.name,
        "remedy": solution.outcome.remedy,
        "certified": solution.certified,
        "certificate": solution.certificate.to_json(),
        "phases": [jsonable(asdict(phase)) for phase in solution.phases],
        "stats": jsonable(solution.stats),
        "layer": layer_json(solution.layer, layer_path),
        "provenance": provenance(),
    }


def layer_json(layer: Any, path: str | os.PathLike[str] | None) -> dict[str, Any] | None:
    """What the JSON says of the learned object: where it is, its hash, its shapes and a summary to draw."""
    if layer is None:
        return None
    entry: dict[str, Any] = {"path": None, "sha256": None, "shapes": {}, "summary": {}}
    if path is not None:
        entry["path"] = Path(path).name  # the file lies beside the JSON; folders are nobody's business
        entry["sha256"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if isinstance(layer, AttentionLayer):
        entry["shapes"] = {name: list(array.shape) for name, array in layer.parameters._asdict().items()}
        entry["summary"] = {
            "kind": "attention layer",
            "causal": layer.causal,
            "dtype": str(layer.dtype),
            "heads": [asdict(head) for head in summarize(layer)],
            "similarity": jsonable(head_similarity(layer)),
            "maps": [_head_maps(layer, head) for head in range(layer.num_heads)],
        }
    elif hasattr(layer, "summary_json"):
        entry.update(jsonable(layer.summary_json()))
    return jsonable(entry)


def _head_maps(layer: AttentionLayer, head: int) -> dict[str, Any]:
    theta, w = layer.theta[head].astype(float), layer.w[head].astype(float)
    return {
        "theta": shrink(theta).tolist(),
        "w": shrink(w).tolist(),
        "theta_singular": np.linalg.svd(theta, compute_uv=False)[:MAP_SIZE].tolist(),
        "w_singular": np.linalg.svd(w, compute_uv=False)[:MAP_SIZE].tolist(),
    }


def shrink(matrix: np.ndarray, size: int = MAP_SIZE) -> np.ndarray:
    """Block averages of a matrix, at most `size` a side, four significant digits.

    >>> shrink(np.ones((200, 10))).shape
    (96, 10)
    """
    for axis in (0, 1):
        length = matrix.shape[axis]
        if length > size:
            edges = np.linspace(0, length, size + 1).astype(int)[:-1]
            counts = np.diff([*edges, length])
            matrix = np.add.reduceat(matrix, edges, axis=axis) / np.expand_dims(counts, 1 - axis)
    return np.array([[float(f"{value:.4g}") for value in row] for row in matrix])


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "attnlearn": __version__}
    for package in ("jax", "numpy", "scipy", "lineax"):
        found[package] = metadata.version(package)
    return found


def provenance() -> dict[str, Any]:
    """Versions and machine type; no names of users, hosts or folders."""
    return {"versions": dict(_versions()), "machine": platform.machine(), "cpus": os.cpu_count()}


def schema() -> dict[str, Any]:
    """The JSON Schema of a result.

    >>> schema()["title"]
    'attnlearn solution'
    """
    return json.loads(resources.files("attnlearn").joinpath("schema/solution.json").read_text("utf-8"))


def solution_text(solution: Solution) -> str:
    """At most one screen: verdict, layer, claims, checks that do not hold, phases."""
    verdict = "certified" if solution.certified else "not certified"
    lines = [f"{solution.outcome.name} ({verdict}): {solution.outcome.remedy}"]
    if solution.layer is not None:
        lines.append(f"layer    {solution.layer!r}")
    for claim in solution.certificate.claims:
        lines.append(
            f"{claim.code:<8} {'established' if claim.established else 'not established'}: {claim.text}"
        )
    for check in solution.certificate.checks:
        if check.status.value == "fails":
            lines.append(
                f"  fails  {check.code}: {check.text} {check.value:.3g}, wanted {check.threshold:.3g}"
            )
    if solution.phases:
        lines.append(
            "phases   " + ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in solution.phases)
        )
    return "\n".join(lines)


def solution_html(solution: Solution) -> str:
    """The table that notebooks show for a solution."""
    claims = "".join(
        f"<tr><td>{html.escape(claim.code)}</td><td>{'established' if claim.established else 'not established'}</td>"
        f"<td>{html.escape(claim.text)}</td></tr>"
        for claim in solution.certificate.claims
    )
    verdict = "certified" if solution.certified else "not certified"
    return (
        f"<p><b>{solution.outcome.name}</b> ({verdict}): {html.escape(solution.outcome.remedy)}</p>"
        f"<p>{html.escape(repr(solution.layer))}</p><table><tbody>{claims}</tbody></table>"
    )
