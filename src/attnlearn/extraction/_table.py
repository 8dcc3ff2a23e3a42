"""Logits between fixed tokens, read from queries of several of them, and the rows of [Theta_i; c_i^T] that follow.

With every W_i known, a row of a query [t_1, ..., t_k] is linear in its attention weights,

    F_a - b - t_a S = sum_i sum_{b != a} alpha_i(a, b) (t_b - t_a) W_i,

and logits log alpha_i(a, b)/alpha_i(a, a) = z_i(a, b) = (t_a, 1)^T [Theta_i; c_i^T] (t_b - t_a) follow exactly, for all heads
and all pairs at once.

Cost: one QR factorisation of d_out m (k - 1) numbers per row of a query; BLAS gets one thread, because several wait for each other
on matrices of this size. What can fail: tokens that saturate a head, whose
logits are clipped and count for little.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from attnlearn._types import Outputs
from attnlearn.engine._threads import limited_blas
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._state import State


class ScoreTable:
    """Logits z_i(a, b) between fixed tokens, averaged over the queries that showed them, with their weights."""

    def __init__(self, tokens: Float[np.ndarray, "t d"], state: State) -> None:
        self.tokens, self.causal = tokens, state.causal
        self.sums = np.zeros((len(state.w), len(tokens), len(tokens)))
        self.trust = np.zeros_like(self.sums)
        self._values = np.einsum("td,mdo->tmo", tokens, state.w, optimize=True)
        self._alone = state.bias + tokens @ state.total

    @limited_blas(1)
    def read(self, index: Int[np.ndarray, "n k"], answers: Outputs) -> None:
        """Add the logits of every row of the sequences of tokens that `index` names."""
        k = index.shape[1]
        for row in range(k):
            others = [key for key in range(k) if key < row or (key > row and not self.causal)]
            if others:
                self._read_row(index[:, row], index[:, others], answers[:, row])

    def _read_row(self, query: np.ndarray, keys: np.ndarray, answers: np.ndarray) -> None:
        n, seen = keys.shape
        images = self._values[keys] - self._values[query][:, None]
        images = images.transpose(0, 3, 2, 1).reshape(n, answers.shape[1], -1)
        q, r = np.linalg.qr(images)
        safe = calibration.SLICE_RIDGE * np.abs(r).max((1, 2), keepdims=True) * np.eye(r.shape[1])
        inverse = np.linalg.inv(r + safe)
        target = np.swapaxes(q, 1, 2) @ (answers - self._alone[query])[..., None]
        weights = (inverse @ target)[..., 0].reshape(n, -1, seen)
        spread = np.linalg.norm(inverse, axis=2).reshape(weights.shape)
        high, low = (
            np.clip(weight, calibration.LOGIT_LEAST, 1.0)
            for weight in (weights, 1 - weights.sum(2, keepdims=True))
        )
        trust = 1 / (spread * (1 / high + 1 / low)) ** 2
        places = (np.broadcast_to(query[:, None], keys.shape), keys)
        for head in range(len(self.sums)):
            np.add.at(self.sums[head], places, (np.log(high / low) * trust)[:, head])
            np.add.at(self.trust[head], places, trust[:, head])

    def reference_rows(self, a: int) -> Float[np.ndarray, "m d"]:
        """The row of a token that was shown with all others, for every head: as many equations as unknowns."""
        others = np.arange(len(self.tokens)) != a
        logits = self.sums[:, a, others] / self.trust[:, a, others]
        return np.linalg.solve(self.tokens[others] - self.tokens[a], logits.T).T

    @limited_blas(1)
    def rows(self, head: int, span: Float[np.ndarray, "d r"]) -> Float[np.ndarray, "t d"]:
        """(t_a, 1)^T [Theta; c^T] of every token by weighted least squares inside `span`."""
        trust = self.trust[head]
        weight = np.sqrt(trust / np.maximum(trust.max(1, keepdims=True), 1e-300))
        logits = self.sums[head] / np.where(trust > 0, trust, 1.0)
        inside = self.tokens @ span
        q, r = np.linalg.qr((inside - inside[:, None]) * weight[..., None])
        safe = calibration.SLICE_RIDGE * np.abs(r).max((1, 2), keepdims=True) * np.eye(r.shape[1])
        solved = np.linalg.solve(r + safe, np.swapaxes(q, 1, 2) @ (logits * weight)[..., None])
        return solved[..., 0] @ span.T
