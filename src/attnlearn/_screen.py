"""A solution as one screen of text: what `print(solution)`, the command line and the demo show.

Lines are wrapped between words for the width at hand. Colours mark what is established and what is not; they are for terminals alone.
"""

from __future__ import annotations

import textwrap
from typing import Any

from attnlearn._certificate import Status
from attnlearn._result import Solution

WIDTH = 88
"""Columns of a text whose reader is unknown."""

FAILS, CLAIMS, PHASES = 6, 6, 12
"""Most failing checks, claims and phases that are listed."""

VERDICT_LINES, CLAIM_LINES, CHECK_LINES = 8, 4, 2
"""Lines that the verdict, a claim and a check may take; longer ones end with an ellipsis, and the JSON holds them whole."""

GREEN, YELLOW, RED, BOLD, DIM = "32", "33", "31", "1", "2"


def solution_text(solution: Solution, width: int = WIDTH, colour: bool = False) -> str:
    """At most one screen: verdict, layer, claims, checks that do not hold, queries, time.

    >>> from attnlearn import Outcome
    >>> print(solution_text(Solution.failed(Outcome.SATURATED), 60))
    SATURATED (not certified): No layer was learned: attention
             is nearly one-hot on these tokens. What to do: use
             smaller tokens.
    """
    paint = _painter(colour)
    good = GREEN if solution.achieved else YELLOW
    first = f"{solution.outcome.name} ({badge(solution)}):"
    lines = _wrapped(f"{first} {solution.verdict}", width, VERDICT_LINES)
    lines[0] = lines[0].replace(first, paint(first, BOLD, good), 1)
    if solution.layer is not None:
        lines += _wrapped(f"layer    {solution.layer!r}", width, 2)
    claims = [_claim(claim, width, paint) for claim in solution.certificate.claims]
    fails = [
        _marked(f"  fails  {check.code}: {check.figures()}", "fails", RED, width, paint, CHECK_LINES)
        for check in solution.certificate.checks
        if check.status is Status.FAILS
    ]
    lines += _first(claims, CLAIMS, "claims") + _first(fails, FAILS, "checks fail")
    lines += _spent(solution, width)
    return "\n".join(lines)


def badge(solution: Solution) -> str:
    """Whether a run did what was asked for, in one or two words.

    >>> from attnlearn import Outcome
    >>> badge(Solution.failed(Outcome.SATURATED))
    'not certified'
    """
    if solution.certified:
        return "certified"
    return "on target" if solution.achieved else "not certified"


def _painter(colour: bool) -> Any:
    def paint(text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if colour else text

    return paint


def _wrapped(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        subsequent_indent=9 * " ",
        max_lines=most,
        placeholder=" …",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _claim(claim: Any, width: int, paint: Any) -> str:
    word = "established" if claim.established else "not established"
    code = GREEN if claim.established else YELLOW
    return _marked(f"{claim.code:<8} {word}: {claim.text}", f"{word}:", code, width, paint, CLAIM_LINES)


def _marked(text: str, word: str, code: str, width: int, paint: Any, most: int) -> str:
    """A wrapped paragraph with one word of its first line in colour."""
    lines = _wrapped(text, width, most)
    lines[0] = lines[0].replace(word, paint(word, code), 1)
    return "\n".join(lines)


def _first(lines: list[str], most: int, what: str) -> list[str]:
    rest = len(lines) - most
    if rest <= 0:
        return lines
    return [*lines[:most], f"  ...    and {rest} more {what}, in the JSON and the report"]


def _spent(solution: Solution, width: int) -> list[str]:
    """What the run cost: queries where some were asked, and time, by phase."""
    lines, stats = [], solution.stats
    if isinstance(stats.get("sequences"), int):
        cached = stats.get("cached_sequences") or 0
        known = f", {cached:,} of them known from before" if cached else ""
        read = f", {stats['scalars']:,} numbers read" if isinstance(stats.get("scalars"), int) else ""
        lines += _wrapped(f"queries  {stats['sequences']:,} sequences{known}{read}", width, 2)
    ran = [phase for phase in solution.phases if "skipped" not in phase.evidence]
    if ran:
        parts = [f"{phase.name} {phase.seconds:.1f} s" for phase in ran[:PHASES]]
        rest = [f"and {len(ran) - PHASES} more phases"] if len(ran) > PHASES else []
        total = sum(phase.seconds for phase in solution.phases)
        lines += _wrapped(f"time     {total:.1f} s: {', '.join(parts + rest)}", width, 3)
    return lines
