"""Smaller layers: error on fresh examples beside what people publish, for fewer heads, narrower heads and shared keys and values.

All sides get the same tokens; errors are relative to the spread of the source's outputs about their mean, on examples
that nobody fitted. `ratio` compares ours with each rival at the same size. Fewer heads are compared with pruning by importance; narrower heads
and shared keys and values with closed forms, written again from their formulas (`rivals/`). Adam, from the best of them, is a side of its own: a case for each
of its three rates, on the same tokens; the run that is best on 800 of its examples counts.

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
from attnlearn.solve._rank import largest_rank
from attnlearn.solve._white import whitening
from benchmarks.least_error import least_error
from benchmarks.recover import tokens
from benchmarks.rivals.pruning import prune

LAYERS = Path(__file__).parents[1] / "tests" / "layers"
FRESH = 2_000
WANTED = {
    "drop": 0.4,
    "drop, full refit": 1.0,
    "clover": 0.9,
    "whitened": 0.9,
    "mean pooling": 0.75,
    "procrustes": 0.75,
}
"""Most that our error may be of a rival's."""
REAL = {"k": 8, "num": 8_000, "heads": 8, "head_dim": None, "kv_heads": None, "down_to": 8}
MORE = 16_000
"""Sequences in the rows of half the width once more: what is lost there on 8,000 is mostly that they are few."""
SIDES = ("ours", *(f"adam, rate {rate:g}" for rate in (3e-3, 1e-3, 1e-2)))
SMALL = {"layer": "random", "heads": 2, "k": 6, "num": 4_000, "head_dim": None, "down_to": 1}
WIDTHS = {"sapiens-vh-layer0": (8, 12, 4), "sapiens-vh-layer3": (8, 12, 4), "rxnmapper-layer": (16, 24, 8)}
EXACT = ("duplicated", "zero head", "shared keys", "narrow", "one latent")
"""Layers that have a smaller shape already: it must be found, and be exact."""


def cases(tier: str) -> list[dict[str, Any]]:
    """The cases of a tier; every one holds its own seed."""
    rows = [SMALL | {"layer": name, "tokens": "gaussian", "seed": 0} for name in ("random", *EXACT)]
    if tier == "quick":
        return rows
    kinds = ("gaussian", "normalized correlated")
    sizes: list[dict[str, int]] = [{"kv_heads": 4}, {"kv_heads": 2}, {"kv_heads": 1}]
    sizes += [{"heads": heads, "down_to": heads} for heads in (4, 6, 2)]
    layers = list(WIDTHS) if tier == "full" else ["sapiens-vh-layer0"]
    for layer in layers:
        half, *widths = ({"head_dim": width} for width in WIDTHS[layer])
        rows += [
            REAL | {"layer": layer, **size, "tokens": kind, "seed": 0, "side": side}
            for size in (half, half | {"num": MORE}, *widths, *(sizes if layer.startswith("sapiens") else ()))
            for kind in kinds
            for side in (SIDES if tier == "full" else SIDES[:1])
        ]
    return rows


ASKED = {"num_heads": "heads", "head_dim": "head_dim", "kv_heads": "kv_heads"}
"""Keywords of `compress` by their names in a case."""
SHAPES: dict[str, dict[str, int]] = {
    name: {"kv_floats": 12} for name in ("shared keys", "narrow", "one latent")
}
"""What is asked for of a layer that keeps 8, 8 or 5 floats; the kind of shape is not said."""
SPANS = {"shared keys": (2, 2), "narrow": (4, 1), "one latent": (1, 5)}
"""How many spans of keys and values these layers have, and of how many directions."""


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Compress one layer, its rivals beside, and compare on fresh examples."""
    layer = source(case)
    x = tokens(case, layer.dim, case["num"], np.random.default_rng([case["seed"], 1])).astype(layer.dtype)
    fresh = tokens(case, layer.dim, FRESH, np.random.default_rng([case["seed"], 2])).astype(layer.dtype)
    if case.get("side", "ours") != "ours":
        return _adam(case, layer, x, fresh)
    began, used = time.perf_counter(), time.process_time()
    config = CompressConfig(num_examples=case["num"], down_to=min(case["down_to"], case["heads"]))
    sizes = SHAPES.get(case["layer"]) or {name: case.get(key) for name, key in ASKED.items()}
    solution = compress(layer, x, **sizes, config=config, seed=case["seed"], raise_on_failure=False)
    result: dict[str, Any] = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "exact": solution.stats["exact"],
        "shape": solution.stats["shape"],
        "curve": solution.stats["curve"],
        "monotone": bool(np.all(np.diff([row["error"] for row in solution.stats["curve"]]) >= 0)),
        "claimed": solution.certificate.claim("C1").value["error"],
        "error": relative_error(solution.layer, layer, fresh),
    }
    beside = _beside_shapes if is_shaped(case) else _beside_heads
    result |= {"rivals": {}} if case["layer"] in EXACT else beside(case, layer, x, fresh)
    result["ratio"] = {name: result["error"] / max(value, 1e-300) for name, value in result["rivals"].items()}
    result["reached"] = {
        name: bool(result["ratio"][name] <= most) for name, most in WANTED.items() if name in result["ratio"]
    }
    return result


def is_shaped(case: dict[str, Any]) -> bool:
    """Whether heads stay as many and become narrower, or share."""
    return case["heads"] == REAL["heads"]


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
    """Closed forms."""
    from benchmarks.rivals.closed_forms import narrowed, own_weights, pooled

    if case["kv_heads"]:
        own = own_weights(LAYERS / f"{case['layer']}.safetensors", layer.num_heads)
        rivals = pooled(own, case["kv_heads"], layer.dtype)
    else:
        rivals = narrowed(layer, x, case["head_dim"])
    return {"rivals": {name: relative_error(one, layer, fresh) for name, one in rivals.items()}}


def _adam(case: dict[str, Any], layer: AttentionLayer, x: np.ndarray, fresh: np.ndarray) -> dict[str, Any]:
    """One run of Adam."""
    from benchmarks.rivals.adam_factors import train_factors, train_heads

    rates = (float(case["side"].split()[-1]),)
    if is_shaped(case):
        width = case["head_dim"] or largest_rank(layer.w)
        shape = Shape(layer.num_heads, width, case["kv_heads"] or layer.num_heads)
        trained = train_factors(layer, x, shape, case["seed"], rates)
    else:
        start = prune(layer, x, case["heads"])["drop, full refit"]
        trained = train_heads(layer, x, start, case["seed"], rates)
    error = relative_error(trained.layer, layer, fresh)
    return {"error": error, "judged": trained.judged, "cpu_seconds": trained.seconds}


def source(case: dict[str, Any]) -> AttentionLayer:
    """The layer to compress."""
    if case["layer"] in WIDTHS:
        return load(LAYERS / f"{case['layer']}.safetensors")
    if case["layer"] in SPANS:
        return _spanned(*SPANS[case["layer"]], case["layer"] == "one latent", case["seed"])
    layer = AttentionLayer.random(4, 8, rank=4, bias=True, seed=case["seed"])
    theta, w, c = layer.theta.copy(), layer.w.copy(), layer.query_bias.copy()
    if case["layer"] == "duplicated":
        theta[2:], c[2:] = theta[:2], c[:2]
    if case["layer"] == "zero head":
        w[2:] = 0
    return layer.replace(theta=theta, w=w, query_bias=c)


def _spanned(number: int, width: int, common: bool, seed: int) -> AttentionLayer:
    """Four heads whose keys, and whose values, are in so many spans of that width; with `common` in the same ones."""
    layer = AttentionLayer.random(4, 16, rank=4, bias=True, seed=seed)
    basis = np.random.default_rng([seed, 7]).standard_normal((1 if common else 2, number, layer.dim, width))
    parts = [(q @ q.swapaxes(1, 2))[np.arange(4) % number] for q in np.linalg.qr(basis)[0]]
    key, value = parts[0], parts[-1]
    c = np.einsum("mab,mb->ma", key, layer.query_bias)
    return layer.replace(theta=layer.theta @ key, w=value @ layer.w, query_bias=c)


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
    """One row per case: our error and each rival's, or that of a run of Adam."""
    rows = []
    for line in lines:
        case, result = line["case"], line["result"]
        rivals = ", ".join(f"{name} {error:.3g}" for name, error in result.get("rivals", {}).items())
        rows.append(
            f"{case['layer']}, {case['tokens']}, {case['num']:,} sequences, {case['heads']} heads, width {case['head_dim']}, "
            f"keys and values {case.get('kv_heads')}, {case.get('side', 'ours')}: "
            f"{result['error']:.4g} ({rivals}) in {result['cpu_seconds']:.0f} CPU s"
        )
    return "\n".join(rows)
