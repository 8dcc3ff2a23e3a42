"""Phase 2: read batches, keep the rows in which all heads may agree, and cut a half-space for each that one token explains.

Rows that two tokens explain cut slabs (`_slabs`).

One token. If y = x_b S up to a residual, every head prefers b to any other visible b' by
    x_a^T Theta_i (x_b - x_b') >= log((1 - sqrt(k - 1) u)/u):
a half-space, which holds for the heads and their convex hull.

Cost: one pass over the batch. What can fail: too few rows inside the window (the caller reads on, or stops).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attnlearn.engine import Engine
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._config import SculptConfig
from attnlearn.recovery.sculpt._rows import Rows, as_batch, explain_pairs, rows_at
from attnlearn.recovery.sculpt._scan import scan
from attnlearn.recovery.sculpt._slabs import distinct, outer, sum_error
from attnlearn.recovery.sculpt._source import FitSide, Source
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.recovery.sculpt._sum import doubt
from attnlearn.solve._white import Whitening


class HalfSpaces(NamedTuple):
    """normal . theta >= threshold."""

    normals: Float[np.ndarray, "h p"]
    thresholds: Float[np.ndarray, "h"]


def half_spaces_of(state: State, rows: Rows, near: Float[np.ndarray, "p"], most: int) -> HalfSpaces:
    """One half-space per visible rival of the token that explains a row alone; the `most` that pass nearest to `near`."""
    features = rows.features()
    values = features @ state.sum
    residual = np.linalg.norm(rows.outputs[:, None] - values, axis=2)
    residual = np.where(rows.keys, residual, np.inf)
    best = np.argmin(residual, axis=1)
    each = np.arange(len(best))
    size = np.linalg.norm(rows.outputs - state.sum[-1], axis=1)
    rho = residual[each, best] + sum_error(state, features[each, best], size)
    apart = np.linalg.norm(values[each, best][:, None] - values, axis=2)
    root = np.sqrt(rows.tokens.shape[1] - 1)
    rivals = distinct(rows)[:, None] & rows.keys & (best[:, None] != np.arange(rows.tokens.shape[1]))
    rivals &= root * calibration.PROVISIONAL * rho[:, None] < calibration.LARGEST_U * apart
    row, rival = np.nonzero(rivals)
    u = calibration.PROVISIONAL * rho[row] / apart[row, rival]
    thresholds = np.log((1 - root * u) / u)
    queries, gaps = rows.queries()[row], rows.tokens[row, best[row]] - rows.tokens[row, rival]
    if len(row) > most:
        score = np.sum((queries @ near.reshape(queries.shape[1], -1)) * gaps, axis=1)
        lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(gaps, axis=1)
        nearest = np.argsort((score - thresholds) / lengths, kind="stable")[:most]
        queries, gaps, thresholds = queries[nearest], gaps[nearest], thresholds[nearest]
    return HalfSpaces(outer(queries, gaps), thresholds)


def explained_alone(state: State, rows: Rows) -> int:
    """How many rows one token explains up to the tolerance for half-spaces."""
    size = np.linalg.norm(rows.outputs - state.sum[-1], axis=1)
    return int(np.sum(_single_ease(rows, state) <= calibration.SINGLE_TOLERANCE * size))


def pair_rows(state: State) -> Rows:
    """Rows kept because two tokens explain them."""
    return Rows(state.pair_tokens, state.pair_outputs, state.pair_query, state.pair_keys)


def single_rows(state: State) -> Rows:
    """Rows kept because one token explains them."""
    return Rows(state.single_tokens, state.single_outputs, state.single_query, state.single_keys)


class Promising(NamedTuple):
    """The rows of a batch that may be certified, by two tokens and by one, and how many examples were read."""

    pairs: Rows
    singles: Rows
    examples: int


class Reader:
    """Reads and filters batches while the sum does not change; on an engine with workers several at a time."""

    def __init__(self, problem: Problem, state: State, engine: Engine) -> None:
        single = max(calibration.SINGLE_TOLERANCE, doubt(state))
        self._filter = partial(
            filter_batch, problem.config, state.whitening, bool(state.causal), state.sum, single
        )
        self._source, self._engine = problem.source, engine
        self._ready: dict[int, Promising | None] = {}

    def read(self, number: int) -> Promising | None:
        """The promising rows of batch `number`; None when there is no such batch."""
        if number not in self._ready:
            source, numbers = self._source, range(number, number + 1)
            if isinstance(source, FitSide) and not self._engine.in_process:
                numbers = range(number, number + calibration.BATCHES_AHEAD)
                packed = [piece for piece in map(source.portion, numbers) if piece is not None]
                found = [*self._engine.map(self._filter, packed), None]
            else:
                found = [self._filter(source, number)]
            self._ready = dict(zip(numbers, found))
        return self._ready[number]


def filter_batch(
    config: SculptConfig,
    whitening: Whitening,
    causal: bool,
    total: np.ndarray,
    single: float,
    source: Source,
    number: int = 0,
) -> Promising | None:
    """The rows of one batch that the sum explains by one token or by two."""
    chunk = source.read(number)
    if chunk is None:
        return None
    batch = as_batch(chunk, whitening, causal)
    seen = scan(total, batch)
    least = np.minimum(seen.weight, 1 - seen.weight)
    loose = (seen.pair <= calibration.LOOSENESS * config.tolerance) & (least >= calibration.LEAST_WEIGHT)
    loose &= least >= config.window * seen.pair / calibration.LOOSENESS
    ease = seen.pair / np.maximum(least, calibration.LEAST_WEIGHT)
    alone = seen.single < single
    return Promising(
        rows_at(batch, *_smallest(ease, loose)), rows_at(batch, *_smallest(seen.single, alone)), len(chunk.x)
    )


def _smallest(values: Float[np.ndarray, "n k"], chosen: Bool[np.ndarray, "n k"]) -> tuple[np.ndarray, ...]:
    """Indices of the ROWS_PER_BATCH smallest chosen values."""
    places = np.nonzero(chosen)
    order = np.argsort(values[places], kind="stable")[: calibration.ROWS_PER_BATCH]
    return tuple(place[order] for place in places)


def read_on(state: State, reader: Reader, batches: int) -> State:
    """Read up to `batches` more batches and keep their promising rows; the same state when there are none."""
    numbers = range(state.batches_read, state.batches_read + batches)
    found = [part for part in map(reader.read, numbers) if part is not None]
    if not found:
        return state
    before = [] if state.pair_tokens is None else [Promising(pair_rows(state), single_rows(state), 0)]
    pairs = Rows.join([part.pairs for part in before + found])
    singles = Rows.join([part.singles for part in before + found])
    if len(pairs.query) > calibration.MOST_ROWS:
        pairs = _easiest(pairs, _pair_ease(pairs, state))
    if len(singles.query) > calibration.MOST_ROWS:
        singles = _easiest(singles, _single_ease(singles, state))
    return dataclasses.replace(
        state,
        pair_tokens=pairs.tokens,
        pair_outputs=pairs.outputs,
        pair_query=pairs.query,
        pair_keys=pairs.keys,
        single_tokens=singles.tokens,
        single_outputs=singles.outputs,
        single_query=singles.query,
        single_keys=singles.keys,
        batches_read=state.batches_read + len(found),
        examples_read=state.examples_read + sum(part.examples for part in found),
    )


def _easiest(rows: Rows, ease: Float[np.ndarray, "n"]) -> Rows:
    """The MOST_ROWS rows that are explained best."""
    return rows.take(np.sort(np.argsort(ease, kind="stable")[: calibration.MOST_ROWS]))


def _pair_ease(rows: Rows, state: State) -> Float[np.ndarray, "n"]:
    pairs = explain_pairs(state.sum, rows)
    least = np.minimum(pairs.weight, 1 - pairs.weight)
    return pairs.residual / np.maximum(least, calibration.LEAST_WEIGHT)


def _single_ease(rows: Rows, state: State) -> Float[np.ndarray, "n"]:
    residual = np.linalg.norm(rows.outputs[:, None] - rows.features() @ state.sum, axis=2)
    return np.where(rows.keys, residual, np.inf).min(axis=1)
