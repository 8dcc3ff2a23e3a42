"""The page of `reproduce`: a paper's claims, each with its measurement."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from attnlearn._verdict import Verdict
from attnlearn.reporting import _hard_claims
from attnlearn.reporting._displays import Bars, Display, Lines, Series
from attnlearn.reporting._page import Page
from attnlearn.reporting._sections import Section, facts, provenance_rows


def reproduce_page(document: dict[str, Any]) -> Page:
    """The papers' claims, one section each."""
    figures = document.get("figures") or {}
    sections = []
    for name, part in figures.items():
        if isinstance(part, dict):
            sections.append(
                Section(str(name), str(part.get("text") or ""), _claim_displays(name, part), facts(part))
            )
    return Page(
        title=f"Reproduction: {document.get('claim', '')}",
        kind="reproduce",
        verdict=Verdict(
            "partial",
            "Measured",
            f"{len(sections)} claims of the paper were measured; each section shows the numbers.",
            scope="Measurements support or contradict a claim for these settings; they prove nothing beyond them.",
        ),
        sections=sections,
        provenance=provenance_rows(document),
        command=str((document.get("provenance") or {}).get("command") or ""),
    )


def _claim_displays(name: str, part: dict[str, Any]) -> list[Display]:
    try:
        return _DISPLAYS[name](part) if name in _DISPLAYS else []
    except (KeyError, TypeError, ValueError, IndexError):
        return []  # figures of another version: shown as a table


def _bound(part: dict[str, Any]) -> list[Display]:
    curves = part["curves"]
    names = (("loss", "loss"), ("mean_loss", "mean loss"), ("bound", "run-verified bound"))
    return [
        Lines(
            f"Bound over measured: {part['ratio']:.2f}",
            "The bound that the run verified, against the mean it bounds.",
            series=tuple(
                Series(text, curves["step"], curves[key], bound=key == "bound") for key, text in names
            ),
            x_label="step",
            y_label="loss",
            log_x=True,
            log_y=True,
        )
    ]


def _examples(part: dict[str, Any]) -> list[Display]:
    means = [sum(gaps) / len(gaps) for gaps in part["gaps"]]
    theory = [means[0] * part["sizes"][0] / size for size in part["sizes"]]
    slope = part.get("slope")
    return [
        Lines(
            f"Slope {slope:.2f}, theory −1" if slope is not None else "Slope not fitted",
            "Test minus train loss against the number of examples.",
            series=(
                Series("measured mean", part["sizes"], means),
                Series("1/n", part["sizes"], theory, bound=True),
            ),
            x_label="examples",
            y_label="test − train loss",
            log_x=True,
            log_y=True,
        )
    ]


def _attended(part: dict[str, Any]) -> list[Display]:
    steps = [row["steps"] for row in part["rows"]]
    return [
        Lines(
            "Attention on the tokens that carry the label",
            "Share of attention, over training, mean over seeds.",
            series=(
                Series("all heads", steps, [fmean(row["share"]) for row in part["rows"]]),
                Series("best head", steps, [fmean(row["largest_head"]) for row in part["rows"]]),
            ),
            x_label="steps",
            y_label="share",
            log_x=True,
            levels=(("uniform", part["uniform_share"]),),
        )
    ]


def _heads(part: dict[str, Any]) -> list[Display]:
    heads = [row["heads"] for row in part["rows"]]

    def middle(rule: str) -> list[float | None]:
        runs = [
            sorted(s if s >= 0 else float("inf") for s in row[rule]["steps_to_target"])
            for row in part["rows"]
        ]
        return [run[len(run) // 2] for run in runs]

    return [
        Lines(
            f"Steps to loss {part['target']:g}",
            "Median over seeds; a run that does not get there is left out.",
            series=(
                Series("one step for all", heads, middle("common")),
                Series("step like √H", heads, middle("sqrt")),
            ),
            x_label="heads",
            y_label="steps",
            log_x=True,
        )
    ]


def _protocol(part: dict[str, Any]) -> list[Display]:
    """Loss curves by number of heads under both step rules, the mean over the trials."""

    def means(row: dict[str, Any], rule: str) -> list[float]:
        return [sum(values) / len(values) for values in zip(*row[rule]["curves"], strict=True)]

    return [
        Lines(
            title,
            f"Mean of {part['trials']} trials of the paper's protocol: zero start, {part['examples']} examples.",
            series=tuple(
                Series(f"H = {row['heads']}", part["curve_steps"], means(row, rule)) for row in part["rows"]
            ),
            x_label="step",
            y_label="training loss",
            log_x=True,
            log_y=True,
        )
        for rule, title in (("constant", "Step 1, as in the paper"), ("sqrt", "Step √H"))
    ]


def _starts(part: dict[str, Any]) -> list[Display]:
    names = tuple(part["starts"])
    return [
        Bars(
            "Tangent margin by initialization",
            f"Median over {part['draws']} draws of the mixture.",
            labels=names,
            values=tuple(part["starts"][name]["gamma"][2] for name in names),
            x_label="initialization",
            y_label="margin",
            floor=part["margin_bound"],
            floor_label="explicit lower bound",
        )
    ]


def _unattained(part: dict[str, Any]) -> list[Display]:
    strengths = [float(name) for name in part["looking"]]
    margins = [median(found) for found in part["looking"].values()]
    best = max(median(found) for found in part["starts"].values())
    return [
        Lines(
            "Margins that no start attains",
            "Tangent margin at weights whose attention prefers the relevant tokens, median over draws, and the best of the three starts.",
            series=(Series("attention prefers relevant keys", strengths, margins),),
            x_label="score of relevant keys",
            y_label="margin",
            levels=(("best start", best), ("read-out at full attention", part["limit"])),
        )
    ]


_DISPLAYS = {
    "unattained": _unattained,
    "bound": _bound,
    "examples": _examples,
    "attention": _attended,
    "heads": _heads,
    "starts": _starts,
    "protocol": _protocol,
    "wall": _hard_claims.wall,
    "statistical": _hard_claims.statistical,
    "elimination": _hard_claims.elimination,
    "dial": _hard_claims.dial,
    "learning": _hard_claims.learning,
}
