"""Figures of the claims about optimization (needs the extra `report`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn.reproduce._plots import plot_panels

_RULES = (("common", "one step for all"), ("sqrt", "step growing like sqrt(H)"))


def plot_optimization(figures: dict[str, Any], path: Any) -> None:
    """Draw whichever claims `figures` holds into one file; the number of heads has three panels, the protocol two."""
    shown = dict(figures)
    if "heads" in figures:
        shown |= {"gap": figures["heads"], "slack": figures["heads"]}
    if "protocol" in figures:
        shown |= {"protocol_sqrt": figures["protocol"]}
    plot_panels(shown, _PANELS, path)


def _medians(claim: dict[str, Any], rule: str, name: str) -> list[float]:
    """Medians over the seeds, for every number of heads; a loss that was not reached is not drawn."""
    runs = [np.array(row[rule][name], float) for row in claim["rows"]]
    if name == "steps_to_target":
        runs = [np.where(run >= 0, run, np.nan) for run in runs]
    return [float(np.median(run)) for run in runs]


def _axis_of_heads(axes: Any, claim: dict[str, Any]) -> list[int]:
    heads = [row["heads"] for row in claim["rows"]]
    axes.set_xscale("log", base=2)
    axes.set_xticks(heads, [str(count) for count in heads])
    axes.set_xlabel("heads")
    return heads


def _plot_heads(axes: Any, claim: dict[str, Any]) -> None:
    heads = _axis_of_heads(axes, claim)
    for rule, label in _RULES:
        axes.plot(heads, _medians(claim, rule, "steps_to_target"), "o-", label=label)
    axes.set(ylabel=f"median steps to loss {claim['target']}", title="more heads, steps", ylim=(0, None))
    axes.legend(fontsize=8)


def _plot_gap(axes: Any, claim: dict[str, Any]) -> None:
    heads = _axis_of_heads(axes, claim)
    for rule, label in _RULES:
        axes.plot(heads, _medians(claim, rule, "gap"), "o-", label=label)
    axes.set(ylabel=f"median test - train loss after {claim['steps']} steps", title="more heads, gap")
    axes.legend(fontsize=8)


def _plot_slack(axes: Any, claim: dict[str, Any]) -> None:
    heads = _axis_of_heads(axes, claim)
    axes.plot(heads, [row["bound_over_measured"] for row in claim["rows"]], "o-", label=_RULES[0][1])
    axes.set(ylabel="run-verified bound / measured mean", title="more heads, slack", ylim=(0, None))
    axes.legend(fontsize=8)


def _plot_examples(axes: Any, claim: dict[str, Any]) -> None:
    sizes, gaps = np.array(claim["sizes"]), np.array(claim["gaps"])
    means, spread = gaps.mean(axis=1), gaps.std(axis=1, ddof=1) / np.sqrt(gaps.shape[1])
    axes.errorbar(sizes, np.maximum(means, 1e-12), spread, fmt="o-", label="mean, standard error")
    axes.plot(sizes, means[0] * sizes[0] / sizes, "--", label="1/n")
    axes.set(xscale="log", yscale="log", xlabel="examples", ylabel="test - train loss")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    if claim["slope"] is None:
        axes.set_title("slope not fitted")
    else:
        low, high = claim["interval"]
        axes.set_title(f"slope {claim['slope']:.2f} [{low:.2f}, {high:.2f}]")
    axes.legend(fontsize=8)


def _plot_starts(axes: Any, claim: dict[str, Any]) -> None:
    """Quartiles and extremes of the margin; under each name how often P1, P2 and P3 hold."""
    for place, start in enumerate(claim["starts"].values()):
        least, low, median, high, most = start["gamma"]
        axes.vlines(place, least, most, color="C0")
        axes.bar(place, high - low, 0.4, bottom=low, color="C0", alpha=0.5)
        axes.hlines(median, place - 0.2, place + 0.2, color="C0")
    names = [
        f"{name}\nP1 {start['P1']:.0%}, P2 {start['P2']:.0%}\nP3 {start['P3']:.0%}"
        for name, start in claim["starts"].items()
    ]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.axhline(claim["margin_bound"], linestyle="--", color="black", label="explicit lower bound")
    axes.set(ylabel="tangent margin", title=f"{claim['draws']} draws of the mixture", ylim=(0, None))
    axes.legend(fontsize=8, loc="lower right")


def _plot_attention(axes: Any, claim: dict[str, Any]) -> None:
    steps = [row["steps"] for row in claim["rows"]]
    for number, (name, label) in enumerate((("share", "all heads"), ("largest_head", "best head"))):
        found = np.array([row[name] for row in claim["rows"]])
        axes.plot(steps, found.mean(axis=1), "o-", color=f"C{number}", label=label)
        axes.fill_between(steps, found.min(axis=1), found.max(axis=1), color=f"C{number}", alpha=0.2)
    axes.axhline(claim["uniform_share"], linestyle="--", color="black", label="uniform")
    axes.set(
        xscale="log", xlabel="steps", ylabel="attention on relevant tokens", title="where attention goes"
    )
    axes.legend(fontsize=8)


def _plot_unattained(axes: Any, claim: dict[str, Any]) -> None:
    """Margins along weights that look more and more at the relevant tokens; the starts are at the left."""
    strengths = [float(name) for name in claim["looking"]]
    found = np.array(list(claim["looking"].values()))
    axes.plot(strengths, np.median(found, axis=1), "o-", label="attention prefers relevant keys")
    axes.fill_between(strengths, found.min(axis=1), found.max(axis=1), alpha=0.2)
    for number, (name, margins) in enumerate(claim["starts"].items()):
        axes.plot(
            [-0.3] * len(margins), margins, "s", color=f"C{number + 1}", markersize=4, label=f"{name} start"
        )
    axes.axhline(
        claim["uniform"], linestyle=":", color="black", label="read-out, uniform attention, no noise"
    )
    axes.axhline(claim["limit"], linestyle="--", color="black", label="read-out, full attention")
    axes.set(
        xlabel="score of relevant keys",
        ylabel="tangent margin",
        title="margins that no start attains",
        ylim=(0, None),
    )
    axes.legend(fontsize=6)


def _plot_protocol(axes: Any, claim: dict[str, Any], rule: str, title: str) -> None:
    """Loss curves by number of heads: mean over the trials, with the range of the trials."""
    steps = claim["curve_steps"]
    for number, row in enumerate(claim["rows"]):
        curves = np.array(row[rule]["curves"])
        axes.loglog(steps, curves.mean(axis=0), color=f"C{number}", label=f"H = {row['heads']}")
        axes.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=f"C{number}", alpha=0.2)
    axes.set(xlabel="steps", ylabel="training loss", title=f"zero start, {title}, {claim['trials']} trials")
    axes.legend(fontsize=8)


def _plot_paper(axes: Any, claim: dict[str, Any]) -> None:
    _plot_protocol(axes, claim, "constant", "step 1")


def _plot_ours(axes: Any, claim: dict[str, Any]) -> None:
    _plot_protocol(axes, claim, "sqrt", "step sqrt(H)")


def _plot_bound(axes: Any, claim: dict[str, Any]) -> None:
    curves = claim["curves"]
    for name, label in (("bound", "run-verified bound"), ("mean_loss", "measured mean"), ("loss", "loss")):
        axes.loglog(curves["step"][1:], curves[name][1:], label=label)
    axes.set(xlabel="steps", ylabel="loss", title=f"bound / measured = {claim['ratio']:.2f}")
    axes.legend(fontsize=8)


_PANELS = {
    "heads": _plot_heads,
    "gap": _plot_gap,
    "slack": _plot_slack,
    "examples": _plot_examples,
    "starts": _plot_starts,
    "unattained": _plot_unattained,
    "attention": _plot_attention,
    "protocol": _plot_paper,
    "protocol_sqrt": _plot_ours,
    "bound": _plot_bound,
}
