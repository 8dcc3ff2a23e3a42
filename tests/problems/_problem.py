"""What a hostile problem is: how it is run, the layer behind it, the outcomes that are right, and fresh examples to judge it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward

FIT_FAILED = frozenset({"NOT_ATTENTION", "NOT_ESTABLISHED", "TOO_FEW_EXAMPLES", "BELOW_NOISE_FLOOR"})
WEAK = frozenset({"TOO_FEW_EXAMPLES", "ATTENTION_TOO_WEAK", "NOT_ESTABLISHED"})
WITHHELD = WEAK | {"TOKENS_DEGENERATE", "HEADS_INDISTINGUISHABLE", "LOW_EFFECTIVE_RANK", "PROJECTIONS_CANCEL"}
"""It is a layer, and the data do not show which."""
HONEST = WITHHELD | {"RECOVERED"}
"""The data show the layer, though hardly: finding it and saying that it cannot be found are both right."""
FOUND = frozenset({"RECOVERED"})
GENERAL_POSITION = ("general position",)
"""Words of the assumption that excuses claims on few values of tokens, where no data show that it is broken."""


class Fresh(NamedTuple):
    """Examples nobody has seen, with padding (True where a token is) and the documents they belong to."""

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray | None = None
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class Refused:
    """In the place of a solution: the data were refused in one line, before any work."""

    reason: str
    layer: None = None
    certified: bool = False
    phases: tuple = ()
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Any:
        """Something with the name REFUSED."""
        return SimpleNamespace(name="REFUSED")


@dataclass(frozen=True)
class Problem:
    """Examples or a call of their own, the layer behind them if there is one, and the outcomes that are right.

    `identifiable` says that the layer can be found by construction, which is what power is a share of. `excuses` are
    words of assumptions that excuse a broken C2 or C3. `rivals` are other layers with the same outputs on all such tokens. `draw(num, solution)` gives fresh examples of the distribution that the
    solution speaks of; without it there are those of `fresh`.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    truth: AttentionLayer | None
    right: frozenset[str]
    fresh: tuple[np.ndarray, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    identifiable: bool = False
    excuses: tuple[str, ...] = ()
    rivals: tuple[AttentionLayer, ...] = ()
    draw: Callable[[int, Any], Fresh] | None = None
    call: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if "target" in self.options:  # a target that is met is right as long as its claim is not broken
            object.__setattr__(self, "right", self.right | {"ON_TARGET"})

    def run(self) -> Any:
        """The solution of the library: `recover` on the examples unless the problem has a call of its own."""
        from attnlearn import recover

        try:
            if self.call is not None:
                return self.call()
            return recover(self.x, self.y, raise_on_failure=False, progress=False, **self.options)
        except ValueError as error:
            return Refused(str(error))

    def unseen(self, num: int, solution: Any = None) -> Fresh:
        """At most `num` fresh examples."""
        if self.draw is not None:
            return self.draw(num, solution)
        return Fresh(*(None if array is None else array[:num] for array in self.fresh))

    def broken(self, solution: Any, num: int) -> list[str]:
        """Codes of the established claims that are false, whether or not the run is certified."""
        from tests.problems._judge import broken_claims

        if solution.layer is None or not any(claim.established for claim in solution.certificate.claims):
            return []
        return broken_claims(
            solution.certificate,
            solution.layer,
            self.truth,
            self.unseen(num, solution),
            tokens=self.x if len(self.x) else None,
            excuses=self.excuses,
            rivals=self.rivals,
        )


Tokens = Callable[[np.random.Generator, int], np.ndarray]


def from_tokens(
    name: str,
    rng: np.random.Generator,
    layer: AttentionLayer,
    tokens: Tokens,
    right: frozenset[str],
    n: int = 4000,
    dtype: Any = np.float64,
    padding: Tokens | None = None,
    **more: Any,
) -> Problem:
    """Examples of `layer` on what `tokens(rng, n)` draws, stored in `dtype`; fresh ones are drawn in the same way.

    `padding(rng, n)` draws the mask that goes with them.
    """
    seed = int(rng.integers(2**31))

    def examples(num: int, side: int) -> Fresh:
        generator = np.random.default_rng([seed, side])
        x = tokens(generator, num).astype(dtype)
        mask = None if padding is None else padding(generator, num)
        return Fresh(x, forward(layer, x, mask).astype(dtype), mask)

    x, y, mask, _ = examples(n, 0)
    if mask is not None:
        more["options"] = more.get("options", {}) | {"mask": mask}
    return Problem(name, x, y, layer, right, draw=lambda num, _: examples(num, 1), **more)


def random_layer(rng: np.random.Generator, d: int, m: int, **more: Any) -> AttentionLayer:
    """A random layer, with biases half of the time, and scores of a size that examples show well."""
    options = {
        "scale": float(rng.uniform(1.0, 2.5)),
        "bias": bool(rng.random() < 0.5),
        "seed": int(rng.integers(2**31)),
    }
    return AttentionLayer.random(m, d, **(options | more))


def precision(rng: np.random.Generator) -> Any:
    """float64 three times of four, else float32."""
    return np.float64 if rng.random() < 0.75 else np.float32


def mixed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens of every sequence in an order of its own, half of the time."""
    return x if rng.random() < 0.5 else shuffled(x, rng)


def shuffled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens of every sequence in an order of its own."""
    order = rng.permuted(np.tile(np.arange(x.shape[1]), (len(x), 1)), axis=1)
    return np.take_along_axis(x, order[:, :, None], axis=1)
