"""The claims of *On the Optimization and Generalization of Multi-head Attention*, as figures with numbers.

- `heads_claim`: more heads reach a loss in fewer steps, then saturate: under which step rule, and how much.
- `examples_claim`: test minus train loss against n, with the fitted slope (theory: -1) and its interval.
- `starts_claim`: over many draws of the tokenized mixture, how often each initialization satisfies P1-P3, the
  measured margin beside the explicit lower bound of docs/guarantees.md, and the comparator's loss by evaluation.
- `unattained_claim` (`_margins.py`): margins that no start attains, at weights whose attention looks at the relevant tokens.
- `attention_claim`: attention moves to the tokens that carry the label.
- `protocol_claim` (`_protocol.py`): the paper's own protocol, zero start and step 1.0, by number of heads.
- `planted_claim` (`_protocol.py`): the same question on labels that a planted model made.
- `bound_claim`: the run-verified bound against the measured mean along training.

Each runs alone in minutes on two cores; `optimization` runs all of them and says how long each took. Numbers only;
`_optimization_plots.py` draws them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._precision import precision
from attnlearn.data import TokenizedMixture
from attnlearn.reproduce._margins import margin_bound, unattained_claim
from attnlearn.reproduce._protocol import planted_claim, protocol_claim
from attnlearn.training import AttentionModel, TrainConfig, bounds, fit, fit_many, loss_and_gradient
from attnlearn.training._calibration import CURVATURE_ALLOWANCE
from attnlearn.training._compare import tangent
from attnlearn.training._initialize import INITIALIZATIONS, initialize, largest_head
from attnlearn.training._problem import make_problem
from attnlearn.training._trained import TrainedClassifier

NO_REPLAY = TrainConfig(replays=0, recursion=False)


def optimization(
    *, seed: int = 0, quick: bool = False, show: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """All claims; `quick` runs the same code on fewer draws, `show` gets a line when a claim is measured.

    >>> sorted(CLAIMS)
    ['attention', 'bound', 'examples', 'heads', 'planted', 'protocol', 'starts', 'unattained']
    """
    figures = {}
    for name, claim in CLAIMS.items():
        started = time.perf_counter()
        figures[name] = claim(seed=seed, quick=quick)
        figures[name]["seconds"] = time.perf_counter() - started
        if show is not None:
            show(f"{name}: measured in {figures[name]['seconds']:.0f} s")
    return figures


def heads_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Steps to a loss, test gap and slack of the bound for H = 1, 2, 4, ... 128, under two step rules.

    Phi has the factor 1 / sqrt(H), so "the same step" can mean two things: one step for all H, or one that
    grows like sqrt(H), which keeps each head's own speed. Both are measured; the bound is that of the first.
    """
    mixture = TokenizedMixture(tokens=10, dim=16, noise=0.3, dtype=np.float32)
    x, y = mixture.sample(100, seed=seed)
    held_out = mixture.sample(2000, seed=seed + 1)
    heads = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64, 128)
    seeds, steps, target = range(seed, seed + (3 if quick else 5)), 100 if quick else 200, 0.1
    base = fit_many(x, y, num_heads=max(heads), seeds=(seed,), max_steps=1).step
    rows = []
    for count in heads:
        row: dict[str, Any] = {"heads": count}
        for rule, step in (("common", base), ("sqrt", base * count**0.5)):
            sweep = fit_many(x, y, num_heads=count, seeds=seeds, step=step, max_steps=steps)
            row[rule] = {
                "steps_to_target": sweep.steps_to(target).tolist(),
                "final_loss": sweep.losses[:, -1].tolist(),
                "gap": [_loss(model, *held_out) - _loss(model, x, y) for model in sweep.classifiers],
            }
        settings = {"seed": seed, "step": base, "max_steps": steps, "config": NO_REPLAY}
        run = fit(x, y, num_heads=count, raise_on_failure=False, **settings)
        verified = run.stats["tiers"]["run-verified"]
        row |= {"violations": verified["violations"], "bound_over_measured": verified["ratio"]}
        rows.append(row | {"gamma": run.stats["tiers"]["a-priori"]["gamma"]})
    return {"target": target, "step": base, "steps": steps, "examples": len(x), "rows": rows}


def examples_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Mean test minus train loss over independent training sets, for n doubling; slope in logarithms."""
    from scipy import stats

    mixture = TokenizedMixture(tokens=10, dim=16, noise=0.5, dtype=np.float32)
    held_out = mixture.sample(4000, seed=10_000 + seed)
    sizes = (25, 50, 100) if quick else (25, 50, 100, 200, 400, 800)
    draws, steps, heads = (3, 60, 4) if quick else (8, 200, 8)
    step = fit_many(*mixture.sample(400, seed=seed), num_heads=heads, seeds=(seed,), max_steps=1).step / 2
    gaps = np.empty((len(sizes), draws))
    for i, num in enumerate(sizes):
        for draw in range(draws):
            x, y = mixture.sample(num, seed=seed + 1 + draw)
            model = fit_many(x, y, num_heads=heads, seeds=(seed,), step=step, max_steps=steps).classifiers[0]
            gaps[i, draw] = _loss(model, *held_out) - _loss(model, x, y)
    means = gaps.mean(axis=1)
    slope: dict[str, Any] = {"slope": None}
    if np.all(means > 0):
        line: Any = stats.linregress(np.log(sizes), np.log(means))
        half = stats.t.ppf(0.975, len(sizes) - 2) * line.stderr
        slope = {"slope": line.slope, "interval": [line.slope - half, line.slope + half], "theory": -1.0}
    return {
        "sizes": list(sizes),
        "draws": draws,
        "steps": steps,
        "step": step,
        "gaps": gaps.tolist(),
        **slope,
    }


def starts_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """P1, P2, P3 for each initialization over independent draws of the mixture."""
    mixture = TokenizedMixture(tokens=10, dim=16, noise=0.1)
    draws, num, heads, failure, loss = (10 if quick else 200), 50, 16, 0.05, 0.1
    lower = margin_bound(mixture, num, failure)
    limits = _limits(mixture, num, failure)
    rows = {name: [] for name in INITIALIZATIONS}
    for draw in range(draws):
        x, y = mixture.sample(num, seed=seed + draw)
        for name in INITIALIZATIONS:
            rows[name].append(_start_row(name, x, y, heads, seed + draw, loss))
    summary = {}
    for name, found in rows.items():
        head, value, gamma, star = (np.array([row[k] for row in found]) for k in range(4))
        summary[name] = {
            "P1": float(np.mean(head <= limits[name][0])),
            "P2": float(np.mean(value <= limits[name][1])),
            "P3": float(np.mean(gamma > 0)),
            "limits": list(limits[name]),
            "gamma": np.quantile(gamma, [0, 0.25, 0.5, 0.75, 1]).tolist(),
            "gamma_above_bound": float(np.mean(gamma >= lower)) if name != "gaussian" else None,
            "loss_star_below_target": float(np.mean(star <= loss)),
            "loss_star": np.quantile(star, [0, 0.5, 1]).tolist(),
        }
    return {"draws": draws, "margin_bound": lower, "failure": failure, "target_loss": loss, "starts": summary}


def _limits(mixture: TokenizedMixture, num: int, failure: float) -> dict[str, tuple[float, float]]:
    """B2 and B_Phi that docs/guarantees.md derives for each start of scale 1."""
    tokens, radius = mixture.tokens, mixture.radius
    signs = math.sqrt(2 * math.log(2 / failure))
    gaussian = radius * math.sqrt(2 * math.log(2 * num / failure) / mixture.dim)
    return {
        "zero": (0.0, 0.0),
        "gaussian": (2.0, gaussian),
        "first-step": (math.sqrt(tokens) * radius / 2, signs * tokens * radius**2 / 2),
    }


def _start_row(
    name: str, x: np.ndarray, y: np.ndarray, heads: int, seed: int, loss: float
) -> tuple[float, ...]:
    """B2, B_Phi, gamma and L* of the lemma's comparator."""
    problem = make_problem(x, y, num_heads=heads, init=name)
    begin = initialize(AttentionModel(), name, x, y, heads, np.random.default_rng(seed))
    value = float(np.abs(TrainedClassifier(*begin).decision(x)).max())
    with precision(problem.dtype):
        found = tangent(problem, begin, np.random.default_rng(seed))
    if found.margin <= 0:
        return largest_head(begin), value, found.margin, math.inf
    radius = bounds.realizability_radius(value, found.margin, loss, CURVATURE_ALLOWANCE)
    u, w = (p + radius * v for p, v in zip(begin, found.direction))
    return largest_head(begin), value, found.margin, loss_and_gradient(u, w, x, y)[0]


def attention_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Share of attention on the positions that hold the signal, as training goes on; every seed has its own examples."""
    mixture = TokenizedMixture(tokens=10, dim=16, noise=0.1)
    checked = (1, 50, 200) if quick else (1, 50, 200, 800)
    rows = []
    for steps in checked:
        shares, best = [], []
        for draw in range(seed, seed + (2 if quick else 5)):
            x, y = mixture.sample(100, seed=2 * draw)
            fresh = mixture.sample(300, seed=2 * draw + 1)
            model = fit_many(x, y, num_heads=8, seeds=(draw,), max_steps=steps).classifiers[0]
            patterns, relevant = model.patterns(fresh[0]), mixture.relevant_positions(*fresh)
            on_signal = np.einsum("nhpk,nk->nhp", patterns, relevant)
            shares.append(float(on_signal.mean()))
            best.append(float(on_signal.mean(axis=(0, 2)).max()))
        rows.append({"steps": steps, "share": shares, "largest_head": best})
    return {"uniform_share": mixture.zeta, "rows": rows}


def bound_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Bound and measured mean at the end of several runs, and along the first of them."""
    mixture = TokenizedMixture(tokens=10, dim=16 if quick else 32, dtype=np.float32)
    num, heads, steps, runs = (60, 8, 100, 2) if quick else (200, 16, 500, 5)
    kept: dict[str, Any] = {}
    ratios, violations = [], []
    for draw in range(seed, seed + runs):
        x, y = mixture.sample(num, seed=draw)
        run = fit(x, y, num_heads=heads, max_steps=steps, seed=draw, config=NO_REPLAY, raise_on_failure=False)
        curves, verified = run.stats["curves"], run.stats["tiers"]["run-verified"]
        kept = kept or {name: curves[name] for name in ("step", "loss", "mean_loss", "bound")}
        ratios.append(verified["ratio"])
        violations.append(verified["violations"])
    return {"curves": kept, "ratio": ratios[0], "ratios": ratios, "violations": violations}


def _loss(model: TrainedClassifier, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.logaddexp(0, -np.asarray(y * model.decision(x), np.float64)).mean())


CLAIMS = {
    "heads": heads_claim,
    "protocol": protocol_claim,
    "planted": planted_claim,
    "examples": examples_claim,
    "starts": starts_claim,
    "unattained": unattained_claim,
    "attention": attention_claim,
    "bound": bound_claim,
}
