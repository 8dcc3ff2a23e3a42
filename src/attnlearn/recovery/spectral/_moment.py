"""Moment: the span of the heads, by a streamed randomized SVD with swap deflation.

Theory, section 3. With query q_a = (z_a, 1), keys e_ab = z_b - mean_b - K_ab (z_a - mean_a) (the part of key b
that the query does not predict; z_b itself when positions are independent) and residual outputs r_a,

    moment[(u,p),(q,o)] = mean over rows a, keys b != a of  q_a[u] (e_ab[p] e_ab[q] - (1 - K_ab^2) 1[p=q]) r_a[o]

is kappa (D + swap(D) + kurtosis on p=q) to first order in the scores, D = sum_i vec(Theta_i) vec(W_i)^T. Only
its products with vectors are formed. Each pass multiplies by T = (1 - t) D + t (moment - swap(D) - kurtosis
part of D), with D made of the components above the floor; the swap of a component that is not in the moment is
spread over many directions, so false components die out and the number of heads is what is left. This is
projected gradient descent on ‖moment - D - swap(D)‖^2, whose curvature lies between 0 and 4: t = 1 has gain -1
on errors symmetric in (p, q) and oscillates when query biases are large; t = 2/3 contracts both by 3.

Outputs are whitened, so a head counts by how far it stands out of the rest, not by its size. NumPy rather than
JAX: the products are tall or tiny and nothing is differentiated; there is nothing to compile.
Cost: O(N k (d d_out + k d)) per vector and product, two products a pass. Fails with TOO_FEW_EXAMPLES when no
value stands above the noise floor.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from attnlearn.engine import Stop, Tools
from attnlearn.recovery.spectral import _calibration as calibration
from attnlearn.recovery.spectral._floor import examples_needed, measured_floor, noise_floor
from attnlearn.recovery.spectral._operator import Known, MomentOperator
from attnlearn.recovery.spectral._rows import RowSource
from attnlearn.recovery.spectral._state import Problem, State, looked_at

Left = Float[np.ndarray, "l u r"]
Right = Float[np.ndarray, "l r o"]


def moment(problem: Problem, state: State, tools: Tools, *, every: bool = False) -> tuple[State, dict]:
    """Singular values and vectors of the deflated moment, and the noise floor under them.

    On few of the fit examples first, then on more, until the heads stand clear of the noise; on all of them if `every`.
    """
    problem = looked_at(problem, state)
    fit, given = problem.split.fit, problem.num_heads
    rng = tools.rng("moment")
    order, num = rng.permutation(fit), _few(len(fit))
    svd, excess, history = None, 1.0, []
    while True:
        operator = MomentOperator(RowSource(problem, state, np.sort(order[:num])), state, tools.engine)
        computed, last = noise_floor(operator, state), num == len(fit)
        if svd is None or (excess > calibration.EXCESS_KEPT and not last):
            excess = measured_floor(operator, rng) / computed
        floor = computed * max(1.0, excess)
        if svd is None:
            vectors = calibration.VECTORS if given is None else given + calibration.SPARE
            svd = _Deflated(operator.start(rng, min(vectors, operator.most)), given)
        history += _passes(svd, operator, floor, (1 if last else 3) * calibration.SETTLED, rng, tools)
        if last or (svd.clear(floor) and not every):
            break
        del operator  # and with it the rows that it keeps
        num = _more(num, len(fit), svd.weakest / floor)
        if num == len(fit) or svd.apart or svd.weakest > calibration.VISIBLE_AT * floor:
            svd.trim(max(svd.heads + calibration.SPARE + 1, calibration.VECTORS // 2))
    state = dataclasses.replace(
        state,
        singular_values=svd.values,
        query_basis=svd.left,
        value_basis=svd.right,
        floor=float(floor),
        moment_examples=num,
    )
    evidence = {
        "singular_values": svd.values.tolist(),
        "floor": float(floor),
        "floor_measured_over_computed": float(excess),
        "examples": num,
        "passes": len(history),
        "history": history,
        "visible": svd.heads,
    }
    if not np.any(svd.values > calibration.ABOVE_FLOOR * floor):
        needed = examples_needed(problem, state, svd.values, floor)
        raise Stop("TOO_FEW_EXAMPLES", evidence | {"examples_needed": needed}, state)
    return state, evidence


def _few(most: int) -> int:
    """Examples to look at first."""
    return calibration.FIRST_LOOK if most >= 2 * calibration.FIRST_LOOK else most


def _more(num: int, most: int, weakest: float) -> int:
    """Examples to look at next: as many as should lift the weakest head seen so far (in floors) clear of the noise.

    >>> _more(1_000, 20_000, 1.6), _more(1_000, 20_000, 1.0), _more(4_000, 6_000, 1.6)
    (2499, 4000, 6000)
    """
    missing = (calibration.CLEAR**2 - 1) / max(weakest**2 - 1, 1e-3)
    wanted = int(num * np.clip(calibration.LOOK_MARGIN * missing, 2, 4))
    return wanted if wanted <= calibration.LOOK_MOST * most else most


def _passes(
    svd: _Deflated,
    operator: MomentOperator,
    floor: float,
    settled: float,
    rng: np.random.Generator,
    tools: Tools,
) -> list[list[float]]:
    """Passes until the heads' values settle, with more vectors when too few of them are noise."""
    history = []
    for number in range(1, calibration.PASSES + 1):
        change = svd.step(operator, floor)
        history.append(svd.values.tolist())
        tools.progress.update(heads=svd.heads, weakest=svd.weakest / floor)
        vectors = len(svd.values)
        crowded = svd.given is None and vectors - svd.heads < calibration.SPARE
        wider = vectors < min(operator.most, calibration.MOST_VECTORS) and number < calibration.PASSES
        if svd.complete and crowded and wider:
            svd.widen(operator.start(rng, min(vectors, operator.most - vectors)))
        elif svd.complete and change < settled and (svd.heads or number >= calibration.BLIND_PASSES):
            break
    return history


class _Deflated:
    """The current singular triples of moment - swap(D), D made of those above the floor."""

    def __init__(self, right: Right, given: int | None) -> None:
        self.right, self.given = right, given
        self.values = self._kept = np.zeros(len(right))
        self.left: Left | None = None
        self.heads = 0
        self.complete = False
        self._steps = 0

    def step(self, operator: MomentOperator, floor: float) -> float:
        """One pass; returns the largest relative change of the values that count as heads."""
        before, heads, t = self.values, self.heads, 1.0
        known = None
        if self._steps >= 2 and heads:  # the first pair of passes only finds the subspace
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
        lowest = calibration.STRONG_FIRST ** max(1, self._steps) * self.values[0]
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
        """Whether the heads stand well above the floor, and what follows them is noise."""
        if self.heads == 0 or self.weakest < calibration.CLEAR * floor:
            return False
        return self.heads == len(self.values) or self.values[self.heads] < calibration.NOISE_MOST * floor

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


def orthonormal(blocks: Float[np.ndarray, "l a b"]) -> Float[np.ndarray, "l a b"]:
    """An orthonormal basis of the span of `blocks`, each seen as one vector."""
    q, _ = np.linalg.qr(blocks.reshape(len(blocks), -1).T)
    return np.ascontiguousarray(q.T).reshape(blocks.shape)
