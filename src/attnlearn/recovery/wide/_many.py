"""The wide search in many directions: a student, the heads that it needs, and a few Gauss-Newton steps from them.

The cost of dropping a head leaps where the heads of the layer begin. With sixteen heads on three recorded layers of eight (51 and 127
directions) the eighth drop cost 0.003 to 0.04 of the outputs and the ninth 0.16 to 0.21.
Their rank shows in what is left, too: singular values of Theta and W fall behind it. With a student of rank 32 on heads of rank 16 they
fell by 2 and by 7. Gauss-Newton at too large a rank hardly progresses, so that rank comes first.
What is left is judged on the select side after a few steps; the fit that follows takes it to the end.
"""

from __future__ import annotations

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.data import Examples
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._signals import Signals
from attnlearn.recovery.wide._prune import Pruner, WideFit, likeliest
from attnlearn.recovery.wide._starts import Width
from attnlearn.recovery.wide._stochastic import Course, Source, descend, normal_equations
from attnlearn.recovery.wide._student import Student
from attnlearn.solve._drop import cheapest_drops
from attnlearn.solve._rank import largest_fall, profile


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
    normal, total = normal_equations(source, student)
    order = list(cheapest_drops(normal, total))
    pruner.costs = {len(kept): cost for kept, cost in order}  # those of later drops are not shown
    errors = pruner.select_error(layer), pruner.fit_error(layer)
    wide = WideFit(layer, rank, *errors, course.steps, residuals)
    if not wide.select_error <= calibration.STUDENT_ROUGH or wide.memorised:
        return wide, None
    for kept in likeliest(order, wide.select_error, pruner.problem.num_heads):
        start = layer.chosen(kept)
        for likely in ranks(source, start, rank):
            found = pruner.refined(start, likely, pruner.signals.found, calibration.SHORT_STEPS)
            if tools.out_of_time:
                return wide, found  # as far as it came
            if found.select_error <= pruner.signals.misfit and not found.memorised:
                return wide, _with_fewer(pruner, found)
    return wide, None


def _with_fewer(pruner: Pruner, found: WideFit) -> WideFit:
    """The fit without heads that turn out needless once the others are refined."""
    while found.layer.num_heads > 1:
        kept = pruner.remaining(found, pruner.problem.num_heads)[0]
        if len(kept) == found.layer.num_heads:
            break
        fewer = pruner.refined(
            found.layer.chosen(kept), found.rank, pruner.signals.found, calibration.SHORT_STEPS
        )
        enough = max(pruner.signals.found, calibration.CLEAR * found.select_error)
        if fewer.select_error > enough or fewer.memorised:
            break
        found = fewer
    return found


def ranks(source: Source, layer: AttentionLayer, most: int) -> list[int]:
    """The rank behind which the singular values of all Theta and W fall, if they clearly do; then `most`."""
    inside = source.white.enter(layer.parameters)
    spectra = [profile(np.linalg.svd(side, compute_uv=False))[:most] for side in (inside.theta, inside.w)]
    shared = min(len(values) for values in spectra)
    seen = largest_fall(spectra[0][:shared] * spectra[1][:shared], calibration.CLEAR**2)
    return [most] if seen is None else [seen, most]


def student_work(examples: Examples, signals: Signals, width: Width) -> float:
    """Operations of the stochastic descent: three times those of a forward pass for every row that it sees."""
    columns = width.heads * (width.rank or signals.directions)
    course = Course.through(signals.directions, columns)
    row = 3 * signals.directions + examples.out_dim + 2 * examples.tokens
    return float(course.steps) * course.rows * 6 * columns * row
