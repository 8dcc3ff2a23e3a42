"""Shape: how small a layer is asked to be, and what a token of it costs.

A head scores with a query and a key of width `head_dim` and writes a value of that width. `kv_heads` keys and values serve all
heads, consecutive heads sharing one. With `latent` they are linear images of one vector of that length, which is all that is
kept of a token. The floats kept for each token are 2 kv_heads head_dim, or `latent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from attnlearn._errors import require
from attnlearn.engine import storable


@storable
@dataclass(frozen=True)
class Shape:
    """Heads, their width, the keys and values that they share, and the length of a common latent (None: there is none).

    >>> Shape(8, 16, 8).kv_floats, Shape(8, 16, 2).kv_floats, Shape(8, 16, 8, latent=48).kv_floats
    (256, 64, 48)
    """

    num_heads: int
    head_dim: int
    kv_heads: int
    latent: int | None = None

    @property
    def kv_floats(self) -> int:
        """Floats that are kept for every token."""
        return 2 * self.kv_heads * self.head_dim if self.latent is None else self.latent

    def parameters(self, dim: int, out_dim: int) -> int:
        """Numbers in the query, key, value and output maps, biases included.

        >>> Shape(2, 3, 1).parameters(dim=4, out_dim=4)
        82
        """
        queries, outputs = (
            self.num_heads * self.head_dim * (dim + 1),
            self.num_heads * self.head_dim * out_dim,
        )
        inner = dim if self.latent is None else self.latent
        shared = 2 * self.kv_heads * self.head_dim * inner + (0 if self.latent is None else dim * self.latent)
        return queries + shared + outputs + out_dim

    def words(self) -> str:
        """The shape as a reader says it.

        >>> Shape(8, 16, 2).words(), Shape(8, 16, 8, 48).words()
        ('8 heads of width 16, 2 of keys and values', '8 heads of width 16, latent 48')
        """
        heads = f"{self.num_heads} head{'s' * (self.num_heads > 1)} of width {self.head_dim}"
        if self.latent is not None:
            return f"{heads}, latent {self.latent}"
        return heads if self.kv_heads == self.num_heads else f"{heads}, {self.kv_heads} of keys and values"

    def row(self, dim: int, out_dim: int, error: float) -> dict[str, Any]:
        """The shape as a row of the curve."""
        sizes = {"kv_floats": self.kv_floats, "parameters": self.parameters(dim, out_dim), "error": error}
        named = asdict(self)
        return {"heads": named.pop("num_heads"), **named, **sizes}


@dataclass(frozen=True)
class Wanted:
    """What the caller of `compress` asked for; None where it was left open.

    >>> Wanted(head_dim=8, kv_floats=64)
    Traceback (most recent call last):
    ValueError: kv_floats: must be given without head_dim, kv_heads and latent, got 64
    """

    num_heads: int | None = None
    head_dim: int | None = None
    kv_heads: int | None = None
    latent: int | None = None
    kv_floats: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require(value is None or value >= 1, name, "must be at least 1", value)
        alone = self.head_dim is None and self.kv_heads is None and self.latent is None
        rule = "must be given without head_dim, kv_heads and latent"
        require(self.kv_floats is None or alone, "kv_floats", rule, self.kv_floats)
        require(
            self.latent is None or self.kv_heads is None,
            "latent",
            "must be given without kv_heads",
            self.latent,
        )

    @property
    def shaped(self) -> bool:
        """Whether anything but the number of heads was asked for."""
        return any(value is not None for name, value in asdict(self).items() if name != "num_heads")

    def heads(self, source: int) -> int:
        """The number of heads for a source that has so many; what does not fit is refused."""
        rule = f"must lie between 1 and the layer's {source}"
        require(self.num_heads is None or self.num_heads <= source, "num_heads", rule, self.num_heads)
        heads = source if self.num_heads is None else self.num_heads
        rule = f"must divide the {heads} heads"
        require(self.kv_heads is None or heads % self.kv_heads == 0, "kv_heads", rule, self.kv_heads)
        rule = "must be at least 2, a key and a value of width 1"
        require(self.kv_floats is None or self.kv_floats >= 2, "kv_floats", rule, self.kv_floats)
        return heads

    def shapes(self, heads: int, width: int, widest: int | None = None) -> tuple[Shape, ...]:
        """The shapes that meet this, for a source whose heads have that width; `widest` is what a head can use, if that is more.

        >>> [shape.words() for shape in Wanted(kv_floats=8).shapes(4, 4)]
        ['4 heads of width 1', '4 heads of width 2, 2 of keys and values', '4 heads of width 4, 1 of keys and values', '4 heads of width 4, latent 8']
        """
        if self.kv_floats is not None:
            return tuple(_within(heads, widest or width, self.kv_floats))
        head_dim = width if self.head_dim is None else min(self.head_dim, widest or width)
        return (Shape(heads, head_dim, self.kv_heads or heads, self.latent),)


def _within(heads: int, width: int, floats: int) -> Iterator[Shape]:
    """The largest shapes that keep at most so many floats a token."""
    for kv_heads in range(heads, 0, -1):
        head_dim = min(width, floats // (2 * kv_heads))
        if heads % kv_heads == 0 and head_dim >= 1:
            yield Shape(heads, head_dim, kv_heads)
    yield Shape(heads, width, heads, floats)
