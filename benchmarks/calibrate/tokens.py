"""What free tokens and related ones show: variances, keys, copies, values, and how much of an eigenvalue is guaranteed."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np

from attnlearn import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._sequences import find_relatives
from attnlearn.solve._tokens import Unexplained, unexplained
from attnlearn.solve._white import whitening
from attnlearn.solve.certification._conditioning import smallest_singular
from attnlearn.solve.certification._position import _spread
from attnlearn.solve.certification._rivals import Batch, second_opinion
from attnlearn.solve.refinement import RefineConfig, refine
from benchmarks.calibrate import cut, show, span

COVERS = (
    "SUPPORT_TOLERANCE", "CAUSAL", "LEAST_KEYS", "NO_VARIANCE", "ROUNDING_EPS", "COPY_CHANCE", "FAR_MORE",
    "ENOUGH_SHARE", "NEARLY_ALL", "FEW",
)  # fmt: skip
SEEDS = range(4)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def white(x: np.ndarray) -> np.ndarray:
    return whitening(x, None).tokens(x)


def keys() -> None:
    """Layers with the same outputs, by the number of keys."""
    found = {}
    for number in (2, 3):
        layers = [AttentionLayer.random(1, 4, seed=seed) for seed in SEEDS]
        tokens = [normal(seed, 300, number, 4) for seed in SEEDS]
        opinions = [second_opinion(layer, Batch(x, layer(x))) for layer, x in zip(layers, tokens)]
        found[number] = sum(opinion.rival is not None for opinion in opinions)
    show("LEAST_KEYS", f"rivals of {len(SEEDS)} layers: {found[2]} with two keys, {found[3]} with three")


def variances() -> None:
    """The least variance of stacked tokens, white: free ones, and ones with a relation in either precision."""

    def least(x: np.ndarray) -> float:
        rows = white(x.astype(np.float64)).reshape(len(x), -1)[: 2 * x[0].size + 28]
        values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
        return float((values[-1] / values[0]) ** 2)

    free, tied, single = [], [], []
    for seed in SEEDS:
        x = normal(seed, 2_000, 5, 6)
        free.append(least(x))
        x[:, 4] = 0.5 * x[:, 0] - x[:, 1]
        tied.append(least(x))
        rounded = x.astype(np.float32)
        rounded[:, 4] = np.float32(0.5) * rounded[:, 0] - rounded[:, 1]
        single.append(least(rounded))
    show(
        "NO_VARIANCE",
        f"least variance: free {span(free)}, related {span(tied)} in float64, {span(single)} in float32",
    )
    left = []
    for seed in SEEDS:
        a, b = normal(seed, 24, 4), normal(seed + 9, 24, 4)
        values = np.linalg.svd(a @ b.T, compute_uv=False)
        left.append(float(values[4] / values[0] / np.finfo(float).eps))
    show("ROUNDING_EPS", f"singular values of products beyond their rank, in machine epsilons: {span(left)}")


def copies() -> None:
    """Relatives among independent sequences, and jittered copies that are found."""
    false = found = number = 0
    for seed in range(20):
        x = normal(seed, 1_200, 4, 6)
        false += int(find_relatives(x[:200], None, x[200:], None).copied.sum())
        jittered = x[:50] + 0.1 * normal(seed + 99, 50, 4, 6)
        found += int(
            find_relatives(x[:200], None, np.concatenate([x[200:], jittered]), None).copied[:50].sum()
        )
        number += 200
    show(
        "COPY_CHANCE",
        f"of {number} sequences {false} seem copied; of {number // 4} copies with 10 % jitter {found} are found",
    )


def shares() -> None:
    """Residuals on fresh examples beside noise, guaranteed eigenvalues, different values, deficient ranks, position effects."""
    fresh, guaranteed, values, deficient, position = [], [], [], [], []
    for seed in SEEDS:
        layer, x = AttentionLayer.random(2, 6, seed=seed), normal(seed, 4_000, 5, 6)
        y = layer(x)
        noisy = y + 1e-2 * y.std() * normal(seed + 9, *y.shape)
        few = 40  # about four equations per unknown
        found = refine(layer, x[:few], noisy[:few], config=RefineConfig(average=False)).layer
        errors = [
            np.sqrt(np.mean((found(x[side]) - noisy[side]) ** 2)) for side in (slice(few), slice(few, None))
        ]
        fresh.append(errors[1] / errors[0])
        bound = smallest_singular(layer, x)
        guaranteed.append(bound.guaranteed / bound.eigenvalue)
        numbers = normal(seed, 20_000).astype(np.float32)
        values.append(len(np.unique(numbers)) / len(numbers))
        deficient.append(_spread(white(x))[1])
        shift = {cause.name: cause.evidence for cause in diagnose(x, y).causes}
        position.append(calibration.FEW * shift["position"])
    show("FAR_MORE", f"residual on fresh examples over that on {few}, beside noise: {span(fresh)}")
    show("ENOUGH_SHARE", f"guaranteed over estimated eigenvalues: {span(guaranteed)}")
    show("NEARLY_ALL", f"share of different values among 20,000 normal float32 numbers: {span(values)}")
    show(
        "FEW",
        f"sequences of deficient rank {span(deficient)}, influence that depends on position {span(position)}",
    )


def supports() -> None:
    """Variances, relative to the largest: of directions that do not exist, and of the smallest one that does."""
    rounding = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
    smallest = {"bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-6}
    for name, dtype in rounding.items():
        empty, there = [], []
        for seed in SEEDS:
            turn = np.linalg.qr(normal(seed, 16, 16))[0]
            for size, kept in ((0.0, empty), (smallest[name], there)):
                x = normal(seed + 9, 1_000, 4, 16)
                x[..., -1] *= size
                x = (x @ turn).astype(dtype).astype(np.float32 if name == "bfloat16" else dtype)
                spectrum = np.linalg.eigvalsh(np.cov(x.reshape(-1, 16).astype(np.float64), rowvar=False))
                kept.append(float(abs(spectrum[0]) / spectrum[-1]))
        sides = ("none", empty), (f"a direction of {smallest[name]:g}", there)
        cut("SUPPORT_TOLERANCE", "least variance over the largest", *sides, key=name, package="solve")


def causality() -> None:
    """Shares of the first and of the last row that its own token leaves."""
    left: dict[bool, list[Unexplained]] = {True: [], False: []}
    for seed in SEEDS:
        for causal, noise, tokens in product((True, False), (0.0, 3e-3), (3, 8)):
            x = normal(seed, 400, tokens, 12)
            y = AttentionLayer.random(2, 12, seed=seed, causal=causal)(x)
            left[causal].append(unexplained(x, y + noise * y.std() * normal(seed + 9, *y.shape), None))
    first = {causal: [found.first for found in each] for causal, each in left.items()}
    sides = ("causal, noise up to 0.3 %", first[True]), ("not causal", first[False])
    cut("CAUSAL", "share of the first row", *sides, package="solve")
    last = span([found.last for found in left[True]])
    right = [found.causal == causal for causal, each in left.items() for found in each]
    show(
        "CAUSAL",
        f"last rows of causal layers {last}, to exceed {calibration.CAUSAL**0.5:g}; "
        f"{sum(right)} of {len(right)} layers judged rightly",
    )


def main() -> None:
    for measure in (supports, causality, keys, variances, copies, shares):
        measure()


if __name__ == "__main__":
    main()
