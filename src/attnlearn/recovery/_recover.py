"""`recover`: a layer from random examples, with a certificate.

The assembly is the same for all methods: split, signals, the rows of the method's table, one look at the certify side.

BLAS is confined to one thread for all of it. Products are many and small, and run in whole chunks on as many threads as there
are cores; threads of BLAS beside those wait for each other more than they work (measured with two busy cores: 69 s instead of
4.8), and one that has nothing to do spins for another 25 ms.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SHOWN, SampleInputs
from attnlearn._result import Outcome, Solution
from attnlearn._types import ArrayLike
from attnlearn.data import as_examples
from attnlearn.data._intake import is_data_model
from attnlearn.engine import Engine, Learner, Options, Progress, Run, Tools, array_hash, handed_over, learn
from attnlearn.engine._threads import limited_blas
from attnlearn.recovery._calibration import WIDTHS
from attnlearn.recovery._conclude import Units, conclude
from attnlearn.recovery._config import ACCURACY
from attnlearn.recovery._draw import draw_examples
from attnlearn.recovery._driver import Step, program
from attnlearn.recovery._from_block import from_block, is_block
from attnlearn.recovery._intake import check_range, check_start, few_distinct, independent_units
from attnlearn.recovery._methods import Method, method_for, method_from, method_with, without_positions
from attnlearn.recovery._outcome import outcome, unmet_need, weak_remedy
from attnlearn.recovery._plan import Plan, Size, make_plan, parse_memory
from attnlearn.recovery._planner import Planner, carries_errors
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.positions import WithPositions, asked_for
from attnlearn.solve._calibration import FEWEST_UNITS
from attnlearn.solve._split import Split
from attnlearn.solve.noise import precision_of


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
    accuracy: float = ACCURACY,
    memory: int | float | str | None = None,
    target: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    engine: Engine | str | int | None = None,
    device: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """Recover every head of an attention layer from random examples, with a certificate.

    `x` is an array (n, k, d) with `y` (n, k, d_out); or a `Recorded` or the path of one; or a data model with `y` an oracle, from
    which examples are drawn; or a torch attention block with `y` batches, of which as many are recorded as it takes. The number of heads, their ranks and, unless given, the causal mask are found.

    - `method`: the table of proposers, "auto", "moment", "wide" or "sculpt" (`attnlearn.explain` shows which rows would run); "linear"
      fits a `LinearAttentionLayer` by least squares.
    - `positions`: by default found, where no layer without them fits and the data show that scores depend on positions. "none" says
      that they do not; "rotary" (usual bases and widths), "relative", or a `Rotation` or `Offsets` of `attnlearn.scores` how they do.
      `causal` may be a `Visible`; a window is found. Claims C2 and C3 speak of Theta(offset) (docs/positions.md).
    - `start`: a layer that is nearly right. It takes the place of the search, and is refined and certified.
    - `groups`: the document of every sequence. Sequences of one document stay on one side of the split.
    - `accuracy`: claims about outputs that carry errors (noise, rounding) are established where they are at least so exact.
    - `target`: a function error that is enough. The run stops there, in about half the time.
    - `memory` (bytes, or "1.5GB"): a run that is expected to need more is refused. `stats["plan"]` holds what was expected last.
    - `time_limit` (seconds): the run ends with the best answer so far and BUDGET_SPENT. With a checkpoint it can be resumed.

    A run that achieved less than was asked for raises `NotEstablished`, which carries the solution. With `raise_on_failure=False` the
    solution is returned.

    >>> from attnlearn import AttentionLayer, data, distance
    >>> truth = AttentionLayer.random(num_heads=2, dim=6, seed=1)
    >>> x = data.Gaussian(tokens=4, dim=6).sample(4000)
    >>> solution = recover(x, truth(x))
    >>> solution.certified, distance(solution.layer, truth).max < 1e-8
    (True, True)
    """
    require(num_heads is None or num_heads >= 1, "num_heads", "must be at least 1", num_heads)
    require(0 < accuracy < 1, "accuracy", "must be between 0 and 1", accuracy)
    require(start is None or config is None, "config", "belongs to a search and cannot go with start", config)
    options = Options(
        target=target, time_limit=time_limit, seed=seed, engine=engine, device=device, checkpoint=checkpoint,
        resume=resume, progress=progress, raise_on_failure=raise_on_failure,
    )  # fmt: skip
    if is_block(x):
        require(mask is None and groups is None, "mask", "and groups cannot go with a block", "one of them")
        again = partial(
            recover, method=method, num_heads=num_heads, positions=positions, causal=causal, start=start, config=config,
            accuracy=accuracy, memory=memory, raise_on_failure=False, **options.without_folder(),
        )  # fmt: skip
        return handed_over(from_block(x, y, again), options)
    given = Arguments(x, y, mask, groups, num_heads, causal, target, memory, seed, accuracy)
    chosen = method_for(method, config, given.drawn) if start is None else method_from(start)
    told = chosen.heads is None or num_heads in chosen.heads
    require(told, "num_heads", f"must be one of {chosen.heads} with this config", num_heads)
    asked = asked_for(positions)
    if asked.kind == "none":
        chosen = without_positions(chosen)
    elif asked.kind is not None:
        require(device in (None, "cpu"), "device", 'must be None or "cpu" where positions are given', device)
        alone = start is None and config is None and method == "auto"
        require(alone, "positions", "cannot go with start, config or method", "one of them")
        chosen = method_with(asked)
    tools = options.tools()
    taken = take_in(given, chosen, start, tools)
    if isinstance(taken, Solution):
        return handed_over(taken, options)
    learner = Recovery if chosen.route is None else DirectRecovery
    return learn(learner(taken, chosen, given.drawn is not None, tools), options, tools)


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
    accuracy: float

    @property
    def drawn(self) -> tuple[Any, Any, int] | None:
        """The data model, the oracle and the seed, where examples are drawn."""
        return (self.x, self.y, self.seed) if is_data_model(self.x) else None


@dataclass(frozen=True)
class Taken:
    """The problem that the caller's arguments make, its units, and the first plan, which refuses what cannot fit into memory."""

    problem: Problem
    units: Units
    plan: Plan
    scale: float
    """The factor by which a data model's tokens were multiplied."""


def take_in(given: Arguments, method: Method, start: AttentionLayer | None, tools: Tools) -> Taken | Solution:
    """Examples, split and plan; or the solution, when the examples are too few to be split."""
    scale, num_heads, causal = 1.0, given.num_heads, given.causal
    if given.drawn is not None:
        examples, scale = draw_examples(given.x, given.y, method.num_examples, given.seed, method.scale)
    else:
        examples = as_examples(given.x, given.y, given.mask, memory=parse_memory(given.memory))
    turned = examples.num < FEWEST_UNITS <= examples.tokens
    rule = "must hold the sequences on its first axis; try x.swapaxes(0, 1), y.swapaxes(0, 1)"
    require(not turned, "x", rule, (examples.num, examples.tokens, examples.dim))
    check_range(examples)
    if start is not None:
        check_start(start, examples, causal, num_heads)
        causal, num_heads = start.causal, start.num_heads
    members, unit = independent_units(examples, given.groups)
    if unit == "distinct input" and members is not None and members.max() + 1 < FEWEST_UNITS <= examples.num:
        return few_distinct(int(members.max()) + 1, examples)
    split = Split.make(examples.num, groups=members, unit=unit, seed=given.seed)
    size = Size(num_heads or WIDTHS[0])
    plan = make_plan(examples, len(split.fit), size, given.drawn is not None, given.memory)
    shown = examples.take(split.select).y
    problem = Problem(examples, split, causal, num_heads, given.target, given.accuracy, precision_of(shown))
    units = Units(members, unit, "" if scale == 1.0 else f", the data model's tokens times {scale:.3g}")
    return Taken(problem, units, plan, scale)


class Recovery(Learner):
    """`recover` as the engine runs it."""

    name = "recover"

    def __init__(self, taken: Taken, method: Method, drawn: bool, tools: Tools) -> None:
        self.taken, self.method, self.problem, self.state = taken, method, taken.problem, Trail()
        self.planner = Planner(method.table, taken.problem, drawn, taken.plan, tools)
        self.following = program(method.table)
        self.phases = self.next_step

    def next_step(self, trail: Trail) -> tuple[str, Step] | None:
        """The next step, after a plan where more is known than before."""
        self.planner.look(trail)
        return self.following(trail)

    def identity(self) -> dict[str, Any]:
        """The examples, the method and what is known of the layer."""
        groups = self.taken.units.members
        return {
            "data": self.problem.examples.fingerprint(),
            "method": self.method.name,
            "configuration": repr(self.method.config),
            "num_heads": self.problem.num_heads,
            "causal": self.problem.causal,
            "positions": [repr(row) for row in self.method.table if isinstance(row, WithPositions)],
            "accuracy": self.problem.accuracy,
            "groups": None if groups is None else array_hash(groups),
        }

    def context(self) -> AbstractContextManager[Any]:
        """One thread for BLAS."""
        return limited_blas(1)

    def so_far(self, state: Trail) -> tuple[AttentionLayer | None, dict[str, Any]]:
        """The layer of the best fit."""
        return state.layer, self.stats(state)

    def stats(self, trail: Trail) -> dict[str, Any]:
        """Figures of a run that do not depend on how it ended."""
        problem = self.problem
        examples, split = problem.examples, problem.split
        words = getattr(examples, "words", ())
        first = sorted(split.select, key=lambda index: index >= len(words)) if words else split.select
        shown = examples.take(np.asarray(first[:INPUTS]))
        return {
            "method": self.method.name,
            "examples": getattr(trail.body, "examples_read", 0) or examples.num,
            "sequence_length": examples.tokens,
            "given_heads": problem.num_heads,
            "split": {"fit": len(split.fit), "select": len(split.select), "certify": len(split.certify)},
            "support": trail.signals.support if isinstance(trail.signals, Signals) else None,
            "sample_inputs": SampleInputs(
                shown.x, shown.mask, tuple(words[index] for index in first[:SHOWN] if index < len(words))
            ),
            "token_scale": self.taken.scale,
            "plan": self.planner.plan,
        }

    def finished(self, state: Trail) -> bool:
        """Whether a fit leaves nothing to explain, or is on target."""
        return state.settled

    def conclude(self, run: Run, layer: AttentionLayer | None, tools: Tools) -> Solution:
        """The certificate of the best fit; or why there is no fit."""
        trail, num = run.state, self.problem.examples.num
        need = unmet_need(trail)
        if need is not None:
            ended = outcome(trail, None, num=num)
            asked: dict[str, Any] = {} if need.examples is None else {"examples_needed": need.examples}
            if ended is Outcome.ATTENTION_TOO_WEAK and need.examples is None:
                asked["remedy"] = weak_remedy(self.problem.examples.dtype, self.problem.rounded_to)
            return Solution(None, ended, stats=asked | need.evidence)
        extra = None if self.method.check is None else self.method.check(trail)
        made = conclude(
            self.problem,
            trail,
            self.taken.units,
            extra=extra,
            deadline=tools.deadline,
            on_step=tools.progress.update,
        )
        cut_short = tools.out_of_time and carries_errors(trail) and not made.certificate.certified
        ended = Outcome.BUDGET_SPENT if cut_short else made.outcome
        return Solution(layer, ended, made.certificate, stats=made.stats)


class DirectRecovery(Recovery):
    """`recover` by a method that has a route of its own instead of proposers."""

    def __init__(self, taken: Taken, method: Method, drawn: bool, tools: Tools) -> None:
        super().__init__(taken, method, drawn, tools)
        assert method.route is not None, "a method without proposers has a route"
        self.route = method.route(taken.problem, taken.units, taken.plan.memory_limit)
        self.state, self.phases = self.route.state, self.route.phases

    def so_far(self, state: Any) -> tuple[Any, dict[str, Any]]:
        """The layer that the route has found."""
        return self.route.layer(state), self.stats(Trail())

    def finished(self, state: Any) -> bool:
        """Whether there is a layer to judge."""
        return self.route.layer(state) is not None

    def conclude(self, run: Run, layer: Any, tools: Tools) -> Solution:
        """As the route judges."""
        return self.route.conclude(run.state)
