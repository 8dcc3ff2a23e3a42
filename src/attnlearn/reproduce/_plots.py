"""One picture of the claims: what the report shows of each, and two panels that it cannot show (needs the extra `report`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlearn._certificate import jsonable
from attnlearn._files import atomic_path
from attnlearn.reporting._reproduction import claim_displays


def plot(figures: dict[str, Any], path: Any) -> None:
    """Draw whichever claims `figures` holds, at most four panels in a row, into one file."""
    from matplotlib.figure import Figure

    panels = _panels(jsonable(figures))
    rows = -(-len(panels) // 4)
    columns = -(-len(panels) // rows)
    picture = Figure(figsize=(4.6 * columns, 3.8 * rows), layout="constrained")
    for number, panel in enumerate(panels, 1):
        panel(picture.add_subplot(rows, columns, number))
    with atomic_path(path) as temporary:
        picture.savefig(temporary, format=str(path).rpartition(".")[2] or "png")


def _panels(figures: dict[str, Any]) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = [
        display.plot for name, part in figures.items() for display in claim_displays(name, part)
    ]
    learning = figures.get("learning", {"points": ()})
    for name, draw in (("sections", plot_section), ("by_step", plot_steps)):
        if any(point.get(name) for point in learning["points"]):
            found.append(partial(draw, claim=learning))
    return found


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
