"""The measured tier: error and loss on held-out examples, with intervals that hold.

Held-out sequences that stand among the training sequences are no new examples and are set aside. Of what is left,
sequences may repeat: each interval is made from all of them and from the different ones, and the wider ends are kept, so
that it holds whether the repeats were drawn or copied. The error has a Clopper-Pearson interval. The loss has a Chernoff
interval, which needs a bound on the loss: |Phi| <= value_bound for tokens of norm <= R, if R is known to bound the
distribution's tokens (`TrainConfig(radius=...)`). Without R only its lower end is finite: no finite upper end holds for
every distribution. Proofs: docs/guarantees.md, section 7. Cost: one forward pass. What can fail: nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attnlearn._certificate import Check, Claim, Status
from attnlearn.training import _bounds
from attnlearn.training._calibration import INTERVAL_CONFIDENCE, LOSS_CAP
from attnlearn.training._problem import Problem
from attnlearn.training._trained import TrainedClassifier

ASSUMED = (
    "the held-out examples are drawn independently of each other and of training, from the distribution of the new examples",
)

NOT_GIVEN = "no held-out examples were given (test=)"
NONE_NEW = "every held-out sequence stands among the training sequences"
UNKNOWN = "its error is unknown: "


def error_interval(
    wrong: Bool[np.ndarray, "n"], confidence: float = INTERVAL_CONFIDENCE
) -> tuple[float, float]:
    """The Clopper-Pearson interval of the error.

    >>> low, high = error_interval(np.zeros(100, bool))
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.stats import binomtest

    found = binomtest(int(wrong.sum()), len(wrong)).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def loss_interval(
    losses: Float[np.ndarray, "n"], largest: float = math.inf, confidence: float = INTERVAL_CONFIDENCE
) -> tuple[float, float]:
    """The Chernoff interval of the mean of losses in [0, largest]; its upper end is infinite if `largest` is.

    The upper end is the largest mu with n kl(mean/largest, mu/largest) <= log(2/(1 - confidence)), kl the divergence of
    two coins. The lower end is the larger of two such: for the loss and for min(loss, LOSS_CAP), whose mean is no larger.

    >>> low, high = loss_interval(np.full(100, 0.5), largest=1.0)
    >>> round(low, 3), round(high, 3)
    (0.367, 0.633)
    """
    num, delta = len(losses), 1 - confidence
    caps = {cap for cap in (min(largest, LOSS_CAP), largest) if math.isfinite(cap)}
    limit = math.log(2 * len(caps) / delta) / num
    low = max(cap * _farthest(_share(losses, cap), 0.0, limit) for cap in caps)
    if math.isinf(largest):
        return low, math.inf
    return low, largest * _farthest(_share(losses, largest), 1.0, math.log(2 / delta) / num)


def _share(losses: np.ndarray, cap: float) -> float:
    """The mean of min(loss, cap) as a share of cap."""
    return min(float(np.minimum(losses, cap).mean()) / cap, 1.0) if cap > 0 else 0.0


def _farthest(mean: float, end: float, limit: float) -> float:
    """The mu between `mean` and `end` with kl(mean, mu) = limit, or `end`; bisection, rounded outwards."""
    inside, outside = mean, end
    while (middle := (inside + outside) / 2) not in (inside, outside):
        if _coins(mean, middle) <= limit:
            inside = middle
        else:
            outside = middle
    return outside


def _coins(p: float, q: float) -> float:
    """kl(p, q) of two coins, 0 < q < 1."""
    terms = ((p, q), (1 - p, 1 - q))
    return sum(a * math.log(a / b) for a, b in terms if a > 0)


def sort_out(
    train: Float[np.ndarray, "n k d"], held_out: Float[np.ndarray, "m k d"]
) -> tuple[Bool[np.ndarray, "m"], Bool[np.ndarray, "m"]]:
    """Which held-out sequences are new (not among `train`), and which are new and stand there for the first time.

    >>> new, first = sort_out(np.zeros((1, 1, 1)), np.array([0.0, 1, 1]).reshape(3, 1, 1))
    >>> new.tolist(), first.tolist()
    ([False, True, True], [False, True, False])
    """
    known = set(_keys(train))
    keys = _keys(held_out)
    new = np.array([key not in known for key in keys])
    first = np.zeros(len(keys), bool)
    first[list({key: index for index, key in reversed(list(enumerate(keys)))}.values())] = True
    return new, new & first


def _keys(x: np.ndarray) -> list[bytes]:
    return [sequence.tobytes() for sequence in x + 0.0]  # -0.0 and 0.0 are one token


def measured_checks(
    problem: Problem, classifier: TrainedClassifier, train_loss: float
) -> tuple[list[Claim], list[Check], dict[str, Any]]:
    """The measured tier: its claim if there are new examples, its checks, its figures."""
    if problem.test is None:
        return [], [Check("M.test", Status.NOT_RUN, text=NOT_GIVEN)], {"headline": UNKNOWN + NOT_GIVEN}
    x, y = problem.test
    new, first = sort_out(problem.x, x)
    figures: dict[str, Any] = {
        "given": len(x),
        "seen": int(len(x) - new.sum()),
        "repeated": int(new.sum() - first.sum()),
        "examples": int(new.sum()),
        "confidence": INTERVAL_CONFIDENCE,
    }
    if not new.any():
        figures["headline"] = UNKNOWN + NONE_NEW
        return [], [Check("M.test", Status.FAILS, 0, 1, "examples", NONE_NEW, at_most=False)], figures
    phi = classifier.decision(x).astype(np.float64)
    silent = np.isnan(phi)  # an answer that overflowed is wrong, at any loss
    losses = np.logaddexp(0, np.where(silent, np.inf, -y * phi))
    wrong = silent | (np.where(phi >= 0, 1, -1) != y)
    radius = problem.config.radius
    largest = math.inf
    if radius is not None:
        largest = float(np.logaddexp(0, _bounds.value_bound(classifier.u.astype(np.float64), radius)))
    figures |= {
        "loss": float(losses[new].mean()),
        "loss_interval": _wider(lambda chosen: loss_interval(losses[chosen], largest), new, first),
        "largest_loss": largest,
        "wrong": int(wrong[new].sum()),
        "error": float(wrong[new].mean()),
        "error_interval": _wider(lambda chosen: error_interval(wrong[chosen]), new, first),
        "gap": float(losses[new].mean()) - train_loss,
    }
    figures["headline"] = _headline(figures)
    return [_claim(figures)], _checks(figures), figures


def _wider(interval: Callable[[Any], tuple[float, float]], *choices: Bool[np.ndarray, "m"]) -> list[float]:
    lows, highs = zip(*map(interval, choices), strict=True)
    return [min(lows), max(highs)]


def _headline(figures: dict[str, Any]) -> str:
    """What is known of new examples, in words that follow "on new examples"."""
    low, high = (100 * end for end in figures["error_interval"])
    return (
        f"its error is between {low:.2f} % and {high:.2f} % with confidence {100 * INTERVAL_CONFIDENCE:.0f} % "
        f"({figures['wrong']} of {figures['examples']} held-out examples are wrong)"
    )


def _claim(figures: dict[str, Any]) -> Claim:
    text = f"on new examples {figures['headline']}"
    if figures["seen"]:
        text += f"; {figures['seen']} more are set aside because they stand among the training sequences"
    if figures["repeated"]:
        text += f"; {figures['repeated']} of them repeat another"
    value = {name: figures[name] for name in ("error_interval", "error", "wrong", "examples")}
    return Claim.stated("M", text, True, value, INTERVAL_CONFIDENCE, assumes=ASSUMED)


def _checks(figures: dict[str, Any]) -> list[Check]:
    low, high = figures["loss_interval"]
    sure = f"with confidence {100 * INTERVAL_CONFIDENCE:.0f} %"
    if math.isfinite(high):
        text = f"held-out loss, mean between {low:.3g} and {high:.3g} {sure}, if R bounds every token of the distribution;"
    else:
        text = (
            f"held-out loss, mean at least {low:.3g} {sure}, no upper bound without TrainConfig(radius=...);"
        )
    return [
        Check(
            "M.test", Status.HOLDS, figures["examples"], 1, "examples", "new held-out examples", at_most=False
        ),
        Check("M.loss", Status.HOLDS, figures["loss"], unit="loss", text=text + " measured"),
    ]
