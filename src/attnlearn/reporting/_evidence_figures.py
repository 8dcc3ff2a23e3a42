"""Pictures of the evidence behind a certificate: errors on certify examples, and the answer beside the truth where it is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attnlearn._numbers import pretty
from attnlearn.reporting._displays import Bars, Display, Lines, Series
from attnlearn.reporting._sections import Section


def certify_figures(evidence: dict[str, Any], document: dict[str, Any]) -> Display | None:
    """How the errors on certify examples are spread; the largest is what claim C1 states."""
    claim = {claim["code"]: claim for claim in document["certificate"]["claims"]}["C1"]
    found = claim["value"]["histogram"]
    edges, counts = found["edges"], found["counts"]
    labels = tuple(pretty((low * high) ** 0.5, 2) for low, high in pairwise(edges))
    return Bars(
        "Errors on certify examples",
        f"Relative error of {sum(counts):,} {claim['value'].get('unit', 'input')}s that were set aside and read once, after the answer was "
        f"frozen. Claim C1 is about the largest, {pretty(claim['value']['error'])}.",
        labels=labels,
        values=tuple(counts),
        x_label="relative error",
        y_label="examples",
    )


def truth_section(document: dict[str, Any]) -> Section | None:
    """The answer beside the true layer, where the report was given it."""
    truth = document["stats"].get("truth")
    if not truth:
        return None
    matched = [head for head in truth["heads"] if head["head"] is not None and head["other"] is not None]
    labels = tuple(str(head["other"]) for head in matched)
    displays: list[Display] = [
        Bars(
            "True error of every head",
            "Relative error of Θ and of W, whichever is larger, after heads were matched.",
            labels=labels,
            values=tuple(max(head["theta"], head["w"]) for head in matched),
            x_label="true head",
            y_label="relative error",
            log=True,
        )
    ]
    for name, symbol in (("theta", "Θ"), ("w", "W")):
        points = truth["points"][name]
        displays.append(
            Lines(
                f"Entries of {symbol}, found against true",
                f"{len(points)} entries of all matched heads; on the diagonal they are equal.",
                series=(
                    Series("entry", [p[0] for p in points], [p[1] for p in points], dots=True),
                    Series("equal", truth["diagonal"][name], truth["diagonal"][name], bound=True),
                ),
                x_label=f"true entry of {symbol}",
                y_label=f"found entry of {symbol}",
            )
        )
    lost = len(truth["heads"]) - len(matched)
    errors = ", ".join(f"{word} {pretty(truth[key])}" for key, word in ERRORS)
    return Section(
        "Found against true",
        f"The true layer is known here; the run did not see it. Largest relative errors: {errors}."
        + (f" {lost} heads have no partner." if lost else ""),
        displays=displays,
    )


ERRORS = (("theta", "Θ"), ("w", "W"), ("query_bias", "query bias"), ("output_bias", "output bias"))
