"""C3 beside errors: the spread of each head (`_spread`), plus the bias that two halves show (`_halves`) and the step that is left, at `CONFIDENCE`."""

from __future__ import annotations

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Check, Claim, Status
from attnlearn.solve._white import whitening
from attnlearn.solve.noise._halves import Halves
from attnlearn.solve.noise._setting import CONFIDENCE, LATE, Setting, part_norms
from attnlearn.solve.noise._spread import Spread

SCARCE = "there are too few examples for two halves"


def parameters_beside_errors(
    at: Setting, found: Spread, halves: Halves | None, counted: Claim, support: Support | None
) -> tuple[Claim, list[Check]]:
    """C3 and its checks, resting on C2 as it was `counted`; without halves nothing is bounded."""
    if halves is None:
        return _not_bounded(SCARCE if at.scarce else LATE)
    bounds, surprise = _bounds(at, found, halves)
    heads = np.maximum(bounds["theta"], bounds["w"])
    worst, bias = float(heads.max()), float(max(bounds["query_bias"].max(), bounds["output_bias"].max()))
    bias = bias if bias <= at.accuracy else None
    checks = _checks(at, worst, surprise, found.unsolved, counted)
    value = {
        "bound": max(worst, bias or 0.0), "weights": worst, "heads": heads.tolist(), "biases": bias, "proved": False, "rank": at.rank,
    }  # fmt: skip
    claim = Claim.stated(
        "C3",
        _text(worst, bias, at.rank, support),
        all(check.status is Status.HOLDS for check in checks),
        value,
        CONFIDENCE,
        assumes=counted.assumes,
        scope=counted.scope,
    )
    return claim, checks


def _not_bounded(why: str) -> tuple[Claim, list[Check]]:
    missing = Check("C3.halves", Status.NOT_RUN, text=f"fits of two halves: {why}")
    return Claim("C3", f"the error of the parameters is not bounded: {why}", False), [missing]


def _checks(at: Setting, worst: float, surprise: float, unsolved: int, counted: Claim) -> list[Check]:
    """What C3 rests on, with the worst bound of a head and the largest difference of the halves."""
    return [
        Check.compare(
            "C3.tokens", whitening(at.used.x, at.used.mask).directions, at.layer.dim,
            unit="directions", text="directions in which tokens vary", at_most=False,
        ),
        Check.compare(
            "C3.bound", worst, at.accuracy, unit="relative error", text="bound on the error of every Theta and W"
        ),
        Check.compare(
            "C3.halves", surprise, 1.0, unit="of what is predicted", text="largest difference between the fits of two halves"
        ),
        Check.compare("C3.solves", unsolved, 0, unit="solves", text="solves behind the bound that did not end"),
        Check.compare("C3.count", int(counted.established), 1, unit="claims", text="C2, on which this rests", at_most=False),
    ]  # fmt: skip


def _text(worst: float, bias: float | None, rank: int | None, support: Support | None) -> str:
    text = f"each Theta and W is within {worst:.3g} of that of the layer behind the errors, "
    text += "biases are not bounded" if bias is None else f"each bias within {bias:.3g}"
    notes = ["to first order, confirmed by two halves"]
    notes += ["on the span of the tokens"] if support is not None else []
    notes += [f"among layers whose Theta have rank at most {rank}"] if rank is not None else []
    return f"{text} ({', '.join(notes)})"


def _bounds(at: Setting, found: Spread, halves: Halves) -> tuple[dict[str, np.ndarray], float]:
    """Relative bounds on every part, and the largest difference of the halves as a share of what is predicted."""
    chance = (1 - CONFIDENCE) / (4 * at.layer.num_heads)
    t, bounds, shares = np.log(1 / chance), {}, []
    for part, norms in part_norms(at.layer).items():
        predicted = found.largest(part, t)
        bounds[part] = (predicted + halves.bias(at.layer, part) + found.undone(part, t)) / norms
        if part in ("theta", "w"):
            shares.append(halves.difference(part) / np.maximum(2 * predicted, np.finfo(float).tiny))
    return bounds, float(np.max(shares))
