"""Deflation: the leading singular triples of moment - swap(D), pass by pass.

D is made of the components above the floor. Each pass multiplies by T = (1 - t) D + t (moment - swap(D) - kurtosis part of D).
The swap of a component that is not in the moment is spread over many directions, so false components die out. This is
projected gradient descent on ‖moment - D - swap(D)‖^2, whose curvature lies between 0 and 4: t = 1 has gain -1 on errors
symmetric in (p, q) and oscillates when query biases are large; t = 2/3 contracts both by 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.moment._operator import Known, MomentOperator, orthonormal

Left = Float[np.ndarray, "l u r"]
Right = Float[np.ndarray, "l r o"]


def passes(
    svd: Deflated,
    operator: MomentOperator,
    floor: float,
    settled: float,
    rng: np.random.Generator,
    tools: Tools,
) -> list[list[float]]:
    """Passes until the heads' values settle, with more vectors when too few of them are noise."""
    history = []
    for number in range(1, calibration.SHORT_STEPS + 1):
        change = svd.step(operator, floor)
        history.append(svd.values.tolist())
        tools.progress.update(heads=svd.heads, weakest=svd.weakest / floor)
        vectors = len(svd.values)
        crowded = svd.given is None and vectors - svd.heads < calibration.SPARE
        wider = (
            vectors < min(operator.most, calibration.SHORT_STEPS * calibration.VECTORS)
            and number < calibration.SHORT_STEPS
        )
        if svd.complete and crowded and wider:
            svd.widen(operator.start(rng, min(vectors, operator.most - vectors)))
        elif svd.complete and change < settled and (svd.heads or number >= calibration.FEW):
            break
    return history


class Deflated:
    """The current singular triples of moment - swap(D), D made of those above the floor."""

    def __init__(self, right: Right, given: int | None) -> None:
        self.right, self.given = right, given
        self.values = self._kept = np.zeros(len(right))
        self.left: Any = None  # until the first step
        self.heads = 0
        self.complete = False
        self._steps = 0

    def step(self, operator: MomentOperator, floor: float) -> float:
        """One pass; returns the largest relative change of the values that count as heads."""
        before, heads, t = self.values, self.heads, 1.0
        known = None
        if self._steps > 1 and heads:  # the first pair of passes only finds the subspace
            known = self._kept[:heads], self.left[:heads], self.right[:heads]
            t = calibration.DEFLATION_STEP
        left = orthonormal(operator.times(self.right, known))
        product = operator.transposed_times(left, known).reshape(len(left), -1)
        small, values, right = np.linalg.svd(product, full_matrices=False)
        left, right = np.tensordot(small.T, left, axes=1), right.reshape(self.right.shape)
        old = 0.0 if known is None else _diagonal(known, left, right)
        seen = (values - (1 - t) * old) / t  # the values of moment - swap(D), of which T holds only a part
        # Noise inflates the values: the best estimate of what is under it is sqrt(s^2 - floor^2).
        kept = (1 - t) * old + t * np.sqrt(np.maximum(seen**2 - floor**2, 0.0))
        seen = np.maximum(
            seen, kept
        )  # a head and its swap, both in D at full size, hide each other for a pass
        order = np.argsort(-seen, kind="stable")
        self.left, self.right, self.values, self._kept = left[order], right[order], seen[order], kept[order]
        lowest = calibration.HALVED ** max(1, self._steps) * self.values[0]
        self.complete = lowest <= calibration.ABOVE_FLOOR * floor
        self._steps += 1
        above = int(np.sum(self.values > max(calibration.ABOVE_FLOOR * floor, lowest)))
        self.heads = min(above if self.given is None else self.given, len(self.values))
        if self.heads != heads or heads == 0:
            return np.inf if self.heads or heads else 0.0
        return float(np.max(np.abs(self.values[:heads] - before[:heads]) / self.values[:heads]))

    @property
    def weakest(self) -> float:
        """The value of the weakest head, or the largest value when there is none."""
        return float(self.values[max(self.heads - 1, 0)])

    @property
    def apart(self) -> bool:
        """Whether a gap separates the heads from what follows them."""
        after = self.values[self.heads : self.heads + 1]
        return self.heads > 0 and len(after) > 0 and self.weakest > calibration.GAP * after[0]

    def clear(self, floor: float) -> bool:
        """Whether the heads stand well above the floor."""
        return self.heads > 0 and self.weakest >= calibration.CLEAR * floor

    def trim(self, count: int) -> None:
        """Stop following vectors beyond `count`: noise, once the heads are known."""
        self.left, self.right = self.left[:count], self.right[:count]
        self.values, self._kept = self.values[:count], self._kept[:count]

    def widen(self, more: Right) -> None:
        """Look for further vectors beside those found."""
        self.right = orthonormal(np.concatenate([self.right, more]))
        self.values = np.concatenate([self.values, np.zeros(len(more))])
        self.left, self.heads, self._steps = None, 0, 0


def _diagonal(known: Known, left: Left, right: Right) -> Float[np.ndarray, "l"]:
    """left_j^T D right_j for each j, D = sum_i s_i U_i V_i^T."""
    s, u, v = (part.reshape(len(part), -1) for part in known)
    there, back = left.reshape(len(left), -1) @ u.T, right.reshape(len(right), -1) @ v.T
    return (there * back) @ s[:, 0]
