"""Levenberg-Marquardt for many small least-squares problems at once.

A problem evaluates unknowns and proposes damped Gauss-Newton steps; how it does so (normal equations, QR, one system per head,
eliminated unknowns) is its own affair. The driver owns the rest: which of the independent problems still move, what is accepted,
how each one's damping changes, when each one stops.

Cost: one proposal and one evaluation per step, over the problems that still move. A step is tried once: a problem whose step is
refused keeps its place and goes on with more damping beside the others, so no problem waits for another. BLAS gets one thread: on
matrices this small several wait for each other. What can fail: a start
may lead to a worse optimum; `cost` tells.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int

from attnlearn.engine._threads import limited_blas

Fit = tuple[np.ndarray, ...]
"""What is known at a point, the squared residual first; the first axis of every array is the problem, and all may be written to."""


class LeastSquares(Protocol):
    """Independent least-squares problems of one shape."""

    def evaluate(self, unknowns: np.ndarray, which: Int[np.ndarray, "t"], /) -> Fit:
        """The squared residual (t,) of the problems `which` at their unknowns, and what a step there needs."""
        ...

    def step(self, fit: Fit, damping: Float[np.ndarray, "t"], /) -> np.ndarray:
        """The damped Gauss-Newton step of every problem, in the shape of its unknowns."""
        ...


ACCEPTED, REFUSED = 0.1, 8.0
"""Factors of the damping after a step that was accepted or refused: near the optimum each step then wins a digit more than the last."""
LEAST, BACK, MOST = 1e-15, 1e-10, 1e3
"""Range of the damping, and where it is put at least by a refusal. The curvature of every unknown is one in the units of a step."""
FREE = 1e-8
"""Damping below which a small gain is the optimum and not a short step."""


class Stopping(NamedTuple):
    """When a problem ends: hardly damped steps take less than the share `gain` off the squared residual, or no damping helps.

    All end after `steps`, and with the first squared residual that is `enough`.
    """

    steps: int
    gain: float
    enough: Any = -np.inf


class Descended(NamedTuple):
    """Unknowns, what is known there, and the number of steps tried."""

    unknowns: np.ndarray
    fit: Fit
    steps: int


@limited_blas(1)
def descend(problem: LeastSquares, start: np.ndarray, damping: float, stopping: Stopping) -> Descended:
    """The optimum near every start, as far as the steps go; `damping` is the first one.

    >>> class Root:
    ...     def evaluate(self, x, which):
    ...         return np.sum((x**2 - 2) ** 2, axis=1), x
    ...     def step(self, fit, damping):
    ...         slope = 2 * fit[1]
    ...         return -slope * (fit[1] ** 2 - 2) / (slope**2 + damping[:, None])
    >>> found = descend(Root(), np.array([[1.0], [-3.0]]), 1e-2, Stopping(steps=20, gain=1e-2))
    >>> found.unknowns.round(6).ravel().tolist()
    [1.414214, -1.414214]
    """
    unknowns, active = start.copy(), np.arange(len(start))
    fit, damped = problem.evaluate(unknowns, active), np.full(len(start), damping)
    enough, taken = np.broadcast_to(stopping.enough, len(start)), 0
    while len(active) and taken < stopping.steps and not np.any(fit[0] <= enough):
        taken += 1
        trial = unknowns[active] + problem.step(tuple(part[active] for part in fit), damped[active])
        new = problem.evaluate(trial, active)
        before = fit[0][active]
        better = new[0] < before  # NaN is not
        good = active[better]
        unknowns[good] = trial[better]
        for part, fresh in zip(fit, new):
            part[good] = fresh[better]
        lower, higher = (
            np.maximum(ACCEPTED * damped[active], LEAST),
            np.maximum(REFUSED * damped[active], BACK),
        )
        damped[active] = np.where(better, lower, higher)
        # Compared as products: a squared residual of zero has no share to lose.
        still = better & (before - new[0] < stopping.gain * before) & (damped[active] < FREE)
        active = active[~still & (damped[active] <= MOST)]
    return Descended(unknowns, fit, taken)
