"""What a layer is, in numbers a person reads: norms, effective ranks, biases, similarity of heads."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from attnlearn._base import Layer
    from attnlearn._layer import AttentionLayer


@dataclass(frozen=True)
class HeadSummary:
    """One head: Frobenius norms, effective rank ‖A‖_F^2/‖A‖_op^2, numerical rank, bias, closest other head, copying score.

    `copying` is sum of eigenvalues over sum of their sizes of W: 1 for a head that passes tokens on as they are, -1 for one that
    takes them away, near 0 for neither; None where outputs have another dimension than tokens.
    """

    head: int
    theta_norm: float
    theta_effective_rank: float
    theta_rank: int
    w_norm: float
    w_effective_rank: float
    w_rank: int
    query_bias_norm: float
    nearest_head: int | None
    similarity: float
    copying: float | None = None


RANK_TOLERANCE = 1e-6
"""Singular values below this share of the largest are rounding: weights stored in float32 leave 1e-7."""


@np.errstate(
    over="ignore", invalid="ignore"
)  # norms of a file's huge numbers are infinite, which is what they are
def summarize(layer: Layer, singular: dict[str, np.ndarray] | None = None) -> list[HeadSummary]:
    """A summary of every head; ranks count singular values above RANK_TOLERANCE times the largest.

    Where scores depend on positions, Theta and c are those at offset 0. `singular` may hold the singular values of all theta and w, when the caller has them already.

    >>> from attnlearn import AttentionLayer
    >>> [head.theta_rank for head in summarize(AttentionLayer.random(2, 8, rank=3))]
    [3, 3]
    """
    similarity = head_similarity(layer)
    at = layer.scores_at(0)
    singular = singular or singular_values(theta=at.theta, w=layer.w)
    effective = {name: effective_ranks(values) for name, values in singular.items()}
    heads = []
    for index in range(layer.num_heads):
        theta, w = singular["theta"][index], singular["w"][index]
        others = np.delete(np.arange(layer.num_heads), index)
        nearest = int(others[np.argmax(np.abs(similarity[index, others]))]) if len(others) else None
        heads.append(
            HeadSummary(
                head=index,
                theta_norm=float(np.linalg.norm(theta)),
                theta_effective_rank=float(effective["theta"][index]),
                theta_rank=int((theta > RANK_TOLERANCE * theta[0]).sum()),
                w_norm=float(np.linalg.norm(w)),
                w_effective_rank=float(effective["w"][index]),
                w_rank=int((w > RANK_TOLERANCE * w[0]).sum()),
                query_bias_norm=float(np.linalg.norm(at.query_bias[index])),
                nearest_head=nearest,
                similarity=0.0 if nearest is None else float(similarity[index, nearest]),
                copying=copying_score(layer.w[index], int((w > RANK_TOLERANCE * w[0]).sum())),
            )
        )
    return heads


def singular_values(**stacks: Float[np.ndarray, "m r c"]) -> dict[str, np.ndarray]:
    """Singular values of every matrix of every named stack, in float64.

    >>> singular_values(theta=np.ones((2, 3, 3)))["theta"][:, 0].round(6).tolist()
    [3.0, 3.0]
    """
    return {name: np.linalg.svd(stack.astype(float), compute_uv=False) for name, stack in stacks.items()}


@np.errstate(over="ignore", invalid="ignore")
def head_similarity(layer: Layer) -> Float[np.ndarray, "m m"]:
    """Cosines <Theta_i, Theta_j> / (‖Theta_i‖ ‖Theta_j‖); zero where a Theta is zero.

    >>> from attnlearn import AttentionLayer
    >>> head_similarity(AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3)))).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return cosines(layer.scores_at(0).theta)


def copying_score(w: Float[np.ndarray, "d o"], rank: int) -> float | None:
    """Sum of the eigenvalues of w over the sum of their sizes; None if w is not square or zero.

    The eigenvalues that are not zero are those of w on its own range, of dimension `rank`.

    >>> copying_score(np.eye(3), 3), copying_score(-np.eye(3), 3), copying_score(np.ones((2, 3)), 1)
    (1.0, -1.0, None)
    """
    if w.shape[0] != w.shape[1] or rank == 0 or not np.isfinite(w).all():
        return None
    # tokens are rows, x -> x w, so the range is spanned by rows of w
    mixed = np.random.default_rng(0).standard_normal((rank, len(w))) @ w.astype(float)
    basis = np.linalg.qr(mixed.T)[0]
    values = np.linalg.eigvals(basis.T @ w.astype(float) @ basis)
    total = float(np.abs(values).sum())
    return float(f"{float(values.real.sum()) / total:.12g}") if total > 0 else None


def cosines(matrices: Float[np.ndarray, "m d e"]) -> Float[np.ndarray, "m m"]:
    """Cosines of all pairs of matrices; zero where one of them is zero."""
    flat = matrices.reshape(len(matrices), -1).astype(float)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.divide(flat, norms, out=np.zeros_like(flat), where=norms > 0)
    return unit @ unit.T


def effective_ranks(values: Float[np.ndarray, "m r"]) -> Float[np.ndarray, "m"]:
    """‖A‖_F^2/‖A‖_op^2 from singular values, the largest first; 0 for a matrix that is zero."""
    squares, largest = np.sum(values**2, axis=1), values[:, 0] ** 2
    return np.divide(squares, largest, out=np.zeros(len(values)), where=largest > 0)


COLUMNS = {
    "head": "head",
    "theta_norm": "‖Theta‖",
    "theta_effective_rank": "eff. rank",
    "theta_rank": "rank",
    "query_bias_norm": "‖c‖",
    "w_norm": "‖W‖",
    "w_effective_rank": "eff. rank",
    "w_rank": "rank",
    "nearest_head": "nearest",
    "similarity": "cosine",
    "copying": "copying",
}


def format_cell(value: Any) -> str:
    """A number as a person wants to read it in a table."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def layer_html(layer: AttentionLayer) -> str:
    """The table that notebooks show for a layer."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{format_cell(getattr(row, field))}</td>" for field in COLUMNS) + "</tr>"
        for row in summarize(layer)
    )
    caption = html.escape(repr(layer))
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
