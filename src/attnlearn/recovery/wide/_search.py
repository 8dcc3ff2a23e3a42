"""The wide search: a fit with more heads than the layer has, from random scores, then without the needless ones.

The moment wants tokens that are independent across positions, or correlated in the separable way that the signals model.
Recorded activations often are neither: positions have means and distributions of their own, and words of a list have fourth
moments of their own. The moment also wants so many examples that the heads stand above its noise, and heads that differ from
their swaps, as those of rank one do not. Regression minds none of that: a few equations per unknown do.

In few directions the wide fit is one of Gauss-Newton (`_starts`), in many a stochastic descent on low-rank factors (`_stochastic`),
after which Gauss-Newton starts from the heads that are needed.

Cost in few directions: a refine of full rank per start. Of 40 random layers (one to ten heads, d up
to 31, seven kinds of tokens, rank one to full, scores of size 0.3 to 4) two starts with eight heads and two with sixteen found
38, most in one to three seconds of one core.
What can fail: starts that all end in local optima; a head far smaller than the others is dropped with the needless ones, which
leaves a misfit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.wide._many import from_student
from attnlearn.recovery.wide._prune import Pruner, WideFit
from attnlearn.recovery.wide._starts import Width, random_heads, widths
from attnlearn.recovery.wide._stochastic import Source


class Found(NamedTuple):
    """The best fit without needless heads (None: none was found), the starts tried, and what the widest ones say.

    `misfits`: even more heads than layers have do not fit their own examples, and no better than fewer heads do.
    """

    best: WideFit | None
    tried: list[dict[str, Any]]
    misfits: bool


def search(problem: Problem, signals: Signals, tools: Tools, before: float | None = None) -> Found:
    """The first start that explains the select side without its needless heads; or, where all leave noise, the best that does.

    A fit whose heads are mixtures of fewer is not the last word: other starts may lead to those.

    `before` is the select error of a fit with fewer heads, if there is one: more heads than the first width has are tried only
    if those lower it by much.
    """
    pruner = Pruner(problem, signals, tools)
    tried: list[dict[str, Any]] = []
    groups: list[list[WideFit]] = []
    least: list[float] = [] if before is None else [before]
    best: WideFit | None = None
    source = Source(problem, signals) if signals.many else None
    for group in widths(problem, signals, pruner.fit.y.size):
        if not _worth_widening(least) or tools.out_of_time:
            break
        groups.append([])
        rngs = {width: tools.rng(f"search {width.heads} {width.rank}") for width in group}
        for width in group:
            if source is None:
                start = random_heads(signals, problem.examples.out_dim, width, rngs[width])
                wide = pruner.refined(start, width.rank, signals.found)
                found = pruner.without_needless(wide)
            else:
                wide, found = from_student(pruner, source, width)
            groups[-1].append(wide)
            tried.append(_entry(width, wide, found, pruner.costs))
            if found is not None and source is not None:
                return Found(found, tried, misfits=False)
            if found is None and wide.select_error <= signals.found:
                return Found(best, tried, misfits=False)  # wider starts would find nothing else
            if found is None:
                continue
            alike = best is not None and abs(found.select_error - best.select_error) <= (
                calibration.ALIKE * best.select_error
            )
            best = found if best is None or _better(found, best, signals.found) else best
            if (found.select_error <= signals.found or alike) and pruner.settled(found):
                return Found(best, tried, misfits=False)
        least.append(min(wide.select_error for wide in groups[-1]))
    misfits = best is None and source is None and _misfits(groups, least)
    return Found(best, tried, misfits)


def _better(found: WideFit, best: WideFit, enough: float) -> bool:
    """Whether a fit has the smaller error; or fewer heads, where both explain the select side."""
    if max(found.select_error, best.select_error) <= enough:
        return found.layer.num_heads < best.layer.num_heads
    return found.select_error < best.select_error


def _entry(width: Width, wide: WideFit, found: WideFit | None, costs: dict[int, float]) -> dict[str, Any]:
    """One start for the report."""
    entry = {
        "heads": width.heads,
        "rank": width.rank,
        "residual": wide.residual,
        "select_error": wide.select_error,
        "steps": wide.steps,
        "residuals": list(wide.residuals),
        "drop_costs": dict(costs),
    }
    left = {} if found is None else {"left": found.layer.num_heads, "left_error": found.select_error}
    return entry | left


def _worth_widening(least: list[float]) -> bool:
    """Whether the last widening lowered the least error by much; the second is always tried."""
    return len(least) <= 1 or least[-1] <= calibration.MUCH_BETTER * least[-2]


def _misfits(groups: list[list[WideFit]], least: list[float]) -> bool:
    """Whether the widest starts leave a misfit that they did not memorise, and that is no smaller than what fewer heads leave.

    A layer of still more heads would be fitted better by each.
    """
    widest = groups[-1][0].layer.num_heads if groups else 0
    if len(groups) <= 1 or widest < calibration.WIDTHS[1]:
        return False
    return not _worth_widening(least) and not any(wide.memorised for wide in groups[-1])
