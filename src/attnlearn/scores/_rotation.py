"""How positions turn the coordinates of queries and keys: fixed frequencies, one for each rotated pair of coordinates.

Inside the package the coordinates of a head run: real parts of all pairs, imaginary parts of all pairs, coordinates that no
position turns. Models store pairs half-split (j with j + p) or interleaved (2j with 2j + 1); `order` says where theirs go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlearn._errors import require

PAIRINGS = ("half-split", "interleaved")


@dataclass(frozen=True)
class Rotation:
    """Frequencies of the pairs, in radians per position, and the number of coordinates that no position turns.

    >>> Rotation((1.0, 0.01), still=4).width
    8
    """

    frequencies: tuple[float, ...]
    still: int = 0

    def __post_init__(self) -> None:
        numbers = np.asarray(self.frequencies, np.float64)
        require(bool(np.isfinite(numbers).all()), "frequencies", "must be finite", self.frequencies)
        require(self.still >= 0 and self.width >= 1, "still", "must be >= 0, with a coordinate", self.still)
        object.__setattr__(self, "frequencies", tuple(float(number) for number in numbers))

    @property
    def pairs(self) -> int:
        """Number of rotated pairs."""
        return len(self.frequencies)

    @property
    def width(self) -> int:
        """Coordinates of a head."""
        return 2 * self.pairs + self.still

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """Angles (..., pairs) at positions (...), in float64."""
        return np.asarray(positions, np.float64)[..., None] * np.asarray(self.frequencies)

    def order(self, pairing: str = "half-split") -> np.ndarray:
        """Indices: coordinate j of this package is coordinate order[j] of a model with that pairing.

        >>> Rotation((1.0, 0.01), still=1).order("interleaved").tolist()
        [0, 2, 1, 3, 4]
        """
        require(pairing in PAIRINGS, "pairing", f"must be one of {', '.join(PAIRINGS)}", pairing)
        places = np.arange(self.width)
        if pairing == "interleaved":
            places[: 2 * self.pairs] = np.concatenate(
                [places[: 2 * self.pairs : 2], places[1 : 2 * self.pairs : 2]]
            )
        return places

    def turned(self, z: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Coordinates (..., width) multiplied by exp(i angle), given (cos, sin) that broadcast to (..., pairs)."""
        cos, sin = tables
        p = self.pairs
        found = np.empty_like(z)
        real, imaginary = z[..., :p], z[..., p : 2 * p]
        np.subtract(real * cos, imaginary * sin, out=found[..., :p])
        np.add(real * sin, imaginary * cos, out=found[..., p : 2 * p])
        found[..., 2 * p :] = z[..., 2 * p :]
        return found

    def matrix(self, offset: float) -> np.ndarray:
        """The real matrix R (width, width) with z R = z turned by that offset.

        >>> Rotation((np.pi / 2,)).matrix(1).round(6).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
        """
        angles = self.angles(np.asarray(offset))
        return self.turned(np.eye(self.width), (np.cos(angles), np.sin(angles)))


def tables(rotation: Rotation, positions: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin for arrays (n, k, heads, pairs) of tokens at positions (k,) or (n, k)."""
    angles = rotation.angles(positions)[..., None, :]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def as_positions(positions: Sequence[float] | np.ndarray | None, n: int, k: int) -> np.ndarray:
    """Positions (k,) or (n, k) as numbers; 0 .. k-1 when none are given."""
    if positions is None:
        return np.arange(k)
    found = np.asarray(positions)
    rule = f"must be numbers of shape ({k},) or ({n}, {k})"
    require(found.shape in ((k,), (n, k)) and found.dtype.kind in "iuf", "positions", rule, found)
    require(bool(np.isfinite(found).all()), "positions", "must be finite", found)
    return found
