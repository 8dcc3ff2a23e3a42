"""Displaced slices of heads that write to few directions: one or two queries each instead of a whole slice.

A W_i of rank r sends every displacement to the same r directions C_i of the outputs, and r + 3 whole slices show these.
At a further displacement the changes A_i C_i of the values have r unknowns each:

    g = sum_i sigma_i (v_i + A_i C_i)  in every row,     sum_i A_i C_i = eta S.

With the sigma_i of each row free, a row has d_out equations for m unknowns of its own and sum_i r_i that it shares
with the other rows and the sum rule, so that one sequence suffices where sum_i r_i <= d_out, and a few more beyond.
The sigma_i are eliminated: what is left of a row lies outside the span of the values. A moves by Gauss-Newton from 0, for all
displacements at once; normal equations do, since the system is well conditioned by the choice of the number of queries
(measured on antibody layers of d = 128, m = 8, r = 16 with one sequence: noise is amplified 7 to 9 times; a whole slice
of 11 sequences, which does not know C_i, amplifies it 250 to 370 times).

Cost: O(b s^3), s = sum_i r_i, for b displacements. What can fail: a misread rank, which leaves a residual; such
displacements are asked as whole slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._logits import Slice, sigmoid, slice_limit
from attnlearn.extraction._probe import features, respond
from attnlearn.extraction._state import Inquiry
from attnlearn.solve._lm import Fit, Stopping, descend
from attnlearn.solve._rank import largest_fall


@dataclass(frozen=True)
class Lean:
    """Values at delta + eta, and whether the known directions explain the answers there."""

    etas: Float[np.ndarray, "b d"]
    values: Float[np.ndarray, "b m o"]
    good: Bool[np.ndarray, "b"]

    def only_good(self) -> Lean:
        """Those that were explained."""
        return Lean(*(array[self.good] for array in vars(self).values()))


def value_spaces(
    found: Slice, etas: Float[np.ndarray, "b d"], values: Float[np.ndarray, "b m o"]
) -> list[Float[np.ndarray, "r o"]] | None:
    """Orthonormal directions to which each head writes, or None as long as some head shows no clear rank."""
    # v_i at delta itself is one more such row; its noise is that of the differences at the same length.
    share = np.linalg.norm(etas, axis=1).mean() / np.linalg.norm(found.delta)
    rows = np.concatenate([values - found.values, share * found.values[None]]).transpose(1, 0, 2)
    spaces = []
    for head in rows:
        singular, directions = np.linalg.svd(head, full_matrices=False)[1:]
        rank = largest_fall(singular, calibration.SPAN_GAP, calibration.SPAN_SURPLUS)
        if rank is None:
            return None
        spaces.append(directions[:rank])
    return spaces


def queries_needed(found: Slice, spaces: list[np.ndarray], causal: bool) -> int | None:
    """The fewest of the slice's points at which the known directions determine the values; None: whole slices."""
    for number in range(1, len(found.points) // 2 + 1):
        weights = sigmoid(features(found.points[:number], causal) @ found.slopes.T)
        smallest = np.linalg.eigvalsh(_normal(found.values[None], spaces, weights[None])[0])[0]
        if smallest * calibration.SPAN_AMPLIFICATION**2 >= 1:
            return number
    return None


def lean_slices(
    inquiry: Inquiry, found: Slice, spaces: list[np.ndarray], number: int, etas: Float[np.ndarray, "b d"]
) -> Lean:
    """Ask at `number` points for every displacement and solve for the values."""
    state, points = inquiry.state, found.points[:number]
    deltas = found.delta + etas
    g = respond(inquiry, points @ found.basis.T, deltas)
    values, residual = solve_values(found.values, spaces, g, etas @ state.total)
    before = sigmoid(features(points, state.causal) @ found.slopes.T) @ found.values
    change = np.sqrt(np.mean((g - before) ** 2, axis=(1, 2)))
    allowed = np.maximum(slice_limit(state.noise, g), calibration.SPAN_MISS * change)
    return Lean(etas, values, residual <= np.minimum(allowed, calibration.DOUBTFUL * np.median(residual)))


def solve_values(
    values: Float[np.ndarray, "m o"],
    spaces: list[Float[np.ndarray, "r o"]],
    g: Float[np.ndarray, "b n o"],
    target: Float[np.ndarray, "b o"],
) -> tuple[Float[np.ndarray, "b m o"], Float[np.ndarray, "b"]]:
    """Values that differ from `values` inside `spaces`, add up to `target` more, and span the rows of g.

    Also the residual of one scalar.
    """
    problem = _Values(values, spaces, g, target)
    start = np.zeros((len(g), len(problem.stack)))
    stopping = Stopping(calibration.SPAN_STEPS, calibration.SLICE_GAIN)
    cost, moved, *_ = descend(problem, start, calibration.SLICE_DAMPING, stopping).fit
    return moved, np.sqrt(cost / (g[0].size + target.shape[1]))


class _Values:
    """Changes A_i of the values inside their spaces, the sigma_i of every row eliminated."""

    def __init__(
        self, values: np.ndarray, spaces: list[np.ndarray], g: np.ndarray, target: np.ndarray
    ) -> None:
        self.values, self.spaces, self.g, self.target = values, spaces, g, target
        self.stack, self.heads = np.concatenate(spaces), owners(spaces)

    def evaluate(self, change: Float[np.ndarray, "b s"], which: np.ndarray) -> Fit:
        """Squared residual, values, sigma_i, and what is left of the rows and of the sum rule."""
        moves = np.stack([change[:, self.heads == i] @ space for i, space in enumerate(self.spaces)], 1)
        moved, g = self.values + moves, self.g[which]
        weights = g @ np.linalg.pinv(moved)
        rest, miss = g - weights @ moved, self.target[which] - moves.sum(1)
        return np.sum(rest**2, axis=(1, 2)) + np.sum(miss**2, axis=1), moved, weights, rest, miss

    def step(self, fit: Fit, damping: np.ndarray) -> Float[np.ndarray, "b s"]:
        """The damped Gauss-Newton step, by normal equations."""
        _, moved, weights, rest, miss = fit
        slope = np.sum(weights[:, :, self.heads] * (rest @ self.stack.T), axis=1) + miss @ self.stack.T
        normal = _normal(moved, self.spaces, weights)
        diagonal = np.einsum("bss->bs", normal)
        diagonal *= 1 + damping[:, None]
        return np.linalg.solve(normal, slope[..., None])[..., 0]


def owners(spaces: list[np.ndarray]) -> np.ndarray:
    """The head of every direction.

    >>> owners([np.ones((2, 3)), np.ones((1, 3))]).tolist()
    [0, 0, 1]
    """
    return np.repeat(np.arange(len(spaces)), [len(space) for space in spaces])


def _normal(
    values: Float[np.ndarray, "b m o"], spaces: list[np.ndarray], weights: Float[np.ndarray, "b n m"]
) -> Float[np.ndarray, "b s s"]:
    """Gauss-Newton matrix of the A_i with the sigma_i eliminated; the sum rule is its last term."""
    stack, heads = np.concatenate(spaces), owners(spaces)
    inside = stack @ np.linalg.qr(np.swapaxes(values, 1, 2))[0]
    gram = stack @ stack.T
    seen = weights[:, :, heads]
    return (np.swapaxes(seen, 1, 2) @ seen) * (gram - inside @ np.swapaxes(inside, 1, 2)) + gram
