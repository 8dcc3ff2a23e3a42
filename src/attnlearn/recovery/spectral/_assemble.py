"""The spectral route as a list of phases, in the order of the theorem (theory, section 3).

prepare   white tokens, linear part removed
moment    the span of the heads from third-order statistics, above a known noise floor; on tokens that these do not model the heads
          themselves, by regression from random starts (`_search`)
count     the number of heads: what stands above the floor
unmix     the heads inside the span; or, where these phases failed, those of a number that the moment only suggests
          (`_guess`), or the search
Then the shared refine (to machine precision) and certify follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnlearn.recovery.spectral._count import count
from attnlearn.recovery.spectral._fallback import or_fallback, or_search
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._unmix import unmix


@dataclass(frozen=True)
class SpectralConfig:
    """Choices of the spectral route. `num_examples` are drawn when the data come from a model and an oracle, with the
    model's tokens times `token_scale`, by default the factor at which the layer shows itself best. What the
    certificate says of inputs, it then says of those tokens.

    >>> SpectralConfig().num_examples
    20000
    """

    num_examples: int = 20_000
    token_scale: float | None = None


def spectral_phases(config: SpectralConfig) -> list[tuple[str, Callable[..., Any]]]:
    """The phases before refine, as (name, function).

    >>> [name for name, _ in spectral_phases(SpectralConfig())]
    ['prepare', 'moment', 'count', 'unmix']
    """
    phases = [prepare, or_fallback(or_search(moment)), or_fallback(count), or_fallback(unmix, last=True)]
    return [(phase.__name__, phase) for phase in phases]
