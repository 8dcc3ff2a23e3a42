"""Views of a solution: JSON after the shipped schema, a table for notebooks (`_screen` has the text for terminals)."""

from __future__ import annotations

import hashlib
import html
import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from attnlearn._certificate import jsonable
from attnlearn._layer import AttentionLayer
from attnlearn._maps import SampleInputs, attention_json, head_maps, patterns_json
from attnlearn._result import Solution
from attnlearn._screen import badge
from attnlearn._summary import head_similarity, singular_values, summarize
from attnlearn._verdict import verdict
from attnlearn._version import __version__
from attnlearn.engine._threads import own_threads
from attnlearn.scores import words

SCHEMA_NAME, SCHEMA_VERSION = "attnlearn/solution", 2


def solution_json(solution: Solution, layer_path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """See `Solution.to_json`."""
    told = outline(solution)
    return {
        "schema": SCHEMA_NAME,
        "version": SCHEMA_VERSION,
        "attnlearn": __version__,
        **told,
        "remedy": solution.remedy,
        "verdict": verdict(told).text,
        "phases": [jsonable(asdict(phase)) for phase in solution.phases],
        "layer": layer_json(solution.layer, layer_path, solution.stats),
        "provenance": provenance() | {"date": _today(), "peak_memory_mb": _peak_memory()},
    }


def outline(solution: Solution) -> dict[str, Any]:
    """The part of the JSON that the verdict reads: everything but phases, maps and provenance.

    >>> from attnlearn import Outcome
    >>> sorted(outline(Solution.failed(Outcome.INTERRUPTED)))
    ['achieved', 'certificate', 'certified', 'layer', 'outcome', 'stats']
    """
    layer = solution.layer
    return {
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "achieved": solution.achieved,
        "certificate": solution.certificate.to_json(),
        "stats": jsonable(solution.stats),
        "layer": None if layer is None else {"shapes": _shapes(layer), "summary": {"kind": _kind(layer)}},
    }


def _shapes(layer: Any) -> dict[str, list[int]]:
    if isinstance(layer, AttentionLayer):
        return {name: list(array.shape) for name, array in layer.arrays().items()}
    named = getattr(layer, "parameters", getattr(layer, "weights", None))
    return {} if named is None else {name: list(array.shape) for name, array in named._asdict().items()}


def _kind(layer: Any) -> str:
    return getattr(layer, "kind", "attention layer")


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
        entry["shapes"] = _shapes(layer)
        theta = layer.scores_at(0).theta
        singular = singular_values(theta=theta, w=layer.w)
        entry["summary"] = {
            "kind": _kind(layer),
            "causal": layer.causal,
            "window": layer.window,
            "positions": words(layer.form),
            "dtype": str(layer.dtype),
            "heads": [asdict(head) for head in summarize(layer, singular=singular)],
            "similarity": jsonable(head_similarity(layer)),
            "maps": head_maps(singular, theta=theta, w=layer.w),
            "attention": attention_json(layer, stats or {}),
        }
    elif hasattr(layer, "summary_json"):
        entry.update(jsonable(layer.summary_json()))
        inputs = (stats or {}).get("sample_inputs")
        if isinstance(inputs, SampleInputs) and hasattr(layer, "patterns"):
            attended = patterns_json(layer.patterns(inputs.x))
            entry["summary"]["attention"] = {"source": "inputs it was learned from", **attended}
    return jsonable(entry)


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """A result of version 1 as version 2 writes it; version 2 as it is.

    Version 1 did not say whether the threshold of a check is a floor or a ceiling. Status, value and threshold tell, unless
    value and threshold are equal. `stats` had two names with two meanings each.

    >>> check = {"code": "C2.apart", "status": "holds", "value": 0.5, "threshold": 0.1}
    >>> old = {"version": 1, "outcome": "RECOVERED", "certified": True, "stats": {"method": "spectral", "tokens": 4}}
    >>> new = upgraded(old | {"certificate": {"claims": [], "checks": [check]}, "layer": None})
    >>> new["certificate"]["checks"][0]["direction"], new["stats"]
    ('floor', {'method': 'spectral', 'sequence_length': 4})
    """
    if document["version"] != 1:
        return document
    stats = dict(document["stats"])
    if "method" in stats and "tokens" in stats:
        stats["sequence_length"] = stats.pop("tokens")
    if "curve" in stats and isinstance(stats.get("error"), float):
        stats["relative_error"] = stats.pop("error")
    checks = [check | {"direction": _direction(check)} for check in document["certificate"]["checks"]]
    new = document | {
        "version": SCHEMA_VERSION,
        "achieved": document["certified"],
        "certificate": document["certificate"] | {"checks": checks},
        "stats": stats,
    }
    return new | {"verdict": verdict(new).text}


def _direction(check: dict[str, Any]) -> str | None:
    value, threshold = check.get("value"), check.get("threshold")
    if value is None or threshold is None or value == threshold or check["status"] not in ("holds", "fails"):
        return None
    return "ceiling" if (value < threshold) == (check["status"] == "holds") else "floor"


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "attnlearn": __version__}
    for package in ("numpy", "scipy", "jax"):
        with suppress(metadata.PackageNotFoundError):  # JAX comes with an extra
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


def solution_html(solution: Solution) -> str:
    """The table that notebooks show for a solution."""
    claims = "".join(
        f"<tr><td>{html.escape(claim.code)}</td><td>{'established' if claim.established else 'not established'}</td>"
        f"<td>{html.escape(claim.text)}</td></tr>"
        for claim in solution.certificate.claims
    )
    return (
        f"<p><b>{solution.outcome.name}</b> ({badge(solution)}): {html.escape(solution.verdict)}</p>"
        f"<p>{html.escape(repr(solution.layer))}</p><table><tbody>{claims}</tbody></table>"
    )
