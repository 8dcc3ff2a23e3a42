"""`recover`: a layer from random examples, by the spectral route, by sculpting, or from a given start.

The assembly is the same for all: split, the phases of the route, the shared refine, one look at the certify side.

BLAS is confined to one thread for all of it. Products are many and small, and run in whole chunks on as many threads as there
are cores; threads of BLAS beside those wait for each other more than they work (measured with two busy cores: 69 s instead of
4.8), and one that has nothing to do spins for another 25 ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnlearn._canonical import Support
from attnlearn._errors import NotEstablished, raise_if_interrupted, require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._types import ArrayLike
from attnlearn._version import __version__
from attnlearn.data import Examples, as_examples
from attnlearn.engine import Checkpoint, Engine, PhaseFailed, Progress, Run, Tools, array_hash, run_phases
from attnlearn.engine._threads import limited_blas
from attnlearn.recovery._calibration import CERTIFIED_LEAST
from attnlearn.recovery._conclude import Conclusion, check_range, conclude, independent_units
from attnlearn.recovery._draw import draw_examples, is_data_model
from attnlearn.recovery._plan import Plan, make_plan, parse_memory
from attnlearn.recovery._refining import answer
from attnlearn.recovery._routes import METHODS, Route, route_for, route_from
from attnlearn.recovery._start import check_start
from attnlearn.solve._calibration import FEWEST_UNITS
from attnlearn.solve._split import Split


def recover(
    x: Any,
    y: Any = None,
    *,
    method: str = "spectral",
    num_heads: int | None = None,
    causal: bool | None = None,
    mask: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    target: float | None = None,
    start: AttentionLayer | None = None,
    config: Any = None,
    seed: int = 0,
    memory: int | float | str | None = None,
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
    on the examples and certified against them. `memory` (bytes, or "1.5GB") refuses a run that is expected to need more;
    `stats["plan"]` holds what was expected.

    >>> from attnlearn import AttentionLayer, data, distance
    >>> truth = AttentionLayer.random(num_heads=2, dim=6, seed=1)
    >>> x = data.Gaussian(tokens=4, dim=6).sample(4000)
    >>> solution = recover(x, truth(x))
    >>> solution.certified, distance(solution.layer, truth).max < 1e-8
    (True, True)
    """
    require(method in METHODS, "method", f"must be one of {', '.join(METHODS)}", method)
    require(num_heads is None or num_heads >= 1, "num_heads", "must be at least 1", num_heads)
    require(target is None or target > 0, "target", "must be positive", target)
    require(start is None or config is None, "config", "belongs to a search and cannot go with start", config)
    route = route_for(method, config) if start is None else route_from(start)
    tools = Tools(Engine.parse(engine), Progress.make(progress), seed)
    drawn, scale = ((x, y, seed) if is_data_model(x) else None), 1.0
    if drawn is not None:
        examples, scale = draw_examples(x, y, route.num_examples, seed, route.scale)
    else:
        examples = as_examples(x, y, mask, memory=parse_memory(memory))
    check_range(examples)
    if start is not None:
        check_start(start, examples, causal, num_heads)
    members, unit = independent_units(examples, groups)
    if unit == "distinct input" and members.max() + 1 < FEWEST_UNITS <= examples.num:
        distinct = int(members.max()) + 1
        failed = Solution.failed(Outcome.TOO_FEW_EXAMPLES, distinct=distinct, examples_needed=CERTIFIED_LEAST)
        return _raised(failed, target, raise_on_failure)
    split = Split.make(examples.num, groups=members, unit=unit, seed=seed)
    with tools.progress.phase("plan"):
        plan = make_plan(examples, len(split.fit), num_heads, drawn is not None, memory)
        tools.progress.update(**plan.figures())
    problem = route.problem(examples, split, causal, num_heads, target, drawn)
    identity = _identity(examples, route, num_heads, causal, target, seed, members)
    saved = None if checkpoint is None else Checkpoint(checkpoint, identity(), resume=resume)
    try:
        with limited_blas(1):
            run = run_phases(route.phases, problem, route.state, tools, saved)
            solution = _solution(run, examples, split, route, (members, unit), target, scale, plan, tools)
    except PhaseFailed as failure:
        solution = Solution.failed(Outcome.NUMERICAL_FAILURE, _phases(failure.run), reason=str(failure))
    finally:
        if saved is not None:
            saved.close()
    return _raised(solution, target, raise_on_failure)


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


def _identity(
    examples: Examples,
    route: Route,
    num_heads: int | None,
    causal: bool | None,
    target: float | None,
    seed: int,
    groups: np.ndarray | None,
) -> Callable[[], dict[str, Any]]:
    """What a checkpoint must agree on before it is resumed; computed only when there is one."""
    return lambda: {
        "version": __version__,
        "data": examples.fingerprint(),
        "method": route.name,
        "configuration": repr(route.config),
        "num_heads": num_heads,
        "causal": causal,
        "target": target,
        "seed": seed,
        "groups": None if groups is None else array_hash(groups),
    }


def _fitted_on(run: Run) -> int | None:
    """Examples that the last refinement used, if there was one."""
    return next((r.evidence.get("examples") for r in reversed(run.records) if r.name == "refine"), None)


def _phases(run: Run | None) -> tuple[Phase, ...]:
    return () if run is None else tuple(Phase(*record) for record in run.records)


def _solution(
    run: Run,
    examples: Examples,
    split: Split,
    route: Route,
    units: tuple[np.ndarray | None, str],
    target: float | None,
    scale: float,
    plan: Plan,
    tools: Tools,
) -> Solution:
    state = run.state
    layer = None if state.theta is None else answer(state)
    support = None if state.basis is None else Support(state.mean, state.basis)
    stats: dict[str, Any] = {
        "method": route.name,
        "examples": getattr(state, "examples_read", 0) or examples.num,
        "tokens": examples.tokens,
        "token_scale": scale,
        "plan": plan,
        "split": {"fit": len(split.fit), "select": len(split.select), "certify": len(split.certify)},
        "support": support,
        "seed": tools.seed,
    }
    shown = examples.take(split.select[:INPUTS])
    stats["sample_inputs"] = SampleInputs(shown.x, shown.mask)
    phases = _phases(run)
    if run.interrupted:
        return Solution(layer, Outcome.INTERRUPTED, phases=phases, stats=stats)
    if run.stopped is not None:
        return Solution(
            layer, Outcome[run.stopped.outcome_name], phases=phases, stats=stats | run.stopped.evidence
        )
    assert layer is not None, "a route that neither stops nor is interrupted leaves an answer"
    whole = support is None or support.basis.shape[1] == examples.dim
    with tools.progress.phase("certify"):
        ended = conclude(
            layer,
            examples,
            split,
            rank=state.rank,
            support=None if whole else support,
            groups=units[0],
            unit=units[1],
            where="" if scale == 1.0 else f", the data model's tokens times {scale:.3g}",
            target=target,
            extra=None if route.check is None else route.check(state),
            fitted_on=_fitted_on(run),
            on_step=tools.progress.update,
        )
    outcome, stats = ended.outcome, stats | ended.stats
    needed = _unclear(ended, phases, examples.num)
    if needed is not None:
        outcome, stats = Outcome.TOO_FEW_EXAMPLES, stats | {"examples_needed": needed}
    return Solution(layer, outcome, ended.certificate, phases, stats)


def _unclear(ended: Conclusion, phases: Sequence[Phase], num: int) -> int | None:
    """Examples that would show every head clearly, if a misfit without a known cause came from too few of them."""
    unexplained = ended.stats.get("diagnosis", {}).get("cause") == "not attention"
    views = [p.evidence["examples_for_clear_view"] for p in phases if "examples_for_clear_view" in p.evidence]
    return views[-1] if unexplained and views and views[-1] > num else None
