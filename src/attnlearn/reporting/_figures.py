"""Which pictures a run gets: one function per phase, from the evidence in the JSON to displays.

Evidence may be missing (a phase stopped early, another version wrote the result): a picture that cannot be drawn is
left out, and the evidence stays readable as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnlearn.reporting._displays import Bars, Display, Lines, Series, drawable
from attnlearn.reporting._evidence_figures import certify_figures
from attnlearn.reporting._search_figures import descent, drop_costs, starts

Evidence = dict[str, Any]
SHOWN_HEADS = 6
"""Spectra drawn at once: as many as there are line colours."""


def phase_figures(document: dict[str, Any], phase: dict[str, Any]) -> list[Display]:
    """The displays of one phase of a result.

    >>> evidence = {"singular_values": [2.0, 1.0, 0.1], "floor": 0.3, "visible": 2}
    >>> [d.title for d in phase_figures({"stats": {}}, {"name": "moment", "evidence": evidence})]
    ['Heads above the noise']
    """
    found: list[Display] = []
    # Phases of compress are named after their number of heads; each is a refinement.
    for draw in _FIGURES.get(phase["name"], (_refine,) if "steps" in phase["evidence"] else ()):
        try:
            display = draw(phase["evidence"], document)
        except (KeyError, TypeError, ValueError, IndexError):
            continue  # other evidence than this version writes: shown as a table instead
        if display is not None:
            found.append(display)
    return found


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values or () if drawable(value, False)]


def _ranked(
    title: str, text: str, values: Any, chosen: int | None, labels: tuple[str, str], **options: Any
) -> Bars:
    """Bars of numbers in order, of which the first `chosen` count."""
    numbers = tuple(_numbers(values))
    return Bars(title, text, values=numbers, x_label=labels[0], y_label=labels[1], chosen=chosen, **options)


def _moment(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    chosen = evidence.get("visible")
    text = f"Singular values of the moment; {chosen} stand above the noise floor, and each stands for a head."
    values, floor = evidence["singular_values"], evidence.get("floor")
    return _ranked("Heads above the noise", text, values, chosen, ("singular value", "size"), floor=floor)


def _count(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    evidence = evidence.get("count", evidence)  # version 0.1 had phases of their own for these
    tried = {int(key): value for key, value in evidence["select_residuals"].items()}
    chosen, order = evidence.get("heads"), sorted(tried)
    return Lines(
        f"Choosing {chosen} heads" if chosen else "Choosing the number of heads",
        "Residual on examples kept apart, by number of heads: one head fewer must be worse.",
        series=(Series("residual", order, [tried[key] for key in order]),),
        x_label="number of heads",
        y_label="residual",
    )


def _unmix(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    evidence = evidence.get("unmix", evidence)
    spectra = evidence["head_spectra"]
    rank = evidence.get("rank")
    most = min(len(spectra[0]), 2 * rank if rank else 48)
    edges = _numbers(evidence.get("rank_edge"))
    left = len(spectra) - SHOWN_HEADS
    rest = f" The first {SHOWN_HEADS} of {len(spectra)} heads are drawn." if left > 0 else ""
    return Lines(
        "Rank of the heads",
        "Singular values of each Θ before refinement"
        + (f"; the common drop gives rank {rank}." if rank else ".")
        + rest,
        series=tuple(
            Series(f"head {i}", list(range(1, most + 1)), values[:most])
            for i, values in enumerate(spectra[:SHOWN_HEADS])
        ),
        x_label="singular value",
        y_label="size",
        log_y=True,
        levels=(("noise edge", max(edges)),) if edges else (),
    )


def _refine(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    steps = evidence["steps"]
    floor = document["stats"].get("rounding_floor")
    return Lines(
        "Refinement",
        "Relative residual after every Gauss-Newton step; the dashed line is what rounding leaves.",
        series=(Series("residual", list(range(1, len(steps) + 1)), [step["residual"] for step in steps]),),
        x_label="step",
        y_label="relative residual",
        log_y=True,
        levels=(("rounding", floor),) if drawable(floor, True) else (),
    )


def _widths(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    rounds = evidence["rounds"]
    numbers = list(range(1, len(rounds) + 1))
    along = [min(_numbers(entry["widths_along"]), default=None) for entry in rounds]
    across = [max(_numbers(entry["widths_across"]), default=None) for entry in rounds]
    return Lines(
        "Width of the body K by round",
        "Across the heads' hull the body must get thin; along it, it must stay wide.",
        series=(Series("largest across", numbers, across), Series("smallest along", numbers, along)),
        x_label="round",
        y_label="width",
        log_y=True,
    )


def _hull_error(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    rounds = evidence["rounds"]
    numbers = list(range(1, len(rounds) + 1))
    return Lines(
        "Tolerance and error of the hull by round",
        "Each round asks for a smaller residual and must find the hull again from two halves of its slabs.",
        series=(
            Series("disagreement of halves", numbers, [entry["hull_error"] for entry in rounds]),
            Series("half-width of slabs", numbers, [entry["half_width"] for entry in rounds]),
        ),
        x_label="round",
        y_label="size",
        log_y=True,
    )


def _span(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    heads = evidence.get("num_heads")
    text = (
        "Singular values of the slabs' equations, smallest first. The small ones are as many as heads: one more than the hull has "
        f"directions.{f' Here {heads} counted as small.' if heads else ''}"
    )
    values = evidence["singular_values"]
    return _ranked("Heads in the hull", text, values, heads, ("singular value", "size"), log=True)


def _search(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    errors = sorted(_numbers(evidence["select_errors"]))
    text = "Error on the select examples of the best tuples of hull points."
    return _ranked("Candidates", text, errors, 1, ("candidate", "select error"), log=True)


def _probe(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    return Lines(
        "Choosing the size of the tokens",
        f"Attention must neither be flat nor saturated; chosen {evidence['scale']:.3g}.",
        series=(
            Series("varies", evidence["scales"], evidence["varies"]),
            Series("departs from a line", evidence["scales"], evidence["departs"]),
        ),
        x_label="size of the tokens",
        y_label="relative change of the answers",
        log_x=True,
        log_y=True,
    )


def _separate(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    values, chosen = evidence["singular_values"], evidence.get("varying_heads")
    text = f"Singular values of the stacked Jacobians; {chosen} of them belong to heads."
    return _ranked("Heads seen in the Jacobians", text, values, chosen, ("singular value", "size"), log=True)


def _polish(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    """Residuals of all phases that solve equations, against the noise of the answers."""
    found: list[tuple[str, float]] = []
    for phase in document["phases"]:
        known = phase["evidence"]
        if phase["name"] == "match":
            values = [sweep["worst_residual"] for sweep in known["sweeps"][-1:]]
        else:
            values = [known.get(name) for name in ("slice_residual", "before", "after")]
        for name, value in zip(("", "before", "after"), values):
            if drawable(value, True):
                found.append(("complete" if name == "before" else str(phase["name"]), value))
    return Bars(
        "Residual by phase",
        "Relative residual of the equations that each phase solved, and what the noise of the answers allows.",
        labels=tuple(name for name, _ in found),
        values=tuple(value for _, value in found),
        x_label="phase",
        y_label="relative residual",
        floor=evidence.get("noise"),
        floor_label="noise of the answers",
        log=True,
    )


def _asked(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    spent, before = [], 0
    for phase in document["phases"]:
        total = phase["evidence"].get("sequences", before)
        spent.append((phase["name"], total - before))
        before = total
    return Bars(
        "Queries by phase",
        f"{before:,} sequences in all; those of the last phase judge the frozen answer.",
        labels=tuple(name for name, _ in spent),
        values=tuple(number for _, number in spent),
        x_label="phase",
        y_label="sequences",
    )


def _loss(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    curves = document["stats"]["curves"]
    steps = curves["step"]
    series = [Series("loss", steps, curves["loss"])]
    if "bound" in curves:
        series.append(Series("mean loss", steps, curves["mean_loss"]))
        series.append(Series("proved bound on the mean", steps, curves["bound"], bound=True))
    return Lines(
        "Training loss against its bound",
        "The bound is checked at every step of this run; the mean loss must stay below it.",
        series=tuple(series),
        x_label="step",
        y_label="loss",
        log_x=True,
        log_y=True,
    )


def _margin(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    curves = document["stats"]["curves"]
    return Lines(
        "Margin and accuracy",
        "Smallest margin over the training examples, and the share that is classified rightly.",
        series=(
            Series("smallest margin", curves["step"], curves["margin"]),
            Series("accuracy", curves["step"], curves["accuracy"]),
        ),
        x_label="step",
        y_label="value",
    )


def _replay(evidence: Evidence, document: dict[str, Any]) -> Display | None:
    values = _numbers(evidence["leave_one_out_distance"])
    if not values:
        return None
    return Bars(
        "Leaving one example out",
        "How far the weights move when one example is left out: small means stable.",
        labels=tuple(str(number) for number in evidence["replayed"]),
        values=tuple(values),
        x_label="example left out",
        y_label="distance of the weights",
    )


_FIGURES: dict[str, tuple[Callable[[Evidence, dict[str, Any]], Display | None], ...]] = {
    "moment": (_moment, _count, _unmix),
    "moment of every example": (_moment, _count, _unmix),
    "suggested count": (_count, _unmix),
    "wide search": (starts, descent, drop_costs),
    "wide search after the moment": (starts, descent, drop_costs),
    "fit": (_refine,),
    "count": (_count,),
    "unmix": (_unmix,),
    "refine": (_refine,),
    "carve": (_widths, _hull_error),
    "span": (_span,),
    "search": (_search,),
    "probe": (_probe,),
    "separate": (_separate,),
    "polish": (_polish,),
    "ask": (_asked,),
    "certify": (certify_figures,),
    "descend": (_loss, _margin),
    "replay": (_replay,),
}
