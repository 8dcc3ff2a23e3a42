"""What a fit leaves: copies of heads, worst errors of two sides, saturated heads, noise and structure, and heads that nearly coincide."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer, distance
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._fit import Fit
from attnlearn.recovery._problem import Candidate, Problem, Weights
from attnlearn.recovery._repairs import fit
from attnlearn.recovery.moment import count_heads, take_moment, unmix
from attnlearn.scores import Bilinear
from attnlearn.solve._batch import Batch, example_scale, unit_errors
from attnlearn.solve._heads import head_separation
from attnlearn.solve._split import Split
from benchmarks.calibrate import cut, show, span
from benchmarks.calibrate.claims import near
from benchmarks.calibrate.signals import measured, normal, posed

COVERS = ("DUPLICATE", "TARGET_MARGIN", "NOTICEABLE", "MISFIT", "NEAR_HEADS")
SEEDS = range(4)


def fitted(problem: Problem, start: AttentionLayer, rank: int | None = None) -> Fit:
    """The fit of a start."""
    candidate = Candidate(Weights.of(start.astype(problem.examples.dtype)), rank, "start")
    return fit(problem, measured(problem), candidate, Tools())


def duplicates() -> None:
    """Distances of copies of heads of rank one, which the moment shows twice, and of different heads."""
    copies, apart, whole = [], [], []
    for dim in (12, 16):
        for seed in SEEDS:
            layer = AttentionLayer.random(2, dim, rank=1, seed=seed)
            problem, tools = posed(layer, normal(seed, 4_000, 5, dim)), Tools()
            found = measured(problem)
            moment, _ = take_moment(problem, found, tools, every=True)
            counted = count_heads(problem, found, moment, tools, 4)
            heads = unmix(problem, found, moment, counted, tools)
            theta = Bilinear.whole(heads.weights.theta, heads.weights.query_bias).of_rank(1).theta()
            size = np.linalg.norm(layer.theta, axis=(1, 2))
            off = np.linalg.norm(theta[:, None] - layer.theta[None], axis=(2, 3)) / size
            for head in range(2):
                own = [one for one in range(4) if off[one].argmin() == head and off[one, head] < 0.8]
                pairs = [(a, b) for a in own for b in own if a < b]
                lengths = np.linalg.norm(theta, axis=(1, 2))
                copies += [
                    float(np.linalg.norm(theta[a] - theta[b]) / max(lengths[a], lengths[b])) for a, b in pairs
                ]
            apart.append(head_separation(layer))
            whole.append(head_separation(AttentionLayer.random(8, dim, seed=seed)))
    if copies:
        cut(
            "DUPLICATE",
            "distance over the norm",
            ("copies of a head", copies),
            ("other heads", apart + whole),
        )
        close = sum(size <= calibration.DUPLICATE for size in copies)
        show("DUPLICATE", f"{close} of {len(copies)} copies are merged before the fit", "recovery")
    else:
        show("DUPLICATE", f"no head was seen twice; heads are {span(apart + whole)} apart", "recovery")


def margins() -> None:
    """The worst of 2,000 select errors over the worst of 2,000 certify errors."""
    ratios = []
    for seed in range(20):
        layer, x = AttentionLayer.random(2, 8, seed=seed), normal(seed, 4_000, 5, 8)
        y = layer(x)
        noisy = y + 1e-2 * y.std() * normal(seed + 99, *y.shape)
        for found, outputs in ((layer, noisy), (near(layer, seed, 0.01), y)):
            held = Batch(x, outputs)
            errors = unit_errors(found, held, example_scale(held))
            ratios.append(float(errors[:2_000].max() / errors[2_000:].max()))
    below = sum(ratio < calibration.TARGET_MARGIN for ratio in ratios)
    show(
        "TARGET_MARGIN",
        f"worst select error over worst certify error, noise and slightly wrong answers: {span(ratios)}, median "
        f"{np.median(ratios):.2g}; {below} of {len(ratios)} are below this",
        "recovery",
    )


def noticed() -> None:
    """Select errors of right answers with saturated heads, and of answers that were memorised or lack a head."""
    saturated, wrong = [], []
    for seed in SEEDS:
        for scale in (30.0, 100.0, 300.0):
            layer = AttentionLayer.random(2, 8, scale=scale, seed=seed)
            found = fitted(posed(layer, normal(seed, 2_000, 5, 8)), near(layer, seed, 0.05))
            if distance(found.layer, layer).max < 0.05:
                saturated.append(found.select_error)
        layer = AttentionLayer.random(3, 8, seed=seed)
        weak = layer.replace(w=layer.w * np.array([1, 1, 1e-3])[:, None, None])
        lacking = AttentionLayer(layer.theta[:2], layer.w[:2])
        wrong.append(fitted(posed(weak, normal(seed, 2_000, 5, 8)), lacking).select_error)
        few = posed(layer, normal(seed, 40, 2, 8))  # 480 equations for 416 unknowns
        wrong.append(fitted(few, AttentionLayer.random(3, 8, seed=seed + 5)).select_error)
    sides = ("saturated heads, found", saturated), ("a head of 1e-3 missing, or memorised", wrong)
    cut("NOTICEABLE", "select error", *sides)


def misfits() -> None:
    """Select errors beside noise of one and two per cent, and where outputs are something else."""
    noise, structure, small = [], [], []
    for seed in SEEDS:
        layer, x = AttentionLayer.random(3, 8, seed=seed), normal(seed, 2_000, 5, 8)
        lacking = AttentionLayer(layer.theta[:2], layer.w[:2])
        for size in (0.01, 0.02):
            noise.append(fitted(posed(layer, x, noise=size), layer).select_error)
        structure.append(fitted(posed(layer, x), lacking).select_error)
        hidden = np.tanh(x @ normal(seed + 1, 8, 16)) @ normal(seed + 2, 16, 8)
        twice = AttentionLayer.random(2, 8, seed=seed + 9)(layer(x))
        rounded = np.tanh(layer(x))
        for y in (hidden, twice, rounded):
            problem = Problem(as_examples(x, y), Split.make(len(x)))
            structure.append(fitted(problem, layer).select_error)
        tenth = layer.replace(w=layer.w * np.array([1, 1, 0.1])[:, None, None])
        small.append(fitted(posed(tenth, x), lacking).select_error)
    sides = (
        ("noise of 1 and 2 %", noise),
        ("a head missing, tanh of outputs, perceptron, two layers", structure),
    )
    cut("MISFIT", "select error", *sides)
    show("MISFIT", f"a head of a tenth missing: {span(small)}", "recovery")


def coincide() -> None:
    """Two heads so far apart, from exact float32 outputs and beside noise of 0.1 %: the distance at the end over the true one."""
    said = []
    for apart in (0.01, 0.03, 0.1, 0.3):
        ends: dict[float, list[float]] = {0.0: [], 1e-3: []}
        for seed in SEEDS[:3]:
            one = AttentionLayer.random(1, 8, seed=seed)
            away = normal(seed + 5, *one.theta.shape)
            away *= apart * np.linalg.norm(one.theta) / np.linalg.norm(away)
            w = AttentionLayer.random(2, 8, seed=seed).w
            layer = AttentionLayer(np.concatenate([one.theta, one.theta + away]), w).astype(np.float32)
            for noise, kept in ends.items():
                problem = posed(layer, normal(seed, 2_000, 5, 8).astype(np.float32), noise)
                found = fitted(problem, AttentionLayer.random(2, 8, seed=seed + 7))
                kept.append(head_separation(found.layer) / head_separation(layer))
        said.append(f"{apart:g} apart: {span(ends[0.0])} exact, {span(ends[1e-3])} beside noise")
    show("NEAR_HEADS", f"distance of two heads over the true one: {'; '.join(said)}", "recovery")


def main() -> None:
    for each in (duplicates, margins, noticed, misfits, coincide):
        each()


if __name__ == "__main__":
    main()
