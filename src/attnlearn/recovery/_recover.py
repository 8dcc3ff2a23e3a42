"""`recover`: a layer from random examples, with a certificate.

The assembly is the same for all methods: split, signals, the rows of the method's table, one look at the certify side.

BLAS is confined to one thread for all of it. Products are many and small, and run in whole chunks on as many threads as there
are cores; threads of BLAS beside those wait for each other more than they work (measured with two busy cores: 69 s instead of
4.8), and one that has nothing to do spins for another 25 ms.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from attnlearn._errors import NotEstablished, raise_if_interrupted, require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._types import ArrayLike
from attnlearn._version import __version__
from attnlearn.data import as_examples
from attnlearn.engine import Checkpoint, Engine, PhaseFailed, Progress, Run, Tools, array_hash, run_phases
from attnlearn.engine._threads import limited_blas
from attnlearn.recovery._calibration import CERTIFIED_LEAST, WIDTHS
from attnlearn.recovery._conclude import Units, conclude
from attnlearn.recovery._draw import draw_examples, is_data_model
from attnlearn.recovery._driver import program
from attnlearn.recovery._intake import check_range, check_start, independent_units
from attnlearn.recovery._methods import Method, method_for, method_from
from attnlearn.recovery._outcome import outcome, unmet_need
from attnlearn.recovery._plan import Size, make_plan, parse_memory
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Trail
from attnlearn.recovery._with_positions import kind_of, recover_with_positions
from attnlearn.solve._calibration import FEWEST_UNITS
from attnlearn.solve._split import Split


def recover(
    x: Any,
    y: Any = None,
    *,
    method: str = "auto",
    num_heads: int | None = None,
    positions: Any = None,
    causal: bool | None = None,
    mask: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    start: AttentionLayer | None = None,
    config: Any = None,
    memory: int | float | str | None = None,
    target: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    engine: Engine | str | int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """Recover every head of an attention layer from random examples, with a certificate.

    `x` is an array (n, k, d) with `y` (n, k, d_out); or a `Recorded` or the path of one; or a data model with `y`
    an oracle, from which examples are drawn. The number of heads, their ranks and, unless given, the causal mask
    are found. `groups` keeps sequences of one document on one side of the split. A run that could not be certified
    raises `NotEstablished`, which carries the solution; with `raise_on_failure=False` it is returned. With `target`
    only claim C1 at that function error is asked for: the run stops there, in about half the time, and nothing is raised
    once it is established. A `start` that is nearly right takes the place of the search: weights from a file are refined
    on the examples and certified against them. `method` names the table of proposers (`attnlearn.explain` shows which rows would
    run): "auto", "moment", "wide" or "sculpt". `time_limit` (seconds) ends the run with the best answer so far and BUDGET_SPENT;
    with a checkpoint it can be resumed. `memory` (bytes, or "1.5GB") refuses a run that is expected to need more;
    `stats["plan"]` holds what was expected. `positions` is the kind of the scores, a `Rotation` or `Offsets` of `attnlearn.scores`; it
    asks for `num_heads` and `causal` (which may be a `Visible`), fits from random starts and makes claim C1 alone (docs/positions.md).

    >>> from attnlearn import AttentionLayer, data, distance
    >>> truth = AttentionLayer.random(num_heads=2, dim=6, seed=1)
    >>> x = data.Gaussian(tokens=4, dim=6).sample(4000)
    >>> solution = recover(x, truth(x))
    >>> solution.certified, distance(solution.layer, truth).max < 1e-8
    (True, True)
    """
    require(num_heads is None or num_heads >= 1, "num_heads", "must be at least 1", num_heads)
    require(target is None or target > 0, "target", "must be positive", target)
    require(time_limit is None or time_limit > 0, "time_limit", "must be positive (seconds)", time_limit)
    require(start is None or config is None, "config", "belongs to a search and cannot go with start", config)
    given = Arguments(x, y, mask, groups, num_heads, causal, target, memory, seed)
    chosen = method_for(method, config, given.drawn) if start is None else method_from(start)
    kind = kind_of(positions)
    if kind is not None:
        rule = "must be given with positions"
        require(num_heads is not None, "num_heads", rule, None)
        require(causal is not None, "causal", rule, None)
        alone = start is None and checkpoint is None and method == "auto"
        require(alone, "positions", "cannot go with start, checkpoint or method", "them")
    deadline = None if time_limit is None else time.monotonic() + time_limit
    tools = Tools(Engine.parse(engine), Progress.make(progress), seed, deadline=deadline)
    taken = take_in(given, chosen, start, tools)
    if isinstance(taken, Solution):
        return _raised(taken, target, raise_on_failure)
    if kind is not None:
        with limited_blas(1):
            solution = recover_with_positions(taken.problem, taken.units, kind, tools, taken.known)
        return _raised(solution, target, raise_on_failure)
    saved = None
    if checkpoint is not None:
        saved = Checkpoint(checkpoint, _identity(taken, chosen, seed), resume=resume)
    try:
        with limited_blas(1):
            run = run_phases(program(chosen.table), taken.problem, Trail(), tools, saved)
            solution = _solution(run, taken, chosen, tools)
    except PhaseFailed as failure:
        solution = Solution.failed(Outcome.NUMERICAL_FAILURE, _phases(failure.run), reason=str(failure))
    finally:
        if saved is not None:
            saved.close()
    return _raised(solution, target, raise_on_failure)


@dataclass(frozen=True)
class Arguments:
    """What the caller gave."""

    x: Any
    y: Any
    mask: Any
    groups: Any
    num_heads: int | None
    causal: bool | None
    target: float | None
    memory: int | float | str | None
    seed: int

    @property
    def drawn(self) -> tuple[Any, Any, int] | None:
        """The data model, the oracle and the seed, where examples are drawn."""
        return (self.x, self.y, self.seed) if is_data_model(self.x) else None


@dataclass(frozen=True)
class Taken:
    """The problem that the caller's arguments make, its units, and figures for the result."""

    problem: Problem
    units: Units
    known: dict[str, Any]


def take_in(given: Arguments, method: Method, start: AttentionLayer | None, tools: Tools) -> Taken | Solution:
    """Examples, split and plan; or the solution, when the examples are too few to be split."""
    scale, num_heads, causal = 1.0, given.num_heads, given.causal
    if given.drawn is not None:
        examples, scale = draw_examples(given.x, given.y, method.num_examples, given.seed, method.scale)
    else:
        examples = as_examples(given.x, given.y, given.mask, memory=parse_memory(given.memory))
    check_range(examples)
    if start is not None:
        check_start(start, examples, causal, num_heads)
        causal, num_heads = start.causal, start.num_heads
    members, unit = independent_units(examples, given.groups)
    if unit == "distinct input" and members is not None and members.max() + 1 < FEWEST_UNITS <= examples.num:
        distinct = int(members.max()) + 1
        return Solution.failed(Outcome.TOO_FEW_EXAMPLES, distinct=distinct, examples_needed=CERTIFIED_LEAST)
    split = Split.make(examples.num, groups=members, unit=unit, seed=given.seed)
    with tools.progress.phase("plan"):
        size = Size(num_heads or WIDTHS[0])
        plan = make_plan(examples, len(split.fit), size, given.drawn is not None, given.memory)
        tools.progress.update(**plan.figures())
    problem = Problem(examples, split, causal, num_heads, given.target)
    units = Units(members, unit, "" if scale == 1.0 else f", the data model's tokens times {scale:.3g}")
    return Taken(problem, units, {"token_scale": scale, "plan": plan, "seed": given.seed})


def _raised(solution: Solution, target: float | None, raise_on_failure: bool) -> Solution:
    """The solution, or the exception that carries it when it did not achieve what was asked for."""
    raise_if_interrupted(solution)
    if raise_on_failure and not (solution.certified or _on_target(solution, target)):
        raise NotEstablished(solution)
    return solution


def _on_target(solution: Solution, target: float | None) -> bool:
    """Whether the function error that was asked for, and no more, is established."""
    claims = solution.certificate.claims
    return target is not None and bool(claims) and solution.certificate.claim("C1").established


def _identity(taken: Taken, method: Method, seed: int) -> dict[str, Any]:
    """What a checkpoint must agree on before it is resumed."""
    problem, groups = taken.problem, taken.units.members
    return {
        "version": __version__,
        "data": problem.examples.fingerprint(),
        "method": method.name,
        "configuration": repr(method.config),
        "num_heads": problem.num_heads,
        "causal": problem.causal,
        "target": problem.target,
        "seed": seed,
        "groups": None if groups is None else array_hash(groups),
    }


def _phases(run: Run | None) -> tuple[Phase, ...]:
    return () if run is None else tuple(Phase(*record) for record in run.records)


def _solution(run: Run, taken: Taken, method: Method, tools: Tools) -> Solution:
    """The best fit with its certificate; or how the run ended without one."""
    trail: Trail = run.state
    problem = taken.problem
    best, phases = trail.best, _phases(run)
    layer = None if best is None else best.layer
    stats = _stats(trail, problem, method) | taken.known
    if run.interrupted:
        return Solution(layer, Outcome.INTERRUPTED, phases=phases, stats=stats)
    if run.out_of_time and not trail.settled:
        return Solution(layer, Outcome.BUDGET_SPENT, phases=phases, stats=stats)
    need = unmet_need(trail)
    if need is not None:
        ended = outcome(trail, None, num=problem.examples.num)
        asked = {} if need.examples is None else {"examples_needed": need.examples}
        return Solution(None, ended, phases=phases, stats=stats | need.evidence | asked)
    began = time.perf_counter()
    with tools.progress.phase("certify"):
        extra = None if method.check is None else method.check(trail)
        ended = conclude(problem, trail, taken.units, extra=extra, on_step=tools.progress.update)
    certify = Phase("certify", time.perf_counter() - began, {"outcome": ended.outcome.name})
    return Solution(layer, ended.outcome, ended.certificate, (*phases, certify), stats | ended.stats)


def _stats(trail: Trail, problem: Problem, method: Method) -> dict[str, Any]:
    """Figures of a run that do not depend on how it ended."""
    examples, split = problem.examples, problem.split
    shown = examples.take(split.select[:INPUTS])
    return {
        "method": method.name,
        "examples": getattr(trail.body, "examples_read", 0) or examples.num,
        "tokens": examples.tokens,
        "split": {"fit": len(split.fit), "select": len(split.select), "certify": len(split.certify)},
        "support": trail.signals.support if isinstance(trail.signals, Signals) else None,
        "sample_inputs": SampleInputs(shown.x, shown.mask),
    }
