"""`plan`: before training, what the theory predicts for this data.

The margin gamma of all examples at the start (`_compare.tangent`), the comparator of the realizability lemma for each target loss
(radius = (B_Phi + s + log(1/eps)) / gamma), the heads and the step that the training theorem then asks for, and
the steps after which its bound is below twice the target plus as much again. The table over head counts shows
how the prediction changes. Cost: one tangent kernel and one QP for each head count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._precision import precision
from attnlearn._types import ArrayLike
from attnlearn.data._base import require_count
from attnlearn.engine import Tools
from attnlearn.training import _bounds
from attnlearn.training._calibration import CURVATURE_ALLOWANCE, PLAN_TARGETS
from attnlearn.training._compare import tangent, to_device
from attnlearn.training._descent import finish
from attnlearn.training._initialize import largest_head, read_out_norm
from attnlearn.training._loss import cut
from attnlearn.training._model import Model, equal_scales
from attnlearn.training._problem import Problem, TrainConfig, make_problem
from attnlearn.training._test_loss import TestTarget, test_target


@dataclass(frozen=True)
class Target:
    """What reaching a comparator loss takes: D, the heads needed, the step and the steps.

    `realized` is whether the lemma's curvature premise holds at this number of heads; `step` and `steps` are
    the theorem's, at the heads it needs.

    >>> Target(loss=0.1, distance=2.0, realized=False, heads_needed=1e6, step=0.1, steps=250.0).steps
    250.0
    """

    loss: float
    distance: float
    realized: bool
    heads_needed: float
    step: float
    steps: float


@dataclass(frozen=True)
class Plan:
    """The prediction for one number of heads, and a table over others.

    `margin` is gamma, attained on every example by a direction that was found; <= 0 if none was found.

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=4, dim=6).sample(20, seed=0)
    >>> plan(x, y, num_heads=2, heads=()).separable
    True
    """

    num_heads: int
    init: str
    margin: float
    head_bound: float
    value_bound: float
    radius: float
    practical_step: float
    targets: tuple[Target, ...] = ()
    table: tuple[dict[str, Any], ...] = field(default=())
    test: TestTarget | None = None

    @property
    def separable(self) -> bool:
        """P3: whether a direction was found that separates all labels without intercept."""
        return self.margin > 0

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        from attnlearn._certificate import jsonable

        return jsonable(asdict(self) | {"separable": self.separable})

    def frame(self):
        """The table over head counts as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        return pd.DataFrame(list(self.table))

    def __str__(self) -> str:
        lines = [
            f"{self.num_heads} heads, init {self.init}: gamma {self.margin:.4g}, B2 {self.head_bound:.3g}, "
            f"B_Phi {self.value_bound:.3g}, R {self.radius:.3g}, practical step {self.practical_step:.3g}"
        ]
        if not self.separable:
            lines.append("no direction was found that separates the labels: the theory predicts nothing")
        for target in self.targets:
            lines.append(
                f"loss {target.loss:g}: D {target.distance:.3g}, heads {target.heads_needed:.3g}, "
                f"step {target.step:.3g}, steps {target.steps:.3g}"
            )
        if self.test is not None:
            lines.append(
                f"expected test loss {self.test.loss:g}: examples {self.test.examples:.3g}, steps {self.test.steps:.3g}, heads "
                f"{self.test.heads:.3g}, provided that {' and '.join(self.test.assumes)}"
            )
        for row in self.table:
            lines.append("  " + ", ".join(f"{name} {_show(value)}" for name, value in row.items()))
        return "\n".join(lines)


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plan(
    x: ArrayLike,
    y: ArrayLike,
    *,
    num_heads: int,
    init: str = "first-step",
    test_loss: float | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    model: Model | None = None,
    config: TrainConfig | None = None,
) -> Plan:
    """What the theory predicts before training, also for the other head counts in `heads`.

    With `test_loss` also the examples, steps and heads after which the expected loss on new examples is at most that.

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=4, dim=6).sample(20, seed=0)
    >>> [row["heads"] for row in plan(x, y, num_heads=2, heads=(1, 4)).table]
    [1, 4]
    """
    settings = {"init": init, "model": model, "config": config}
    problem = make_problem(x, y, num_heads=num_heads, **settings)
    seed = require_count(seed, "seed", least=0)
    rule = "must lie between 0 and log 2, the loss of guessing"
    require(test_loss is None or 0 < test_loss < math.log(2), "test_loss", rule, test_loss)
    require(heads is None or isinstance(heads, Iterable), "heads", "must be several head counts", heads)
    others = dict.fromkeys((max(1, num_heads // 4), num_heads, 4 * num_heads)) if heads is None else heads
    rows = []
    for count in others:
        one = _plan(make_problem(x, y, num_heads=count, **settings), seed, None)
        reach = one.targets[-1] if one.targets else None
        rows.append(
            {
                "heads": count,
                "gamma": one.margin,
                "B_Phi": one.value_bound,
                "practical_step": one.practical_step,
                "heads_needed": reach.heads_needed if reach else math.inf,
                "steps": reach.steps if reach else math.inf,
            }
        )
    main = _plan(problem, seed, test_loss)
    return Plan(**{**main.__dict__, "table": tuple(rows)})


def _plan(problem: Problem, seed: int, test_loss: float | None) -> Plan:
    tools = Tools(seed=seed)
    with precision(problem.dtype):
        begin = problem.first_weights(tools.rng("initialize"))
        chunks = to_device(cut(problem.x, problem.y, problem.num_heads))
        entry, margins, _ = finish(
            problem.model, begin, chunks, equal_scales(problem.num_heads, problem.dtype), begin
        )
        found = tangent(problem, begin, tools.rng("tangent"))
        value, loss = float(np.abs(np.asarray(margins)).max()), float(entry.loss)
    targets: tuple[Target, ...] = ()
    test: TestTarget | None = None
    if found.margin > 0:
        norm = read_out_norm(begin)
        targets = tuple(_target(problem, found.margin, value, loss, norm, eps) for eps in PLAN_TARGETS)
        if test_loss is not None:
            test = test_target(problem, found.margin, value, loss, norm, test_loss)
    return Plan(
        problem.num_heads,
        problem.init,
        found.margin,
        largest_head(begin),
        value,
        problem.radius,
        4 / found.eigenvalue,
        targets,
        test=test,
    )


def _target(
    problem: Problem, margin: float, value: float, loss_start: float, norm: float, loss: float
) -> Target:
    """The theorem's figures for L* = `loss`, at the heads it needs."""
    distance = _bounds.realizability_radius(value, margin, loss, CURVATURE_ALLOWANCE)
    reach = _bounds.norm_in_ball(norm + distance, distance)
    beta1, beta2 = problem.constants(reach)
    needed = max(1.0, _bounds.heads_needed(beta2, distance))
    here = problem.constants(norm + distance)[1] / problem.num_heads**0.5
    # K = 5 D^2 / (8 eta L*) makes the bound 4 L*; D^2 / (K L*) = 1.6 eta then limits nothing.
    step = min(1 / _bounds.smoothness(beta1, beta2, math.ceil(needed)), distance**2 / loss_start)
    steps = 5 * distance**2 / (8 * step * loss)
    return Target(loss, distance, bool(here * distance**2 <= 2 * CURVATURE_ALLOWANCE), needed, step, steps)
