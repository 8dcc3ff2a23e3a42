"""docs/deora-et-al-in-pictures.md: the claims of *On the Optimization and Generalization of Multi-head Attention*, from the result lines."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from attnlearn.reporting import Lines, Series
from benchmarks.render._claims import Claim, judged, not_run, page, results, told
from benchmarks.render._lines import Suite

OPENING = (
    "P. Deora, R. Ghaderi, H. Taheri, C. Thrampoulidis, *On the Optimization and Generalization of Multi-head Attention* (TMLR 2024, arXiv 2310.12680). "
    "Made from the lines in `benchmarks/results/` by `python -m benchmarks render`; no number and no verdict here was typed. Brackets hold the least and the "
    "largest over the seeds. A claim with fewer than five seeds is *open*. The data are the tokenized mixture; its dimensions are ours where the paper's were "
    "not at hand. [Guarantees](guarantees.md) has the proofs."
)


def _one(suites: dict[str, Suite], name: str) -> dict[str, Any] | None:
    """The line of a claim, whose seeds are inside."""
    found = results(suites, "papers", claim=name)
    return found[0] if found else None


def heads(suites: dict[str, Suite], rule: str) -> Claim:
    """Steps to a loss by number of heads."""
    words = {"common": "one step for all H", "sqrt": "step growing like sqrt H"}[rule]
    text, place = f"more heads train faster, then saturate: {words}", "main claim, Figure 2"
    line = _one(suites, "heads")
    if line is None:
        return not_run(text, place)
    counts = [row["heads"] for row in line["rows"]]
    steps = [[s if s >= 0 else float("inf") for s in row[rule]["steps_to_target"]] for row in line["rows"]]
    middle = [median(run) for run in steps]
    seeds = len(steps[0])
    said = ", ".join(f"{h}: {s:.0f}" for h, s in zip(counts, middle))
    picture = None
    if rule == "sqrt":
        both = []
        for name, label in (("common", "one step for all"), ("sqrt", "step like √H")):
            runs = [[s for s in row[name]["steps_to_target"] if s >= 0] for row in line["rows"]]
            both.append(Series(label, counts, [median(run) if run else None for run in runs]))
        picture = Lines(
            f"Steps to loss {line['target']:g}",
            series=tuple(both),
            x_label="heads",
            y_label="median steps",
            log_x=True,
        )
    measured = f"Median steps to a loss of {line['target']:g} from the first-step start, by heads: {said}."
    return Claim(
        text, place, judged(middle[-1] < middle[0], seeds), measured, seeds, picture, "papers-heads.svg"
    )


def protocol(suites: dict[str, Suite]) -> Claim:
    """The paper's own protocol."""
    text, place = "more heads lower the test loss: zero start, step 1, n = 100, 300 test points", "Figure 2"
    line = _one(suites, "protocol")
    if line is None:
        return not_run(text, place)
    first, last = line["rows"][0], line["rows"][-1]
    loss = {rule: [row[rule]["test_loss"] for row in line["rows"]] for rule in ("constant", "sqrt")}
    counts = [row["heads"] for row in line["rows"]]
    said = "; ".join(f"{h}: {told(values, '{:.1g}')}" for h, values in zip(counts, loss["constant"]))
    measured = (
        f"Test loss after {line['steps']} steps by heads: {said}. With step sqrt H: {told(loss['sqrt'][0], '{:.1g}')} at one head, {told(loss['sqrt'][-1], '{:.1g}')} at {counts[-1]}. "
        "From zero all heads stay equal and H of them are one head whose attention learns H times more slowly."
    )
    picture = Lines(
        "Test loss of the paper's protocol",
        series=(
            Series("step 1, as in the paper", counts, [fmean(values) for values in loss["constant"]]),
            Series("step √H", counts, [fmean(values) for values in loss["sqrt"]]),
        ),
        x_label="heads", y_label="mean test loss", log_x=True, log_y=True,
    )  # fmt: skip
    fewer = fmean(last["constant"]["test_loss"]) < fmean(first["constant"]["test_loss"])
    return Claim(
        text, place, judged(fewer, line["trials"]), measured, line["trials"], picture, "papers-protocol.svg"
    )


def identity(suites: dict[str, Suite]) -> Claim:
    """Heads from zero stay equal."""
    text, place = "heads that start equal stay equal (ours, behind Figure 2)", "guarantees, section 8"
    line = _one(suites, "protocol")
    if line is None:
        return not_run(text, place)
    worst = max(max(row[rule]["heads_apart"]) for row in line["rows"] for rule in ("constant", "sqrt"))
    measured = f"Largest difference of two heads' W in all runs, float32: {worst:.1g}."
    return Claim(text, place, judged(worst < 1e-6, line["trials"]), measured, line["trials"])


def gap(suites: dict[str, Suite]) -> Claim:
    """Test minus train against n."""
    text, place = "test minus train loss falls like 1/n", "generalization theorem"
    line = _one(suites, "examples")
    if line is None or line["slope"] is None:
        return not_run(text, place)
    (low, high), means = line["interval"], [fmean(values) for values in line["gaps"]]
    picture = Lines(
        "Test minus train loss",
        series=(
            Series("measured mean", line["sizes"], means),
            Series("1/n", line["sizes"], [means[0] * line["sizes"][0] / n for n in line["sizes"]], bound=True),
        ),
        x_label="examples n", y_label="gap", log_x=True, log_y=True,
    )  # fmt: skip
    inside = low <= -1 <= high
    verdict = judged(True, line["draws"]) if inside else "open"
    measured = f"Slope in logarithms {line['slope']:.2f}, 95 % interval {low:.2f} to {high:.2f}, {line['draws']} draws of each n."
    measured += "" if inside else " The interval does not contain -1: near the claim, and not the claim."
    return Claim(text, place, verdict, measured, line["draws"], picture, "papers-gap.svg")


def starts(suites: dict[str, Suite]) -> Claim:
    """P1 to P3."""
    text, place = (
        "one step from zero with random signs satisfies P1, P2 and P3 with an explicit margin",
        "good initialization",
    )
    line = _one(suites, "starts")
    if line is None:
        return not_run(text, place)
    row = line["starts"]["first-step"]
    good = row["P1"] == row["P2"] == row["P3"] == 1 and row["gamma_above_bound"] >= 1 - line["failure"]
    least, _, middle, _, most = row["gamma"]
    measured = f"P1 {row['P1']:.0%}, P2 {row['P2']:.0%}, P3 {row['P3']:.0%} of {line['draws']} draws; margin {middle:.2g} [{least:.2g}, {most:.2g}], above the proved {line['margin_bound']:.2g} in {row['gamma_above_bound']:.0%}."
    return Claim(text, place, judged(good, line["draws"]), measured, line["draws"])


def unattained(suites: dict[str, Suite]) -> Claim:
    """Margins beyond every start."""
    text, place = "there are margins that some starts cannot attain", "discussion"
    line = _one(suites, "unattained")
    if line is None:
        return not_run(text, place)
    best = max(max(found) for found in line["starts"].values())
    strengths = [float(name) for name in line["looking"]]
    beyond = line["looking"][max(line["looking"], key=float)]
    told_starts = ", ".join(f"{name} {told(found)}" for name, found in line["starts"].items())
    picture = Lines(
        "Tangent margins",
        series=(Series("attention prefers relevant keys", strengths, [median(found) for found in line["looking"].values()]),),
        x_label="score of relevant keys", y_label="median margin",
        levels=(("the best of the three starts", best),),
    )  # fmt: skip
    measured = f"Margin at the starts: {told_starts}; at weights that score relevant keys {strengths[-1]:g} higher: {told(beyond)}."
    return Claim(
        text,
        place,
        judged(min(beyond) > best, line["draws"]),
        measured,
        line["draws"],
        picture,
        "papers-margins.svg",
    )


def attention(suites: dict[str, Suite]) -> Claim:
    """Where attention goes."""
    text, place = "training moves attention to the relevant tokens", "experiments"
    line = _one(suites, "attention")
    if line is None:
        return not_run(text, place)
    steps, shares = [row["steps"] for row in line["rows"]], [row["share"] for row in line["rows"]]
    picture = Lines(
        "Attention on relevant tokens",
        series=(
            Series("all heads", steps, [fmean(values) for values in shares]),
            Series("best head", steps, [fmean(row["largest_head"]) for row in line["rows"]]),
        ),
        x_label="steps", y_label="share", log_x=True, levels=(("uniform", line["uniform_share"]),),
    )  # fmt: skip
    measured = (
        "Share by steps: "
        + ", ".join(f"{n}: {told(values)}" for n, values in zip(steps, shares))
        + f" (uniform {line['uniform_share']:.2f})."
    )
    grows = all(b > a for a, b in zip(shares[0], shares[-1]))
    return Claim(
        text, place, judged(grows, len(shares[0])), measured, len(shares[0]), picture, "papers-attention.svg"
    )


def bound(suites: dict[str, Suite]) -> Claim:
    """The training bound."""
    text, place = "the mean training loss obeys the bound (run-verified form, ours)", "training theorem"
    line = _one(suites, "bound")
    if line is None:
        return not_run(text, place)
    curves = line["curves"]
    picture = Lines(
        "Bound and measured mean along a run",
        series=tuple(Series(label, curves["step"][1:], curves[name][1:], bound=name == "bound") for name, label in (("mean_loss", "measured mean"), ("loss", "loss"), ("bound", "bound"))),
        x_label="step", y_label="loss", log_x=True, log_y=True,
    )  # fmt: skip
    measured = f"Bound over measured mean {told(line['ratios'])}; steps that violate descent or quasi-convexity: {sum(line['violations'])}. The a-priori form asks for millions of heads."
    return Claim(
        text,
        place,
        judged(min(line["ratios"]) >= 1, len(line["ratios"])),
        measured,
        len(line["ratios"]),
        picture,
        "papers-bound.svg",
    )


def never_below(suites: dict[str, Suite]) -> Claim:
    """The suite that counts."""
    text, place = "no bound lies below what it bounds", "all theorems, constants ours"
    lines = suites["bounds"].lines if "bounds" in suites else []
    if not lines:
        return not_run(text, place)
    by: dict[str, list[bool]] = {}
    for line in lines:
        for name, below in line["result"]["below"].items():
            by.setdefault(name, []).extend([True] * below + [False] * (line["result"]["problems"] - below))
    said = ", ".join(f"{name} {sum(found)} of {len(found)}" for name, found in by.items())
    fewest = min(map(len, by.values()))
    return Claim(
        text,
        place,
        judged(not any(any(found) for found in by.values()), fewest),
        f"Bounds below their measurement: {said}.",
        fewest,
    )


def planted(suites: dict[str, Suite]) -> Claim:
    """The planted data model."""
    text, place = (
        "more heads lower the test loss on the planted data model, n = 1000, 3000 test points",
        "experiments",
    )
    line = _one(suites, "planted")
    if line is None:
        return not_run(text, place)
    losses, counts = [row["test_loss"] for row in line["rows"]], [row["heads"] for row in line["rows"]]
    measured = f"Test loss after {line['steps']} steps from the first-step start by heads, labels of one planted head: "
    measured += "; ".join(f"{h}: {told(values)}" for h, values in zip(counts, losses)) + ". "
    measured += "Supported means that the most heads have the lower loss in every trial. The teacher is ours."
    picture = Lines(
        "Planted model: loss by heads",
        series=(
            Series("new examples", counts, [fmean(values) for values in losses]),
            Series("training", counts, [fmean(row["train_loss"]) for row in line["rows"]]),
        ),
        x_label="heads", y_label="mean loss", log_x=True,
    )  # fmt: skip
    verdict = _in_every(losses[0], losses[-1])
    return Claim(text, place, verdict, measured, line["trials"], picture, "papers-planted.svg")


def _in_every(few: list[float], many: list[float]) -> str:
    """Whether many heads are better than few in every run; open where runs differ."""
    better = [b < a for a, b in zip(few, many)]
    return judged(all(better), len(better)) if all(better) or not any(better) else "open"


def text_task(suites: dict[str, Suite]) -> Claim:
    """Head count on a text task: a substitute for SST2."""
    text, place = "more heads lower the test loss on text (a substitute for SST2 with RoBERTa)", "experiments"
    lines = results(suites, "text_task")
    if not lines:
        return not_run(text, place)
    first = lines[0]
    counts = sorted(map(int, first["heads"]))

    def losses(kind: str, figure: str = "loss") -> list[list[float]]:
        return [[line["heads"][str(heads)][kind][figure] for line in lines] for heads in counts]

    start, tuned, merged = (losses(kind) for kind in ("from_the_start", "tuned", "merged"))
    measured = (
        f"Which of {len(first['packages'])} packages of Python's standard library a docstring comes from: a BERT of two layers with eight heads, "
        f"{first['train']:,} texts, {first['test']:,} new ones (guessing: error {first['guessing']:.0%}). Test loss by heads. "
    )
    for told_as, found in (
        ("So many heads from the start", start),
        ("Merged by `compress`, eight to four to two to one", merged),
        ("Merged, then trained further", tuned),
    ):
        measured += (
            f"{told_as}: "
            + "; ".join(f"{h}: {told(values, '{:.3g}')}" for h, values in zip(counts, found))
            + ". "
        )
    errors = losses("tuned", "error")
    measured += f"Test error of the last: {told(errors[0])} with one head, {told(errors[-1])} with eight. "
    measured += "Supported means: from the start, eight heads have the lower loss in every run."
    picture = Lines(
        "Text task: test loss by heads",
        series=tuple(
            Series(label, counts, [fmean(values) for values in found])
            for label, found in (("from the start", start), ("merged", merged), ("merged, trained further", tuned))
        ),
        x_label="heads", y_label="mean test loss", log_x=True,
    )  # fmt: skip
    return Claim(
        text, place, _in_every(start[0], start[-1]), measured, len(lines), picture, "papers-text.svg"
    )


def deora(suites: dict[str, Suite]) -> tuple[str, list[Claim]]:
    """The page and its claims."""
    found = [heads(suites, "common"), heads(suites, "sqrt")]
    found += [
        one(suites) for one in (protocol, identity, gap, starts, unattained, attention, bound, never_below)
    ]
    found += [planted(suites), text_task(suites)]
    return page("Deora et al. in pictures", OPENING, found), found
