"""The convex body K that the certified rows leave: slabs, half-spaces and a box, as an object.

K = {theta : |a_j . theta - t_j| <= eps_j,  h_l . theta >= g_l,  |theta|_inf <= radius},  theta = vec [Theta; c^T].

A few slabs may be false, so K as given may be empty. `Body.make` then solves the linear program that moves every slab
apart by a slack of its own and minimises their sum, and drops the slabs that need one; what is left contains the
optimum, perhaps nothing else, so all slabs are then inflated by the first of a few amounts that leaves room.

Of thousands of rows a few hundred matter to any one question: every program starts with some of the slabs, and rows
that its answer violates are added, the worst first, until none is left. `width` is two linear programs (HiGHS, each
from the basis of the last), `minimum_norm_point` quadratic programs (PIQP), in p = (d + 1) d unknowns. At p = 156 with
3,120 slabs this took a third of the time of programs with all rows.
What can fail: half-spaces that contradict the slabs; they are then left out, and `half_spaces_used` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import piqp
import scipy.sparse
from jaxtyping import Bool, Float, Int
from scipy.optimize import linprog

from attnlearn._errors import AttnlearnError
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._certify_rows import HalfSpaces
from attnlearn.recovery.sculpt._program import Program
from attnlearn.recovery.sculpt._slabs import Slabs

NO_HALF_SPACES = HalfSpaces(np.zeros((0, 0)), np.zeros(0))


@dataclass(frozen=True)
class Body:
    """The body in units in which every slab has half-width 1: |normals theta - offsets| <= 1.

    `dropped` slabs contradicted the rest; `inflation` was added to every half-width.

    >>> normals = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> body = Body(normals, np.array([2.0, 2.0]), NO_HALF_SPACES, radius=9.0)
    >>> body.violation(np.array([2.0, 0.5])) == 0, body.violation(np.array([2.0, 2.0])) == 0
    (True, False)
    >>> round(body.width(np.array([1.0, 0.0])), 6)
    2.0
    """

    normals: Float[np.ndarray, "n p"]
    offsets: Float[np.ndarray, "n"]
    half_spaces: HalfSpaces
    radius: float
    dropped: int = 0
    half_spaces_used: bool = True
    inflation: float = 0.0

    @classmethod
    def make(cls, slabs: Slabs, half_spaces: HalfSpaces, radius: float) -> Body:
        """All slabs if they have a point in common, otherwise those that do not contradict the others."""
        normals, offsets = slabs.normals / slabs.widths[:, None], slabs.offsets / slabs.widths
        body = cls(normals, offsets, half_spaces, radius)
        if body._nearest() is not None:
            return body
        kept = _least_slack(normals, offsets, radius) <= calibration.NO_SLACK
        dropped = int(np.sum(~kept))
        for inflation in calibration.INFLATIONS:
            for used in (half_spaces, NO_HALF_SPACES):
                full = len(used.thresholds) == len(half_spaces.thresholds)
                body = cls(normals[kept], offsets[kept], used, radius, dropped, full, inflation)
                if body._nearest() is not None:
                    return body
        raise AttnlearnError("the body is empty")

    @classmethod
    def box(cls, sides: Float[np.ndarray, "p"]) -> Body:
        """The box |theta_j| <= sides_j."""
        return cls(np.diag(1 / sides), np.zeros(len(sides)), NO_HALF_SPACES, radius=10 * float(sides.max()))

    def constraints(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every slab and half-space as rows with lower and upper limits."""
        return self._rows(np.arange(len(self.offsets) + len(self.half_spaces.thresholds)))

    @property
    def reach(self) -> float:
        """Half-width of every slab in its own units: 1 and the inflation."""
        return 1 + self.inflation

    def violation(self, theta: Float[np.ndarray, "p"]) -> float:
        """Largest excess over a slab's half-width, in half-widths; 0 inside."""
        excess = np.abs(self.normals @ theta.reshape(-1) - self.offsets) - self.reach
        return float(np.maximum(excess, 0).max(initial=0.0))

    def extent(self, direction: Float[np.ndarray, "p"]) -> tuple[float, float]:
        """Least and greatest value of `direction` . theta over the body."""
        low, high = self._lowest(direction), self._lowest(-direction)
        if low is None or high is None:
            raise AttnlearnError("the body is empty")
        return float(direction @ low), float(direction @ high)

    def width(self, direction: Float[np.ndarray, "p"]) -> float:
        """Extent in `direction` over the direction's length."""
        low, high = self.extent(direction)
        return (high - low) / float(np.linalg.norm(direction))

    def minimum_norm_point(self) -> Float[np.ndarray, "p"]:
        """The point of the body nearest to 0."""
        point = self._nearest()
        if point is None:
            raise AttnlearnError("the body is empty")
        return point

    @cached_property
    def _program(self) -> Program:
        """A linear program with the rows that mattered so far."""
        return Program(*self._rows(np.flatnonzero(self._used)), self.radius)

    @cached_property
    def _used(self) -> Bool[np.ndarray, "r"]:
        """Which slabs and half-spaces `_program` has as rows."""
        return self._first_rows()

    def _first_rows(self) -> Bool[np.ndarray, "r"]:
        """A few slabs, spread over their order, to start a program with."""
        n, p = self.normals.shape
        used = np.zeros(n + len(self.half_spaces.thresholds), bool)
        used[np.linspace(0, n - 1, min(n, int(calibration.FIRST_ROWS * p))).astype(int)] = True
        return used

    def _rows(self, chosen: Int[np.ndarray, "c"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Normals, lower and upper limits of slabs and half-spaces; the latter are numbered after the slabs."""
        slabs, cuts = chosen[chosen < len(self.offsets)], chosen[chosen >= len(self.offsets)]
        cuts = cuts - len(self.offsets)
        normals, low, high = (
            self.normals[slabs],
            self.offsets[slabs] - self.reach,
            self.offsets[slabs] + self.reach,
        )
        if len(cuts):
            normals = np.concatenate([normals, self.half_spaces.normals[cuts]])
            low = np.concatenate([low, self.half_spaces.thresholds[cuts]])
            high = np.concatenate([high, np.full(len(cuts), np.inf)])
        return normals, low, high

    def _missed(self, point: Float[np.ndarray, "p"], used: Bool[np.ndarray, "r"]) -> Int[np.ndarray, "c"]:
        """The rows that `point` violates most, without those in use."""
        excess = np.abs(self.normals @ point - self.offsets) - self.reach
        if len(self.half_spaces.thresholds):
            short = self.half_spaces.thresholds - self.half_spaces.normals @ point
            excess = np.concatenate([excess, short])
        excess[used] = -np.inf
        worst = np.argsort(-excess)[: int(calibration.CUTS * len(point))]
        return worst[excess[worst] > calibration.CUT_SLACK]

    def _lowest(self, direction: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"] | None:
        """Minimise direction . theta, adding rows until none is violated; None when the body is empty."""
        while (point := self._program.lowest(direction)) is not None:
            missed = self._missed(point, self._used)
            if not len(missed):
                break
            self._program.add(*self._rows(missed))
            self._used[missed] = True
        return point

    def _nearest(self) -> Float[np.ndarray, "p"] | None:
        """Minimise the norm, adding rows until none is violated; None when the body is empty."""
        used = self._first_rows()
        while (point := _least_norm(*self._rows(np.flatnonzero(used)), self.radius)) is not None:
            missed = self._missed(point, used)
            if not len(missed):
                break
            used[missed] = True
        return point


def _least_norm(
    rows: Float[np.ndarray, "n p"], low: Float[np.ndarray, "n"], high: Float[np.ndarray, "n"], radius: float
) -> Float[np.ndarray, "p"] | None:
    """The point nearest to 0 with low <= rows theta <= high inside the box."""
    p = rows.shape[1]
    box = np.full(p, radius)
    none = np.zeros((0, p)), np.zeros(0)
    solver = piqp.DenseSolver()
    solver.setup(np.eye(p), np.zeros(p), *none, np.asfortranarray(rows), low, high, -box, box)
    return np.array(solver.result.x) if solver.solve() == piqp.PIQP_SOLVED else None


def _least_slack(normals: np.ndarray, offsets: np.ndarray, radius: float) -> np.ndarray:
    """The slacks of min sum s_j with |a_j . theta - t_j| <= 1 + s_j."""
    n, p = normals.shape
    eye = -scipy.sparse.eye_array(n)
    rows = scipy.sparse.block_array(
        [[scipy.sparse.csr_array(normals), eye], [scipy.sparse.csr_array(-normals), eye]]
    )
    cost = np.concatenate([np.zeros(p), np.ones(n)])
    bounds = [(-radius, radius)] * p + [(0, None)] * n
    found = linprog(
        cost, rows.tocsc(), np.concatenate([offsets + 1, 1 - offsets]), bounds=bounds, method="highs"
    )
    if found.status != 0:
        raise AttnlearnError(f"the linear program of the body was not solved: {found.message}")
    return found.x[p:]
