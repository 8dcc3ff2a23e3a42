"""The page of `reproduce`: a paper's claims, each with its measurement."""

from __future__ import annotations

from statistics import fmean, median, stdev
from typing import Any

from attnlearn._verdict import Verdict
from attnlearn.reporting import _hard_claims
from attnlearn.reporting._displays import Bars, Display, Lines, Series
from attnlearn.reporting._page import Page
from attnlearn.reporting._sections import Section, facts, provenance_rows

CLAIMS: dict[str, str] = {
    "heads": "More heads train faster, then saturate",
    "protocol": "More heads lower the test loss: zero start, step 1.0 (Figure 2)",
    "planted": "The same on labels that a planted model made (experiments)",
    "examples": "Test minus train loss falls like 1/n (generalization theorem)",
    "starts": "One step from zero with random signs satisfies P1, P2 and P3 (good initialization)",
    "unattained": "There are margins that some starts cannot attain (discussion)",
    "attention": "Training moves attention to the relevant tokens (experiments)",
    "bound": "The mean training loss obeys the bound (training theorem, run-verified form)",
    "learning": "The phases of sculpting reach the layer (theorem, phases 1 to 6)",
    "wall": "Learners fail on layers that hide a parity (lower bound)",
    "statistical": "Statistical-query learners need exponentially many queries (lower bound)",
    "elimination": "A learner that asks other questions is not bound",
    "dial": "Learning gets harder from generic layers to parities",
}
"""The claim that each measurement is about."""
PAGES = {
    "optimization": "The page “Deora et al. in pictures” of the documentation judges each claim over at least five seeds.",
    "learning": "The page “Chen & Li in pictures” of the documentation judges each claim over at least five seeds.",
    "hardness": "The page “Chen & Li in pictures” of the documentation judges the lower bound over at least five seeds.",
}


def reproduce_page(document: dict[str, Any]) -> Page:
    """The papers' claims, one section each."""
    figures = document.get("figures") or {}
    sections = []
    for name, part in figures.items():
        if isinstance(part, dict):
            title, text = CLAIMS.get(str(name), str(name)), str(part.get("text") or "").replace("; ", "\n")
            sections.append(Section(title, text, _as_far_as_known(name, part), facts(part)))
    count = f"{len(sections)} claims were" if len(sections) != 1 else "One claim was"
    return Page(
        title=f"Reproduction: {document.get('claim', '')}",
        kind="reproduce",
        verdict=Verdict(
            "partial",
            "Measured",
            f"{count} measured; each section names the claim and shows the numbers.",
            scope=f"Measurements support or contradict a claim for these settings; they prove nothing beyond them. {PAGES.get(str(document.get('claim')), '')}",
        ),
        sections=sections,
        provenance=provenance_rows(document),
        command=str((document.get("provenance") or {}).get("command") or ""),
    )


def claim_displays(name: str, part: dict[str, Any]) -> list[Display]:
    """The pictures of one claim, from its figures in JSON."""
    return _DISPLAYS[name](part) if name in _DISPLAYS else []


def _as_far_as_known(name: str, part: dict[str, Any]) -> list[Display]:
    try:
        return claim_displays(name, part)
    except (KeyError, TypeError, ValueError, IndexError):
        return []  # figures of another version: shown as a table


def _ends(runs: list[list[float]]) -> list[tuple[float, float]]:
    """The lowest and the highest of every list."""
    return [(min(found), max(found)) for found in runs]


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
    errors = [stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0 for gaps in part["gaps"]]
    theory = [means[0] * part["sizes"][0] / size for size in part["sizes"]]
    slope = part.get("slope")
    return [
        Lines(
            f"Slope {slope:.2f}, theory −1" if slope is not None else "Slope not fitted",
            "Test minus train loss against the number of examples, with its standard error.",
            series=(
                Series(
                    "measured mean",
                    part["sizes"],
                    means,
                    spread=[(mean - error, mean + error) for mean, error in zip(means, errors)],
                ),
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
            "Share of attention, over training, mean and range over seeds.",
            series=tuple(
                Series(label, steps, [fmean(found) for found in runs], spread=_ends(runs))
                for label, runs in (
                    ("all heads", [row["share"] for row in part["rows"]]),
                    ("best head", [row["largest_head"] for row in part["rows"]]),
                )
            ),
            x_label="steps",
            y_label="share",
            log_x=True,
            levels=(("uniform", part["uniform_share"]),),
        )
    ]


def _heads(part: dict[str, Any]) -> list[Display]:
    heads = [row["heads"] for row in part["rows"]]

    def by_rule(name: str) -> tuple[Series, ...]:
        def middle(rule: str) -> list[float | None]:
            return [
                median(float("inf") if s < 0 and counted else s for s in row[rule][name])
                for row in part["rows"]
            ]

        counted = name == "steps_to_target"  # -1 where a run does not get there
        return Series("one step for all", heads, middle("common")), Series(
            "step like √H", heads, middle("sqrt")
        )

    axis: dict[str, Any] = {"x_label": "heads", "log_x": True}
    slack = Series("one step for all", heads, [row["bound_over_measured"] for row in part["rows"]])
    return [
        Lines(
            f"Steps to loss {part['target']:g}",
            "Median over seeds; a run that does not get there is left out.",
            series=by_rule("steps_to_target"),
            y_label="steps",
            **axis,
        ),
        Lines(
            f"Test minus train loss after {part['steps']} steps",
            "Median over seeds.",
            series=by_rule("gap"),
            y_label="test − train loss",
            **axis,
        ),
        Lines(
            "Bound over measured",
            "The run-verified bound over the mean that it bounds.",
            series=(slack,),
            y_label="bound / measured",
            **axis,
        ),
    ]


def _protocol(part: dict[str, Any]) -> list[Display]:
    """Loss curves by number of heads under both step rules, the mean and the range of the trials."""

    def loss(row: dict[str, Any], rule: str) -> Series:
        runs = [list(values) for values in zip(*row[rule]["curves"], strict=True)]
        means = [fmean(values) for values in runs]
        return Series(f"H = {row['heads']}", part["curve_steps"], means, spread=_ends(runs))

    return [
        Lines(
            title,
            f"Mean and range of {part['trials']} trials of the paper's protocol: zero start, {part['examples']} examples.",
            series=tuple(loss(row, rule) for row in part["rows"]),
            x_label="step",
            y_label="training loss",
            log_x=True,
            log_y=True,
        )
        for rule, title in (("constant", "Step 1, as in the paper"), ("sqrt", "Step √H"))
    ]


def _planted(part: dict[str, Any]) -> list[Display]:
    heads = [row["heads"] for row in part["rows"]]

    def series(name: str, label: str) -> Series:
        runs = [row[name] for row in part["rows"]]
        return Series(label, heads, [fmean(found) for found in runs], spread=_ends(runs))

    return [
        Lines(
            "Loss after training",
            f"Mean and range of {part['trials']} trials, labels of a planted model with one head.",
            series=(series("train_loss", "training"), series("test_loss", "new examples")),
            x_label="heads",
            y_label="loss",
            log_x=True,
        )
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
    runs = list(part["looking"].values())
    best = max(median(found) for found in part["starts"].values())
    looking = Series(
        "attention prefers relevant keys", strengths, [median(found) for found in runs], spread=_ends(runs)
    )
    return [
        Lines(
            "Margins that no start attains",
            "Tangent margin at weights whose attention prefers the relevant tokens, median and range over draws, and the best of the three starts.",
            series=(looking,),
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
    "planted": _planted,
    "wall": _hard_claims.wall,
    "statistical": _hard_claims.statistical,
    "elimination": _hard_claims.elimination,
    "dial": _hard_claims.dial,
    "learning": _hard_claims.learning,
}
