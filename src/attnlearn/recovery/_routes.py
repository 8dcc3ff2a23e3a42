"""The routes of `recover`, each as the list of its phases: two that search, and one from a given start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from attnlearn._certificate import Check
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.recovery._draw import Chooser

METHODS = ("spectral", "sculpt")


@dataclass(frozen=True)
class Route:
    """A way to recover a layer: its phases, the state they start from, and how it sees the problem."""

    name: str
    phases: Sequence[tuple[str, Callable[..., Any]]]
    state: Any
    problem: Callable[..., Any]
    config: Any
    num_examples: int
    """Examples that are drawn at the start when a data model is given."""
    scale: Chooser | None = None
    """How the token scale is chosen when a data model is given; None leaves its tokens as they are."""
    check: Callable[[Any], Check] | None = None
    """A check of its own, made from the last state, for the certificate."""


def route_for(method: str, config: Any) -> Route:
    """The route of that name; imported when asked for."""
    return _sculpt(config) if method == "sculpt" else _spectral(config)


def route_from(start: AttentionLayer) -> Route:
    """No search: refine and certify a layer that is nearly right."""
    from attnlearn.recovery._refining import refine_phase
    from attnlearn.recovery._start import begin_at, start_hash
    from attnlearn.recovery.spectral import SpectralConfig, spectral_phases
    from attnlearn.recovery.spectral._state import Problem, State

    require(isinstance(start, AttentionLayer), "start", "must be an AttentionLayer", type(start).__name__)
    config = SpectralConfig()
    prepare, *_ = spectral_phases(config)

    def problem(examples, split, causal, num_heads, target, drawn):
        return Problem(examples, split, start.causal, start.num_heads, target)

    phases = [prepare, ("start", begin_at(start)), ("refine", refine_phase)]
    return Route("start", phases, State(), problem, start_hash(start), config.num_examples)


def _spectral(config: Any) -> Route:
    from attnlearn.recovery._grow import growing
    from attnlearn.recovery._refining import refine_phase
    from attnlearn.recovery._second_look import with_second_look
    from attnlearn.recovery.spectral import SpectralConfig, choose_scale, spectral_phases
    from attnlearn.recovery.spectral._remix import remix
    from attnlearn.recovery.spectral._state import Problem, State

    config = SpectralConfig() if config is None else config
    require(isinstance(config, SpectralConfig), "config", "must be a SpectralConfig", config)

    def problem(examples, split, causal, num_heads, target, drawn):
        return Problem(examples, split, causal, num_heads, target)

    refine = partial(refine_phase, remix=remix)
    phases = [
        *spectral_phases(config),
        ("refine", growing(refine, first=with_second_look(refine))),
    ]

    def scale(model, oracle, seed):
        return choose_scale(model, oracle, seed=seed) if config.token_scale is None else config.token_scale

    return Route("spectral", phases, State(), problem, config, config.num_examples, scale)


def _sculpt(config: Any) -> Route:
    from attnlearn.recovery.sculpt import SculptConfig, sculpt_phases
    from attnlearn.recovery.sculpt._recheck import body_check
    from attnlearn.recovery.sculpt._source import FitSide, OnDemand
    from attnlearn.recovery.sculpt._state import Problem, State

    config = SculptConfig() if config is None else config
    require(isinstance(config, SculptConfig), "config", "must be a SculptConfig", config)
    held = min(config.held_examples, config.num_examples)

    def problem(examples, split, causal, num_heads, target, drawn):
        if drawn is None or config.num_examples <= held:
            source = FitSide(examples, split.fit, config.batch)
        else:
            source = OnDemand(*drawn, batch=config.batch, num=config.num_examples - held)
        return Problem(examples, split, source, config, causal, num_heads, target)

    return Route("sculpt", sculpt_phases(config), State(), problem, config, held, check=body_check)
