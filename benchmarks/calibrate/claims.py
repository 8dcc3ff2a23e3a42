"""What guards the claims: rounding of right and wrong answers, distances of heads, true errors beside their bounds."""

from __future__ import annotations

import time

import numpy as np

from attnlearn import AttentionLayer, distance
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._sequences import evidence_wanted
from attnlearn.solve._split import Split
from attnlearn.solve.certification._conditioning import smallest_singular
from attnlearn.solve.certification._parameters import parameter_bounds
from attnlearn.solve.refinement import RefineConfig, refine
from benchmarks.calibrate import show, span

COVERS = (
    "FEWEST_UNITS", "CERTIFY_FRACTION", "SELECT_FRACTION", "DELTA", "UNCOVERED", "SMALL_ERROR", "ROUNDING_SLACK", "EXACT",
    "STANDS_OUT", "APART_LEAST", "PARAMETER_SAFETY", "PARAMETER_ERROR", "WHOLE_ROWS",
)  # fmt: skip
SEEDS = range(4)


def made(seed: int, dtype=np.float64, heads: int = 2, dim: int = 8, number: int = 1500):
    """A layer and tokens."""
    layer = AttentionLayer.random(heads, dim, seed=seed).astype(dtype)
    return layer, np.random.default_rng(seed).standard_normal((number, 5, dim)).astype(dtype)


def near(layer: AttentionLayer, seed: int, size: float = 0.05) -> AttentionLayer:
    """A start near a layer."""
    away = np.random.default_rng([seed, 1]).standard_normal(layer.theta.shape)
    return layer.replace(theta=(layer.theta + size * np.abs(layer.theta).mean() * away).astype(layer.dtype))


def split_sizes() -> None:
    least = next(num for num in range(20, 500) if len(Split.make(num).certify) >= evidence_wanted())
    show(
        "DELTA",
        f"C1 needs {evidence_wanted()} independent sequences that agree to speak of `UNCOVERED` of the inputs",
    )
    share = float(np.log(1 / calibration.DELTA) / calibration.SIDE_MOST)
    show("UNCOVERED", f"the largest certify side leaves {100 * share:.2f} % of the inputs uncovered")
    show("CERTIFY_FRACTION", f"a certificate is possible from {least} sequences on")
    sides = Split.make(calibration.FEWEST_UNITS)
    show(
        "FEWEST_UNITS",
        f"sides of {len(sides.fit)}, {len(sides.select)} and {len(sides.certify)}: C1 is out of reach",
    )
    ratios = []
    for seed in SEEDS:
        layer, x = made(seed)
        y = layer(x)
        y += 1e-2 * y.std() * np.random.default_rng([seed, 2]).standard_normal(y.shape)
        chosen = Split.make(len(x), seed=seed).select
        errors = [np.sqrt(np.mean((layer(x[side]) - y[side]) ** 2)) for side in (chosen, slice(None))]
        ratios.append(errors[0] / errors[1])
    show("SELECT_FRACTION", f"150 select sequences of 1,500 show the noise to {span(ratios)} of its size")


def rounding() -> None:
    """Worst certify errors of right answers and of answers without a head."""
    right, missing, exact, left, small = [], [], [], [], []
    for seed in SEEDS:
        for dtype, tiny in ((np.float32, 1e-6), (np.float64, 1e-12)):
            layer, x = made(seed, dtype)
            truth = layer.replace(w=np.stack([layer.w[0], (tiny * layer.w[1]).astype(dtype)]))
            alone = AttentionLayer(truth.theta[:1], truth.w[:1], truth.query_bias[:1], truth.output_bias)
            held, lacking = Batch(x, layer(x)), Batch(x, truth(x))
            scale = example_scale(held)
            found = refine(near(layer, seed), x, held.y).layer
            error, without = (unit_errors(*pair, scale).max() for pair in ((found, held), (alone, lacking)))
            if dtype == np.float32:
                right.append(error / rounding_floor(found, held, scale))
                missing.append(without / rounding_floor(alone, lacking, example_scale(lacking)))
            else:
                exact.append(error)
                left.append(without)
                norms = np.linalg.norm(held.y, axis=(1, 2)) / scale
                small.append(float(norms.min()))
    show(
        "ROUNDING_SLACK",
        f"float32, errors over rounding: right {span(right)}, a head of 1e-6 missing {span(missing)}",
    )
    show("EXACT", f"float64 errors: right {span(exact)}, a head of 1e-12 missing {span(left)}")
    show("SMALL_ERROR", f"smallest outputs of 1,500, relative to the typical one: {span(small)}")


def distances() -> None:
    """One head in the place of two, and two exact fits of one head."""
    powers, agree = [], []
    for seed in SEEDS:
        layer, x = made(seed, heads=1)
        for apart in (1e-2, 1e-3):
            away = np.random.default_rng([seed, 3]).standard_normal(layer.theta.shape)
            away *= apart * np.linalg.norm(layer.theta) / np.linalg.norm(away)
            two = AttentionLayer(
                np.concatenate([layer.theta, layer.theta + away]), np.concatenate([layer.w, layer.w]) / 2
            )
            y = two(x)
            one = refine(layer, x, y, config=RefineConfig(lower=False)).layer
            held = Batch(x, y)
            powers.append(unit_errors(one, held, example_scale(held)).max() / apart**2)
        fits = [refine(near(layer, start), x, layer(x)).layer for start in (1, 2)]
        agree.append(distance(*fits).max)
    show("STANDS_OUT", f"one head in the place of two leaves {span(powers)} of the squared distance")
    limit = exactness_limit(np.finfo(float).eps, np.dtype(float))
    show(
        "APART_LEAST", f"exact fits of one head agree to {span(agree)}; exact errors resolve {limit**0.5:.1g}"
    )


def bounds() -> None:
    """True errors of parameters over their bounds, at noise far above rounding."""
    ratios, biases, single, prices = [], [], [], []
    for seed in SEEDS:
        layer, x = made(seed)
        y = layer(x) + 1e-6 * np.random.default_rng([seed, 4]).standard_normal(x.shape)
        found = refine(layer, x, y).layer
        clean = Batch(x, layer(x))
        scale = example_scale(clean)
        error = float(unit_errors(found, clean, scale).max())
        made_bound = parameter_bounds(
            found, clean, error=error, scale=scale, support=None, rank=None, on_step=None
        )
        off = distance(found, layer)
        ratios.append(max(off.theta, off.w) / made_bound.worst * calibration.PARAMETER_SAFETY)
        own = max(off.query_bias, off.output_bias)
        biases.append(own / made_bound.biases.max() * calibration.PARAMETER_SAFETY)
        rough = layer.astype(np.float32)
        held = Batch(x.astype(np.float32), rough(x.astype(np.float32)))
        floor = rounding_floor(rough, held, scale)
        bound = parameter_bounds(rough, held, error=floor, scale=scale, support=None, rank=None, on_step=None)
        single.append(bound.worst)
        low = AttentionLayer.random(4, 16, rank=8, seed=seed)
        tokens = np.random.default_rng(seed).standard_normal((4_000, 6, 16))
        times = []
        for rank in (None, 8):
            began = time.perf_counter()
            smallest_singular(low, tokens, rank=rank)
            times.append(time.perf_counter() - began)
        prices.append(times[0] / times[1])
    show(
        "PARAMETER_SAFETY",
        f"true errors over the bound without this factor: {span(ratios)}, of biases {span(biases)}",
    )
    show("PARAMETER_ERROR", f"bounds of right answers from float32 data: {span(single)}")
    show(
        "WHOLE_ROWS",
        f"d = 16, rank 8: the Jacobian of whole Theta takes {span(prices)} of the time of rank 8",
    )


def main() -> None:
    for measure in (split_sizes, rounding, distances, bounds):
        measure()


if __name__ == "__main__":
    main()
