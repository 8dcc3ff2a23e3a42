"""Which sequences tell most of the heads: those in which heads that mostly decide for one token have not decided.

A row tells nothing of a head whose weight is all on one token, for the derivative of softmax is zero there. How undecided row a is
says 1 - sum_b alpha_ab^2. Of a saturated head few rows are undecided: its scores are determined by few equations, however many rows there
are, and solves take many steps. Sequences chosen by the tokens and the layer alone, never by the outputs, are as good for a fit
as random ones, and these rows are more frequent in them.

Cost: the patterns of all sequences that are looked at; of a few hundred where no head is saturated.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnlearn._arrays import namespace
from attnlearn._types import Mask, Tokens
from attnlearn.scores import Scores, Visible
from attnlearn.scores._products import turn
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._attend import patterns
from attnlearn.solve._chunks import Chunk, cut, on_threads


def telling_order(
    scores: Scores, x: Tokens, mask: Mask | None, causal: bool | Visible
) -> Int[np.ndarray, "n"] | None:
    """The places of the sequences, those first that tell most of saturated heads; None where no head is saturated.

    >>> from attnlearn import AttentionLayer
    >>> x = np.random.default_rng(0).standard_normal((300, 5, 4))
    >>> [telling_order(AttentionLayer.random(2, 4, scale=scale, seed=0).form, x, None, False) is None for scale in (0.5, 50.0)]
    [True, False]
    """
    some = slice(calibration.SAMPLE)
    with on_threads():
        look = _undecided(scores, x[some], None if mask is None else mask[some], causal)
        if _effective_shares(look).min() >= calibration.HALVED:
            return None
        found = _undecided(scores, x, mask, causal)
    by_sequence, shares = found[:, :, 1], _effective_shares(found)
    usual = by_sequence.mean(axis=0) * shares**2
    telling = (by_sequence / np.where(usual > 0, usual, np.inf)).sum(axis=1)
    return np.argsort(-telling, kind="stable")


def _undecided(
    scores: Scores, x: Tokens, mask: Mask | None, causal: bool | Visible
) -> Float[np.ndarray, "n m 3"]:
    """Of every sequence and head: its rows, how undecided they are together, and the squares of that."""
    chunks = cut(x, np.zeros((*x.shape[:2], 1), np.float32), mask).astype(np.float32)
    found = np.empty((len(x), scores.heads, 3))
    measured = chunks.derive(_of_chunk, given=(scores.astype(np.float32), causal), keep=False)
    for chunk, part in zip(chunks, measured):
        found[chunk.places] = part
    return found


def _of_chunk(chunk: Chunk, scores: Scores, causal: bool | Visible) -> np.ndarray:
    xp = namespace(chunk.x)
    alpha = patterns(scores, chunk.x, turn(chunk.x), chunk.keep, causal)[0]
    rows = xp.sum(alpha, axis=3)  # one, and zero where a row is padded
    undecided = rows - xp.sum(alpha * alpha, axis=3)
    return xp.stack([xp.sum(part, axis=1) for part in (rows, undecided, undecided * undecided)], axis=2)


def _effective_shares(found: Float[np.ndarray, "n m 3"]) -> Float[np.ndarray, "m"]:
    """The share of the rows that count, one number a head: 1 where all are equally undecided."""
    rows, total, squares = found.sum(axis=0, dtype=np.float64).T
    return total**2 / np.maximum(rows * squares, np.finfo(float).tiny)
