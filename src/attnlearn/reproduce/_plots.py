"""Figures of the claims about learning and hardness (needs the extra `report`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np


def plot_panels(
    figures: dict[str, Any], panels: dict[str, Callable[[Any, dict[str, Any]], None]], path: Any
) -> None:
    """Draw whichever claims `figures` holds, one panel each and at most four in a row, into one file."""
    from matplotlib.figure import Figure

    from attnlearn._files import atomic_path

    names = [name for name in panels if name in figures]
    rows = -(-len(names) // 4)
    columns = -(-len(names) // rows)
    picture = Figure(figsize=(4.6 * columns, 3.8 * rows), layout="constrained")
    for number, name in enumerate(names, 1):
        panels[name](picture.add_subplot(rows, columns, number), figures[name])
    with atomic_path(path) as temporary:
        picture.savefig(temporary, format=str(path).rpartition(".")[2] or "png")


def plot_hardness(figures: dict[str, Any], path: Any) -> None:
    """The wall on every family and its cost, the statistical queries, the elimination and the dial."""
    shown, panels = dict(figures), dict(_HARDNESS)
    if wall := shown.pop("wall", None):
        families = dict.fromkeys(point["family"] for point in wall["points"])
        walls = {f"wall: {family}": partial(_plot_wall, family=family) for family in families}
        panels = walls | {"cost": _plot_wall_cost} | panels
        shown |= dict.fromkeys((*walls, "cost"), wall)
    plot_panels(shown, panels, path)


def plot_learning(figures: dict[str, Any], path: Any) -> None:
    """Widths by round, the body in the plane of its heads, errors and seconds by size, the paper's steps beside ours."""
    points = figures["learning"]["points"]
    shown = {
        "section": any(point.get("sections") for point in points),
        "steps": any(point.get("by_step") for point in points),
    }
    panels = [name for name in _LEARNING if shown.get(name, True)]
    plot_panels(dict.fromkeys(panels, figures["learning"]), _LEARNING, path)


def _plot_wall(axes: Any, claim: dict[str, Any], family: str) -> None:
    curves = [(points, style) for points, style in _curves(claim) if points[0]["family"] == family]
    for place, (points, style) in enumerate(curves):
        rates = np.array([point["rate"] for point in points])
        spread = np.abs(np.array([point["interval"] for point in points]).T - rates)
        heads = (
            np.array([point["heads"] for point in points]) + 0.1 * place
        )  # or equal points would hide each other
        axes.errorbar(heads, rates, spread, **style)
    axes.set(xlabel="heads", ylabel="share learned", ylim=(-0.05, 1.05), title=f"the wall: {family}")
    axes.set_xticks(sorted({point["heads"] for point in claim["points"]}))
    if family != "generic":  # where the upper right is free; colours are the same in all
        axes.legend(fontsize=6, loc="upper right")


def _plot_wall_cost(axes: Any, claim: dict[str, Any]) -> None:
    for points, style in _curves(claim):
        axes.semilogy([point["heads"] for point in points], [point["seconds"] for point in points], **style)
    axes.set(xlabel="heads", ylabel="median seconds, learned or not", title="cost")
    axes.set_xticks(sorted({point["heads"] for point in claim["points"]}))
    axes.legend(fontsize=6, ncols=2)


def _curves(claim: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The points of every learner on every family, and how they are drawn."""
    lines = {"generic": "--", "parity": "-", "rounding": ":"}
    learners = list(dict.fromkeys(point["learner"] for point in claim["points"]))
    for family in dict.fromkeys(point["family"] for point in claim["points"]):
        for number, learner in enumerate(learners):
            points = [p for p in claim["points"] if (p["family"], p["learner"]) == (family, learner)]
            style = {"marker": "o", "linestyle": lines[family], "color": f"C{number}"}
            if points:
                yield points, style | {"label": f"{learner}, {family}"}


def _plot_statistical(axes: Any, claim: dict[str, Any]) -> None:
    for tolerance in sorted({point["tolerance"] for point in claim["points"]}):
        rows = [point for point in claim["points"] if point["tolerance"] == tolerance]
        members = [row["members"] for row in rows]
        (line,) = axes.loglog(members, [row["queries"] for row in rows], "o", label=f"tolerance {tolerance}")
        axes.loglog(members, [row["bound"] for row in rows], "-", color=line.get_color())
    axes.set(xlabel="members", ylabel="queries (lines: bound)", title="statistical queries")
    axes.legend(fontsize=6)


def _plot_elimination(axes: Any, claim: dict[str, Any]) -> None:
    rates = [float(rate) for rate in claim["by_rate"]]
    axes.plot(
        rates, [entry["rate"] for entry in claim["by_rate"].values()], "o-", label="GF(2), random examples"
    )
    axes.axhline(
        claim["chosen_queries"]["rate"], linestyle="--", color="black", label="chosen queries, no flips"
    )
    axes.set(xlabel="flipped labels", ylabel="share solved", title="not statistical")
    axes.legend(fontsize=6)


def _plot_dial(axes: Any, claim: dict[str, Any]) -> None:
    for name, curve in claim["curves"].items():
        axes.semilogy(claim["hardness"], np.maximum(curve, 1e-16), "o-", label=name)
    axes.set(xlabel="hardness", ylabel="function error", title="from generic to parity")
    axes.legend(fontsize=6)


def _plot_widths(axes: Any, claim: dict[str, Any]) -> None:
    for point in claim["points"]:
        widths = point["widths_across"]
        label = f"d={point['dim']} k={point['tokens']} m={point['heads']}"
        axes.semilogy(range(1, len(widths) + 1), widths, "o-", label=label)
    axes.set(xlabel="round", ylabel="width of the body over ‖Theta‖", title="sculpting")
    axes.set_xticks(range(1, 1 + max((len(point["widths_across"]) for point in claim["points"]), default=1)))
    axes.legend(fontsize=6)


def _plot_errors(axes: Any, claim: dict[str, Any]) -> None:
    for name in ("crude_sum_error", "hull_error", "recovery_error"):
        reached = [point for point in claim["points"] if point.get(name) is not None]
        axes.semilogy(_sizes(reached), [point[name] for point in reached], "o", label=name.replace("_", " "))
    axes.set(xlabel="d,k,m", ylabel="error against the true layer", title="errors, where reached")
    axes.legend(fontsize=6)


def _plot_cost(axes: Any, claim: dict[str, Any]) -> None:
    points = claim["points"]
    names = _sizes(points)
    axes.semilogy(names, [p["seconds"] for p in points], "o", label="sculpt")
    axes.semilogy(names, [p["spectral"]["seconds"] for p in points], "s", label="spectral")
    axes.set(xlabel="d,k,m", ylabel="seconds", title="cost")
    axes.legend(fontsize=6)


def _sizes(points: list[dict[str, Any]]) -> list[str]:
    return [_size(point) for point in points]


def plot_section(axes: Any, claim: dict[str, Any]) -> None:
    """The body by round in the plane of the two heads: its shadow, its section, and the heads."""
    cuts = next(point["sections"] for point in claim["points"] if point.get("sections"))
    for cut in cuts:
        colour = f"C{cut['round'] - 1}"
        shadow, inner = np.array(cut["shadow"]), np.array(cut["section"])
        label = f"round {cut['round']}, tolerance {cut['tolerance']:.2g}"
        axes.fill(*shadow.T, facecolor=colour, alpha=0.15)
        axes.plot(*np.concatenate([shadow, shadow[:1]]).T, color=colour, label=label)
        if len(inner):
            axes.fill(*inner.T, color=colour, alpha=0.7)
    heads = np.array(cuts[-1]["heads"])
    axes.plot(*heads.T, "ko", label="heads")
    axes.plot(*heads.T, "k:", linewidth=1)
    axes.set(
        xlabel="along the hull",
        ylabel="from 0 to the hull",
        title="the body around its heads (‖Theta‖ = 1)",
    )
    axes.margins(y=0.25)
    axes.legend(fontsize=6, loc="lower center")


def plot_steps(axes: Any, claim: dict[str, Any]) -> None:
    """Error of the weights before the last fit with one step of the paper, with all, with none; what ended early is at the top."""
    points = [point for point in claim["points"] if point.get("by_step")]
    names = list(dict.fromkeys(name for point in points for name in point["by_step"]))
    sizes = list(dict.fromkeys(_size(point) for point in points))
    for number, size in enumerate(sizes):
        runs = [point["by_step"] for point in points if _size(point) == size]
        place = np.arange(len(names)) + 0.12 * (number - (len(sizes) - 1) / 2)
        for run in runs:
            errors = [run.get(name, {}).get("weights_error") for name in names]
            axes.semilogy(
                place, [np.nan if e is None else e for e in errors], "o", color=f"C{number}", markersize=4
            )
            ended = [i for i, name in enumerate(names) if name in run and errors[i] is None]
            axes.semilogy(place[ended], [2.0] * len(ended), "x", color=f"C{number}")
        axes.plot([], [], "o", color=f"C{number}", label=f"d,k,m = {size}")
    axes.plot([], [], "kx", label="ended before an answer")
    shown = {"ours": "none", "paper": "all"}
    axes.set_xticks(range(len(names)), [shown.get(name, name) for name in names])
    axes.set(
        xlabel="steps of the paper in place of ours",
        ylabel="error of Theta, W before refine",
        title="what each replacement buys",
    )
    axes.legend(fontsize=6)


def _size(point: dict[str, Any]) -> str:
    return f"{point['dim']},{point['tokens']},{point['heads']}"


_HARDNESS = {
    "statistical": _plot_statistical,
    "elimination": _plot_elimination,
    "dial": _plot_dial,
}
_LEARNING = {
    "widths": _plot_widths,
    "section": plot_section,
    "errors": _plot_errors,
    "steps": plot_steps,
    "cost": _plot_cost,
}
