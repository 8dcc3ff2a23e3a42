"""Views of a solution: JSON after the shipped schema, one screen of text, a table for notebooks."""

from __future__ import annotations

import hashlib
import html
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from attnlearn._certificate import Status, jsonable
from attnlearn._layer import AttentionLayer
from attnlearn._maps import SampleInputs, attention_json, head_maps, patterns_json
from attnlearn._result import Solution
from attnlearn._summary import head_similarity, singular_values, summarize
from attnlearn._version import __version__
from attnlearn.engine._threads import own_threads

SCHEMA_NAME, SCHEMA_VERSION = "attnlearn/solution", 1


def solution_json(solution: Solution, layer_path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """See `Solution.to_json`."""
    return {
        "schema": SCHEMA_NAME,
        "version": SCHEMA_VERSION,
        "attnlearn": __version__,
        "outcome": solution.outcome.name,
        "remedy": solution.remedy,
        "certified": solution.certified,
        "certificate": solution.certificate.to_json(),
        "phases": [jsonable(asdict(phase)) for phase in solution.phases],
        "stats": jsonable(solution.stats),
        "layer": layer_json(solution.layer, layer_path, solution.stats),
        "provenance": provenance() | {"date": _today(), "peak_memory_mb": _peak_memory()},
    }


def layer_json(
    layer: Any, path: str | os.PathLike[str] | None, stats: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """What the JSON says of the learned object: where it is, its hash, its shapes and a summary to draw."""
    if layer is None:
        return None
    entry: dict[str, Any] = {"path": None, "sha256": None, "shapes": {}, "summary": {}}
    if path is not None:
        entry["path"] = Path(path).name  # the file lies beside the JSON; folders are nobody's business
        if Path(path).is_file():  # a pipe or a device has nothing to read back
            with Path(path).open("rb") as handle:
                entry["sha256"] = hashlib.file_digest(handle, "sha256").hexdigest()
    if isinstance(layer, AttentionLayer):
        entry["shapes"] = {name: list(array.shape) for name, array in layer.parameters._asdict().items()}
        singular = singular_values(theta=layer.theta, w=layer.w)
        entry["summary"] = {
            "kind": "attention layer",
            "causal": layer.causal,
            "dtype": str(layer.dtype),
            "heads": [asdict(head) for head in summarize(layer, singular=singular)],
            "similarity": jsonable(head_similarity(layer)),
            "maps": head_maps(singular, theta=layer.theta, w=layer.w),
            "attention": attention_json(layer, stats or {}),
        }
    elif hasattr(layer, "summary_json"):
        entry.update(jsonable(layer.summary_json()))
        inputs = (stats or {}).get("sample_inputs")
        if isinstance(inputs, SampleInputs):
            attended = patterns_json(layer.patterns(inputs.x))
            entry["summary"]["attention"] = {"source": "inputs it was learned from", **attended}
    return jsonable(entry)


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "attnlearn": __version__}
    for package in ("jax", "numpy", "scipy"):
        found[package] = metadata.version(package)
    return found


def provenance() -> dict[str, Any]:
    """Versions, machine type and the processors that may be used; no names of users, hosts or folders."""
    return {"versions": dict(_versions()), "machine": platform.machine(), "cpus": own_threads()}


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _peak_memory() -> float | None:
    """Largest memory this process has had so far, in megabytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def schema() -> dict[str, Any]:
    """The JSON Schema of a result.

    >>> schema()["title"]
    'attnlearn solution'
    """
    return json.loads(resources.files("attnlearn").joinpath("schema/solution.json").read_text("utf-8"))


LINE, FAILS, CLAIMS = 160, 6, 6
"""Longest line, and most failing checks and claims, of the text: with verdict, layer and phases one screen."""


def solution_text(solution: Solution) -> str:
    """At most one screen: verdict, layer, claims, checks that do not hold, phases."""
    verdict = "certified" if solution.certified else "not certified"
    lines = [f"{solution.outcome.name} ({verdict}): {solution.remedy}"]
    if isinstance(solution.stats.get("error"), str):
        lines.append(f"cause    {solution.stats['error']}")
    if solution.stats.get("condition") is not None:
        lines.append(f"broken   {solution.stats['condition']}: {_figure(solution.stats.get('left'))}")
    if solution.stats.get("new_examples") is not None and all(
        c.code != "M" for c in solution.certificate.claims
    ):
        lines.append(f"new      on new examples {solution.stats['new_examples']}")
    if solution.layer is not None:
        lines.append(f"layer    {solution.layer!r}")
    claims = [
        f"{claim.code:<8} {'established' if claim.established else 'not established'}: {claim.text}"
        for claim in solution.certificate.claims
    ]
    fails = [
        f"  fails  {check.code}: {check.text} {_figure(check.value)}, wanted {_figure(check.threshold)}"
        for check in solution.certificate.checks
        if check.status is Status.FAILS
    ]
    lines += _first(claims, CLAIMS, "claims") + _first(fails, FAILS, "checks fail")
    ran = [phase for phase in solution.phases if "skipped" not in phase.evidence]
    if ran:
        lines.append("phases   " + ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in ran))
    return "\n".join(
        line if len(line) <= LINE or line.startswith("cause") else line[: LINE - 1] + "…" for line in lines
    )


def _first(lines: list[str], most: int, what: str) -> list[str]:
    rest = len(lines) - most
    return (
        lines
        if rest <= 0
        else [*lines[:most], f"  ...    and {rest} more {what}, in the JSON and the report"]
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def solution_html(solution: Solution) -> str:
    """The table that notebooks show for a solution."""
    claims = "".join(
        f"<tr><td>{html.escape(claim.code)}</td><td>{'established' if claim.established else 'not established'}</td>"
        f"<td>{html.escape(claim.text)}</td></tr>"
        for claim in solution.certificate.claims
    )
    verdict = "certified" if solution.certified else "not certified"
    return (
        f"<p><b>{solution.outcome.name}</b> ({verdict}): {html.escape(solution.remedy)}</p>"
        f"<p>{html.escape(repr(solution.layer))}</p><table><tbody>{claims}</tbody></table>"
    )
