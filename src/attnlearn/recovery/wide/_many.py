"""The wide search in many directions: a student, the heads that it needs, and Gauss-Newton on their factors.

The cost of dropping a head leaps where the heads of the layer begin. With sixteen heads on three recorded layers of eight (51 and 127
directions) the eighth drop cost 0.003 to 0.04 of the outputs and the ninth 0.16 to 0.21.
Their rank shows in what is left, too: singular values of Theta and W fall behind it. With a student of rank 32 on heads of rank 16 they
fell by 2 and by 7. Gauss-Newton at too large a rank hardly progresses, so that rank comes first.
What is left is judged on the select side; the fit that follows takes it to the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.wide._newton import Limits, newton
from attnlearn.recovery.wide._prune import Pruner, WideFit, likeliest
from attnlearn.recovery.wide._starts import Width
from attnlearn.recovery.wide._stochastic import Course, Source, descend, normal_equations
from attnlearn.recovery.wide._student import Student
from attnlearn.scores import Visible, value_directions
from attnlearn.solve._drop import cheapest_drops
from attnlearn.solve._rank import largest_fall, profile
from attnlearn.solve._unknowns import score_unknowns, unknowns


class Polished(NamedTuple):
    """A student after Gauss-Newton, and what the select side says of it."""

    student: Student
    fit: WideFit


def from_student(pruner: Pruner, source: Source, width: Width) -> tuple[WideFit, WideFit | None]:
    """The student's own fit, and that of the heads that it needs; None if those explain too little."""
    tools, rank = pruner.tools, width.rank
    assert rank is not None, "a student has factors"
    directions, out = source.x.shape[2], source.y.shape[2]
    name = f"student {width.heads} {rank}"
    begin = Student.random(width.heads, rank, directions, out, calibration.WIDE_SCORES, tools.rng(name))
    course = Course.through(directions, width.heads * rank)
    student, residuals = descend(source, begin, course, tools, name)
    layer = source.layer(student)
    errors = pruner.select_error(layer), pruner.fit_error(layer)
    wide = WideFit(layer, rank, *errors, course.steps, residuals)
    if not wide.select_error <= calibration.STUDENT_ROUGH or wide.memorised:
        return wide, None
    found = _needed(pruner, source, student, wide)
    if found is None and not tools.out_of_time:  # what the descent lost, all heads together may find
        whole = polished(pruner, source, student)
        if whole.fit.select_error <= calibration.MUCH_BETTER * wide.select_error:
            found = _needed(pruner, source, whole.student, whole.fit)
    return wide, found


def _needed(pruner: Pruner, source: Source, student: Student, wide: WideFit) -> WideFit | None:
    """The fit of the heads of a student that are needed, or as far as it came when time was up; None if none explains enough."""
    order = list(cheapest_drops(*normal_equations(source, student)))
    pruner.costs = {len(kept): cost for kept, cost in order}  # those of later drops are not shown
    for kept in likeliest(order, wide.select_error, pruner.problem.num_heads):
        heads = student.of_heads(kept)
        for likely in ranks(heads):
            found = polished(pruner, source, heads.of_rank(likely))
            if pruner.tools.out_of_time:
                return found.fit
            if found.fit.select_error <= pruner.signals.misfit and not found.fit.memorised:
                return _with_fewer(pruner, source, found)
    return None


def polished(pruner: Pruner, source: Source, student: Student, dtype: Any = np.float32) -> Polished:
    """The optimum near a student, on as many sequences as determine its factors, or more where these were learned by heart."""
    heads, directions, rank = student.values.shape
    number = sequences_for(heads, directions, source.y.shape[2], rank, source.x.shape[1], source.causal)
    tools, progress = pruner.tools, pruner.tools.progress
    limits = Limits(calibration.VECTORS, deadline=tools.deadline)
    residuals: tuple[float, ...] = ()
    while True:
        found = newton(
            student.astype(dtype),
            source.in_double(number) if dtype == np.float64 else list(source.pieces(number)),
            source.causal,
            limits,
            on_step=lambda residual: progress.update(heads=heads, residual=residual),
        )
        layer, residuals = source.layer(found.student), residuals + found.residuals
        fit = WideFit(layer, rank, pruner.select_error(layer), found.residual, len(residuals), residuals)
        if not fit.memorised or number >= len(source.x) or tools.out_of_time:
            return Polished(found.student, fit)
        student, number = found.student, 2 * number


def sequences_for(
    heads: int, directions: int, out: int, rank: int, tokens: int, causal: bool | Visible
) -> int:
    """Sequences that determine the factors of so many heads.

    Scores, which a row tells of in the directions in which its values differ, are counted alone too.

    >>> sequences_for(8, 127, 128, 16, 32, False), sequences_for(12, 383, 384, 32, 16, False)
    (128, 398)
    """
    telling = min(out, value_directions(heads, tokens, causal))
    scores = heads * (score_unknowns(directions, rank) + directions)
    rows = calibration.EQUATIONS_PER_UNKNOWN * max(
        unknowns(heads, directions, out, rank) / out, scores / telling
    )
    return int(np.ceil(max(rows, calibration.LEAST_ROWS) / tokens))


def _with_fewer(pruner: Pruner, source: Source, found: Polished) -> WideFit:
    """The fit without heads that turn out needless once the others are refined: two may share what one would do.

    Where float32 may be what is left, it ends in float64.
    """
    while len(found.student.values) > (pruner.problem.num_heads or 1):
        kept, cost = next(iter(cheapest_drops(*normal_equations(source, found.student))))
        if cost > calibration.STUDENT_ROUGH:
            break
        fewer = polished(pruner, source, found.student.of_heads(kept))
        enough = max(pruner.signals.found, calibration.CLEAR * found.fit.select_error)
        if fewer.fit.select_error > enough or fewer.fit.memorised:
            break
        found = fewer
    if found.fit.select_error > calibration.NEGLIGIBLE or pruner.tools.out_of_time:
        return found.fit
    return polished(pruner, source, found.student, np.float64).fit


def ranks(student: Student) -> list[int]:
    """The rank behind which the singular values of all Theta and W fall, if they clearly do; then the student's own."""
    most = student.values.shape[2]
    spectra = [profile(values) for values in student.spectra]
    shared = min(len(values) for values in spectra)
    seen = largest_fall(spectra[0][:shared] * spectra[1][:shared], calibration.CLEAR**2)
    return [most] if seen is None else [seen, most]


def student_work(examples: Examples, signals: Signals, width: Width) -> float:
    """Operations of the stochastic descent, and of Gauss-Newton on heads of rank r with m r = d, as most layers have them.

    A step of the descent takes three times those of a forward pass for every row of its batch.
    """
    directions, out, tokens = signals.directions, examples.out_dim, examples.tokens
    columns = width.heads * (width.rank or directions)
    course = Course.through(directions, columns)
    descent = course.steps * course.rows * 6 * columns * (3 * directions + out + 2 * tokens)
    heads = calibration.WIDTHS[0]
    rows = tokens * sequences_for(heads, directions, out, -(-directions // heads), tokens, signals.causal)
    products = calibration.VECTORS * calibration.MANY_PRODUCTS / 2
    return float(descent + products * rows * (24 + 6) * directions**2)
