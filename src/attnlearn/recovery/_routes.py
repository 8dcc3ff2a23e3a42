"""The two routes of `recover`, each as the list of its phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

METHODS = ("spectral",)


@dataclass(frozen=True)
class Route:
    """A way to recover a layer: its phases, the state they start from, and how it sees the problem."""

    name: str
    phases: Sequence[tuple[str, Callable[..., Any]]]
    state: Any
    problem: Callable[..., Any]
    config: Any
    num_examples: int


def route_for(method: str, config: Any) -> Route:
    """The route of that name; imported when asked for."""
    from attnlearn.recovery._refining import refine_phase
    from attnlearn.recovery.spectral import SpectralConfig, spectral_phases
    from attnlearn.recovery.spectral._state import Problem, State

    config = SpectralConfig() if config is None else config

    def problem(examples, split, causal, num_heads, target):
        return Problem(examples, split, causal, num_heads)

    phases = [*spectral_phases(config), ("refine", refine_phase)]
    return Route(method, phases, State(), problem, config, config.num_examples)
