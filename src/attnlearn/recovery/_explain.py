"""`explain`: which proposers would run on these data, in which order, which would be skipped and why, and what it would take.

The signals are measured as `recover` measures them, and every row of the table is asked the same questions. Rows that run only if
those before them fail are shown with their condition. Time and memory are those of the run in which the first row succeeds.

Cost: the signals, and a first look at the moment of a thousand examples or a few thousand, from which the number of heads and their
rank are guessed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from attnlearn._certificate import jsonable
from attnlearn._errors import require
from attnlearn._types import ArrayLike
from attnlearn.data import as_examples
from attnlearn.data._intake import is_data_model
from attnlearn.engine import Engine, Progress, Tools
from attnlearn.engine._threads import limited_blas
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._draw import draw_examples
from attnlearn.recovery._intake import check_range, independent_units
from attnlearn.recovery._methods import method_for
from attnlearn.recovery._of_moment import FromMoment
from attnlearn.recovery._of_search import WideSearch
from attnlearn.recovery._plan import Plan, Size, Work, make_plan, parse_memory, work
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.moment import take_moment
from attnlearn.recovery.wide import student_work, widths
from attnlearn.solve._split import Split

WIDE = 79
"""Letters of a line of text."""


@dataclass(frozen=True)
class Row:
    """One proposer: whether it `runs` ("yes", "if needed" or "no"), and why."""

    name: str
    runs: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """What `recover` would do with these data, and what it would take.

    `heads` and `rank` are what a first look at the moment suggests (None: it shows none). `outcome` is set when the run would end
    at once, with its reason.

    >>> import numpy as np
    >>> from attnlearn import AttentionLayer
    >>> x = np.random.default_rng(0).standard_normal((2000, 5, 6))
    >>> found = explain(x, AttentionLayer.random(2, 6)(x))
    >>> found.first, found.heads
    ('moment', 2)
    """

    method: str
    rows: tuple[Row, ...]
    signals: dict[str, Any]
    plan: Plan
    heads: int | None
    rank: int | None
    outcome: str | None = None

    @property
    def first(self) -> str | None:
        """The first proposer that would run."""
        return next((row.name for row in self.rows if row.runs == "yes"), None)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        told = str(self).split("\n  ")[0].replace("\n", " ")
        return {"schema": "attnlearn/explanation", "version": 1, "verdict": told, **jsonable(asdict(self))}

    def frame(self) -> Any:
        """The rows as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def __str__(self) -> str:
        if self.outcome is not None:
            return f"The run would end at once: {self.outcome}."
        shown = "" if self.heads is None else f"; a first look shows about {self.heads} heads"
        lines = [
            f"The tokens vary in {self.signals['support_rank']} directions; the layer looks "
            f"{'causal' if self.signals['causal'] else 'not causal'}{shown}.",
            f"Expected: {_spoken(self.plan.seconds)} and {self.plan.memory_bytes / 1e9:.1f} GB, if the first row succeeds"
            f"{self._errors()}.",
        ]
        width = max((len(row.name) for row in self.rows), default=0)
        lines += [f"  {row.name:<{width}}  {row.runs:<9}  {row.why}" for row in self.rows]
        after = [""] * (len(lines) - len(self.rows)) + [" " * (width + 15)] * len(self.rows)
        return "\n".join(
            textwrap.fill(line, WIDE, subsequent_indent=more) for line, more in zip(lines, after)
        )

    def _errors(self) -> str:
        """What errors in the outputs would change."""
        if self.signals["half_precision"]:
            return " (outputs in half precision carry errors, so every example is read)"
        return f"; {_spoken(self.plan.seconds_with_errors)}, if the outputs carry errors"


def explain(
    x: Any,
    y: Any = None,
    *,
    method: str = "auto",
    num_heads: int | None = None,
    causal: bool | None = None,
    mask: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    config: Any = None,
    memory: int | float | str | None = None,
    seed: int = 0,
) -> Explanation:
    """Which proposers `recover` would run with the same arguments, in which order and why, and what it would take.

    >>> import numpy as np
    >>> from attnlearn import AttentionLayer
    >>> words = np.random.default_rng(0).standard_normal((30, 6))
    >>> x = words[np.random.default_rng(1).integers(30, size=(2000, 5))]
    >>> explain(x, AttentionLayer.random(2, 6)(x)).first
    'wide search'
    """
    require(num_heads is None or num_heads >= 1, "num_heads", "must be at least 1", num_heads)
    drawn = (x, y, seed) if is_data_model(x) else None
    chosen = method_for(method, config, drawn)
    require(
        chosen.route is None, "method", "must have a table of proposers (linear is one regression)", method
    )
    if drawn is None:
        examples = as_examples(x, y, mask, memory=parse_memory(memory))
    else:
        examples, _ = draw_examples(x, y, chosen.num_examples, seed, chosen.scale)
    check_range(examples)
    members, unit = independent_units(examples, groups)
    split = Split.make(examples.num, groups=members, unit=unit, seed=seed)
    problem = Problem(examples, split, causal, num_heads)
    tools = Tools(Engine.parse(None), Progress.make(False), seed)
    with limited_blas(1):
        return explained(chosen.name, chosen.table, problem, tools, drawn is not None, memory)


def explained(
    method: str,
    table: Sequence[Proposer],
    problem: Problem,
    tools: Tools,
    drawn: bool = False,
    memory: int | float | str | None = None,
) -> Explanation:
    """The explanation of one table on one problem."""
    signals = measure(problem, tools)
    examples, fit = problem.examples, len(problem.split.fit)
    if isinstance(signals, Need):
        plan = make_plan(examples, fit, Size(problem.num_heads or 1), drawn, memory)
        said = f"{signals.outcome.name}, {signals.outcome.reason}"
        return Explanation(method, (), signals.evidence, plan, None, None, said)
    rows = rows_of(table, problem, signals)
    look = first_look(problem, signals, tools)
    plan = make_plan(examples, fit, size_of(rows, problem, signals, look), drawn, memory)
    return Explanation(method, rows, signals.evidence(), plan, look.heads, look.rank)


def rows_of(table: Sequence[Proposer], problem: Problem, signals: Signals) -> tuple[Row, ...]:
    """Every row of the table, with the answers to its questions before anything was tried."""
    rows, found = [], False
    for row in table:
        unfit = row.suits(problem, signals)
        if unfit is not None:
            rows.append(Row(row.name, "no", unfit))
        elif found or row.wanted(problem, signals, Trail(signals=signals)) is not None:
            rows.append(Row(row.name, "if needed", f"if {row.when}" if row.when != "always" else NOTHING_YET))
        else:
            rows.append(Row(row.name, "yes", row.when))
            found = True
    return tuple(rows)


def size_of(rows: Sequence[Row], problem: Problem, signals: Signals, look: Look) -> Size:
    """What to plan for, if the first row that runs succeeds; in many directions heads that share them, as those of most models do."""
    first = next((row.name for row in rows if row.runs == "yes"), "")
    wide = first.startswith(WideSearch.name)
    usual = calibration.WIDTHS[0] if wide else calibration.SPARE
    heads = problem.num_heads or look.heads or usual
    size = Size(heads, look.rank, look.moment_examples, wide, errors=signals.rounded)
    if not (wide and signals.many):
        return size
    tried = widths(problem, signals, problem.equations)
    shared = max(1, signals.directions // size.heads)
    return size._replace(
        rank=shared, student=student_work(problem.examples, signals, tried[0][0]) if tried else 0.0
    )


NOTHING_YET = "if the rows before it leave something to explain"


class Look(NamedTuple):
    """What a thousand examples show: heads and their rank (None: not clear), and the examples that would show them clearly."""

    heads: int | None
    rank: int | None
    moment_examples: int | None


def first_look(problem: Problem, signals: Signals, tools: Tools) -> Look:
    """The moment of the first examples, counted and unmixed as far as it goes; nothing on tokens that it does not model.

    While the rank of the heads does not show, the look is repeated on four times as many examples, as long as it stays cheap beside the
    run. Without a rank, heads of full rank are planned for: 158 seconds for an antibody layer that took 23.
    """
    if not signals.modelled:
        return Look(None, None, None)
    fit, most = len(problem.split.fit), calibration.LEAST_ROWS // 4
    while True:
        look = look_at(problem, signals, tools, most)
        most *= calibration.SPARE
        size = Size(problem.num_heads or look.heads or calibration.SPARE, None, most)
        if look.rank is not None or most > fit or not _cheap(work(problem.examples, fit, size)):
            return look


def look_at(problem: Problem, signals: Signals, tools: Tools, most: int) -> Look:
    """What the moment of at most so many examples shows."""
    moment, evidence = take_moment(problem, signals, tools, most=most)
    if not moment.visible:
        return Look(None, None, None)
    heads = min(moment.visible, calibration.WIDTHS[-1])
    over = max(moment.values[heads - 1] / moment.floor, calibration.GAP)
    clear = max(int(moment.examples * (calibration.CLEAR**2 - 1) / (over**2 - 1)), moment.examples)
    found = FromMoment().heads(problem, signals, moment, evidence, tools)
    if found.candidate is None:
        return Look(heads, None, clear)
    return Look(found.candidate.weights.heads, found.candidate.rank, clear)


def _cheap(planned: Work) -> bool:
    """Whether a look takes at most a tenth of what it plans."""
    return planned.propose <= calibration.LOOK_SHARE * (planned.fit + planned.certify)


MINUTE, HOUR = 60.0, 3600.0


def _spoken(seconds: float) -> str:
    """A time in words.

    >>> _spoken(0.4), _spoken(95.0), _spoken(9000.0)
    ('a second', '2 minutes', '2.5 hours')
    """
    if round(seconds) <= 1:
        return "a second"
    if seconds < MINUTE:
        return f"{seconds:.0f} seconds"
    return f"{seconds / MINUTE:.0f} minutes" if seconds < HOUR else f"{seconds / HOUR:.1f} hours"
