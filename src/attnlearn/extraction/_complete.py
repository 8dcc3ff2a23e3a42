"""Phase 5: the whole Theta_i from exact logits between d + 1 fixed tokens; low rank saves most of the queries.

With every W_i known, a query of k fixed tokens shows the logits between all of them (`_table`). A *reference* token shown with all
others gives, in its own rows, its row of the score matrix, and in the others' rows one equation for each of theirs. So r + 2
references suffice for heads of rank r: the references' rows span the key side, and every other row lies in that span with r
unknowns. References are added until the singular values of every head's known rows show a gap and random queries are explained, or
until all tokens are references.

A query holds as many tokens as its rows can tell apart, m (k - 1) weights from d_out outputs, and as the oracle takes: half of them
references, half others. Cost: 4 (r + 2) d / k^2 sequences, 2 d^2 / k^2 at full rank. What can fail: tokens that saturate a head,
whose logits are then clipped; half as large ones are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._layer import AttentionLayer
from attnlearn._types import Outputs, Tokens
from attnlearn.engine import Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._equations import tokens_told_apart
from attnlearn.extraction._lengths import accepted_lengths
from attnlearn.extraction._match import scale_for
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.extraction._table import ScoreTable
from attnlearn.solve._rank import steepest


@dataclass(frozen=True)
class Completed:
    """Theta_i and c_i, the ranks of the Theta_i (None: full), what is left unexplained, and the evidence."""

    theta: Float[np.ndarray, "m d d"]
    query_bias: Float[np.ndarray, "m d"]
    ranks: list[int] | None
    miss: float
    evidence: dict[str, Any]


def complete(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """Theta_i and the rank; with smaller tokens when the first ones saturate some head."""
    inquiry = Inquiry(problem, state)
    longest = max(accepted_lengths(problem, state, inquiry, fresh=False))
    inquiry.state = replace(state, longest=longest)
    if state.theta is not None:
        shape = (calibration.CHECK_SEQUENCES, calibration.RANDOM_TOKENS, problem.dim)
        check = inquiry.ask(state.scale * tools.rng("check").standard_normal(shape))
        return inquiry.kept(), {"unexplained": [unexplained(state, *check)], **counts(problem.oracle)}
    history, found = [], []
    for attempt in range(calibration.COMPLETE_ATTEMPTS):
        found.append(complete_at(inquiry, problem, tools.rng(f"tokens {attempt}")))
        history.append({"scale": inquiry.state.scale, **found[-1].evidence})
        if found[-1].miss <= calibration.START_EXPLAINED:
            break
        inquiry.state = replace(inquiry.state, scale=0.5 * inquiry.state.scale)
    best = min(found, key=lambda each: each.miss)
    scale = problem.config.token_scale or scale_for(best.theta, best.query_bias, state.scale)
    changes = {"theta": best.theta, "query_bias": best.query_bias, "ranks": best.ranks, "scale": scale}
    return inquiry.kept(**changes), {**best.evidence, "attempts": history, **counts(problem.oracle)}


def complete_at(inquiry: Inquiry, problem: Problem, rng: np.random.Generator) -> Completed:
    """Add references until ranks show and random queries are explained, or all tokens are references."""
    state, d, heads = inquiry.state, problem.dim, len(inquiry.state.w)
    tokens = tokens_told_apart(heads, len(state.bias), value_rank(state.w), state.longest)
    table = ScoreTable(fixed_tokens(problem, state, rng), state)
    order = list(rng.permutation(d + 1))
    check = inquiry.ask(
        state.scale
        * rng.standard_normal((calibration.CHECK_SEQUENCES, min(tokens, calibration.RANDOM_TOKENS), d))
    )
    noisy = calibration.UNEXPLAINED_NOISE * state.noise / max(flat_rms(state, *check), state.noise)
    allowed = max(calibration.UNEXPLAINED, noisy)
    known, references, misses, tried = np.zeros((heads, 0, d)), [], [], 0
    while len(references) <= d:
        fresh = order[len(references) : len(references) + (tokens + 1) // 2]
        _ask_references(inquiry, table, fresh, references, tokens)
        references += fresh
        known = np.concatenate([known, np.stack([table.reference_rows(a) for a in fresh], 1)], 1)
        ranks, gaps = row_ranks(known, state.constant_head)
        clear, whole = min(gaps) >= calibration.RANK_GAP, len(references) > d
        # Noise may hide the gap of a head whose rank is low all the same: that is tried now and then.
        if not (clear or whole or 2 * tried <= len(references) <= d // 2):
            continue
        tried = len(references)
        ranks = ranks if clear or not whole else None
        theta, query_bias = assemble(table, known, references, ranks)
        misses.append(unexplained(replace(state, theta=theta, query_bias=query_bias), *check))
        if misses[-1] <= allowed:
            break
    ranks = None if ranks is None else theta_ranks(theta, ranks, state.constant_head)
    evidence = {"references": len(references), "ranks": ranks, "gaps": gaps}
    evidence |= {"unexplained": misses, "tokens_per_query": tokens}
    return Completed(theta, query_bias, ranks, misses[-1], evidence)


def value_rank(w: Float[np.ndarray, "m d o"]) -> int:
    """Directions to which every head writes at least, as far as noise lets them be told apart."""
    singular = np.linalg.svd(w, compute_uv=False)
    return int(np.sum(singular >= calibration.TOLD_VALUES * singular[:, :1], axis=1).min())


def flat_rms(state: State, x: Tokens, y: Outputs) -> float:
    """Error of one scalar of the layer whose heads have no scores (uniform attention)."""
    m, d, _ = state.w.shape
    flat = AttentionLayer(np.zeros((m, d, d)), state.w, None, state.bias, causal=state.causal)
    return float(np.sqrt(np.mean((flat(x) - y) ** 2)))


def unexplained(state: State, x: Tokens, y: Outputs) -> float:
    """Error on random queries over that of the layer without scores."""
    found = AttentionLayer(state.theta, state.w, state.query_bias, state.bias, causal=state.causal)
    error = float(np.sqrt(np.mean((found(x) - y) ** 2)))
    return error / max(flat_rms(state, x, y), np.finfo(float).tiny)


def fixed_tokens(problem: Problem, state: State, rng: np.random.Generator) -> Float[np.ndarray, "t d"]:
    """d orthogonal tokens of the chosen scale and one more, so that tokens with a 1 appended are a basis."""
    d = problem.dim
    tokens = np.linalg.qr(rng.standard_normal((d, d)))[0] * state.scale * np.sqrt(d)
    tokens = np.vstack([tokens, -tokens.sum(0) / np.sqrt(d)])
    return problem.oracle.accepted(tokens[:, None])[:, 0]


def _ask_references(
    inquiry: Inquiry, table: ScoreTable, fresh: list[int], old: list[int], tokens: int
) -> None:
    """Show the fresh references together with every token that was not a reference yet."""
    others = [b for b in range(len(table.tokens)) if b not in fresh and b not in old]
    room = max(1, tokens - len(fresh))
    starts = [min(start, max(0, len(others) - room)) for start in range(0, len(others), room)]
    index = np.array([[*fresh, *others[start : start + room]] for start in starts] or [fresh])
    if inquiry.state.causal:  # only the later of two tokens sees the other
        index = np.concatenate([index, index[:, ::-1]])
    if index.shape[1] > 1:
        table.read(index, inquiry.ask(table.tokens[index])[1])


def row_ranks(known: Float[np.ndarray, "m a d"], constant_head: bool) -> tuple[list[int], list[float]]:
    """The rank of every head by the largest fall of the singular values of its references' rows, and how large that is.

    All rows of a constant head, the last one, are its query bias, or rounding if it has none: one direction.
    """
    spectra = np.linalg.svd(known, compute_uv=False)
    found = [steepest(singular, calibration.RANK_SURPLUS) for singular in spectra]
    if constant_head:
        found[-1] = (1, np.inf)
    ranks, falls = zip(*found)
    return list(ranks), list(falls)


def theta_ranks(theta: Float[np.ndarray, "m d d"], ranks: list[int], constant_head: bool) -> list[int]:
    """Ranks of the Theta_i: those of the rows, or one less where a query bias outside adds one."""
    singular = np.linalg.svd(theta, compute_uv=False)
    beside = [
        rank >= 2 and values[rank - 1] * calibration.RANK_GAP < values[rank - 2]
        for rank, values in zip(ranks, singular)
    ]
    beside[-1] |= constant_head
    return [int(rank - extra) for rank, extra in zip(ranks, beside)]


def assemble(
    table: ScoreTable, known: Float[np.ndarray, "m a d"], references: list[int], ranks: list[int] | None
) -> tuple[Float[np.ndarray, "m d d"], Float[np.ndarray, "m d"]]:
    """Theta_i and c_i from all rows, each inside the span of the references' rows when that is smaller."""
    tokens = table.tokens
    if ranks is None:  # all tokens are references
        rows = known[:, np.argsort(references)]
    else:
        spans = [np.linalg.svd(own, full_matrices=False)[2][:rank].T for own, rank in zip(known, ranks)]
        rows = np.stack([table.rows(head, span) for head, span in enumerate(spans)])
    stacked = np.linalg.solve(np.c_[tokens, np.ones(len(tokens))], rows)
    return stacked[:, :-1], stacked[:, -1]
