"""Random problems by the hundred: how often a bound of training lies below what it bounds. It must be never.

*beta1*, *beta2*: gradient and Hessian of Phi, the latter by power iteration on differences of gradients; *loss gradient*: ‖grad L‖ <= beta1 L; *value*: |Phi| from the
norms of the read-out rows; *margin of the read-out*, *margin of the attention*: the mixture's proved margins at the first-step start, at a confidence of 95 % (the
unions are loose, so that none is expected to fail; one in twenty is allowed).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnlearn.data import TokenizedMixture
from attnlearn.reproduce._margins import attention_margin, attention_margin_bound, margin_bound
from attnlearn.train import bounds

PROBLEMS = 100
BLOCKS = {"quick": 1, "bench": 5, "full": 5}
STEP, POWERS = 1e-5, 12


def cases(tier: str) -> list[dict[str, Any]]:
    """Blocks of a hundred problems."""
    return [{"problems": PROBLEMS, "seed": seed} for seed in range(BLOCKS[tier])]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Counts of bounds below their measurement, and the smallest ratio of each."""
    below: dict[str, int] = {}
    least: dict[str, float] = {}
    for number in range(case["problems"]):
        rng = np.random.default_rng([case["seed"], number, 77])
        for name, (limit, measured) in (_model(rng) | _mixture(rng)).items():
            below[name] = below.get(name, 0) + bool(limit < measured * (1 - 1e-9))
            if measured > 0:
                least[name] = min(least.get(name, math.inf), limit / measured)
    return {"problems": case["problems"], "below": below, "least_ratio": least}


def _model(rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Bounds on Phi and on the loss at random weights; Phi and its derivatives are written here again."""
    n, tokens, d, heads = (int(rng.integers(low, high)) for low, high in ((1, 6), (2, 8), (2, 8), (1, 6)))
    x = rng.standard_normal((n, tokens, d)) * 10 ** rng.uniform(-0.7, 0.4)
    y = rng.choice([-1.0, 1.0], n)
    u = rng.standard_normal((heads, tokens, d)) * 10 ** rng.uniform(-1, 0.7)
    w = rng.standard_normal((heads, d, d)) * 10 ** rng.uniform(-1, 0.5)
    radius, norm = np.linalg.norm(x, axis=2).max(), np.linalg.norm(u, axis=(1, 2)).max()
    phi, du, dw = value_and_gradient(x, u, w)
    size = np.sqrt(np.sum(du**2, axis=(1, 2, 3)) + np.sum(dw**2, axis=(1, 2, 3)))
    curvature = largest_curvature(x, u, w, rng)
    first, second = bounds.beta1(tokens, radius, norm), bounds.beta2(tokens, radius, norm + STEP)
    slope = -y / (1 + np.exp(y * phi))
    loss = np.logaddexp(0, -y * phi).mean()
    total = np.sqrt(sum(np.sum(np.mean(slope[:, None, None, None] * part, axis=0) ** 2) for part in (du, dw)))
    read = np.linalg.norm(u, axis=2).sum() / np.sqrt(heads) * radius
    return {
        "beta1": (float(first), float(size.max())),
        "beta2": (float(second / np.sqrt(heads)), curvature),
        "loss gradient": (float(first * loss), float(total)),
        "value": (float(read), float(np.abs(phi).max())),
    }


def largest_curvature(x: np.ndarray, u: np.ndarray, w: np.ndarray, rng: np.random.Generator) -> float:
    """‖Hess Phi‖ of the first example, from below: power iteration with differences of gradients."""
    vu, vw, size = rng.standard_normal(u.shape), rng.standard_normal(w.shape), 0.0
    for _ in range(POWERS):
        length = np.sqrt(np.sum(vu**2) + np.sum(vw**2))
        if length == 0:
            return 0.0
        vu, vw = vu / length, vw / length
        ahead, behind = (value_and_gradient(x[:1], u + t * vu, w + t * vw)[1:] for t in (STEP, -STEP))
        vu, vw = ((a - b)[0] / (2 * STEP) for a, b in zip(ahead, behind))
        size = np.sqrt(np.sum(vu**2) + np.sum(vw**2))
    return float(size)


def value_and_gradient(
    x: np.ndarray, u: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Phi of every example and its gradients, by the chain rule for the softmax."""
    scores = np.einsum("nad,hde,nbe->nhab", x, w, x)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    means = np.einsum("nhab,nbd->nhad", weights, x)
    root = np.sqrt(len(u))
    phi = np.einsum("had,nhad->n", u, means) / root
    gains = np.einsum("had,nbd->nhab", u, x)
    moved = weights * (gains - np.sum(weights * gains, axis=3, keepdims=True))
    return phi, means / root, np.einsum("nad,nhab,nbe->nhde", x, moved, x) / root


def _mixture(rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """Proved margins of a random mixture against those of its examples; what shows nothing counts as a bound of zero."""
    tokens, dim, num = int(rng.integers(5, 25)), int(rng.integers(8, 20)), 30
    model = TokenizedMixture(
        tokens, dim, relevant=float(rng.uniform(0.1, 0.7)), noise=float(10 ** rng.uniform(-3, -0.7)),
        noise_law=str(rng.choice(["sphere", "gaussian"])),
    )  # fmt: skip
    seed = int(rng.integers(1 << 30))
    xs, ys = model.sample(400, seed=seed)
    u = np.einsum("n,nd->d", ys, xs.mean(axis=1)) / (2 * len(xs))
    x, y = model.sample(num, seed=seed + 1)
    direction = model.signals[0] - model.signals[1]
    read_out = float((y * (x.mean(axis=1) @ direction)).min()) * math.sqrt(tokens / 2) / model.signal
    proved = margin_bound(model, num, 0.05), attention_margin_bound(model, u, num, 0.05)
    # A lower bound is an upper bound of the other sign; shifted so that ratios make sense.
    measured = read_out, attention_margin(model, u, x, y)
    return {
        name: (value, max(bound, 0.0)) if bound > 0 else (1.0, 0.0)
        for name, bound, value in zip(("margin of the read-out", "margin of the attention"), proved, measured)
    }


def summary(lines: list[dict[str, Any]]) -> str:
    """Bounds below their measurement, and the tightest case of each."""
    names = dict.fromkeys(name for line in lines for name in line["result"]["below"])
    total = sum(line["result"]["problems"] for line in lines)
    text = []
    for name in names:
        below = sum(line["result"]["below"][name] for line in lines)
        ratios = [line["result"]["least_ratio"].get(name, math.inf) for line in lines]
        text.append(f"bounds  {name:<26} below its measurement {below}/{total}, tightest {min(ratios):.3g}")
    return "\n".join(text)
