"""A page in pictures: each claim of a paper with what the result lines say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from attnlearn.reporting import Lines
from benchmarks.render._lines import Suite

FEWEST = 5
"""Seeds below which a claim stays open."""


@dataclass(frozen=True)
class Claim:
    """What the paper says, where, what was measured, what that means, the figure and the number of seeds."""

    text: str
    place: str
    verdict: str
    measured: str
    seeds: int
    picture: Lines | None = None
    file: str = ""


Measure = Callable[[dict[str, Suite]], Claim]


def not_run(text: str, place: str, why: str = "not run") -> Claim:
    """A claim that nobody measured."""
    return Claim(text, place, "open", why, 0)


def judged(holds: bool, seeds: int) -> str:
    """The verdict in one word; open below five seeds.

    >>> judged(True, 5), judged(False, 5), judged(True, 4)
    ('supported', 'contradicted', 'open')
    """
    return "open" if seeds < FEWEST else "supported" if holds else "contradicted"


def told(values: Sequence[float], form: str = "{:.2g}") -> str:
    """Median, least and largest.

    >>> told([1.0, 2.0, 4.0])
    '2 [1, 4]'
    """
    ends = ", ".join(form.format(end) for end in (min(values), max(values)))
    return f"{form.format(median(values))} [{ends}]"


def results(suites: dict[str, Suite], name: str, **case: Any) -> list[dict[str, Any]]:
    """Results of the lines of a suite whose case has these values, in the order of their seeds."""
    lines = suites[name].lines if name in suites else []
    chosen = [line for line in lines if case.items() <= line["case"].items()]
    return [line["result"] for line in sorted(chosen, key=lambda line: line["case"].get("seed", 0))]


def page(title: str, opening: str, claims: Sequence[Claim]) -> str:
    """The table of all claims, then every figure with what was measured."""
    text = [f"# {title}", "", opening, ""]
    text += ["| claim | where | verdict | figure | seeds |", "|---|---|---|---|---:|"]
    for number, claim in enumerate(claims, 1):
        figure = f"[{number}](#{number})" if claim.picture is not None else f"[numbers](#{number})"
        cells = (claim.text, claim.place, f"**{claim.verdict}**", figure, claim.seeds or "–")
        text.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    for number, claim in enumerate(claims, 1):
        text += [
            "",
            f'<a id="{number}"></a>',
            "",
            f"**{number}. {claim.text}** ({claim.place}): {claim.verdict}. {claim.measured}",
        ]
        if claim.picture is not None:
            text += ["", f"![{claim.picture.title}](images/{claim.file})"]
    return "\n".join(text) + "\n"
