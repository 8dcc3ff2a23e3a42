"""Whether a claim is false: judged against the true layer and fresh examples, with code of its own.

Attention, the span of the tokens, the comparison of heads and their visibility are computed here in float64 from plain arrays; nothing
is asked from the code that made the claim. A claim of a run that is not certified counts like any other.

C1  The error norm of a unit is at most eps max(norm of the output, floor printed in the claim) on the fraction stated.
C2  The true layer has that many heads, unless it lies outside the scope that the claim prints (heads closer or fainter than that).
    A scope that leaves out the answer itself says nothing, and the claim counts as false.
C3  Every Theta and W of the true layer is within the bound of its matched head, and so are biases that the claim bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import beta

from tests.problems._heads import Heads, Place, apart, errors, reduced, span, visibility
from tests.problems._heads_by_offset import untrue_by_offset
from tests.problems._plain import forward
from tests.problems._problem import Fresh

SURE = 1e-6
"""The judge calls a fraction false only when its own sample would show as many misses with less than this chance."""
ROUNDING = 8.0
"""The judge's own rounding error, in units of what a float32 evaluation shows about a float64 one."""
SLACK = 1e-3
"""Bounds are relative to the norm of one layer or of the other; both are the same to first order."""
SEEN = 2000
"""Sequences on which visibility is measured."""
IN_SCOPE = 2.0
"""How far the answer may miss the printed scope before it counts as left out: visibility is a quantile of a sample."""


def broken_claims(
    certificate: Any,
    layer: Any,
    truth: Any | None,
    fresh: Sequence[np.ndarray | None],
    *,
    tokens: np.ndarray | None = None,
    excuses: Sequence[str] = (),
    rivals: Sequence[Any] = (),
) -> list[str]:
    """Codes of the established claims that are false.

    `fresh` holds x, y and, if there are any, mask and groups; `tokens` are those that the learner saw (else those of `fresh`), whose
    span is compared. Without a true layer C2 and C3 are false when established. `excuses` are words of an assumption with
    which a claim may say C2 and C3 of a layer that breaks it. `rivals` are further layers with the same outputs on all such tokens: C2
    and C3 speak of every one of them.
    """
    fresh = Fresh(*fresh)
    established = {claim.code: claim for claim in certificate.claims if claim.established}
    broken = []
    if "C1" in established and _misses_fraction(established["C1"].value, layer, fresh):
        broken.append("C1")
    rest = {code: claim for code, claim in established.items() if code in ("C2", "C3")}
    rest = {code: claim for code, claim in rest.items() if not _excused(claim, excuses)}
    if not rest:
        return broken
    if truth is None or bool(truth.causal) != bool(layer.causal):
        return broken + sorted(rest)
    if not (layer.plain_scores and truth.plain_scores):
        return broken + untrue_by_offset(rest, layer, truth, fresh.x.shape[1])
    place = span(fresh.x if tokens is None else tokens, fresh.mask if tokens is None else None)
    seen = Fresh(*(None if array is None else array[:SEEN] for array in fresh))
    false = {code for true in (truth, *rivals) for code in _untrue(rest, layer, true, place, seen)}
    return broken + sorted(false)


def _untrue(claims: dict[str, Any], layer: Any, truth: Any, place: Place, seen: Fresh) -> list[str]:
    """Which of C2 and C3 one true layer breaks."""
    found, true = reduced(layer, place), reduced(truth, place)
    scope = next((claim.scope for claim in claims.values() if getattr(claim, "scope", None)), {})
    if scope and not _inside(found, seen, place, scope, 1 / IN_SCOPE):
        return sorted(claims)  # an empty claim
    if scope and not _inside(true, seen, place, scope, 1.0):
        return []
    wrong = {
        "C2": lambda claim: true.num != claim.value,
        "C3": lambda claim: not _within(found, true, claim.value),
    }
    return [code for code, claim in claims.items() if wrong[code](claim)]


def _excused(claim: Any, excuses: Sequence[str]) -> bool:
    assumed = " ".join(getattr(claim, "assumes", ()))
    return any(words in assumed for words in excuses)


def _misses_fraction(value: dict[str, Any], layer: Any, fresh: Fresh) -> bool:
    """Whether more units miss the error than the claim allows, by more than the judge's sample could show by chance."""
    missed = _missed(value, layer, fresh)
    if value.get("unit") == "group" and fresh.groups is not None:
        missed = _any_of(missed, fresh.groups)
    elif value.get("unit") == "distinct input":
        _, first = np.unique(fresh.x.reshape(len(fresh.x), -1), axis=0, return_index=True)
        missed = missed[first]
    hits, total = int(missed.sum()), len(missed)
    least = 0.0 if hits == 0 else float(beta.ppf(SURE, hits, total - hits + 1))
    return least > 1 - value["fraction"]


def _any_of(missed: np.ndarray, groups: np.ndarray) -> np.ndarray:
    _, members = np.unique(groups, return_inverse=True)
    return np.bincount(members, weights=missed) > 0


def _missed(value: dict[str, Any], layer: Any, fresh: Fresh) -> np.ndarray:
    shown = 1.0 if fresh.mask is None else fresh.mask[..., None]
    y = fresh.y.astype(np.float64) * shown
    exact = forward(layer, fresh.x, fresh.mask)
    with np.errstate(over="ignore", invalid="ignore"):
        single = forward(layer, fresh.x, fresh.mask, np.float32).astype(np.float64)
    ratio = np.finfo(np.float64).eps / np.finfo(np.float32).eps
    rounding = ROUNDING * ratio * np.nan_to_num(_norms(single - exact), posinf=0.0)
    size = np.maximum(_norms(y), value.get("floor") or 0.0)
    return ~(_norms(exact - y) <= value["error"] * (1 + 1e-6) * size + rounding)


def _norms(outputs: np.ndarray) -> np.ndarray:
    return np.linalg.norm(outputs, axis=(1, 2))


def _inside(heads: Heads, seen: Fresh, place: Place, scope: dict[str, float], factor: float) -> bool:
    """Whether a layer lies in the scope of C2, each limit multiplied by `factor`."""
    if apart(heads) < factor * scope.get("apart", 0.0):
        return False
    limit = factor * scope.get("visible", 0.0)
    return limit <= 0 or bool(visibility(heads, seen, place, scope.get("fraction", 0.0)).min() >= limit)


def _within(found: Heads, true: Heads, value: dict[str, Any]) -> bool:
    if found.num != true.num:
        return False
    rows, weights, query, output = errors(found, true)
    bounds = np.asarray(value.get("heads") or [value["bound"]], float)
    limits = (
        bounds[found.origin[rows]] if len(bounds) > found.origin.max() else np.full(len(rows), bounds.max())
    )
    if not np.all(weights <= (1 + SLACK) * limits):
        return False
    return _biases_within(query, output, found.origin[rows], value.get("biases"))


def _biases_within(query: np.ndarray, output: float, origin: np.ndarray, bound: Any) -> bool:
    """Query biases by head and the output bias last, where the claim lists them; one number is for all, None for nothing."""
    if bound is None:
        return True
    bounds = np.atleast_1d(np.asarray(bound, float))
    limits = bounds[np.append(origin, -1)] if len(bounds) == len(origin) + 1 else bounds.max()
    return bool(np.all(np.append(query, output) <= (1 + SLACK) * limits))
