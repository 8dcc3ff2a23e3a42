"""The tokenized mixture (DM1): labelled sequences in which a few tokens tell the label.

y is a fair ±1; mu_+, mu_-, nu_1 .. nu_J are orthogonal and of equal norm s. A fraction zeta of the T
positions, chosen at random, holds mu_y; every other position holds a random nu_j plus sub-Gaussian noise of
covariance `noise`^2 I. Spherical noise is bounded, so the premise "R bounds the distribution's tokens" can
hold; Gaussian noise has no such R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from attnlearn._errors import require
from attnlearn._precision import require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.data._base import BlockModel, require_count
from attnlearn.data._calibration import ORTHOGONALITY_TOLERANCE

LAWS = ("sphere", "gaussian")


class TokenizedMixture(BlockModel):
    """Sequences whose label is carried by a fraction `relevant` of the tokens.

    `signals` (2 + num_distractors, dim) has the rows mu_+, mu_-, nu_1, ..., by default `signal` times random
    orthonormal vectors that depend on `direction_seed` alone: train and test sets of different seeds share
    them. `noise` is the standard deviation per coordinate, `noise_law` "sphere" (every noise vector has norm
    noise * sqrt(dim)) or "gaussian".

    >>> x, y = TokenizedMixture(tokens=10, dim=8).sample(100, seed=0)
    >>> x.shape, sorted(set(y.tolist()))
    ((100, 10, 8), [-1.0, 1.0])
    """

    _tag = 3

    def __init__(
        self,
        tokens: int,
        dim: int,
        *,
        relevant: float = 0.2,
        signal: float = 1.0,
        num_distractors: int = 2,
        noise: float = 0.1,
        noise_law: str = "sphere",
        signals: ArrayLike | None = None,
        direction_seed: int = 0,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(tokens, dim, dtype)
        require(0 < relevant <= 1, "relevant", "must be a fraction in (0, 1]", relevant)
        require(np.isfinite(signal) and signal > 0, "signal", "must be a finite number > 0", signal)
        require(np.isfinite(noise) and noise >= 0, "noise", "must be a finite number >= 0", noise)
        require(noise_law in LAWS, "noise_law", f"must be one of {LAWS}", noise_law)
        self.relevant_tokens = max(1, round(relevant * self.tokens))
        self.noise, self.noise_law = float(noise), noise_law
        if signals is None:
            count = 2 + require_count(num_distractors, "num_distractors")
            require(
                count <= self.dim, "num_distractors", f"must be at most dim - 2 = {self.dim - 2}", count - 2
            )
            self.signals = signal * _orthonormal(
                count, self.dim, require_count(direction_seed, "direction_seed", 0)
            )
        else:
            self.signals = _orthogonal_rows(signals, self.dim)
        self.signal = float(np.linalg.norm(self.signals[0]))

    @property
    def zeta(self) -> float:
        """The fraction of positions that hold mu_y, after rounding to whole tokens."""
        return self.relevant_tokens / self.tokens

    @property
    def radius(self) -> float:
        """R, a bound on every token's norm; infinite for Gaussian noise.

        >>> x, _ = (model := TokenizedMixture(tokens=4, dim=8)).sample(100)
        >>> bool(np.linalg.norm(x, axis=-1).max() <= model.radius)
        True
        """
        if self.noise_law == "gaussian" and self.noise > 0:
            return float("inf")
        return self.signal + self.noise * float(np.sqrt(self.dim))

    def relevant_positions(
        self, x: Float[np.ndarray, "n k d"], y: Float[np.ndarray, "n"]
    ) -> Bool[np.ndarray, "n k"]:
        """Which positions of examples drawn from this model hold mu_y (they carry no noise).

        >>> model = TokenizedMixture(tokens=10, dim=8)
        >>> model.relevant_positions(*model.sample(3)).sum(axis=1).tolist()
        [2, 2, 2]
        """
        mu = self.signals[np.where(np.asarray(y) > 0, 0, 1)].astype(x.dtype)
        return np.all(x == mu[:, None, :], axis=-1)

    def _draw(self, rng: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
        y = 1.0 - 2.0 * rng.integers(0, 2, size=num)
        which = rng.integers(2, len(self.signals), size=(num, self.tokens))
        # The smallest of T independent uniforms sit at a uniformly random set of positions.
        order = rng.random((num, self.tokens))
        chosen = np.argpartition(order, self.relevant_tokens - 1, axis=1)[:, : self.relevant_tokens]
        np.put_along_axis(which, chosen, np.where(y > 0, 0, 1)[:, None], axis=1)
        x = self.signals[which]
        if self.noise > 0:
            x += self._noise(rng, num) * (which >= 2)[..., None]
        return x, y

    def _noise(self, rng: np.random.Generator, num: int) -> Float[np.ndarray, "n k d"]:
        z = rng.standard_normal((num, self.tokens, self.dim))
        if self.noise_law == "sphere":
            z *= np.sqrt(self.dim / np.einsum("nkd,nkd->nk", z, z))[..., None]
        return self.noise * z

    def __repr__(self) -> str:
        return (
            f"TokenizedMixture(tokens={self.tokens}, dim={self.dim}, relevant={self.zeta:g}, "
            f"signal={self.signal:g}, num_distractors={len(self.signals) - 2}, noise={self.noise:g}, "
            f"noise_law={self.noise_law!r}, dtype={self.dtype})"
        )


def _orthonormal(count: int, dim: int, seed: int) -> Float[np.ndarray, "j d"]:
    """Rows uniform over orthonormal frames: QR of a Gaussian matrix, signs fixed by R's diagonal."""
    q, r = np.linalg.qr(np.random.default_rng([seed, 0xD117]).standard_normal((dim, count)))
    return (q * np.sign(np.diag(r))).T


def _orthogonal_rows(signals: ArrayLike, dim: int) -> Float[np.ndarray, "j d"]:
    rows = to_numpy(signals, "signals").astype(np.float64)
    require(
        rows.ndim == 2 and rows.shape[0] >= 3 and rows.shape[1] == dim,
        "signals",
        f"must have shape (2 + distractors, {dim}) with at least one distractor",
        rows,
    )
    require_finite(rows, "signals")
    gram = rows @ rows.T
    error = float(np.abs(gram - gram[0, 0] * np.eye(len(rows))).max())
    fits = gram[0, 0] > 0 and error <= ORTHOGONALITY_TOLERANCE * gram[0, 0]
    require(fits, "signals", "must be orthogonal and of equal norm", f"Gram matrix off by {error:.3g}")
    return rows
