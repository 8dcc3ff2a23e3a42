"""What each route should need: examples or queries, and memory.

spectral   the weakest head that must be seen stands SEEN_AT floors high, the floor falls like 1/sqrt(examples); up to
           HIDDEN weaker ones are found by growing, and all of them by random starts if they are few and small enough;
           refine needs a few equations per unknown; the certify side needs its examples.
sculpt     SLABS_PER_UNKNOWN agreeing rows per entry of [Theta; c]; how many rows agree is counted on the true layer.
queries    the phases' own counts: single tokens, base points, (m + 3) queries for each of d displacements (or of r + 3, and
           one or two for each of the others), blocks of references and others, random sequences for the last fit, and
           those of the certificate, from an oracle that takes 16 tokens, as long as nothing has to be asked again.

Cost: the count of agreeing rows is one pass over a few thousand sequences.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn.data import Chunk
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.diagnosis._gap import Gap
from attnlearn.extraction import _calibration as extraction
from attnlearn.extraction._equations import (
    informative_outputs,
    score_equations,
    score_unknowns,
    tokens_told_apart,
)
from attnlearn.recovery._calibration import CACHE_BYTES
from attnlearn.recovery._problem import examples_for
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.recovery.sculpt._rows import Rows, as_batch, explain_batch, rows_at
from attnlearn.recovery.sculpt._slabs import slabs_of
from attnlearn.recovery.sculpt._state import State as SculptState
from attnlearn.solve._batch import WhiteBatch
from attnlearn.solve._split import sequences_in_all
from attnlearn.solve._white import whitening


def spectral_examples(gap: Gap, unknowns: int, scalars: int, hidden: int = 0) -> float:
    """Examples at which the spectral route should succeed; infinite when no head is visible at any number.

    `scalars` is the number of outputs of one sequence, `hidden` of the heads need not be visible.
    """
    ratio = gap.ratio_without(hidden)
    if ratio <= 0:
        return float("inf")
    visible = gap.fitted * (calibration.SEEN_AT / ratio) ** 2
    needed = max(float(np.ceil(sequences_in_all(visible))), examples_for(unknowns, scalars))
    return needed if needed < calibration.IMPOSSIBLE else float("inf")


def agreeing_rows(layer: AttentionLayer, x: np.ndarray) -> float:
    """Distinct slabs per sequence that sculpting would certify in its first round, with the true sum of projections."""
    config = SculptConfig()
    if x.shape[1] == 1:  # no second token to agree on
        return 0.0
    x = x[: calibration.SCULPT_SEQUENCES]
    white = whitening(x, None)
    inside = white.enter(layer.parameters)
    total = np.concatenate([inside.w.sum(axis=0), inside.output_bias[None]])
    state = SculptState(sum=total, sum_spread=np.zeros_like(total), sum_scale=0.0, causal=layer.causal)
    batch = as_batch(Chunk(x, layer(x), None), white, layer.causal)
    rows = _in_window(total, batch, config)
    if len(rows.query) == 0:
        return 0.0
    return len(slabs_of(state, rows, config.tolerance, config).offsets) / len(x)


def _in_window(total: Float[np.ndarray, "e1 o"], batch: WhiteBatch, config: SculptConfig) -> Rows:
    """The rows that two tokens explain, looked at in pieces whose pairs fit into memory."""
    n, k, _ = batch.tokens.shape
    size, found = max(1, calibration.SCULPT_NUMBERS // k**3), []
    for start in range(0, n, size):
        piece = WhiteBatch(*(array[start : start + size] for array in batch.written_out()))
        pairs = explain_batch(total, piece)
        output = np.linalg.norm(piece.outputs - total[-1], axis=2)
        relative = pairs.residual / np.maximum(output, np.finfo(float).tiny)
        least = np.minimum(pairs.weight, 1 - pairs.weight)
        found.append(
            rows_at(piece, *np.nonzero((relative <= config.tolerance) & (least >= config.window * relative)))
        )
    return Rows.join(found)


def sculpt_examples(layer: AttentionLayer, x: np.ndarray) -> float:
    """Examples that give the slabs of a first body; infinite when no row agrees."""
    config = SculptConfig()
    rate = agreeing_rows(layer, x)
    slabs = config.slabs_per_unknown * layer.dim * (layer.dim + 1)
    return float(np.ceil(slabs / rate)) + config.held_examples if rate > 0 else float("inf")


def query_count(num_heads: int, dim: int, out_dim: int, rank: int, value_rank: int | None = None) -> int:
    """Sequences that `extract` should ask for in all, from the ranks of the Theta_i and the W_i (None: full).

    >>> query_count(num_heads=8, dim=128, out_dim=128, rank=16, value_rank=16)
    1298
    """
    low, high = extraction.SCALE_GRID
    probe = extraction.SCALE_SEQUENCES * (high - low)
    slice_points = (num_heads + min(num_heads, dim) + 2) // 2 + extraction.DESIGN_SURPLUS
    counted = extraction.COUNT_POINTS * 2 ** max(0, int(np.ceil(np.log2(num_heads / 8))))
    separate = counted + 2 * ((num_heads + 5) // 2) * min(num_heads + 2, dim) + slice_points
    match = _match_count(slice_points, num_heads, dim, out_dim, dim if value_rank is None else value_rank)
    longest = max(extraction.CERTIFY_LENGTHS)
    tokens = tokens_told_apart(num_heads, out_dim, dim if value_rank is None else value_rank, longest)
    blocks = _block_count(tokens, dim, rank)
    checks = min(tokens, extraction.RANDOM_TOKENS)
    asked = [tokens] * blocks + [checks] * extraction.CHECK_SEQUENCES
    scores = score_unknowns(num_heads, dim, [rank] * num_heads)
    rows = extraction.FIT_EQUATIONS * (scores / out_dim + num_heads * dim) - sum(asked)
    seen = score_equations(num_heads, out_dim, False, asked)
    per_row = informative_outputs(num_heads, out_dim, False, longest)
    rows = max(rows, (extraction.FIT_SCORE_EQUATIONS * scores - seen) / per_row)
    fit = max(extraction.FIT_RANDOM_LEAST, int(np.ceil(rows / longest)))
    seen += score_equations(num_heads, out_dim, False, [longest] * fit)
    each = score_equations(num_heads, out_dim, False, extraction.CERTIFY_LENGTHS) / len(
        extraction.CERTIFY_LENGTHS
    )
    held = max(extraction.CERTIFY_SEQUENCES, (extraction.CERTIFY_EQUATIONS * scores - seen) / each)
    held += extraction.LARGER_SEQUENCES + 2  # and one to try the length, while learning and again at the end
    single = dim + 1 + extraction.SURPLUS_TOKENS + calibration.NOISE_SEQUENCES
    return int(single + probe + separate + match + len(asked) + fit + held)


def _block_count(tokens: int, dim: int, rank: int) -> int:
    """Queries that show enough references, half of a query each time, with all other tokens."""
    group, blocks, shown = (tokens + 1) // 2, 0, 0
    while shown < min(rank + extraction.RANK_SURPLUS, dim + 1):
        others = max(0, dim + 1 - shown - group)
        blocks += max(1, -(-others // max(1, tokens - group)))
        shown += group
    return blocks


def _match_count(whole_slice: int, num_heads: int, dim: int, out_dim: int, value_rank: int) -> int:
    """Whole slices until the directions of the values show, lean ones from there on."""
    slices = extraction.SPAN_SLICES * int(
        np.ceil((value_rank + extraction.SPAN_SURPLUS - 1) / extraction.SPAN_SLICES)
    )
    slices = max(slices, 2 * extraction.SPAN_SLICES)
    if 2 * (slices - extraction.SPAN_SLICES) >= dim:
        return dim * whole_slice
    lean = int(np.ceil(num_heads * value_rank / out_dim))
    return slices * whole_slice + (dim - slices) * lean


def memory(route: str, num: float, tokens: int, dim: int, out_dim: int) -> int:
    """Bytes of the largest arrays: cached rows (recover), kept rows (sculpt), queries and answers in two precisions."""
    from attnlearn.recovery.sculpt._calibration import MOST_ROWS

    row = dim + out_dim
    if route == "recover":
        return int(num * tokens * row * 8 + min(num * tokens * row * 4, CACHE_BYTES))
    if route == "sculpt":
        return int(
            SculptConfig().held_examples * tokens * row * 8 + 2 * MOST_ROWS * (tokens * dim + out_dim) * 8
        )
    return int(num * max(extraction.CERTIFY_LENGTHS) * row * (8 + 4))
