"""Search: more heads than a layer has, from random scores by Gauss-Newton, and then without those that it can do without.

The moment wants tokens that are independent across positions, or correlated in the separable way that `prepare` models.
Recorded activations often are neither: positions have means and distributions of their own, and words of a list have fourth
moments of their own. It wants so many examples that the heads stand above its noise, and heads that differ from their swaps,
as those of rank one do not. Regression minds none of that: a few equations per unknown do.

With as many heads as the layer has, random starts often end in local optima, and below that number they crawl. With more the
fit runs straight into the truth: every head of the layer finds one nearby, and the others fall silent or double one. The prices
of dropping them (`solve/_drop`) then show where the heads begin: of 8 to 16 heads on words of a list (two to nine in truth,
d = 19 to 31) the needless cost 1e-4 to 0.05 of the outputs, and the next one 0.2 to 0.6. What is left is refined and judged on
the select side.

Cost: a refine of full rank per start, so only where the tokens vary in few directions. Of 40 random layers (one to ten heads, d up
to 31, seven kinds of tokens, rank one to full, scores of size 0.3 to 4) two starts with eight heads and two with sixteen found
38, most in one to three seconds of one core; the two others have heads of rank one with scores of size 4 in 28 directions.
What can fail: starts that all end in local optima; a head far smaller than the others is dropped with the needless ones, which
leaves a misfit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.engine import Stop, Tools
from attnlearn.recovery._calibration import EQUATIONS_NEEDED, MISFIT
from attnlearn.recovery._conclude import examples_needed, held, memorised, unknowns
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._state import Problem, State, unmodelled
from attnlearn.recovery.spectral._unmix import from_white
from attnlearn.solve._drop import Ground, drop_order
from attnlearn.solve._held import Held, example_scale, unit_errors
from attnlearn.solve._refine import RefineConfig, refine

FOUND, MISFITS, NOTHING = "found", "misfits", "nothing"
"""How a search ends: with heads; with more heads than layers have, which do not even fit the fit side; or without a word on it."""


def searchable(problem: Problem, state: State, outcome: str) -> bool:
    """Whether the moment failed for want of examples, beside heavy tails, on heads of rank one, or on tokens that it does not model,
    and the search is affordable and was not made before."""
    directions = state.inverse.shape[0]
    if state.searched is not None or directions > calibration.SEARCH_DIRECTIONS:
        return False
    if unmodelled(problem, state):
        return True
    restless = state.fit is not None  # of whose sequences the moment sees half
    few = outcome == "TOO_FEW_EXAMPLES" and (restless or _few(problem, state))
    hidden = few or outcome == "LOW_EFFECTIVE_RANK"
    return hidden and directions <= calibration.SEARCH_FIRST


def _few(problem: Problem, state: State) -> bool:
    """Whether the examples are so few that the moment would not show heads which are there."""
    rows = problem.examples.tokens * problem.examples.out_dim
    most = unknowns(_start(problem, state, calibration.GUESSED_HEADS), None)
    return len(problem.split.fit) * rows <= calibration.SEARCH_PLENTY * most


def search(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """The first random start that explains the select side without its needless heads; or, where noise is all that they leave,
    the best of those that do."""
    judge = _Judge(problem, tools)
    tried: list[dict[str, Any]] = []
    best: _Found | None = None
    for start, rank in starts(problem, state, judge.fit.y.size, tools, tried):
        wide = judge.refined(start, rank, calibration.SEARCH_TOLERANCE)
        entry = {
            "heads": start.num_heads,
            "rank": rank,
            "residual": wide.residual,
            "select_error": wide.error,
            "steps": wide.steps,
        }
        found = judge.without_needless(wide, problem.num_heads)
        tried.append(
            entry | ({} if found is None else {"left": found.layer.num_heads, "left_error": found.error})
        )
        if found is None:
            continue
        agreed = best is not None and abs(found.error - best.error) <= calibration.SEARCH_ALIKE * best.error
        best = found if best is None or found.error < best.error else best
        if found.error <= calibration.SEARCH_FOUND or agreed:
            break
    if best is None:
        # Where the moment models the tokens it has the word: starts that learn nothing are no proof against many heads.
        misfits = unmodelled(problem, state) and _misfits(tried)
        state = dataclasses.replace(state, searched=MISFITS if misfits else NOTHING)
        evidence = {"searched": tried} | _needed(problem, state, tried)
        raise Stop(state.stopped or "TOKENS_DEGENERATE", evidence, state)
    layer = best.layer.astype(problem.examples.dtype)
    answer = {"num_heads": layer.num_heads, "rank": best.rank, **layer.parameters._asdict()}
    return dataclasses.replace(state, searched=FOUND, **answer), {"searched": tried}


def _misfits(tried: list[dict[str, Any]]) -> bool:
    """Whether the starts with most heads, as many as layers have, leave a misfit that they did not learn by heart, and that is
    no smaller than what fewer heads leave: a layer of still more heads would be fitted better by each.
    """
    widths = sorted({entry["heads"] for entry in tried})
    if len(widths) < 2 or widths[-1] < calibration.SEARCH_WIDTHS[1]:
        return False
    by_width = [[entry for entry in tried if entry["heads"] == width] for width in widths[-2:]]
    few, many = (min(entry["select_error"] for entry in entries) for entries in by_width)
    learned = any(memorised(entry["residual"], entry["select_error"]) for entry in by_width[-1])
    return many > calibration.SEARCH_WIDER * few and not learned


class _Found(NamedTuple):
    layer: AttentionLayer
    rank: int | None
    error: float  # on select examples
    residual: float  # on fit examples
    steps: int


class _Judge:
    """The examples of the search, and what they say of a start."""

    def __init__(self, problem: Problem, tools: Tools) -> None:
        fit = held(problem.examples, problem.split.fit[: calibration.SEARCH_EXAMPLES])
        self.fit = dataclasses.replace(fit, x=fit.x.astype(np.float64), y=fit.y.astype(np.float64))
        self.select = held(problem.examples, problem.split.select)
        self.scale, self.dtype, self.tools = example_scale(fit), problem.examples.dtype, tools

    def refined(self, start: AttentionLayer, rank: int | None, tolerance: float) -> _Found:
        """The optimum near a start, as far as the search wants it."""
        config = RefineConfig(
            max_steps=calibration.SEARCH_STEPS,
            max_inner=calibration.SEARCH_INNER,
            max_examples=calibration.SEARCH_USED,
            tolerance=tolerance,
            average=False,
            seed=self.tools.seed,
        )
        found = refine(
            start,
            self.fit.x,
            self.fit.y,
            mask=self.fit.mask,
            rank=rank,
            config=config,
            on_step=lambda step: self.tools.progress.update(heads=start.num_heads, residual=step["residual"]),
        )
        errors = unit_errors(found.layer.astype(self.dtype), self.select, self.scale)
        error = float(np.sqrt(np.mean(errors**2)))
        return _Found(found.layer, found.rank, error, found.residual, len(found.steps))

    def without_needless(self, wide: _Found, heads: int | None) -> _Found | None:
        """The fit without the heads that it can do without, or with as many as are given; None if that explains too little."""
        if wide.error > MISFIT or memorised(wide.residual, wide.error):
            return None
        enough = max(calibration.SEARCH_FOUND, calibration.SEARCH_WORSE * wide.error)
        for kept in self.remaining(wide, heads):
            layer = wide.layer
            chosen = (layer.theta[kept], layer.w[kept], layer.query_bias[kept], layer.output_bias)
            start = AttentionLayer(*chosen, causal=layer.causal)
            found = self.refined(start, wide.rank, calibration.SEARCH_EXACT)
            if found.error <= enough and not memorised(found.residual, found.error):
                return found
        return None

    def remaining(self, wide: _Found, heads: int | None) -> list[np.ndarray]:
        """The likeliest sets of heads that are no needless ones: those before whose loss the price of a drop leaps."""
        rows = calibration.SEARCH_PRICED_ROWS * wide.layer.query_bias.size
        some = slice(max(calibration.SEARCH_PRICED, rows // self.fit.x.shape[1]))
        mask = self.fit.mask
        priced = Held(self.fit.x[some], self.fit.y[some], None if mask is None else mask[some])
        ground = Ground(priced, wide.layer.causal)
        order = list(drop_order(ground.enter(wide.layer), ground))
        sets = [np.arange(wide.layer.num_heads), *(kept for kept, _ in order)]
        if heads is not None:
            return [kept for kept in sets if len(kept) == heads]
        prices = np.array([wide.error, *(price for _, price in order), 1.0])
        prices = np.maximum.accumulate(np.maximum(prices, wide.error))
        leaps = np.argsort(prices[:-1] / prices[1:], kind="stable")
        return [sets[place] for place in leaps[: calibration.SEARCH_LEAPS]]


def starts(
    problem: Problem, state: State, equations: int, tools: Tools, tried: list[dict[str, Any]]
) -> Iterator[tuple[AttentionLayer, int | None]]:
    """Layers of small random scores on the tokens' support, and the rank that they keep: of full rank and of low, for every width.

    The equations may be too few for a width; then as many heads as they can tell, twice. The search ends when a larger width did
    not help (`tried`).
    """
    directions, least, errors = state.inverse.shape[0], problem.num_heads or 1, []
    for usual in calibration.SEARCH_WIDTHS:
        if len(errors) > 1 and errors[-1] > calibration.SEARCH_WIDER * errors[-2]:
            return
        seen = len(tried)
        for rank in (None, max(calibration.SEARCH_RANK, directions // calibration.SEARCH_RANK)):
            most = _most(problem, state, equations, rank)
            width = min(most, max(least, usual))
            again = (width, rank) in {(entry["heads"], entry["rank"]) for entry in tried}
            if width < least or again or (rank is not None and rank >= directions):
                continue
            rng = tools.rng(f"search {width} {rank}")
            for _ in range(2 if width < calibration.SEARCH_WIDTHS[0] else 1):
                yield _start(problem, state, width, rng, rank), rank
        errors += [min(entry["select_error"] for entry in tried[seen:])] if tried[seen:] else []


def _most(problem: Problem, state: State, equations: int, rank: int | None) -> int:
    """Heads whose Theta have that rank, and whose W are free, which the equations can tell."""
    r, out = state.inverse.shape[0], problem.examples.out_dim
    scores = r * r if rank is None else rank * (2 * r - rank)
    return int((equations / EQUATIONS_NEEDED - out) // (scores + r + r * out))


def _needed(problem: Problem, state: State, tried: list[dict[str, Any]]) -> dict[str, int]:
    """Examples that the phase asked for; or, if fewer, those with which the search reaches up to twice the next count."""
    if state.examples_needed is None:
        return {}
    reached = max((entry["heads"] for entry in tried), default=0)
    heads = (
        min(2 * (reached + 1), calibration.GUESSED_HEADS) if problem.num_heads is None else problem.num_heads
    )
    enough = examples_needed(_start(problem, state, heads), problem.examples, None)
    helps = problem.examples.num < enough < state.examples_needed
    return {"examples_needed": enough if helps else state.examples_needed}


def _start(
    problem: Problem,
    state: State,
    heads: int,
    rng: np.random.Generator | None = None,
    rank: int | None = None,
) -> AttentionLayer:
    """`heads` heads of small random scores, or of none."""
    r, out = state.inverse.shape[0], problem.examples.out_dim
    if rng is None:
        white = np.zeros((heads, r, r))
    elif rank is None:
        white = rng.standard_normal((heads, r, r))
    else:
        left, right = rng.standard_normal((2, heads, r, rank)) / np.sqrt(np.sqrt(rank))
        white = left @ np.swapaxes(right, 1, 2)
    zeros = np.zeros((heads, r)), np.zeros((heads, r, out)), np.zeros(out)
    return AttentionLayer(
        **from_white(state, white * calibration.SEARCH_SCORES / r, *zeros), causal=bool(state.causal)
    )
