"""What random starts with too many heads find: by examples, by the size and the rank of their scores, and with twice the heads."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.moment import count_heads, take_moment
from attnlearn.recovery.wide._prune import Pruner, WideFit
from attnlearn.recovery.wide._starts import Width, random_heads
from attnlearn.solve._split import Split
from attnlearn.solve._unknowns import unknowns
from benchmarks.calibrate import cut, instead, show, span
from benchmarks.calibrate.signals import measured, normal, posed

COVERS = ("SCARCE", "WIDE_SCORES", "WIDE_RANK", "MUCH_BETTER")
SEEDS = range(3)


def started(problem: Problem, heads: int, rank: int | None, seed: int) -> WideFit:
    """The wide fit of one random start."""
    found = measured(problem, seed)
    pruner = Pruner(problem, found, Tools(seed=seed))
    width = Width(heads, rank)
    start = random_heads(found, problem.examples.out_dim, width, np.random.default_rng(seed))
    return pruner.refined(start, rank, found.found)


def scarce() -> None:
    """Counts of the moment that are right, by the equations for every unknown of eight heads."""
    missed, table = [], []
    for equations in (4, 8, 16, 24, 48):
        good = tried = 0
        for heads, dim in ((2, 12), (4, 12), (8, 12), (4, 16), (8, 16)):
            for seed in SEEDS[:2]:
                num = int(equations * unknowns(8, dim, dim) / (5 * dim) / 0.75)
                problem = posed(AttentionLayer.random(heads, dim, seed=seed), normal(seed, num, 5, dim))
                found, tools = measured(problem), Tools()
                moment, _ = take_moment(problem, found, tools, every=True)
                counted = count_heads(problem, found, moment, tools, None) if moment.visible else None
                fits = counted is not None and len(counted.coordinates) == heads and not counted.crowded
                missed += [] if fits else [found.equations_per_unknown]
                good, tried = good + fits, tried + 1
        table.append(f"{good} of {tried} with {equations}")
    said = f"counts right by equations per unknown: {', '.join(table)}"
    most = f"missed with at most {max(missed):.2g}" if missed else "none missed"
    show("SCARCE", f"{said}; {most}", "recovery")


def scores() -> None:
    """Select errors of wide fits by the size of the scores that they start from."""
    said = []
    for size in (0.02, calibration.WIDE_SCORES, 4.0):
        errors, steps = [], []
        for seed in SEEDS:
            problem = posed(AttentionLayer.random(3, 10, seed=seed), normal(seed, 1_500, 5, 10))
            with instead(WIDE_SCORES=size):
                wide = started(problem, 8, None, seed)
            errors.append(wide.select_error)
            steps.append(wide.steps)
        said.append(f"{span(errors)} in {span(steps)} steps from {size:g}")
    show("WIDE_SCORES", f"select errors of eight heads: {'; '.join(said)}", "recovery")


def ranks() -> None:
    """Select errors of strong heads of rank one, fitted with full and with low rank."""
    errors: dict[int | None, list[float]] = {None: [], calibration.WIDE_RANK: []}
    for rank, kept in errors.items():
        for seed in SEEDS:
            layer = AttentionLayer.random(2, 24, rank=1, scale=4.0, seed=seed)
            kept.append(started(posed(layer, normal(seed, 1_600, 5, 24)), 8, rank, seed).select_error)
    show(
        "WIDE_RANK",
        f"select errors, d = 24, strong heads of rank one: full rank {span(errors[None])}, "
        f"rank {calibration.WIDE_RANK} {span(errors[calibration.WIDE_RANK])}",
        "recovery",
    )


def widening() -> None:
    """Select errors with sixteen heads over those with eight: where there are twelve heads, and where outputs are no attention."""
    heads, others = [], []
    for seed in SEEDS:
        x, layer = normal(seed, 2_500, 5, 8), AttentionLayer.random(2, 8, seed=seed)
        hidden = np.tanh(x @ normal(seed + 1, 8, 16)) @ normal(seed + 2, 16, 8)
        twice = AttentionLayer.random(2, 8, seed=seed + 9)(layer(x))
        twelve = AttentionLayer.random(12, 8, seed=seed)(x)
        for y, kept in ((twelve, heads), (hidden, others), (twice, others)):
            problem = Problem(as_examples(x, y), Split.make(len(x)))
            eight, sixteen = (started(problem, number, None, seed) for number in (8, 16))
            kept.append(sixteen.select_error / eight.select_error)
    sides = ("twelve heads", heads), ("perceptron, two layers", others)
    cut("MUCH_BETTER", "error with sixteen heads over that with eight", *sides)


def main() -> None:
    for each in (scarce, scores, ranks, widening):
        each()


if __name__ == "__main__":
    main()
