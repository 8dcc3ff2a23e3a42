"""What a descent shows: equations and inner steps, digits won, floors, ranks, and rounding of Gram matrices."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._chunks import cut
from attnlearn.solve._linearize import linearize
from attnlearn.solve._precondition import precondition
from attnlearn.solve._regress import Columns, eliminate
from attnlearn.solve._step import gauss_newton_step
from attnlearn.solve.refinement import RefineConfig, refine
from benchmarks.calibrate import show, span
from benchmarks.calibrate.claims import near

COVERS = (
    "EQUATIONS_PER_UNKNOWN", "HALVED", "DIGIT", "ROUGH", "NEGLIGIBLE", "SOLVED", "RANK_BELOW", "RANK_OPEN", "FLOOR",
    "FLOOR_STALL", "RIDGE",
)  # fmt: skip
SEEDS = range(3)


def made(seed: int, heads: int = 4, dim: int = 16, rank: int | None = None, scale: float = 1.0):
    layer = AttentionLayer.random(heads, dim, rank=rank, scale=scale, seed=seed)
    return layer, np.random.default_rng(seed).standard_normal((3_000, 6, dim))


def equations() -> None:
    """Inner steps of one accurate solve by the number of sequences."""
    taken = []
    for factor in (1, 2, 4, 8):
        layer, x = made(0)
        scores = Bilinear(layer.theta, None, layer.query_bias)
        used = int(sequences_wanted(scores, 16, 6, False, equations=factor, least_rows=0))
        chunks = cut(x[:used].astype(np.float32), layer(x[:used]).astype(np.float32), None)
        moved = Bilinear(near(layer, 1).theta, None, layer.query_bias).astype(np.float32)
        fit = eliminate(moved, chunks, False)
        at = linearize(moved, fit.linear, fit.factor, chunks, False)
        norm = fit.cost**0.5
        step = gauss_newton_step(at, precondition(at), [part / norm for part in fit.rest], 1e-6, 1e-4, 400)
        taken.append(f"{step.inner} with {factor}")
    show("EQUATIONS_PER_UNKNOWN", f"inner steps to 1e-4 by equations per unknown: {', '.join(taken)}")


def descents() -> None:
    """Factors by which exact descents shrink the residual, digits of a float32 step, and what is left at the end."""
    factors, won, floors, stationary = [], [], [], []
    for seed in SEEDS:
        layer, x = made(seed)
        y = layer(x)
        found = refine(near(layer, seed, 0.3), x, y)
        residuals = [step["residual"] for step in found.steps if step["accepted"]]
        shrunk = np.array(residuals[1:]) / residuals[:-1]
        factors += shrunk.tolist()
        won.append(float(shrunk.min()))
        floors.append(found.residual / np.finfo(float).eps)
        noisy = y + 1e-2 * y.std() * np.random.default_rng([seed, 5]).standard_normal(y.shape)
        ended = refine(layer, x, noisy)
        last = [step["residual"] for step in ended.steps if step["accepted"] and step["examples"] == len(x)]
        stationary.append(abs(last[-1] / last[0] - 1))
    show("HALVED", f"factors of the residual in exact descents: {span(factors)}")
    show("DIGIT", f"the median step wins a factor of {np.median(factors):.2g}")
    show("SOLVED", f"the best step with float32 solves wins a factor of {span(won)}")
    show("FLOOR", f"residuals at the end, in machine epsilons: {span(floors)}")
    show("NEGLIGIBLE", f"what the last steps beside noise still win of the residual: {span(stationary)}")


def starts() -> None:
    """Outer steps by the first damping, and badly conditioned tokens."""
    steps = []
    for damping in (1.0, calibration.ROUGH, 1e-4):
        layer, x = made(1)
        found = refine(near(layer, 1, 0.3), x, layer(x), config=RefineConfig(damping=damping))
        steps.append(f"{len(found.steps)} from {damping:g}")
    show("ROUGH", f"outer steps by the first damping: {', '.join(steps)}")
    stalls = []
    for seed in SEEDS:
        layer, x = made(seed)
        skewed = x * np.geomspace(1, 1e-2, 16)
        found = refine(near(layer, seed), skewed, layer(skewed))
        stalls.append(found.residual / np.finfo(float).eps)
    show(
        "FLOOR_STALL",
        f"residuals at the end on badly conditioned tokens, in machine epsilons: {span(stalls)}",
    )


def ranks() -> None:
    """Singular values over the largest, per residual, when too large a rank is found out."""
    extra, true, seen = [], [], []
    for seed in SEEDS:
        layer, x = made(seed, heads=2, dim=10, rank=2, scale=3.0)
        y = layer(x)
        config = RefineConfig(max_steps=4, lower=False)
        found = refine(near(layer, seed), x, y, rank=4, config=config)
        values = np.linalg.svd(found.layer.theta, compute_uv=False)
        ratios = values / values[:, :1] / found.residual
        true += ratios[:, 1].tolist()
        extra += ratios[:, 2].tolist()
        y += calibration.RANK_BELOW / 3 * y.std() * np.random.default_rng([seed, 6]).standard_normal(y.shape)
        seen.append(refine(near(layer, seed), x, y, rank=4).rank)
    show("RANK_OPEN", f"singular values in residuals: beyond the rank {span(extra)}, within {span(true)}")
    show(
        "RANK_BELOW",
        f"rank 4 instead of 2 beside noise of a third of this: refine ends at {sorted(set(seen))}",
    )


def gram() -> None:
    """Rounding of Gram matrices."""
    errors = {}
    for dtype in (np.float32, np.float64):
        for seed in SEEDS:
            layer, x = made(seed)
            parts = []
            for kind in (dtype, np.longdouble if dtype == np.float64 else np.float64):
                chunks = cut(x[:600].astype(kind), np.zeros((600, 6, 1), kind), None)
                scores = Bilinear(layer.theta, None, layer.query_bias).astype(kind)
                parts.append(np.asarray(Columns(scores, chunks, False).gram()[0], np.longdouble))
            relative = np.abs(parts[0] - parts[1]).max() / np.abs(parts[1]).max()
            errors.setdefault(dtype.__name__, []).append(float(relative))
    show("RIDGE", "rounding of Gram matrices: " + ", ".join(f"{span(v)} in {k}" for k, v in errors.items()))


def main() -> None:
    for measure in (equations, descents, starts, ranks, gram):
        measure()


if __name__ == "__main__":
    main()
