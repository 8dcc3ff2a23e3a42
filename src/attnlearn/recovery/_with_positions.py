"""`recover` for scores of a given kind with positions: refinement from random starts, and claim C1 alone.

Every start has random scores of that kind. Gauss-Newton (`solve.refinement`) fits each on the fit side; the select side chooses. The search
ends at the first fit that is exact to rounding there. Heads beyond those needed merge or lose their W, so more may be tried than there are.
Measured (d = 8, 2 heads of width 4, k = 8, causal, base 1e4, 2,000 sequences): one of three starts of 2 heads ends exact.
Can fail: large layers may need more starts than are made; then the best fit is returned for what it is. The theorem behind C2 and C3 is
about scores without positions, so neither is run and no such answer is certified.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._errors import one_line
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome, Phase, Solution
from attnlearn.engine import Tools
from attnlearn.recovery._conclude import Units, certify_side
from attnlearn.recovery._problem import Problem, rms
from attnlearn.scores import Bilinear, Frequencies, Offsets, Relative, Rotary, Rotation
from attnlearn.solve._calibration import SMALL_ERROR, TRIES
from attnlearn.solve._held import Held, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve.certification._function import function_claim
from attnlearn.solve.refinement import RefineConfig, refine

Kind = Rotation | Offsets


def kind_of(positions: Any) -> Kind | None:
    """The kind of scores that a caller asks for: None for scores without positions.

    >>> kind_of("none") is None
    True
    """
    if positions is None or (isinstance(positions, str) and positions == "none"):
        return None
    found = positions.rotation if isinstance(positions, Frequencies) else positions
    rule = "must be None, 'none', or a Rotation or Offsets of attnlearn.scores"
    if not isinstance(found, (Rotation, Offsets)):
        raise ValueError(f"positions: {rule}, got {one_line(repr(positions), 100)}")
    return found


def recover_with_positions(
    problem: Problem, units: Units, kind: Kind, tools: Tools, known: dict[str, Any]
) -> Solution:
    """The best of several fits, with claim C1 on the certify side."""
    fit, select, began = problem.fit_side(), problem.select_side(), time.perf_counter()
    scale = example_scale(fit)
    with tools.progress.phase("fits with positions"):
        layer, tried = _best(problem, kind, fit, select, scale, tools)
    searched = Phase("fits with positions", time.perf_counter() - began, {"tried": tried})
    began = time.perf_counter()
    certificate = _certificate(layer, certify_side(problem, units.members), scale, problem.target, units)
    stats = {
        "method": "positions",
        "examples": problem.examples.num,
        "tokens": problem.examples.tokens,
        "fit_error": rms(unit_errors(layer, fit, scale)),
        "select_error": rms(unit_errors(layer, select, scale)),
        **known,
    }
    phases = (searched, Phase("certify", time.perf_counter() - began, {}))
    return Solution(layer, Outcome.NOT_ESTABLISHED, certificate, phases, stats)


def _best(
    problem: Problem, kind: Kind, fit: Held, select: Held, scale: float, tools: Tools
) -> tuple[AttentionLayer, list[dict[str, Any]]]:
    """The layer with the smallest select error, and every start with its own."""
    best, least, tried = None, np.inf, []
    for start in range(TRIES):
        rng = tools.rng(f"positions {start}")
        scores = _random(kind, problem.num_heads or 1, fit.x.shape[2], rng)
        w = np.zeros((scores.heads, fit.x.shape[2], fit.y.shape[2]))
        layer = AttentionLayer.from_scores(scores, w, causal=problem.causal or False).astype(fit.x.dtype)
        config = RefineConfig(deadline=tools.deadline)
        found = refine(layer, fit.x, fit.y, mask=fit.mask, config=config).layer.canonical()
        error = rms(unit_errors(found, select, scale))
        tried.append({"heads": found.num_heads, "select_error": error})
        tools.progress.update(start=start, select_error=error)
        if best is None or error < least:
            best, least = found, error
        late = tools.deadline is not None and time.monotonic() > tools.deadline
        if late or least <= exactness_limit(rounding_floor(best, select, scale), select.x.dtype):
            break
    assert best is not None
    return best, tried


def _random(kind: Kind, heads: int, dim: int, rng: np.random.Generator) -> Any:
    """Random scores whose standard deviation on white tokens is about one."""
    if isinstance(kind, Rotation):
        a, b = rng.standard_normal((2, heads, dim, kind.width)) / np.sqrt(dim * np.sqrt(kind.width))
        return Rotary.of_factors(a, b, kind)
    theta = rng.standard_normal((heads, dim, dim)) / dim
    return Relative(Bilinear.whole(theta, np.zeros((heads, dim))), np.zeros((heads, kind.numbers)), kind)


def _certificate(
    layer: AttentionLayer, held: Held, scale: float, target: float | None, units: Units
) -> Certificate:
    """C1, and that C2 and C3 are not run."""
    limit = SMALL_ERROR if target is None else target
    c1, checks = function_claim(
        layer.astype(held.x.dtype), held, scale, limit=limit, unit=units.name, where=units.where
    )
    others = (
        Claim("C2", "the number of heads is not claimed for scores with positions", established=False),
        Claim("C3", "Theta(offset) is not bounded for scores with positions", established=False),
    )
    unrun = [
        Check("C2.exact", Status.NOT_RUN, text="fit exact to rounding: no theorem for scores with positions"),
        Check("C3.bound", Status.NOT_RUN, text="bound on the error of every Theta(offset)"),
    ]
    return Certificate((c1, *others), (*checks, *unrun))
