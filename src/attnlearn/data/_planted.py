"""Planted teacher: Gaussian tokens, labelled by the sign of a random multi-head attention model.

y = sign Phi(X; theta*), Phi(X; U, W) = (1/sqrt H) sum_h <U_h, softmax(X W_h X^T) X>, x_t standard normal. The definition of the planted
model in the paper was not at hand; this is ours. Phi is scaled to root mean square 1, so `margin` is a share of a typical |Phi|.
Examples with |Phi| < margin are drawn again. Cost: one forward pass of the teacher for every example drawn. What can fail: a margin
that leaves less than a hundredth of the examples is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._attention import softmax
from attnlearn._errors import require
from attnlearn.data._base import BlockModel, require_count
from attnlearn.data._calibration import PLANTED_EXAMPLES, PLANTED_SHARE


class Planted(BlockModel):
    """Sequences of standard normal tokens with the labels of a planted attention model.

    The teacher has `num_heads` heads: `scale` is the standard deviation of its scores, and it depends on `teacher_seed` alone, so that
    train and test sets of different seeds share it. `u` (heads, tokens, dim) and `w` (heads, dim, dim) are its weights.

    >>> x, y = Planted(tokens=4, dim=6).sample(100, seed=0)
    >>> x.shape, sorted(set(y.tolist()))
    ((100, 4, 6), [-1.0, 1.0])
    """

    _tag = 4

    def __init__(
        self,
        tokens: int,
        dim: int,
        *,
        num_heads: int = 1,
        scale: float = 2.0,
        margin: float = 0.0,
        teacher_seed: int = 0,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(tokens, dim, dtype)
        heads = require_count(num_heads, "num_heads")
        require(np.isfinite(scale) and scale >= 0, "scale", "must be a finite number >= 0", scale)
        require(np.isfinite(margin) and margin >= 0, "margin", "must be a finite number >= 0", margin)
        rng = np.random.default_rng([require_count(teacher_seed, "teacher_seed", 0), 0x7EAC])
        w = rng.standard_normal((heads, self.dim, self.dim))
        self.w = scale * w / np.linalg.norm(w, axis=(1, 2), keepdims=True)
        self.u = rng.standard_normal((heads, self.tokens, self.dim))
        values = self.phi(rng.standard_normal((PLANTED_EXAMPLES, self.tokens, self.dim)))
        size = float(np.sqrt(np.mean(values**2)))
        self.u = self.u / size
        self.scale, self.margin = float(scale), float(margin)
        share = float(np.mean(np.abs(values) >= margin * size))
        require(
            share >= PLANTED_SHARE, "margin", f"must leave {100 * PLANTED_SHARE:g} % of the examples", margin
        )

    @property
    def num_heads(self) -> int:
        """Heads of the teacher."""
        return len(self.u)

    def phi(self, x: Float[np.ndarray, "n k d"]) -> Float[np.ndarray, "n"]:
        """The teacher's value of every sequence; its sign is the label.

        >>> model = Planted(tokens=4, dim=6, margin=0.5)
        >>> x, y = model.sample(50)
        >>> bool((y * model.phi(x)).min() >= 0.5)
        True
        """
        total = np.zeros(len(x))
        for u, w in zip(
            self.u, self.w
        ):  # one product per sequence: too small for BLAS to share among threads
            attended = softmax((x @ w) @ np.swapaxes(x, 1, 2)) @ x
            total += np.einsum("ad,nad->n", u, attended)
        return total / np.sqrt(len(self.u))

    def _draw(self, rng: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
        kept: list[tuple[np.ndarray, np.ndarray]] = []
        missing = num
        while missing > 0:
            x = rng.standard_normal((num, self.tokens, self.dim))
            values = self.phi(x)
            good = np.flatnonzero(np.abs(values) >= self.margin)[:missing]
            kept.append((x[good], np.where(values[good] >= 0, 1.0, -1.0)))
            missing -= len(good)
        return tuple(np.concatenate(parts) for parts in zip(*kept, strict=True))

    def __repr__(self) -> str:
        return (
            f"Planted(tokens={self.tokens}, dim={self.dim}, num_heads={self.num_heads}, scale={self.scale:g}, "
            f"margin={self.margin:g}, dtype={self.dtype})"
        )
