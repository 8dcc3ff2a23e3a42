"""The second paper's own protocol beside ours: zero start, constant step 1.0, n = 100, 300 test points, 5 trials, by number of heads.

From zero all heads stay equal, and H of them are one head whose U takes steps of eta and whose W takes steps of eta/H
(docs/guarantees.md, section 8). So at one step for all H more heads move attention more slowly; a step that grows like sqrt(H) is measured
beside it. The dimensions of the mixture (T = 10, d = 50, zeta = 0.1, s = 2, noise 0.3, 4 distractors) are ours: the paper's were not at hand.
`planted_claim` asks the same of labels that a planted model made. Cost: a run of 200 steps for every trial, number of heads and rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlearn.data import Planted, TokenizedMixture
from attnlearn.training import fit_many

RULES = {"constant": 0.0, "sqrt": 0.5}
"""The power of H in the step: 1.0 for all H as in the paper, and sqrt(H)."""


def protocol_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Curves of the training loss, and test loss, test error and attention at the end, by number of heads and trial."""
    mixture = TokenizedMixture(
        tokens=10, dim=50, relevant=0.1, signal=2.0, noise=0.3, num_distractors=4, dtype=np.float32
    )
    heads = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32)
    trials, steps = (2, 60) if quick else (5, 200)
    shown = np.unique(np.geomspace(1, steps, 25).astype(int)) - 1
    rows: list[dict[str, Any]] = []
    for count in heads:
        row: dict[str, Any] = {"heads": count}
        for rule, power in RULES.items():
            found = [_trial(mixture, count, count**power, steps, seed + trial) for trial in range(trials)]
            row[rule] = {
                name: [one[name] for one in found]
                for name in ("test_loss", "test_error", "attention", "heads_apart")
            }
            row[rule]["curves"] = [one["losses"][shown].tolist() for one in found]
        rows.append(row)
    return {
        "trials": trials,
        "steps": steps,
        "examples": 100,
        "test": 300,
        "uniform_share": mixture.zeta,
        "curve_steps": (shown + 1).tolist(),
        "rows": rows,
    }


def planted_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Loss and error on new examples by number of heads, where a model of one head made the labels (`data.Planted`).

    The sizes of the sets are the paper's, n = 1000 and 3000 test points; the teacher, the start of the first step and the step are ours.
    """
    num, test = (200, 500) if quick else (1000, 3000)
    heads = (1, 8) if quick else (1, 4, 16)
    trials, steps = (2, 30) if quick else (5, 150)
    model = Planted(tokens=8, dim=12, teacher_seed=seed, dtype=np.float32)
    rows: list[dict[str, Any]] = []
    for count in heads:
        found = []
        for trial in range(seed, seed + trials):
            fresh = model.sample(test, seed=2 * trial + 1)
            sweep = fit_many(
                *model.sample(num, seed=2 * trial), num_heads=count, seeds=(trial,), max_steps=steps
            )
            found.append({"train_loss": float(sweep.losses[0, -1]), **_on_new(sweep.classifiers[0], *fresh)})
        rows.append({"heads": count} | {name: [one[name] for one in found] for name in found[0]})
    return {"trials": trials, "steps": steps, "examples": num, "test": test, "rows": rows}


def _on_new(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Mean loss and share of errors."""
    margins = np.asarray(y * model.decision(x), np.float64)
    return {
        "test_loss": float(np.logaddexp(0, -margins).mean()),
        "test_error": float(np.mean(margins <= 0)),
    }


def _trial(mixture: TokenizedMixture, heads: int, step: float, steps: int, seed: int) -> dict[str, Any]:
    x, y = mixture.sample(100, seed=2 * seed)
    fresh, labels = mixture.sample(300, seed=2 * seed + 1)
    sweep = fit_many(x, y, num_heads=heads, init="zero", step=step, max_steps=steps)
    model = sweep.classifiers[0]
    share = np.einsum("nhpk,nk->nhp", model.patterns(fresh), mixture.relevant_positions(fresh, labels))
    return {
        "losses": sweep.losses[0],
        **_on_new(model, fresh, labels),
        "attention": float(share.mean()),
        "heads_apart": float(np.abs(model.w - model.w[:1]).max()),
    }
