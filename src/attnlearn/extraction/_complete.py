"""Phase 5: the whole Theta_i from exact logits between d + 1 fixed tokens; low rank saves most of the queries.

With every W_i known, a row of any query [t_a, t_b, t_c] is linear in its attention weights,

    F_a - b - t_a S = sum_i sum_{b != a} alpha_i(a, b) (t_b - t_a) W_i,

and logits log alpha_i(a, b)/alpha_i(a, a) = z_i(a, b) = (t_a, 1)^T [Theta_i; c_i^T] (t_b - t_a) follow exactly, for
all heads at once. A reference token asked with all others gives, in its own rows, its row of the score matrix, and
in the others' rows one equation for each of theirs. So r + 2 references suffice for heads of rank r: the
references' rows span the key side, and every other row lies in that span with r unknowns. References are added
until the singular values of every head's known rows show a gap and random queries are explained, or until all
tokens are references.

Three tokens carry two references at once. They need 2 m <= d_out and no W_i of rank one; otherwise pairs are sent.
Cost: (r + 2) d / 2 sequences of three tokens, d^2 / 4 at full rank. What can fail: tokens that saturate a head, whose
logits are then clipped; half as large ones are tried.
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
from attnlearn.extraction._match import scale_for
from attnlearn.extraction._settle import forward
from attnlearn.extraction._spans import gap_rank
from attnlearn.extraction._state import Inquiry, Problem, State, counts


class ScoreTable:
    """Logits z_i(a, b) between fixed tokens, averaged over the queries that showed them, with their weights."""

    def __init__(self, tokens: Float[np.ndarray, "t d"], heads: int) -> None:
        self.tokens = tokens
        self.sums = np.zeros((heads, len(tokens), len(tokens)))
        self.trust = np.zeros_like(self.sums)

    def add(self, query: np.ndarray, key: np.ndarray, logit: np.ndarray, trust: np.ndarray) -> None:
        """Logits (n, heads) between token indices, with the inverse variance of each."""
        for head in range(len(self.sums)):
            np.add.at(self.sums[head], (query, key), logit[:, head] * trust[:, head])
            np.add.at(self.trust[head], (query, key), trust[:, head])

    def row(self, head: int, a: int, span: np.ndarray | None = None) -> Float[np.ndarray, "d"]:
        """(t_a, 1)^T [Theta; c^T] by weighted least squares, inside `span` (d, r) if given."""
        known = np.flatnonzero(self.trust[head, a] > 0)
        weight = np.sqrt(self.trust[head, a, known])
        logits = self.sums[head, a, known] / self.trust[head, a, known]
        moves = self.tokens[known] - self.tokens[a]
        system = moves if span is None else moves @ span
        weight = weight / weight.max(initial=1e-300)
        solution, *_ = np.linalg.lstsq(system * weight[:, None], logits * weight, rcond=1e-10)
        return solution if span is None else span @ solution

    def reference_rows(self, a: int) -> Float[np.ndarray, "m d"]:
        """The row of a token that was shown with all others, for every head: as many equations as unknowns."""
        others = np.arange(len(self.tokens)) != a
        logits = self.sums[:, a, others] / self.trust[:, a, others]
        return np.linalg.solve(self.tokens[others] - self.tokens[a], logits.T).T


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
    triples = triples_tell(state.w)
    table = ScoreTable(fixed_tokens(problem, state, rng), heads)
    order = list(rng.permutation(d + 1))
    shape = (calibration.CHECK_SEQUENCES, 3 if triples else 2, d)
    check = inquiry.ask(state.scale * rng.standard_normal(shape))
    noisy = calibration.UNEXPLAINED_NOISE * state.noise / max(flat_rms(state, *check), state.noise)
    allowed = max(calibration.UNEXPLAINED, noisy)
    known, references, misses = np.zeros((heads, 0, d)), [], []
    while len(references) <= d:
        fresh = order[len(references) : len(references) + calibration.GROW_ROWS]
        _ask_references(inquiry, table, fresh, references, triples)
        references += fresh
        known = np.concatenate([known, np.stack([table.reference_rows(a) for a in fresh], 1)], 1)
        ranks, gaps = row_ranks(known, state.constant_head)
        if ranks is None and len(references) <= d:
            continue
        theta, query_bias = assemble(table, known, ranks)
        misses.append(unexplained(replace(state, theta=theta, query_bias=query_bias), *check))
        if misses[-1] <= allowed:
            break
    ranks = None if ranks is None else theta_ranks(theta, ranks, state.constant_head)
    evidence = {
        "references": len(references),
        "ranks": ranks,
        "gaps": gaps,
        "unexplained": misses,
        "tokens_per_query": shape[1],
    }
    return Completed(theta, query_bias, ranks, misses[-1], evidence)


def triples_tell(w: Float[np.ndarray, "m d o"]) -> bool:
    """Whether both attention weights of every head can be read from one row of a query of three tokens.

    >>> triples_tell(np.eye(8)[None]), triples_tell(np.ones((1, 8, 8)))
    (True, False)
    """
    heads, _, out = w.shape
    if 2 * heads > calibration.TRIPLE_SHARE * out:
        return False
    singular = np.linalg.svd(w, compute_uv=False)
    return bool(np.all(singular[:, 1] >= calibration.TRIPLE_VALUES * singular[:, 0]))


def flat_rms(state: State, x: Tokens, y: Outputs) -> float:
    """Error of one scalar of the layer whose heads have no scores (uniform attention)."""
    m, d, _ = state.w.shape
    flat = AttentionLayer(np.zeros((m, d, d)), state.w, None, state.bias, causal=state.causal)
    return float(np.sqrt(np.mean((forward(flat, x)[0] - y) ** 2)))


def unexplained(state: State, x: Tokens, y: Outputs) -> float:
    """Error on random queries over that of the layer without scores."""
    found = AttentionLayer(state.theta, state.w, state.query_bias, state.bias, causal=state.causal)
    error = float(np.sqrt(np.mean((forward(found, x)[0] - y) ** 2)))
    return error / max(flat_rms(state, x, y), np.finfo(float).tiny)


def fixed_tokens(problem: Problem, state: State, rng: np.random.Generator) -> Float[np.ndarray, "t d"]:
    """d orthogonal tokens of the chosen scale and one more, so that tokens with a 1 appended are a basis."""
    d = problem.dim
    tokens = np.linalg.qr(rng.standard_normal((d, d)))[0] * state.scale * np.sqrt(d)
    tokens = np.vstack([tokens, -tokens.sum(0) / np.sqrt(d)])
    return problem.oracle.accepted(tokens[:, None])[:, 0]


def _ask_references(
    inquiry: Inquiry, table: ScoreTable, fresh: list[int], old: list[int], triples: bool
) -> None:
    """Show the fresh references together with every token that was not a reference yet."""
    size = 2 if triples else 1
    done = list(old)
    for start in range(0, len(fresh), size):
        group = fresh[start : start + size]
        others = [b for b in range(len(table.tokens)) if b not in group and b not in done]
        index = [[*group, b] for b in others] or [group]
        if inquiry.state.causal:  # only the last token sees all others: each takes that place once
            index = [np.roll(entry, shift).tolist() for entry in index for shift in range(len(entry))]
        if len(index[0]) > 1:
            read_logits(inquiry, table, np.array(index))
        done += group


def read_logits(inquiry: Inquiry, table: ScoreTable, index: np.ndarray) -> None:
    """Ask the sequences of tokens named by `index` (n, k) and add the logits of their rows to the table."""
    state, k = inquiry.state, index.shape[1]
    x, y = inquiry.ask(table.tokens[index])
    for row in range(k) if not state.causal else [k - 1]:
        others = [b for b in range(k) if b != row]
        moves = x[:, others] - x[:, [row]]
        images = np.einsum("nbd,mdo->nmbo", moves, state.w).reshape(len(x), -1, len(state.bias))
        target = y[:, row] - state.bias - x[:, row] @ state.total
        inverse = np.linalg.pinv(np.swapaxes(images, 1, 2), rcond=1e-10)
        weights = (inverse @ target[..., None])[..., 0].reshape(len(x), -1, k - 1)
        spread = np.linalg.norm(inverse, axis=2).reshape(weights.shape)
        own = 1 - weights.sum(2)
        for position, b in enumerate(others):
            alpha = weights[:, :, position]
            high, low = (np.clip(weight, calibration.LOGIT_LEAST, 1.0) for weight in (alpha, own))
            error = spread[:, :, position] * (1 / high + 1 / low)
            table.add(index[:, row], index[:, b], np.log(high / low), 1 / error**2)


def row_ranks(known: Float[np.ndarray, "m a d"], constant_head: bool) -> tuple[list[int] | None, list[float]]:
    """The rank of every head from its references' rows, or None as long as some head shows no gap.

    All rows of a constant head, the last one, are its query bias, or rounding if it has none: one direction.
    """
    found = [gap_rank(singular) for singular in np.linalg.svd(known, compute_uv=False)]
    if constant_head:
        found[-1] = (1, 1.0)
    ranks = [rank for rank, _ in found if rank is not None]
    return (ranks if len(ranks) == len(found) else None), [gap for _, gap in found]


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
    table: ScoreTable, known: Float[np.ndarray, "m a d"], ranks: list[int] | None
) -> tuple[Float[np.ndarray, "m d d"], Float[np.ndarray, "m d"]]:
    """Theta_i and c_i from all rows, each inside the span of the references' rows when that is smaller."""
    tokens = table.tokens
    extended = np.c_[tokens, np.ones(len(tokens))]
    theta, query_bias = [], []
    for head in range(len(table.sums)):
        span = None
        if ranks is not None:
            span = np.linalg.svd(known[head])[2][: ranks[head]].T
        rows = np.stack([table.row(head, a, span) for a in range(len(tokens))])
        stacked = np.linalg.solve(extended, rows)
        theta.append(stacked[:-1])
        query_bias.append(stacked[-1])
    return np.array(theta), np.array(query_bias)
