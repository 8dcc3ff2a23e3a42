"""Why a result is not certified, in words: the reason, the error that was measured, the first check that fails, and what to do.

Everything is read from the JSON of the result.
"""

from __future__ import annotations

from typing import Any

from attnlearn._numbers import pretty
from attnlearn._outcome import Outcome

LONGER = "train for more steps, since the bound is about the mean over all of them"
HELD_OUT = (
    "give held-out examples (test=, x_test and y_test in a file) to have the error on new ones measured"
)
"""What helps a training run whose bound says nothing."""

SIGNS = {"ceiling": "≤ ", "floor": "≥ "}
"""How the direction of a check's threshold is written."""


def reason(document: dict[str, Any], outcome: Outcome) -> str:
    """What happened, with the cause that the run knows."""
    reason = Outcome.NOT_ESTABLISHED.reason if outcome.ended_well else outcome.reason
    stats = document["stats"]
    for known in ("error", "because"):
        if isinstance(stats.get(known), str):
            return f"{reason} ({stats[known]})"
    if isinstance(condition := stats.get("condition"), str):
        sides = f"{pretty(stats.get('left'), 3)} against {pretty(stats.get('right'), 3)}"
        return f"{reason} (the condition {condition} is broken: {sides})"
    return reason


def error(stats: dict[str, Any]) -> str:
    """The error that the run measured on examples it did not fit."""
    for name, what in (("select_error", "typical"), ("certify_error", "largest")):
        if isinstance(stats.get(name), float):
            return f" Its {what} error on examples that were not fitted is {pretty(stats[name])} of an output's norm."
    return ""


def failing(document: dict[str, Any]) -> str:
    """The first check that fails, with its figures."""
    failed = (check for check in document["certificate"]["checks"] if check["status"] == "fails")
    check = next(failed, None)
    if check is None:
        return ""
    wanted = f"{pretty(check['value'], 3)}, wanted {SIGNS.get(str(check.get('direction')), '')}{pretty(check['threshold'], 3)}"
    said = str(check.get("text") or check["code"]).rstrip(";")
    return f" The first check that fails is {check['code']}: {said} {wanted}."


def rival(document: dict[str, Any]) -> str:
    """The other layer with the same outputs, where one was found."""
    rival = document["stats"].get("rival")
    if not isinstance(rival, dict):
        return ""
    return (
        f" Another layer gives the same outputs to {pretty(rival['residual'])}: its head {rival['head'] + 1} has other scores, "
        f"at a relative distance of {pretty(rival['distance'], 3)} ({rival['how']})."
    )


def remedy(document: dict[str, Any], outcome: Outcome) -> str:
    """The outcome's remedy, with the figures that the result holds in place of their names."""
    stats = document["stats"]
    if isinstance(stats.get("remedy"), str):
        return stats["remedy"]
    needed, diagnosis = stats.get("examples_needed"), stats.get("diagnosis")
    if outcome is Outcome.TOO_FEW_EXAMPLES and isinstance(needed, int):
        learned = (
            "" if document["layer"] is not None else ", and check that the outputs belong to these tokens"
        )
        return f"give about {needed:,} examples in all{learned}{_turned(stats)}"
    if outcome is Outcome.HEADS_INDISTINGUISHABLE and stats.get("sequence_length") == 2:
        return "give sequences of three tokens or more, for two keys do not tell a head from its mirror image"
    if outcome is Outcome.NOT_ATTENTION and isinstance(diagnosis, dict):
        told = {entry["name"]: entry["text"] for entry in diagnosis.get("evidence") or ()}
        cause = diagnosis.get("cause")
        if told.get(cause):
            given = stats.get("given_heads")
            heads = f"; or leave out the number of heads, which was given as {given}" if given else ""
            heads = "" if cause == "unrelated" else heads
            return f"the likeliest cause is “{cause}”: {told[cause]}{heads}"
    if outcome is Outcome.NOT_ATTENTION and isinstance(given := stats.get("given_heads"), int):
        return f"leave out the number of heads, which was given as {given}: it is then found{_turned(stats)}"
    if outcome is Outcome.NOT_ESTABLISHED and "tiers" in stats:
        measured = any(claim["code"] == "M" for claim in document["certificate"]["claims"])
        return LONGER if measured else f"{LONGER}; {HELD_OUT}"
    return Outcome.NOT_ESTABLISHED.remedy if outcome.ended_well else outcome.remedy


def _turned(stats: dict[str, Any]) -> str:
    """A hint where sequences have more tokens than tokens have coordinates, which is often a mistake."""
    length, support = stats.get("sequence_length"), stats.get("support")
    dim = support.get("dim") if isinstance(support, dict) else None
    if not isinstance(length, int) or not isinstance(dim, int) or length <= dim:
        return ""
    return f"; sequences have {length} tokens of dimension {dim}: if that is the wrong way round, use x.swapaxes(1, 2)"
