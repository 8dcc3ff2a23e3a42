"""What the moment shows: values over the floor, gaps, examples needed, effective ranks, starts that agree, and the deflation step."""

from __future__ import annotations

import itertools

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._of_moment import last_step
from attnlearn.recovery._problem import Candidate, Problem
from attnlearn.recovery._repairs import fit
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.moment import Moment, count_heads, examples_needed, span_models, take_moment, unmix
from attnlearn.recovery.moment._second_order import second_order_start
from attnlearn.recovery.moment._varpro import SpanModel, random_start
from benchmarks.calibrate import cut, instead, show, span
from benchmarks.calibrate.signals import measured, normal, posed

COVERS = (
    "ABOVE_FLOOR", "CLEAR", "GAP", "NEEDED_AT", "MORE_LEAST", "DEFLATION_STEP", "TENSOR_ALIKE", "EFFECTIVE_RANK", "ALIKE",
)  # fmt: skip
SEEDS = range(3)
SIZES = ((2, 8, 700), (4, 12, 2_000), (3, 16, 2_500), (6, 16, 6_000))
"""Heads, dimension, and examples that show every head."""


def looked(
    heads: int, dim: int, num: int, seed: int, **options
) -> tuple[Problem, Signals, Moment, AttentionLayer]:
    """A random layer, and the moment of all its examples."""
    layer = AttentionLayer.random(heads, dim, seed=seed, **options)
    problem = posed(layer, normal(seed, num, 5, dim))
    found = measured(problem)
    return problem, found, take_moment(problem, found, Tools(), every=True)[0], layer


def values() -> None:
    """Values over the floor, ratios of neighbours, and select residuals without a head: of heads and of noise."""
    heads, noise, bias, last, neighbours, needed, needless = [], [], [], [], [], [], []
    cases = [(*size, seed, {}) for size in SIZES for seed in SEEDS]
    cases += [
        (2, 8, 20_000, seed, {"scale": 6.0}) for seed in SEEDS
    ]  # many examples show what is not first order
    for number, dim, num, seed, options in cases:
        problem, found, moment, _ = looked(number, dim, num, seed, **options)
        over = moment.values / moment.floor
        heads += over[:number].tolist()
        (bias if options else noise).append(float(over[number]))
        ratios = over[:-1] / over[1:]
        last.append(float(ratios[number - 1]))
        neighbours += ratios[number : number + 4].tolist()
        for given, kept in ((number, needed), (number + 1, needless)):
            counted = count_heads(problem, found, moment, Tools(), given)
            left = counted.evidence["select_residuals"]
            kept.append(left[str(given - 1)] / left[str(given)])
    cut("ABOVE_FLOOR", "values over the floor", ("first of noise", noise), ("heads", heads))
    show(
        "ABOVE_FLOOR",
        f"bias of the first order, 20,000 examples of strong scores: {span(bias, 3)}",
        "recovery",
    )
    cut("GAP", "value over the next", ("noise", neighbours), ("last head", last))
    cut("GAP", "select residual without a head over that with it", ("false", needless), ("true", needed))


def clear() -> None:
    """Right counts, and Gauss-Newton steps to an exact fit, by the floors of the weakest head."""
    edges = (1.0, 1.6, calibration.CLEAR, 2.5, np.inf)
    bins: dict[tuple[float, float], list[tuple[bool, int | None]]] = {}
    for number, dim, num in SIZES[:3]:
        for seed in SEEDS:
            layer = AttentionLayer.random(number, dim, seed=seed)
            problem = posed(layer, normal(seed, num, 5, dim))
            found, tools = measured(problem), Tools()
            for share in (0.1, 0.14, 0.2, 0.3, 0.6):
                moment, _ = take_moment(problem, found, tools, every=True, most=int(share * num))
                over = float(moment.values[number - 1] / moment.floor)
                counted = count_heads(problem, found, moment, tools, None) if moment.visible else None
                right = counted is not None and len(counted.coordinates) == number and not counted.crowded
                steps = None
                if right:
                    start = unmix(problem, found, moment, counted, tools)
                    refined = fit(problem, found, Candidate(start.weights, start.rank, "moment"), tools)
                    exact = refined.verdict is Verdict.EXACT
                    steps = len(refined.evidence["steps"]) if exact else None
                place = next((pair for pair in itertools.pairwise(edges) if pair[0] <= over < pair[1]), None)
                if place is not None:
                    bins.setdefault(place, []).append((right, steps))
    said = []
    for (low, high), tried in sorted(bins.items()):
        steps = [step for _, step in tried if step is not None]
        took = f", exact in {span(steps)} steps" if steps else ""
        said.append(
            f"{low:g}-{high:g}: {sum(right for right, _ in tried)} of {len(tried)} counts right{took}"
        )
    show("CLEAR", "by floors of the weakest head: " + "; ".join(said), "recovery")


def enough() -> None:
    """Numbers asked for where the moment neither establishes nor suggests the right number of heads, over one with which it does."""
    half, asked, plain = {}, [], []
    for number, dim, most in ((2, 8, 1_000), (4, 12, 2_000), (6, 12, 3_000), (4, 16, 2_500)):
        for seed in SEEDS:
            layer = AttentionLayer.random(number, dim, seed=seed)
            x = normal(seed, most, 5, dim)
            wanted, said = None, {}
            sizes = np.unique(np.geomspace(most / 20, most, 14).astype(int))[::-1]
            for num in sizes:
                numbers = asks(posed(layer, x[:num]), number)
                if numbers is None and not said:
                    wanted = int(num)
                elif numbers is not None:
                    said[int(num)] = numbers
            if wanted is None or not said:
                continue
            nearest = min(said, key=lambda num: abs(num - wanted / 2))
            half.setdefault(number, []).append(said[nearest][1] / wanted)
            below = [num for num in said if num < wanted]
            asked += [max(said[num]) / wanted for num in below]
            plain += [said[num][1] / wanted for num in below]
    ratios = ", ".join(f"{span(found)} ({number} heads)" for number, found in half.items())
    show("NEEDED_AT", f"asked for at about half of what is enough, over it: {ratios}", "recovery")
    good, without = (sum(ratio >= 1 for ratio in ratios) for ratios in (asked, plain))
    show(
        "MORE_LEAST",
        f"numbers asked for are enough in {good} of {len(asked)} cases, {without} without this factor; over what is enough: "
        f"{span(asked)}, {span(plain)} without",
        "recovery",
    )


def asks(problem: Problem, heads: int) -> tuple[float, float] | None:
    """What is asked for at least, and what the formula alone asks for; None if a right number is established or suggested."""
    found, tools = measured(problem), Tools()
    num = problem.examples.num
    moment, _ = take_moment(problem, found, tools, every=True)
    if not moment.visible:
        with instead(MORE_LEAST=0.0):
            formula = examples_needed(problem, found, moment.values, moment.floor)
        return calibration.MORE_LEAST * num, formula
    counted = count_heads(problem, found, moment, tools, None)
    if heads in (last_step(moment.values), None if counted.crowded else len(counted.coordinates)):
        return None
    return calibration.MORE_LEAST * num, counted.examples_needed


def deflation() -> None:
    """Gains of D -> (1 - t) D + t (moment - swap(D)) on errors: 1 - 2 t where swap(e) = e, 1 - t where swap(e) is orthogonal to e."""
    steps = np.linspace(0, 1, 3_001)
    worst = np.maximum(np.abs(1 - 2 * steps), np.abs(1 - steps))
    here = calibration.DEFLATION_STEP
    show(
        "DEFLATION_STEP",
        f"derived: the larger gain is least, {worst.min():.4f}, at t = {steps[worst.argmin()]:.4f}; "
        f"here {abs(1 - 2 * here):.4f} and {1 - here:.4f}",
        "recovery",
    )


def starts() -> None:
    """Cosines that heads keep from an estimate to its optimum, and residuals of optima that are the same and that are not."""
    kept, lost, same, other = [], [], [], []
    for number, dim, num, scale in (
        *((*size, 2.0) for size in SIZES),
        (8, 12, 8_000, 2.0),
        (8, 12, 8_000, 8.0),
    ):
        for seed in SEEDS:
            problem, found, moment, _ = looked(number, dim, num, seed, scale=scale)
            rng = np.random.default_rng(seed)
            bases = moment.query_basis[:number], moment.value_basis[:number]
            model, _ = span_models(problem, found, *bases, rng)
            thin = model.thinned(calibration.EQUATIONS_PER_UNKNOWN / calibration.ROWS_PER_UNKNOWN)
            estimate = second_order_start(problem, found, moment, number, rng)
            optima = []
            if estimate is not None:
                end, share = descended(thin, estimate)
                kept.append(least_cosine(model, estimate, end))
                optima.append((end, share))
            for _ in range(4):
                start = random_start(rng, number, model.spread)
                end, share = descended(thin, start)
                if number > 2:  # in a plane a random head is often near
                    lost.append(least_cosine(model, start, end))
                optima.append((end, share))
            sort(model, optima, same, other)
            fewer = [random_start(rng, number - 1, model.spread) for _ in range(6)] if number > 2 else []
            sort(model, [descended(thin, start) for start in fewer], same, other)
    cut(
        "TENSOR_ALIKE",
        "least cosine from start to optimum",
        ("random, three heads and more", lost),
        ("second order", kept),
    )
    near = sum(cosine >= calibration.TENSOR_ALIKE for cosine in lost)
    show("TENSOR_ALIKE", f"{near} of {len(lost)} random starts keep as much", "recovery")
    if other:
        what = "residual over the least, less 1, with all heads and one fewer"
        cut("ALIKE", what, ("same optimum", same), ("other optimum", other))
        fooled = sum(ratio <= calibration.ALIKE for ratio in other)
        show("ALIKE", f"{fooled} of {len(other)} other optima count as the same", "recovery")
    else:
        show(
            "ALIKE",
            f"residual of the same optimum over the least, less 1: {span(same)}; no other optimum",
            "recovery",
        )


def sort(
    model: SpanModel, optima: list[tuple[np.ndarray, float]], same: list[float], other: list[float]
) -> None:
    """What optima leave over what the best one leaves, by whether they have its heads."""
    if not optima:
        return
    best = min(optima, key=lambda one: one[1])
    for end, share in optima:
        if end is not best[0]:
            (same if matched(model, end, best[0]) else other).append(share / best[1] - 1)


def descended(model: SpanModel, start: np.ndarray) -> tuple[np.ndarray, float]:
    """The optimum from a start, at the best of three sizes, and what it leaves."""
    sized = [size * start for size in calibration.CLEAR ** np.arange(calibration.FEW)]
    end, found, _ = model.descend(min(sized, key=lambda one: model.solve(one).share))
    return end, found.share


def least_cosine(model: SpanModel, start: np.ndarray, end: np.ndarray) -> float:
    """The cosine of the head that turned most."""
    a, b = (part * model.spread for part in (start, end))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float((np.einsum("hl,hl->h", a, b) / lengths).min())


def matched(model: SpanModel, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two optima have the same heads, each to a tenth, in any order."""
    a, b = (part * model.spread for part in (a, b))
    apart = np.linalg.norm(a[:, None] - b[None], axis=2) / np.linalg.norm(b, axis=1)
    return bool(apart.min(axis=0).max() < 0.1)


def ranks() -> None:
    """Median effective rank of the heads that the moment shows, by their true rank."""
    found_ranks: dict[int, list[float]] = {1: [], 2: [], 12: []}
    swapped = dict.fromkeys(found_ranks, 0)
    for rank, kept in found_ranks.items():
        for seed in range(6):
            problem, found, moment, _ = looked(2, 12, 6_000, seed, rank=rank)
            counted = count_heads(problem, found, moment, Tools(), None)
            heads = unmix(problem, found, moment, counted, Tools())
            kept.append(float(np.median(heads.evidence["effective_rank"])))
            swapped[rank] += heads.swapped
    cut(
        "EFFECTIVE_RANK",
        "median effective rank of the moment's heads",
        ("rank 1", found_ranks[1]),
        ("rank 2 and 12", found_ranks[2] + found_ranks[12]),
    )
    said = ", ".join(f"{number} of 6 layers of rank {rank}" for rank, number in swapped.items())
    show("EFFECTIVE_RANK", f"taken for swapped, because starts disagree as well: {said}", "recovery")


def main() -> None:
    for each in (values, clear, enough, deflation, starts, ranks):
        each()


if __name__ == "__main__":
    main()
