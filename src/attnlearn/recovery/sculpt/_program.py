"""A linear program that is solved again and again with other costs and more rows, each time from the last basis.

    minimise cost . theta  subject to  low <= rows theta <= high,  |theta|_inf <= radius

HiGHS keeps its basis between solves and goes on from it with the dual simplex. Against fresh solves in one-sided
rows this took a third of the time (p = 72 with 600 slabs, p = 156 with 1,500).
What can fail: no feasible point, or a solver that gives up; both give None.
"""

from __future__ import annotations

import highspy
import numpy as np
from jaxtyping import Float


class Program:
    """The rows of a linear program, and the solver that remembers where it was.

    >>> program = Program(np.eye(2), np.zeros(2), np.ones(2), radius=5.0)
    >>> program.lowest(np.array([-1.0, -1.0])).tolist()
    [1.0, 1.0]
    >>> program.add(np.array([[1.0, -1.0]]), np.array([0.5]), np.array([np.inf]))
    >>> program.lowest(np.array([-1.0, -1.0])).tolist()
    [1.0, 0.5]
    """

    def __init__(
        self,
        rows: Float[np.ndarray, "n p"],
        low: Float[np.ndarray, "n"],
        high: Float[np.ndarray, "n"],
        radius: float,
    ) -> None:
        self.columns = np.arange(rows.shape[1], dtype=np.int32)
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("solver", "simplex")
        box = np.full(rows.shape[1], radius)
        self.solver.addVars(len(box), -box, box)
        self.add(rows, low, high)

    def add(
        self, rows: Float[np.ndarray, "n p"], low: Float[np.ndarray, "n"], high: Float[np.ndarray, "n"]
    ) -> None:
        """Require also low <= rows . theta <= high; limits may be infinite."""
        n, p = rows.shape
        starts = np.arange(0, n * p, p, dtype=np.int32)
        indices = np.tile(self.columns, n)
        self.solver.addRows(n, low, high, n * p, starts, indices, np.ascontiguousarray(rows).reshape(-1))

    def lowest(self, direction: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"] | None:
        """A point at which direction . theta is least, or None when there is none."""
        cost = np.asarray(direction, np.float64)
        self.solver.changeColsCost(len(cost), self.columns, cost)
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return np.array(self.solver.getSolution().col_value)
