"""What a kind of scores must be able to do.

A member holds the parameters of the scores of all heads. Its tangents, gradients and preconditioned coordinates have its own
shape, so they are members of the same class. On one chunk of n sequences of k tokens the scores are an array (n, query, head,
key), perhaps with one more key at the end: a sink, which every query sees. A member adds a file here, and nothing above it changes. What a layer asks of every member (`Held`):

| duty | method |
|---|---|
| a name, the fixed numbers as JSON, the free ones by name, and the member again from these | `KIND`, `described`, `arrays`, `names`, `of`, `words` |
| parameters as one vector, in a precision, in other coordinates of the tokens | `flat`, `shaped`, `astype`, `seen_through` |
| forward, and its derivative both ways | `logits`, `jvp`, `vjp` |
| the same from queries and keys, for factors that others fit | `ordered`, `reordered`, `meet`, `along`, `part` |
| what inputs can show of the scores, in one gauge | `at`, `bias_at`, `beyond`, `sink_value`, `rule`, `canonical`, `unknowns` |

What a solver asks beside it (`Scores`); a member without it can be held, evaluated and compressed, and not recovered:

| duty | method |
|---|---|
| rank | `rank`, `of_rank` |
| coordinates in which the curvature is about one | `preconditioner`, `moved` |
| gauge: changes of the parameters that change no score | `gauge`, `without_gauge` |
| what inputs can show of a change, and how far coordinates move it | `shown`, `reach` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import numpy as np


class Shown(NamedTuple):
    """What inputs can show of scores, or of a change of them: Theta_i (m, d, d) and c_i (m, d)."""

    theta: np.ndarray
    query_bias: np.ndarray


class Reach(NamedTuple):
    """For every head, by how much a unit step in preconditioned coordinates can move Theta_i and c_i."""

    theta: np.ndarray
    query_bias: np.ndarray


class Curvature(NamedTuple):
    """The curvature in the scores: coupling (m d, m d) of the heads' keys, second moment (d, d) of the queries.

    `met` (query, m, key) says how much each pair of places counts: the sum of alpha (1 - alpha). `invert` gives the inverse Cholesky
    factor of a matrix. `joint` False treats heads one by one where that is sharper. Changes that show less than the relative `residual`
    need not be told apart from those that do not show.
    """

    coupling: np.ndarray
    second: np.ndarray
    met: np.ndarray
    invert: Callable[[np.ndarray], np.ndarray]
    joint: bool = True
    residual: float = 0.0


class Affine(Protocol):
    """Coordinates z of the tokens: x = mean + basis z, z = inverse (x - mean)."""

    @property
    def mean(self) -> np.ndarray:
        """The token at z = 0."""
        ...

    @property
    def basis(self) -> np.ndarray:
        """Columns (d, e)."""
        ...

    @property
    def inverse(self) -> np.ndarray:
        """The pseudo-inverse (e, d) of `basis`."""
        ...


class Preconditioner(Protocol):
    """A linear map in whose coordinates the curvature of the scores is about one."""

    def apply(self, t: Any) -> Any:
        """The direction of the scores for preconditioned coordinates t."""
        ...

    def transpose(self, g: Any) -> Any:
        """The adjoint of `apply`: the gradient in preconditioned coordinates."""
        ...

    def serves(self, residual: float) -> bool:
        """Whether it is still good where the relative residual has fallen to this."""
        ...


class Held(Protocol):
    """Scores that a layer can hold: their parameters, and the shape of their tangents."""

    @property
    def KIND(self) -> str:
        """The name of the kind."""
        ...

    @property
    def heads(self) -> int:
        """Number of heads."""
        ...

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Precision of the parameters."""
        ...

    @property
    def exact(self) -> bool:
        """Whether `logits` has what a query alone adds to all its keys, which a plain softmax does not show."""
        ...

    @property
    def rule(self) -> tuple[Any, ...]:
        """How bilinear forms become scores; empty where they are the scores. Layers of different rules have no distance."""
        ...

    @property
    def sink_value(self) -> np.ndarray | None:
        """What the sink of every head puts out (m, d_out); None where there are no sinks."""
        ...

    def described(self) -> dict[str, Any]:
        """The fixed numbers, as JSON holds them."""
        ...

    @classmethod
    def names(cls, description: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of `arrays` but for those of a `base`, in order; all arrays have the heads first."""
        ...

    @classmethod
    def of(cls, description: Mapping[str, Any], arrays: Mapping[str, Any], base: Any) -> Self:
        """The scores again from `described`, `arrays` and, where there is one, their base."""
        ...

    def words(self) -> str:
        """The kind in words, for people."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        ...

    def flat(self) -> np.ndarray:
        """All free numbers as one vector."""
        ...

    def shaped(self, vector: np.ndarray) -> Self:
        """A vector of `flat` in the shape of these scores, sharing its memory."""
        ...

    def astype(self, dtype: Any) -> Self:
        """The same parameters in another precision."""
        ...

    def seen_through(self, shift: np.ndarray, matrix: np.ndarray) -> Self:
        """The scores as a function of z where the tokens are x = shift + matrix z."""
        ...

    def logits(self, x: np.ndarray, turned: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Any]:
        """Scores (n, query, head, key) of tokens (n, k, d), which are also given turned, and what derivatives keep of them.

        `positions` are (k,) or (n, k), by default 0 .. k-1.
        """
        ...

    def jvp(self, tangent: Self, kept: Any) -> np.ndarray:
        """The change of the scores along a tangent."""
        ...

    def vjp(self, change: np.ndarray, kept: Any) -> Self:
        """The adjoint of `jvp`."""
        ...

    def ordered(self, factor: np.ndarray) -> np.ndarray:
        """The columns of a factor (..., width) in the order in which `meet` wants them."""
        ...

    def reordered(self, factor: np.ndarray) -> np.ndarray:
        """The adjoint of `ordered`."""
        ...

    def meet(self, queries: np.ndarray, keys: np.ndarray, positions: Any = None) -> tuple[np.ndarray, Any]:
        """Scores of queries and keys (n, k, heads, width), whose memory it may take, and what derivatives keep of them."""
        ...

    def along(self, queries: np.ndarray, keys: np.ndarray, met: Any) -> np.ndarray:
        """The change of the scores of `meet` when queries and keys change by these, whose memory it may take."""
        ...

    def part(self, change: np.ndarray, met: Any) -> tuple[np.ndarray, np.ndarray]:
        """The adjoint of `along`."""
        ...

    def at(self, offset: float) -> Shown:
        """Theta_i and c_i of pairs at that offset p_b - p_a."""
        ...

    def bias_at(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """What a key adds by its offset alone: vectors (m, d) that meet the query, and numbers (m,)."""
        ...

    def beyond(self) -> np.ndarray:
        """Numbers (m, any) that inputs show beside these, in the gauge of `canonical`."""
        ...

    def canonical(self) -> Self:
        """The same scores in one gauge."""
        ...

    def unknowns(self) -> int:
        """Free numbers, gauge not counted."""
        ...


class Scores(Held, Protocol):
    """Scores that a solver can fit."""

    def moved(self, step: Self) -> Self:
        """The scores after a step: their sum to first order."""
        ...

    @property
    def rank(self) -> int | None:
        """The rank that is kept, None when it is free."""
        ...

    def of_rank(self, rank: int | None, rounding: float = ...) -> Self:
        """The best approximation of that rank; parts below the relative error `rounding` are zero."""
        ...

    def preconditioner(self, curvature: Curvature) -> Preconditioner:
        """Coordinates in which this curvature is about one."""
        ...

    def gauge(self, by: Any) -> Any | None:
        """What `without_gauge` needs to know in the coordinates of `by`; None when there is no gauge."""
        ...

    def without_gauge(self, t: Self, gauge: Any | None) -> Self:
        """Preconditioned coordinates without directions that change no score."""
        ...

    def shown(self, tangent: Self | None = None) -> Shown:
        """What inputs can show of these scores, or of a change of them along a tangent."""
        ...

    def reach(self, by: Any, white: Affine) -> Reach:
        """How far coordinates of `by` reach in Theta_i and c_i, in the coordinates of the tokens themselves."""
        ...
