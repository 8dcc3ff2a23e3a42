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
HARDLY = 0.1
"""Angle, in radians, below which a turn is hardly one."""


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

    def slow(self, reach: float) -> tuple[float, ...]:
        """Frequencies that turn by less than `HARDLY` at offsets up to `reach`: cosines of one within half a per cent.

        >>> Rotation((1.0, 0.01, 0.001)).slow(8)
        (0.01, 0.001)
        """
        return tuple(number for number in self.frequencies if abs(number) * reach < HARDLY)

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

    def beside(self, factor: np.ndarray) -> np.ndarray:
        """Coordinates (..., width) with the two parts of each pair side by side, as complex numbers are stored.

        A column of zeros follows where the width is odd.

        >>> Rotation((1.0, 0.01), still=1).beside(np.arange(5)).tolist()
        [0, 2, 1, 3, 4, 0]
        """
        found = np.zeros((*factor.shape[:-1], self.width + self.width % 2), factor.dtype)
        found[..., self._places()] = factor
        return found

    def apart(self, factor: np.ndarray) -> np.ndarray:
        """The inverse of `beside`.

        >>> Rotation((1.0, 0.01), still=1).apart(np.array([0, 2, 1, 3, 4, 0])).tolist()
        [0, 1, 2, 3, 4]
        """
        return factor[..., self._places()]

    def _places(self) -> np.ndarray:
        """Where `beside` puts each coordinate."""
        pairs = 2 * np.arange(self.pairs)
        return np.concatenate([pairs, pairs + 1, np.arange(2 * self.pairs, self.width)])

    def turns(self, positions: np.ndarray, heads: int, dtype: np.dtype) -> np.ndarray:
        """exp(i angle) at positions (k,) or (n, k), (k or n, k, heads times complex numbers of `beside`); 1 where none turns."""
        still = self.width + self.width % 2 - 2 * self.pairs
        angles = np.pad(self.angles(positions), [(0, 0)] * np.ndim(positions) + [(0, still // 2)])
        return np.tile(np.exp(1j * angles), heads).astype(np.result_type(dtype, np.complex64))

    def matrix(self, offset: float) -> np.ndarray:
        """The real matrix R (width, width) with z R = z turned by that offset.

        >>> Rotation((np.pi / 2,)).matrix(1).round(6).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
        """
        cos, sin = np.cos(self.angles(np.asarray(offset))), np.sin(self.angles(np.asarray(offset)))
        found, real = np.eye(self.width), np.arange(self.pairs)
        imaginary = real + self.pairs
        found[real, real] = found[imaginary, imaginary] = cos
        found[real, imaginary], found[imaginary, real] = sin, -sin
        return found


def turn(z: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Coordinates (n, k, heads, numbers) in the order of `beside` multiplied by `turns`, in their own memory.

    One product of long rows of complex numbers: products pair by pair took ten times as long.
    """
    n, k, heads, numbers = z.shape
    flat = z.reshape(n, k, heads * numbers).view(np.result_type(z.dtype, np.complex64))
    np.multiply(flat, turns, out=flat)
    return z


def as_positions(positions: Sequence[float] | np.ndarray | None, n: int, k: int) -> np.ndarray:
    """Positions (k,) or (n, k) as numbers; 0 .. k-1 when none are given."""
    if positions is None:
        return np.arange(k)
    found = np.asarray(positions)
    rule = f"must be numbers of shape ({k},) or ({n}, {k})"
    require(found.shape in ((k,), (n, k)) and found.dtype.kind in "iuf", "positions", rule, found)
    require(bool(np.isfinite(found).all()), "positions", "must be finite", found)
    return found
