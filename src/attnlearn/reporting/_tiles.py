"""The tiles at the top of a result's page: its few most important numbers, each with its name and a remark."""

from __future__ import annotations

from typing import Any

from attnlearn._numbers import pretty, seconds
from attnlearn._verdict import largest

Tile = tuple[str, str, str]
"""Number, what it is, and a remark."""


def is_trained(document: dict[str, Any]) -> bool:
    """Whether a result is about a trained classifier."""
    summary = ((document.get("layer") or {}).get("summary")) or {}
    return summary.get("kind") == "classifier" or document["outcome"] == "TRAINED"


def figures_of_merit(document: dict[str, Any]) -> list[Tile]:
    """The tiles of a result; only what is known."""
    return [*_size(document), *_claimed(document), *_effort(document)]


def _size(document: dict[str, Any]) -> list[Tile]:
    shapes = (document.get("layer") or {}).get("shapes") or {}
    theta = shapes.get("theta") or shapes.get("w")
    if not theta:
        return []
    dim = theta[-1] if is_trained(document) else theta[1]
    return [(pretty(theta[0]), "head" if theta[0] == 1 else "heads", f"tokens of dimension {dim}")]


def _claimed(document: dict[str, Any]) -> list[Tile]:
    """The numbers of the claims, established or not."""
    claims = {claim["code"]: claim for claim in document["certificate"]["claims"]}
    values = {code: claim["value"] for code, claim in claims.items() if isinstance(claim.get("value"), dict)}
    unproved = {code: "" if claim["established"] else ", not established" for code, claim in claims.items()}
    tiles: list[Tile] = []
    if value := values.get("C1"):
        share = f"on {100 * value['fraction']:.2f} % of inputs{unproved['C1']}"
        tiles.append((pretty(value["error"]), "function error", share))
    if heads := values.get("C3", {}).get("heads"):
        proved = "bound" if claims["C3"]["established"] else "not established"
        tiles.append((pretty(largest(heads)), "parameter error", proved))
    if value := values.get("M"):
        low, high = (100 * end for end in value["error_interval"])
        sure = f"{low:.2f} % to {high:.2f} %, confidence {100 * claims['M']['confidence']:.0f} %"
        tiles.append((f"{100 * value['error']:.2f} %", "error on new examples", sure))
    if "measured" in (value := values.get("R", {})):
        bound = f"bound {pretty(value.get('bound'), 3)}{unproved['R']}"
        tiles.append((pretty(value["measured"], 3), "mean training loss", bound))
    return tiles


def _effort(document: dict[str, Any]) -> list[Tile]:
    """What the result took: queries, examples or steps, and time."""
    stats, tiles = document["stats"], []
    if stats.get("sequences") is not None:
        tiles.append((pretty(stats["sequences"]), "queries", f"{pretty(stats.get('scalars'))} numbers read"))
    elif stats.get("examples") is not None:
        length = f"of {stats['sequence_length']} tokens" if stats.get("sequence_length") else ""
        tiles.append((pretty(stats["examples"]), "examples", length))
    elif stats.get("steps") is not None:
        tiles.append((pretty(stats["steps"]), "steps", f"training error {100 * stats['train_error']:.1f} %"))
    if document["phases"]:
        total = sum(phase["seconds"] for phase in document["phases"])
        memory = document["provenance"].get("peak_memory_mb")
        tiles.append((seconds(total), "time", f"{memory:,.0f} MB of memory" if memory else ""))
    return tiles
