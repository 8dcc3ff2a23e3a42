"""The convex body K that the certified rows leave: slabs, half-spaces and a box, as an object.

K = {theta : |a_j . theta - t_j| <= eps_j,  h_l . theta >= g_l,  |theta|_inf <= radius},  theta = vec [Theta; c^T].

A few slabs are false, so K as given may be empty. `Body.make` solves the linear program that moves every slab
apart by a slack of its own and minimises their sum, and drops the slabs that need one; what is left contains the
optimum, perhaps nothing else, so all slabs are then inflated by the first of a few amounts that leaves room.
Half-spaces are many and few of them matter: they enter as cutting planes, the most violated first.

`width` is two linear programs (HiGHS, each from the basis of the last), `minimum_norm_point` one quadratic program
(PIQP), each in p = (d + 1) d unknowns with a few p constraints: 0.05 s and 0.01 s at p = 72.
What can fail: half-spaces that contradict the slabs; they are then left out, and `half_spaces_used` says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import piqp
import scipy.sparse
from jaxtyping import Float
from scipy.optimize import linprog

from attnlearn._errors import AttnlearnError
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._certify_rows import HalfSpaces, Slabs
from attnlearn.recovery.sculpt._program import Program

NO_HALF_SPACES = HalfSpaces(np.zeros((0, 0)), np.zeros(0))


@dataclass(frozen=True)
class Body:
    """The body in units in which every slab has half-width 1: |normals theta - offsets| <= 1.

    `dropped` slabs contradicted the rest; `inflation` was added to every half-width.

    >>> normals = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> body = Body(normals, np.array([2.0, 2.0]), NO_HALF_SPACES, radius=9.0)
    >>> body.contains(np.array([2.0, 0.5])), body.contains(np.array([2.0, 2.0]))
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
        """Drop the slabs that contradict the others, then see whether the half-spaces fit."""
        normals, offsets = slabs.normals / slabs.widths[:, None], slabs.offsets / slabs.widths
        slack = _least_slack(normals, offsets, radius)
        kept = slack <= calibration.NO_SLACK
        dropped = int(np.sum(~kept))
        for inflation in calibration.INFLATIONS:
            for used in (half_spaces, NO_HALF_SPACES):
                full = len(used.thresholds) == len(half_spaces.thresholds)
                body = cls(normals[kept], offsets[kept], used, radius, dropped, full, inflation)
                if body._nearest() is not None:
                    return body
        raise AttnlearnError("the body is empty")

    @property
    def reach(self) -> float:
        """Half-width of every slab in its own units: 1 and the inflation."""
        return 1 + self.inflation

    def contains(self, theta: Float[np.ndarray, "p"], tolerance: float = 0.0) -> bool:
        """Whether `theta` violates no slab by more than `tolerance` of its width."""
        return self.violation(theta) <= tolerance

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
        """The slabs as a linear program, with the half-spaces that have been violated so far."""
        return Program(self.normals, self.offsets - self.reach, self.offsets + self.reach, self.radius)

    @cached_property
    def _cuts(self) -> set[int]:
        """Half-spaces that `_program` has as rows."""
        return set()

    def _lowest(self, direction: Float[np.ndarray, "p"]) -> Float[np.ndarray, "p"] | None:
        """Minimise direction . theta, adding violated half-spaces until none is left."""
        while True:
            point = self._program.lowest(direction)
            worst = self._violated(point, self._cuts)
            if not len(worst):
                return point
            self._program.add(self.half_spaces.normals[worst], self.half_spaces.thresholds[worst])
            self._cuts.update(worst.tolist())

    def _nearest(self) -> Float[np.ndarray, "p"] | None:
        """Minimise the norm, adding violated half-spaces until none is left."""
        chosen: list[int] = []
        while True:
            point = self._least_norm(chosen)
            worst = self._violated(point, chosen)
            if not len(worst):
                return point
            chosen += worst.tolist()

    def _violated(self, point: np.ndarray | None, chosen: Collection[int]) -> np.ndarray:
        """The half-spaces that `point` violates most, without those already chosen."""
        normals, thresholds = self.half_spaces
        if point is None or not len(thresholds):
            return np.zeros(0, int)
        short = thresholds - normals @ point
        short[list(chosen)] = -np.inf
        worst = np.argsort(-short)[: calibration.CUTS * len(point)]
        return worst[short[worst] > calibration.CUT_SLACK]

    def _least_norm(self, chosen: list[int]) -> np.ndarray | None:
        p = self.normals.shape[1]
        normals, low, high = self.normals, self.offsets - self.reach, self.offsets + self.reach
        if chosen:
            normals = np.concatenate([normals, self.half_spaces.normals[chosen]])
            low = np.concatenate([low, self.half_spaces.thresholds[chosen]])
            high = np.concatenate([high, np.full(len(chosen), np.inf)])
        box = np.full(p, self.radius)
        solver = piqp.DenseSolver()
        solver.setup(
            np.eye(p),
            np.zeros(p),
            np.zeros((0, p)),
            np.zeros(0),
            np.asfortranarray(normals),
            low,
            high,
            -box,
            box,
        )
        status = solver.solve()
        return np.array(solver.result.x) if status == piqp.PIQP_SOLVED else None


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
