"""Members that are made around another one: what they hand on to it, and their own free numbers beside those of the base.

A subclass says which free numbers it owns (`OWN`, arrays with the heads first) and which numbers are fixed, and does the forward and its
derivatives. Under these members a number that is added to all keys of a query is seen: it moves a soft cap, a sink and a norm. So the base must
be `exact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._protocol import Shown


class Around:
    """A base and free numbers of its own, by name."""

    __slots__ = ("base", "own")
    KIND: ClassVar[str] = ""
    OWN: ClassVar[tuple[str, ...]] = ()

    base: Any
    own: dict[str, Any]

    def _fill(self, base: Any, own: Mapping[str, Any]) -> None:
        rule = f"must keep what a query adds to all its keys (rotary scores without coordinates at rest do) to be {self.KIND}"
        require(base.exact, "base", rule, base.words())
        self.base, self.own = base, dict(own)

    def _with(self, base: Any, own: Mapping[str, Any]) -> Self:
        """The same kind with the same fixed numbers around another base and other free numbers."""
        raise NotImplementedError

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.base.heads

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.base.dim

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        return self.base.dtype

    @property
    def sink_value(self) -> np.ndarray | None:
        """That of the base."""
        return self.base.sink_value

    @property
    def exact(self) -> bool:
        """Always: the base is."""
        return True

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Self:
        """The scores again from `described`, `arrays` and their base."""
        raise NotImplementedError

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the own numbers."""
        del description
        return cls.OWN

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name: those of the base, then the own."""
        return {**self.base.arrays(), **self.own}

    def flat(self) -> np.ndarray:
        """All free numbers as one vector."""
        return np.concatenate([self.base.flat(), *(part.reshape(-1) for part in self.own.values())])

    def shaped(self, vector: np.ndarray) -> Self:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        start, own = self.base.flat().size, {}
        base = self.base.shaped(vector[:start])
        for name, part in self.own.items():
            own[name] = vector[start : start + part.size].reshape(part.shape)
            start += part.size
        return self._with(base, own)

    def astype(self, dtype: Any) -> Self:
        """The same parameters in another precision."""
        own = {name: np.asarray(part, dtype) for name, part in self.own.items()}
        return self._with(self.base.astype(dtype), own)

    def __iadd__(self, other: Self) -> Self:
        self.base += other.base
        for name, part in self.own.items():
            part += other.own[name]
        return self

    def seen_through(self, shift: np.ndarray, matrix: np.ndarray) -> Self:
        """The scores as a function of z where the tokens are x = shift + matrix z."""
        return self._with(self.base.seen_through(shift, matrix), self.own)

    def ordered(self, factor: np.ndarray) -> np.ndarray:
        """As the base wants the columns of a factor."""
        return self.base.ordered(factor)

    def reordered(self, factor: np.ndarray) -> np.ndarray:
        """The adjoint of `ordered`."""
        return self.base.reordered(factor)

    def at(self, offset: float) -> Shown:
        """Theta_i(D) and c_i(D) of the bilinear form that the scores are made of."""
        return self.base.at(offset)

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds to that form by its offset alone."""
        return self.base.bias_at(offset)

    def beyond(self) -> np.ndarray:
        """The own numbers."""
        own = [np.reshape(part, (self.heads, -1)) for part in self.own.values()]
        return np.concatenate([self.base.beyond(), *own], axis=1)

    def canonical(self) -> Self:
        """The same scores with their base in its gauge."""
        return self._with(self.base.canonical(), self.own)

    def unknowns(self) -> int:
        """Free numbers, gauge not counted."""
        return self.base.unknowns() + sum(part.size for part in self.own.values())
