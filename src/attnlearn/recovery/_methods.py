"""The methods of `recover`: each a table of proposers, and how it draws examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from attnlearn._certificate import Check
from attnlearn._errors import require
from attnlearn._extras import require_extra
from attnlearn._layer import AttentionLayer
from attnlearn._parts import require_plain
from attnlearn._result import Solution
from attnlearn.engine._pipeline import Phases
from attnlearn.recovery._conclude import Units
from attnlearn.recovery._config import SpectralConfig
from attnlearn.recovery._draw import Chooser
from attnlearn.recovery._intake import low_rank, start_hash
from attnlearn.recovery._of_search import MisfitCause
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._proposer import Given, Proposer
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery._trail import Trail
from attnlearn.recovery.moment import choose_scale
from attnlearn.recovery.positions import Asked, WithPositions

METHODS = (*TABLES, "sculpt", "linear", "spectral")
"""The names that `recover` takes; "spectral" is the name that version 0.1 had for "moment"."""
Drawn = tuple[Any, Any, int]
"""A data model, an oracle and a seed, from which further examples can be drawn."""


class Route(Protocol):
    """What runs instead of a table: phases from a first state, and how what they found is judged."""

    state: Any
    phases: Phases

    def layer(self, state: Any) -> Any:
        """The layer that a state holds; None when it holds none."""
        ...

    def conclude(self, state: Any) -> Solution:
        """The outcome and the certificate of the last state."""
        ...


@dataclass(frozen=True)
class Method:
    """A way to recover a layer: its table, and how it draws examples from a data model."""

    name: str
    table: tuple[Proposer, ...]
    config: Any
    num_examples: int
    scale: Chooser | None = None
    """How the token scale is chosen when a data model is given; None leaves its tokens as they are."""
    check: Callable[[Trail], Check] | None = None
    """A check of its own, made from the last trail, for the certificate."""
    heads: tuple[int, ...] | None = None
    """The numbers of heads of which the caller must name one; None asks for nothing."""
    route: Callable[[Problem, Units, int | None], Route] | None = None
    """What runs instead of a table, from problem, units and the limit of memory."""


def method_for(name: str, config: Any, drawn: Drawn | None) -> Method:
    """The method of that name."""
    require(name in METHODS, "method", f"must be one of {', '.join(METHODS)}", name)
    if name == "sculpt":
        return _sculpt(config, drawn)
    if name == "linear":
        return _linear(config)
    name = "moment" if name == "spectral" else name
    config = SpectralConfig() if config is None else config
    require(isinstance(config, SpectralConfig), "config", "must be a SpectralConfig", config)

    def scale(model: Any, oracle: Any, seed: int) -> float:
        return choose_scale(model, oracle, seed=seed) if config.token_scale is None else config.token_scale

    return Method(name, TABLES[name], config, config.num_examples, scale)


def method_from(start: AttentionLayer) -> Method:
    """No search: fit and certify a layer that is nearly right."""
    require(isinstance(start, AttentionLayer), "start", "must be an AttentionLayer", type(start).__name__)
    require_plain(start, "start")
    table = Given(layer=start, rank=low_rank(start)), MisfitCause()
    return Method("start", table, start_hash(start), SpectralConfig().num_examples)


def _sculpt(config: Any, drawn: Drawn | None) -> Method:
    require_extra("method", "sculpt")
    from attnlearn.recovery.sculpt import SculptConfig
    from attnlearn.recovery.sculpt._proposers import sculpt_table
    from attnlearn.recovery.sculpt._recheck import body_check

    config = SculptConfig() if config is None else config
    require(isinstance(config, SculptConfig), "config", "must be a SculptConfig", config)
    held = min(config.held_examples, config.num_examples)
    return Method(
        "sculpt",
        sculpt_table(config, drawn),
        config,
        held,
        check=lambda trail: body_check(trail.body),
        heads=(1, 2) if config.faithful else None,
    )


def method_with(asked: Asked) -> Method:
    """Scores with positions of the kinds that were asked for."""
    return Method("positions", (WithPositions(asked=asked),), asked, SpectralConfig().num_examples)


def without_positions(method: Method) -> Method:
    """The same method for scores that do not depend on positions."""
    table = tuple(row for row in method.table if not isinstance(row, WithPositions))
    return dataclasses.replace(method, table=table)


def _linear(config: Any) -> Method:
    from attnlearn.recovery.linear import LinearConfig, LinearRoute

    config = LinearConfig() if config is None else config
    require(isinstance(config, LinearConfig), "config", "must be a LinearConfig", config)

    def route(problem: Problem, units: Units, memory: int | None) -> Route:
        return LinearRoute(problem, units, config, memory)

    return Method("linear", (), config, config.num_examples, route=route)
