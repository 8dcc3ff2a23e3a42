"""Words for people: what each phase does, and what the figures of phases are called on the terminal and in reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class PhaseWords(NamedTuple):
    """What a phase is called while it runs, and what it does in a sentence."""

    doing: str
    text: str


PHASES: dict[str, PhaseWords] = {
    "plan": PhaseWords("planning", "Time and memory that the run should take."),
    "signals": PhaseWords("looking at the data", "What the tokens and outputs are like; it decides what is tried."),
    "residual connection": PhaseWords("testing for a residual", "Whether the tokens themselves enter the outputs."),
    "wide search": PhaseWords("searching, random starts", "Fits with more heads than needed, whose needless heads are then dropped."),
    "scores with positions": PhaseWords("searching positions", "Fits whose scores depend on the offset of key and query."),
    "wide search after the moment": PhaseWords("searching, random starts", "Fits with more heads than needed, whose needless heads are then dropped."),
    "moment": PhaseWords("finding heads", "Heads from the third moment of tokens and outputs, on some of the examples."),
    "moment of every example": PhaseWords("finding heads, all data", "Heads from the third moment, on every example."),
    "suggested count": PhaseWords("trying a likely count", "A number of heads that the moment suggests without a clear gap."),
    "fit": PhaseWords("refining", "All parameters together, by Gauss-Newton steps, to the last digit."),
    "refine": PhaseWords("refining", "All parameters together, by Gauss-Newton steps, to the last digit."),
    "cause of the misfit": PhaseWords("looking for the cause", "What the outputs hold that no attention layer gives."),
    "one more head": PhaseWords("trying one more head", "Whether what is left of the outputs shows a further head."),
    "unrelated outputs": PhaseWords("comparing with the tokens", "Whether the outputs have anything to do with the tokens."),
    "certify": PhaseWords("certifying", "The frozen answer on examples that were set aside and read once."),
    "crude sum": PhaseWords("estimating the sum", "The sum of all W, roughly."),
    "carve": PhaseWords("carving the body", "Slabs that hold every Θ, cut narrower round by round."),
    "span": PhaseWords("counting heads", "The affine hull of the heads, and how many there are."),
    "search": PhaseWords("searching the hull", "Tuples of points of the hull that explain the examples."),
    "recheck": PhaseWords("proving the slabs", "Which slabs still hold when they are proved."),
    "broken condition": PhaseWords("testing the conditions", "Whether a condition of the paper is broken."),
    "measure": PhaseWords("measuring the oracle", "Noise, rounding and causality of the answers."),
    "probe": PhaseWords("choosing token sizes", "Sizes at which attention is neither flat nor one-hot."),
    "separate": PhaseWords("separating heads", "Heads from derivatives of the answers."),
    "match": PhaseWords("matching heads", "Which pieces belong to the same head."),
    "complete": PhaseWords("completing heads", "The directions of every head that are still missing."),
    "polish": PhaseWords("refining", "All parameters together on all answers."),
    "ask": PhaseWords("asking certify queries", "Fresh queries that judge the frozen answer."),
    "initialize": PhaseWords("initializing", "The start of the weights."),
    "compare": PhaseWords("measuring the margin", "How well the tangent model separates the examples."),
    "descend": PhaseWords("descending", "Gradient descent, with its theorem checked at every step."),
    "steps": PhaseWords("steps", "Gradient descent, with its theorem checked at every step."),
    "replay": PhaseWords("leaving one out", "The same run again without one example."),
    "leave one out": PhaseWords("runs without one example", "The same run again without one example."),
}  # fmt: skip

FIGURES: dict[str, str] = {
    "residual": "residual {}",
    "error": "error {}",
    "select_error": "error {} on examples kept apart",
    "heads": "{} heads seen",
    "weakest": "weakest head {} times the noise",
    "products": "{} steps towards the bound",
    "of": "of {}",
    "loss": "loss {}",
    "margin": "margin {}",
    "accuracy": "accuracy {}",
    "step": "step {}",
    "start": "start {}",
    "time": "{}",
    "with errors": "{} if the outputs carry errors",
    "memory": "{} of memory",
    "heads_supported": "examples for up to {} heads",
    "examples": "{} examples",
    "sequences": "{} queries",
    "draws": "{} repeats with other errors",
}
"""How a figure of progress is said; {} is its value. A figure that is not here is shown with its own name."""

SILENT = frozenset({"eigenvalue", "guaranteed"})
"""Figures that say nothing to a person who watches."""

EVIDENCE: dict[str, str] = {
    "examples": "examples read (of those to learn from)",
    "tokens": "tokens of a sequence",
    "support_rank": "directions in which tokens vary",
    "condition_number": "condition number of the tokens",
    "causal": "causal",
    "position_correlation": "correlation of neighbouring tokens",
    "position_mean": "mean that depends on the position",
    "kurtosis": "excess kurtosis of the tokens",
    "skewness": "skewness of the tokens",
    "nonlinear_share": "share of the outputs that no linear map explains",
    "repeated": "tokens repeat, as words of a list do",
    "heavy_tails": "tokens have heavy tails",
    "own_token_enters": "a query's own token enters the outputs",
    "half_precision": "outputs have half precision",
    "sequences_read": "sequences read",
    "sequences": "sequences read",
    "equations_per_unknown": "equations per unknown",
    "floor_measured_over_computed": "noise floor, measured over computed",
    "of": "start from",
    "residual": "relative residual",
    "select_error": "error on examples kept apart",
    "stop": "ended because of",
    "num_heads": "heads",
    "loss_star": "loss of the comparator",
    "B2": "largest head norm at the start",
    "B_Phi": "largest output at the start",
    "gamma": "margin of the tangent model",
}
"""What a figure of evidence is called in a report; one that is not here is shown with its own name."""


ASKED: dict[str, str] = {
    "sequences": "queries so far",
    "tokens": "tokens asked so far",
    "scalars": "numbers read so far",
}
"""What figures of evidence are called where they count queries."""


def doing(name: str) -> str:
    """What a phase is called while it runs.

    >>> doing("moment"), doing("8 heads")
    ('finding heads', '8 heads')
    """
    known = PHASES.get(name)
    return name if known is None else known.doing


def about(name: str) -> str:
    """What a phase does, in a sentence; empty where nothing is known."""
    known = PHASES.get(name)
    return "" if known is None else known.text


def said(figures: Mapping[str, Any]) -> str:
    """The newest figures of a phase in words.

    >>> said({"heads": 8, "residual": 2.13e-5})
    '8 heads seen, residual 2.1e-05'
    """
    parts = []
    for name, value in figures.items():
        if name in SILENT or value is None:
            continue
        text = _shown(value)
        parts.append(FIGURES[name].format(text) if name in FIGURES else f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, float) or hasattr(value, "dtype"):
        return f"{float(value):.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")
