"""Refine against L-BFGS: time and error from perturbed truths, on random and real layers.

Every Theta_i, c_i and W_i is moved by a fraction of its own norm; both sides get the same start, examples, precision
and threads, compilation counted. L-BFGS (scipy, float64, gradients by JAX on the same parameters, its W and b set
to their best values first) runs until it reaches the same error or has spent `patience` times refine's time: then
the ratio is a lower bound and `lbfgs_reached` is false.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, distance, load
from attnlearn._precision import precision
from attnlearn.solve._regress import regress
from attnlearn.solve.refinement import RefineConfig, refine

LAYERS = Path(__file__).parents[1] / "tests" / "layers"
TARGET = 1e-9
PATIENCE = 4.0

D32 = {"layer": "random", "dim": 32, "heads": 8, "rank": 4}
D128 = {"layer": "random", "dim": 128, "heads": 8, "rank": 16}
REAL = (
    {"layer": "sapiens-vh-layer0", "heads": 8, "rank": 16},
    {"layer": "sapiens-vh-layer3", "heads": 8, "rank": 16},
    {"layer": "rxnmapper-layer", "heads": 8, "rank": 32},
)


def cases(tier: str) -> list[dict[str, Any]]:
    """The problems of a tier; every one holds its own seed."""
    base = {"tokens": "gaussian", "k": 8, "perturbation": 0.2, "causal": False, "rival": False, "seed": 0}
    quick = [base | D32 | {"rival": True}, base | D32 | {"whole": True}]
    bench = [base | D128 | {"rival": True}]
    bench += [base | layer | {"perturbation": size} for layer in REAL for size in (0.2, 0.4)]
    bench += [
        base | D128 | change for change in ({"tokens": "boolean"}, {"causal": True}, {"k": 3}, {"k": 32})
    ]
    bench += [base | D128 | {"tokens": "skewed"}]
    if tier == "quick":
        return quick
    seeds = range(3) if tier == "full" else range(1)
    return [case | {"seed": seed} for seed in seeds for case in quick + bench]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Refine one perturbed layer, and L-BFGS beside it if the case asks for it."""
    layer, start, x = problem(case)
    y = layer(x)
    rank = None if case.get("whole") else case["rank"]
    began = time.perf_counter()
    # Beside the rival both stop at the same error; alone refine goes down to rounding.
    config = RefineConfig(tolerance=TARGET / 10 if case["rival"] else 0.0)
    found = refine(start, x, y, rank=rank, config=config)
    seconds = time.perf_counter() - began
    apart = distance(found.layer, layer)
    result = {
        "seconds": seconds,
        "stop": found.stop,
        "residual": found.residual,
        "theta_error": apart.theta,
        "w_error": apart.w,
        "start_error": distance(start, layer).theta,
        "outer_steps": len(found.steps),
        "inner_steps": sum(step["inner"] for step in found.steps),
        "examples": found.examples,
    }
    if case["rival"]:
        result |= rival(start, layer, x[: found.examples], y[: found.examples], rank, PATIENCE * seconds)
        result["ratio"] = result["lbfgs_seconds"] / seconds
    result["ok"] = bool(max(apart.theta, apart.w) <= TARGET)
    return result


def problem(case: dict[str, Any]) -> tuple[AttentionLayer, AttentionLayer, np.ndarray]:
    """The true layer, the perturbed start, and tokens for about eight equations per unknown."""
    rng = np.random.default_rng([case["seed"], 0xBE])
    if case["layer"] == "random":
        layer = AttentionLayer.random(case["heads"], case["dim"], rank=case["rank"], seed=case["seed"])
    else:
        layer = load(LAYERS / f"{case['layer']}.safetensors", num_heads=case["heads"]).astype(np.float64)
        # Stored in float32, the products are of their rank only to 1e-8, which would be the floor of the fit.
        layer = layer.replace(theta=layer.form.of_rank(case["rank"]).theta())
    layer = layer.replace(causal=case["causal"])
    m, d, k = layer.num_heads, layer.dim, case["k"]
    # Twice what refine starts with, so that it has fresh examples to check itself on.
    n = 2 * int(np.ceil(8 * m * (d + 1) / k)) if case.get("whole") else 2 * int(np.ceil(5.2 * m * d / k))
    x = rng.standard_normal((max(n, 2 * 2048 // k), k, d))
    if case["tokens"] == "boolean":
        x = np.sign(x)
    elif case["tokens"] == "skewed":
        # Covariance with condition number 1e3 in a random basis, and a mean.
        basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
        scale = np.geomspace(1.0, 1e-3, d)
        x = x * np.sqrt(scale / scale.mean()) @ basis.T + 0.3 * rng.standard_normal(d)
    return layer, perturbed(layer, case["perturbation"], rng), x


def perturbed(layer: AttentionLayer, size: float, rng: np.random.Generator) -> AttentionLayer:
    """Every Theta_i, c_i and W_i moved by `size` of its own norm in a random direction."""

    def move(array: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal(array.shape)
        axes = tuple(range(1, array.ndim))
        return array + size * noise * (
            np.linalg.norm(array, axis=axes, keepdims=True) / np.linalg.norm(noise, axis=axes, keepdims=True)
        )

    return layer.replace(theta=move(layer.theta), query_bias=move(layer.query_bias), w=move(layer.w))


class _Enough(Exception):
    """L-BFGS has reached the error or spent its time."""


def rival(
    start: AttentionLayer, layer: AttentionLayer, x: np.ndarray, y: np.ndarray, rank: int | None, limit: float
) -> dict[str, Any]:
    """scipy's L-BFGS on the same factors, W and b, until `TARGET` or `limit` seconds."""
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree
    from scipy.optimize import minimize

    from attnlearn._attention import Parameters
    from attnlearn._forward import attention_forward

    began = time.perf_counter()
    scores = start.form.of_rank(rank)
    w, b, _ = regress(scores.theta(), start.query_bias, x, y, causal=layer.causal)
    with precision(np.float64):
        first, restore = ravel_pytree(jax.tree.map(jnp.asarray, (scores, w, b)))

        def unpack(vector):
            scores, w, b = restore(vector)
            theta = scores.a if scores.b is None else scores.a @ jnp.swapaxes(scores.b, 1, 2)
            return Parameters(theta, w, scores.c, b)

        def loss(vector):
            rest = attention_forward(unpack(vector), jnp.asarray(x), layer.causal) - y
            return jnp.sum(rest**2) / np.sum(y**2)

        value_and_gradient = jax.jit(jax.value_and_grad(loss))
        best = {"error": np.inf, "evaluations": 0}

        def objective(vector):
            best["evaluations"] += 1
            value, gradient = value_and_gradient(vector)
            return float(value), np.asarray(gradient)

        def watch(vector):
            theta = np.asarray(unpack(vector).theta)
            size = np.linalg.norm(layer.theta, axis=(1, 2))
            best["error"] = float(np.max(np.linalg.norm(theta - layer.theta, axis=(1, 2)) / size))
            if best["error"] <= TARGET or time.perf_counter() - began > limit:
                raise _Enough

        options = {"maxiter": 10**6, "maxfun": 10**7, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
        with contextlib.suppress(_Enough):
            minimize(
                objective, np.asarray(first), jac=True, method="L-BFGS-B", callback=watch, options=options
            )
    return {
        "lbfgs_seconds": time.perf_counter() - began,
        "lbfgs_error": best["error"],
        "lbfgs_evaluations": best["evaluations"],
        "lbfgs_reached": best["error"] <= TARGET,
    }
