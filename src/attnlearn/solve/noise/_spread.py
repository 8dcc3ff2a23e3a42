"""How far noise in the outputs can have moved the parameters: the covariance clustered by sequence.

To first order a least squares fit moves by delta = (J^T J)^-1 J^T e. Errors of one sequence may depend on each other (a softmax in
low precision, one offset for a whole sequence), those of different sequences do not. So with a fair sign s_n for each sequence

    delta* = (J^T J)^-1 sum_n s_n J_n^T e_n

has the clustered ("sandwich") covariance of delta. A few draws of the signs stand for it. With C the covariance of some block of
parameters, delta of that block is about normal, and by Laurent and Massart

    ‖delta‖^2 <= tr C + 2 sqrt(t tr C^2) + 2 t ‖C‖        with probability 1 - exp(-t)

The products of the draws among each other give tr C, tr C^2 and a value that ‖C‖ does not exceed as a rule.

The share of the covariance that one sequence carries is its influence: with z a random vector, z^T (J^T J)^-1 J_n^T e_n, squared.

The errors themselves, without signs, have the response of a fit that is not at its optimum: the step that is left. What of it the choice
of sequences does not explain is part of the error.

Two heads that nearly coincide leave directions that hardly move the outputs, and errors move the parameters most along these.
Conjugate gradients to one per cent do not see them: 4.7e-6 was the bound where the error was 8.2e-5. So solves are in float64, with the
matrix written out where it is small, or to six digits.

Cost: one solve with the Gauss-Newton matrix for each draw, on as many sequences as `budget` allows; results for the rest follow by
1/sqrt(n). What can fail: curvature, errors of few sequences (their influence shows), errors whose mean is not zero given the input, solves
that do not end (`unsolved`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.scores import Scores
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._chunks import Pieces, on_threads
from attnlearn.solve._linearize import Local, forward_derivative, gradient, moment, projected
from attnlearn.solve._step import Solved, solve_normal, written_out
from attnlearn.solve._unknowns import layer_unknowns
from attnlearn.solve.certification._point import Point, original, prepare

DRAWS = 12
"""Draws of the signs: tr C is known to 13 % for a block with ten effective numbers."""
ROWS = 2 * calibration.LOOK_MOST
"""Rows on which the covariance is taken, or as many as determine the layer."""


def tail(gram: Float[np.ndarray, "*n r r"], t: float) -> Float[np.ndarray, "*n"]:
    """A length that exceeds a vector's with probability 1 - exp(-t), from the products of draws of it among each other.

    >>> draws = np.random.default_rng(0).standard_normal((400, 50))
    >>> bool(50**0.5 < tail(draws @ draws.T, 3.0) < 1.8 * 50**0.5)
    True
    """
    r = gram.shape[-1]
    diagonal = np.einsum("...ii->...i", gram)
    trace = diagonal.mean(axis=-1)
    squares = (np.sum(gram**2, axis=(-2, -1)) - np.sum(diagonal**2, axis=-1)) / (r * (r - 1))
    largest = np.minimum(np.linalg.eigvalsh(gram)[..., -1] / r, trace)
    return np.sqrt(np.maximum(trace + 2 * np.sqrt(t * squares) + 2 * t * largest, 0.0))


@dataclass(frozen=True)
class Spread:
    """Draws of the error of every parameter, and the influence of each sequence that was looked at, which sum to one."""

    draws: tuple[Parameters, ...]
    influence: Float[np.ndarray, "n"]
    examples: int
    left: Parameters
    """The step to the optimum of the sequences that were looked at."""
    looked_at: int
    """How many sequences these are."""
    unsolved: int = 0
    """Solves that did not end."""

    def over(self, part: str) -> Float[np.ndarray, "r m n"]:
        """The draws of "theta", "w" or "query_bias" by head, or of "output_bias" as that of one head."""
        drawn = np.stack([getattr(draw, part) for draw in self.draws])
        return drawn[:, None] if part == "output_bias" else drawn.reshape(*drawn.shape[:2], -1)

    def typical(self, part: str) -> Float[np.ndarray, "m"]:
        """The standard error of each head: the root mean square of its draws."""
        return np.sqrt(np.mean(np.sum(self.over(part) ** 2, axis=2), axis=0))

    def largest(self, part: str, t: float) -> Float[np.ndarray, "m"]:
        """What the error of each head exceeds with probability exp(-t)."""
        by_head = np.moveaxis(self.over(part), 1, 0)
        return tail(by_head @ np.swapaxes(by_head, 1, 2), t)

    def undone(self, part: str, t: float) -> Float[np.ndarray, "m"]:
        """What is left to the optimum by head, beyond what the choice of sequences explains."""
        step = getattr(self.left, part)
        squares = np.sum(np.reshape(step, (1 if part == "output_bias" else len(step), -1)) ** 2, axis=1)
        by_chance = (self.examples / self.looked_at - 1) * self.largest(part, t) ** 2
        return np.sqrt(np.maximum(squares - by_chance, 0.0))

    @property
    def carried_by(self) -> float:
        """How many equal sequences would have as uneven an influence: one over the sum of squares."""
        return float(1 / max(np.sum(self.influence**2), np.finfo(float).tiny))

    def worst(self, number: int = 5) -> list[tuple[int, float]]:
        """The sequences with the largest influence, and their shares."""
        order = np.argsort(-self.influence)[:number]
        return [(int(place), float(self.influence[place])) for place in order]


def spread(
    layer: AttentionLayer,
    used: Batch,
    *,
    rank: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    on_step: Callable[..., None] | None = None,
) -> Spread:
    """The spread of a layer that was fitted to `used`, whose groups are the clusters (None: every sequence is one).

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((200, 5, 4))
    >>> found = spread(layer, Batch(x, layer(x) + 1e-3 * rng.standard_normal(x.shape)))
    >>> found.typical("theta").shape, bool(found.carried_by > 50)
    ((2,), True)
    """
    whole = layer.astype(np.float64)
    with on_threads():
        point = prepare(whole, used.x, used.mask, rank, joint=True, dtype=np.float64)
        wanted = max(point.examples, min(used.num, ROWS // used.x.shape[1]))
        if wanted > point.examples:
            point = prepare(whole, used.x, used.mask, rank, joint=True, sequences=wanted, dtype=np.float64)
        some = used.take(np.arange(point.examples))
        rest = some.visible - whole(some.x, some.mask)
        solve = _Accurately(point)
        left = solve(rest)
        rest *= _unfitted(whole, rank, used) * np.sqrt(point.examples / used.num)
        units = np.arange(some.num) if some.groups is None else np.unique(some.groups, return_inverse=True)[1]
        drawn = []
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw, 0x5B])
            signs = rng.choice([-1.0, 1.0], int(units.max()) + 1)[units]
            drawn.append(solve(rest * signs[:, None, None]))
            if on_step is not None:
                on_step(draws=draw + 1)
        influence = _influence(point, rest, units, np.random.default_rng([seed, 0x1F]))
    return Spread(tuple(drawn), influence, used.num, left, point.examples, solve.unsolved)


class _Accurately:
    """The response of the parameters to errors, and how many solves did not end."""

    def __init__(self, point: Point) -> None:
        self.point, self.unsolved = point, 0
        self.matrix = written_out(point.at, point.by, calibration.INNER_MOST)

    def __call__(self, errors: Float[np.ndarray, "n k o"]) -> Parameters:
        point = self.point
        size, direct, slope = _slope(point, errors)
        if self.matrix is not None:
            found = self.matrix.solve(slope, 0.0)
        else:
            most = calibration.INNER_MOST
            found = solve_normal(point.at, point.by, slope, 0.0, calibration.NEGLIGIBLE**2, most)
            self.unsolved += found.inner >= most
        return original(point, *_response(point, size, direct, found))


def _unfitted(layer: AttentionLayer, rank: int | None, used: Batch) -> float:
    """By how much the errors are larger than the residuals of a fit that has so many unknowns."""
    rows = used.x.shape[0] * used.x.shape[1] if used.mask is None else int(used.mask.sum())
    equations = rows * layer.out_dim
    return float(
        np.sqrt(equations / max(equations - layer_unknowns(layer, rank), calibration.DIGIT * equations))
    )


def by_chunk(point: Point, values: Float[np.ndarray, "n k o"]) -> Pieces:
    """The rows (s k, o) of each chunk, in the precision of the chunks."""
    chunks = point.at.chunks
    rows = (values[chunk.places, : chunk.x.shape[1]] for chunk in chunks)
    return Pieces.of([part.reshape(-1, values.shape[2]).astype(chunks.dtype) for part in rows])


def together(point: Point, pieces: Pieces, tokens: int) -> Float[np.ndarray, "n k o"]:
    """Rows by chunk as one array again, zero where a chunk has no rows."""
    parts = list(pieces)
    answer = np.zeros((point.examples, tokens, parts[0].shape[-1]))
    for chunk, part in zip(point.at.chunks, parts, strict=True):
        answer[chunk.places, : chunk.x.shape[1]] = part.reshape(*chunk.x.shape[:2], -1)
    return answer


def without_values(point: Point, parts: Pieces) -> tuple[np.ndarray, Pieces]:
    """The [W; b] that fit rows by chunk best, and what they leave."""
    at = point.at
    direct = projected(at, at.local.sum(_moment, parts))
    return direct, at.local.derive(_left, parts, given=(direct,))


def _moment(local: Local, part: np.ndarray) -> np.ndarray:
    return moment(part, local)


def _left(local: Local, part: np.ndarray, direct: np.ndarray) -> np.ndarray:
    return part - local.p @ direct


def response(point: Point, errors: Float[np.ndarray, "n k o"]) -> tuple[Scores, np.ndarray]:
    """How scores and [W; b] move when the outputs have these errors, to first order."""
    size, direct, slope = _slope(point, errors)
    found = solve_normal(point.at, point.by, slope, 0.0, calibration.ROUGH, calibration.INNER_MOST)
    return _response(point, size, direct, found)


def _slope(point: Point, errors: Float[np.ndarray, "n k o"]) -> tuple[float, np.ndarray, np.ndarray]:
    """The size of the errors; and, for errors of size one, what [W; b] alone explain, and the slope of the scores."""
    size = max(float(np.sqrt(np.mean(errors**2))), np.finfo(float).tiny)  # for float32's sake
    direct, rest = without_values(point, by_chunk(point, errors / size))
    return size, direct, point.by.transpose(gradient(point.at, rest)).flat()


def _response(point: Point, size: float, direct: np.ndarray, found: Solved) -> tuple[Scores, np.ndarray]:
    return point.by.apply(point.at.scores.shaped(size * found.t)), size * (direct - found.follow)


def unexplained(point: Point, errors: Float[np.ndarray, "n k o"]) -> Float[np.ndarray, "n k o"]:
    """What no small change of the parameters does to the outputs: the errors without their linear response."""
    return errors - _moved(point, errors)


def _moved(point: Point, errors: Float[np.ndarray, "n k o"]) -> Float[np.ndarray, "n k o"]:
    """How the outputs move with the linear response to errors."""
    return together(point, point.at.local.derive(_along, given=response(point, errors)), errors.shape[1])


def _along(local: Local, scores: Scores, linear: np.ndarray) -> np.ndarray:
    return forward_derivative(scores, local).reshape(len(local.p), -1) + local.p @ linear


def _influence(
    point: Point, rest: np.ndarray, units: np.ndarray, rng: np.random.Generator
) -> Float[np.ndarray, "n"]:
    """The share of the clustered covariance that each unit carries, from a few random directions of the outputs."""
    squares: list[np.ndarray] = []
    for _ in range(calibration.DRAWS):
        # A random direction of the outputs has a response z that weighs well and badly determined directions alike.
        of_sequence = np.sum(_moved(point, rng.standard_normal(rest.shape)) * rest, axis=(1, 2))
        squares.append(np.bincount(units, weights=of_sequence) ** 2)
    total = np.sum(squares, axis=0)
    return total / max(float(total.sum()), np.finfo(float).tiny)
