"""Smaller layers: error on fresh examples beside what people publish, for fewer heads, narrower heads and shared keys and values.

All sides get the same tokens; errors are relative to the spread of the source's outputs about their mean, on examples
that nobody fitted. `ratio` compares ours with each rival at the same size. Fewer heads are compared with pruning by importance; narrower heads
and shared keys and values with closed forms, written again from their formulas, and with Adam from the best of them (`rivals/`).

For fewer heads, `bound_on_ratio` is what any layer with so many heads can reach against dropping when attention is taken to first order in its
scores: the tail of the singular values of sum_i vec(Theta_i) vec(W_i)^T in white coordinates over the tail that the best drop leaves. It
explains ratios near one: heads that are nearly orthogonal cannot be merged. `least_error`, on Gaussian tokens, is below the error of
every layer with so many heads.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, CompressConfig, compress, load
from attnlearn.compression._shape import Shape
from attnlearn.solve._white import whitening
from benchmarks.least_error import least_error
from benchmarks.recover import tokens
from benchmarks.rivals.pruning import prune

LAYERS = Path(__file__).parents[1] / "tests" / "layers"
FRESH = 2_000
WANTED = {
    "drop": 0.4,
    "drop, full refit": 0.8,
    "clover": 0.9,
    "whitened": 0.9,
    "mean pooling": 0.75,
    "procrustes": 0.75,
    "adam": 1.0,
}
REAL = {"layer": "sapiens-vh-layer0", "heads": 4, "k": 8, "num": 8_000, "head_dim": None, "down_to": 1}
SHAPED = REAL | {"heads": 8, "num": 8_000}
SMALL = {"layer": "random", "heads": 2, "k": 6, "num": 4_000, "head_dim": None, "down_to": 1}


def cases(tier: str) -> list[dict[str, Any]]:
    """The cases of a tier; every one holds its own seed."""
    small = [SMALL | {"layer": name} for name in ("random", "duplicated", "zero head")]
    rows = [row | {"tokens": "gaussian", "seed": 0} for row in small]
    if tier == "quick":
        return rows
    kinds = ("gaussian", "normalized correlated")
    real = [REAL | {"tokens": kind} for kind in kinds]
    real += [REAL | {"tokens": kind, "head_dim": 32, "down_to": 4} for kind in kinds]
    real += [SHAPED | {"tokens": kind, "head_dim": 8} for kind in kinds]
    real += [SHAPED | {"tokens": kind, "kv_heads": 4} for kind in kinds]
    if tier == "full":
        real += [REAL | {"tokens": "gaussian", "layer": "sapiens-vh-layer3", "down_to": 4}]
        layers = ("sapiens-vh-layer0", "sapiens-vh-layer3")
        sizes = [{"head_dim": width} for width in (12, 4)] + [{"kv_heads": number} for number in (2, 1)]
        real += [
            SHAPED | {"tokens": kind, "layer": one, **size}
            for one in layers
            for size in sizes
            for kind in kinds
        ]
    seeds = range(3) if tier == "full" else range(1)
    return rows + [row | {"seed": seed} for seed in seeds for row in real]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Compress one layer, its rivals beside, and compare on fresh examples."""
    layer = source(case)
    x = tokens(case, layer.dim, case["num"], np.random.default_rng([case["seed"], 1])).astype(layer.dtype)
    fresh = tokens(case, layer.dim, FRESH, np.random.default_rng([case["seed"], 2])).astype(layer.dtype)
    began, used = time.perf_counter(), time.process_time()
    config = CompressConfig(num_examples=case["num"], down_to=min(case["down_to"], case["heads"]))
    sizes = {"num_heads": case["heads"], "head_dim": case["head_dim"], "kv_heads": case.get("kv_heads")}
    solution = compress(layer, x, **sizes, config=config, seed=case["seed"], raise_on_failure=False)
    result: dict[str, Any] = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "exact": solution.stats["exact"],
        "curve": solution.stats["curve"],
        "monotone": bool(np.all(np.diff([row["error"] for row in solution.stats["curve"]]) >= 0)),
        "claimed": solution.certificate.claim("C1").value["error"],
        "error": relative_error(solution.layer, layer, fresh),
    }
    result |= (
        _beside_shapes(case, layer, x, fresh) if is_shaped(case) else _beside_heads(case, layer, x, fresh)
    )
    result["ratio"] = {name: result["error"] / max(value, 1e-300) for name, value in result["rivals"].items()}
    result["reached"] = {
        name: bool(result["ratio"][name] <= most) for name, most in WANTED.items() if name in result["ratio"]
    }
    return result


def is_shaped(case: dict[str, Any]) -> bool:
    """Whether heads stay as many and become narrower, or share."""
    return case["heads"] == SHAPED["heads"] and case["layer"] != "random"


def _beside_heads(
    case: dict[str, Any], layer: AttentionLayer, x: np.ndarray, fresh: np.ndarray
) -> dict[str, Any]:
    """Pruning, and what stands against any layer with so many heads."""
    found: dict[str, Any] = {"bound_on_ratio": first_order_bound(layer, x, case["heads"])}
    if case["tokens"] == "gaussian":
        found["least_error"] = least_error(layer, case["k"], case["heads"])
    pruned = prune(layer, x, case["heads"])
    return found | {"rivals": {name: relative_error(one, layer, fresh) for name, one in pruned.items()}}


def _beside_shapes(
    case: dict[str, Any], layer: AttentionLayer, x: np.ndarray, fresh: np.ndarray
) -> dict[str, Any]:
    """Closed forms, and Adam from the one that ours starts from."""
    from benchmarks.rivals.adam_factors import train_factors
    from benchmarks.rivals.closed_forms import narrowed, own_weights, pooled

    own = own_weights(LAYERS / f"{case['layer']}.safetensors", layer.num_heads)
    shape = Shape(
        layer.num_heads, case["head_dim"] or own.wq.shape[2], case.get("kv_heads") or layer.num_heads
    )
    shared = shape.kv_heads < layer.num_heads
    rivals = pooled(own, shape.kv_heads, layer.dtype) if shared else narrowed(layer, x, shape.head_dim)
    errors = {name: relative_error(one, layer, fresh) for name, one in rivals.items()}
    trained = train_factors(layer, x, shape, case["seed"])
    errors["adam"] = relative_error(trained.layer, layer, fresh)
    return {"rivals": errors, "adam": {"cpu_seconds": trained.seconds, "rate": trained.rate}}


def source(case: dict[str, Any]) -> AttentionLayer:
    """The layer to compress."""
    if case["layer"] not in ("random", "duplicated", "zero head"):
        return load(LAYERS / f"{case['layer']}.safetensors")
    layer = AttentionLayer.random(4, 8, rank=4, bias=True, seed=case["seed"])
    theta, w, c = layer.theta.copy(), layer.w.copy(), layer.query_bias.copy()
    if case["layer"] == "duplicated":
        theta[2:], c[2:] = theta[:2], c[:2]
    if case["layer"] == "zero head":
        w[2:] = 0
    return layer.replace(theta=theta, w=w, query_bias=c)


def relative_error(found: AttentionLayer, layer: AttentionLayer, x: np.ndarray) -> float:
    """‖F_found - F‖ over the spread of F about its mean."""
    truth = layer(x).astype(np.float64)
    return float(np.linalg.norm(found(x) - truth) / np.linalg.norm(truth - truth.mean(axis=(0, 1))))


def first_order_bound(layer: AttentionLayer, x: np.ndarray, heads: int) -> float:
    """Tail of the singular values over the tail of the largest terms, both to first order in the scores."""
    inside = whitening(x, None).enter(layer.parameters)
    left = np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(layer.num_heads, -1)
    right = inside.w.reshape(layer.num_heads, -1)
    left, right = (np.linalg.qr(side.T)[1] for side in (left, right))
    values = np.linalg.svd(left @ right.T, compute_uv=False)
    terms = np.sort(np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0))[::-1]
    return float(np.linalg.norm(values[heads:]) / max(np.linalg.norm(terms[heads:]), 1e-300))


def summary(lines: list[dict[str, Any]]) -> str:
    """One row per case: our error, each rival's, the ratios."""
    rows = []
    for line in lines:
        case, result = line["case"], line["result"]
        rivals = ", ".join(f"{name} {error:.3g}" for name, error in result["rivals"].items())
        rows.append(
            f"{case['layer']}, {case['tokens']}, {case['heads']} heads, width {case['head_dim']}, "
            f"keys and values {case.get('kv_heads')}: "
            f"{result['error']:.3g} ({rivals}) in {result['seconds']:.0f} s"
        )
    return "\n".join(rows)
