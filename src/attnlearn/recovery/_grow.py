"""Grow: heads that the moment cannot show, found by adding one at a time and refining again.

The moment sees sum_i vec(Theta_i) vec(W_i)^T: heads whose W are parallel or opposite share one singular value, a head
whose scores are nearly flat lies below the noise floor, and more heads than outputs overlap; a head a hundred times
smaller than the others is lost beside them. The fit of the others then leaves a misfit. Above some per cent it is no
noise: none of the known causes must explain it. Below, it is noise unless its own moment shows a head. A further head
with random scores, refined together with the others, finds what is missing. Of several that are missing one alone lowers the
error by little, so others are added to it as long as each lowers it at all; what they have not brought down by much in the
end, stays as it was. Where the tokens are such as the moment does not model, the heads that it showed may be
none: then random starts are searched first (`spectral/_search`).

Cost: a refine of full rank for every head tried, only after such a misfit; with noisy outputs one moment. With three heads in twelve
dimensions, of which one was flat or nearly so, or two or three had W parallel or opposite, the first start found what was
missing in 13 of 13 layers; eight heads in five dimensions on ±1 tokens, seen as five, took four starts.
"""

from __future__ import annotations

import dataclasses
from functools import wraps
from typing import Any

import numpy as np

from attnlearn.data import as_examples
from attnlearn.engine import Stop, Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._conclude import held, unknowns
from attnlearn.recovery._refining import answer, fitted
from attnlearn.recovery.spectral._fallback import PhaseFunction
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._search import search, searchable
from attnlearn.recovery.spectral._state import Problem, State
from attnlearn.recovery.spectral._unmix import from_white
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._heads import head_separation
from attnlearn.solve._split import Split


def growing(refine: PhaseFunction, first: PhaseFunction) -> PhaseFunction:
    """The phase `first`, then `refine` with a further head as long as an unexplained misfit falls by that."""

    @wraps(refine)
    def run(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
        seen = found = first(problem, state, tools)
        tried: list[dict[str, Any]] = []
        if _misfit(found) and _misled(problem, found[0]):
            seen = found = _searched(problem, found, refine, tools)
        kept, ahead = found, 0
        while _affordable(problem, found[0]) and _missing(problem, found, tools, again=bool(tried)):
            further = _one_more(problem, found, refine, tools, tried)
            if further is None or ahead == calibration.GROW_AHEAD:
                break
            found, ahead = further, ahead + 1
            if _error(found) < calibration.GROW_BETTER * _error(kept):
                kept, ahead = found, 0
        state, info = seen if _misfit(kept) else kept
        return state, info | ({"grown": tried} if tried else {})

    return run


def _misled(problem: Problem, state: State) -> bool:
    """Whether the heads were read from a moment that does not model these tokens, and a search can be afforded."""
    return state.stopped is None and searchable(problem, state, "NOT_ATTENTION")


def _searched(
    problem: Problem, found: tuple[State, dict[str, Any]], refine: PhaseFunction, tools: Tools
) -> tuple[State, dict[str, Any]]:
    """What random starts find, refined; `found` itself when they do no better."""
    state, info = found
    try:
        start, evidence = search(problem, dataclasses.replace(state, stopped="NOT_ATTENTION"), tools)
    except Stop as stop:
        return state, info | {"searched": stop.evidence["searched"]}
    state, info = refine(problem, dataclasses.replace(start, stopped=None), tools)
    return state, info | evidence


def _error(found: tuple[State, dict[str, Any]]) -> float:
    return found[1]["select_error"]


def _misfit(found: tuple[State, dict[str, Any]]) -> bool:
    return _error(found) > calibration.MISFIT


def _missing(problem: Problem, found: tuple[State, dict[str, Any]], tools: Tools, *, again: bool) -> bool:
    """Whether what the answer leaves of the outputs speaks for a head that is not there."""
    if problem.num_heads is not None or fitted(found[1]) or _error(found) < calibration.GROW_LEAST:
        return False
    state = found[0]
    if again and head_separation(answer(state)) < calibration.NEAR_HEADS:  # another would come as close
        return False
    sample = held(problem.examples, problem.split.fit[: calibration.DIAGNOSED])
    if _misfit(found):  # none of the causes for which no number of heads would be right
        return again or diagnose(sample.x, sample.y, sample.mask, bool(state.causal)).cause == "not attention"
    rest = sample.y - answer(state)(sample.x, mask=sample.mask)
    left = Problem(as_examples(sample.x, rest, sample.mask), Split.make(len(rest)), causal=bool(state.causal))
    try:
        moment(left, prepare(left, State(), tools)[0], tools)
    except Stop:  # no value above the noise floor
        return False
    return True


def _affordable(problem: Problem, state: State) -> bool:
    """Whether another head is few enough unknowns for the examples and for the time that a user would wait."""
    layer = answer(state)
    if layer.num_heads >= calibration.GROW_HEADS or state.inverse.shape[0] > calibration.GROW_DIRECTIONS:
        return False
    examples = problem.examples
    equations = len(problem.split.fit) * examples.tokens * examples.out_dim
    wanted = unknowns(layer, None) * (layer.num_heads + 1) / layer.num_heads
    return equations >= calibration.EQUATIONS_NEEDED * wanted


def _one_more(
    problem: Problem,
    found: tuple[State, dict[str, Any]],
    refine: PhaseFunction,
    tools: Tools,
    tried: list[dict[str, Any]],
) -> tuple[State, dict[str, Any]] | None:
    """The answer with another head, from the first start that brings the error down by much, or the best that does at all."""
    before, heads = _error(found), answer(found[0]).num_heads + 1
    rng, candidates = tools.rng(f"grow {heads}"), []
    for _ in range(calibration.GROW_STARTS):
        tools.progress.update(heads=heads, error=before)
        state, info = refine(problem, _with_head(found[0], rng), tools)
        candidates.append((state, info))
        tried.append({"heads": heads, "select_error": info["select_error"], "stop": info["stop"]})
        if info["select_error"] < calibration.GROW_BETTER * before:
            break
    best = min(candidates, key=_error)
    return best if _error(best) < calibration.GROW_WORTH * before else None


def _with_head(state: State, rng: np.random.Generator) -> State:
    """The answer in `state` with one more head of random scores; refine finds its W."""
    r, out = state.inverse.shape[0], state.w.shape[2]
    scores = rng.standard_normal((1, r, r)) * calibration.GROW_SCORES / r
    head = from_white(state, scores, np.zeros((1, r)), np.zeros((1, r, out)), np.zeros(out))
    joined = {
        name: np.concatenate([getattr(state, name), head[name].astype(state.theta.dtype)])
        for name in ("theta", "w", "query_bias")
    }
    return dataclasses.replace(state, rank=None, num_heads=len(joined["theta"]), **joined)
