"""`compress`: the best smaller layer on given activations, and what every size costs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._parts import is_plain
from attnlearn._result import Outcome, Solution
from attnlearn._types import ArrayLike
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._certify import certify_compressed
from attnlearn.compression._phases import counting_phases, first_state
from attnlearn.compression._placed import (
    PlacedProblem,
    PlacedState,
    placed_identity,
    placed_phases,
    placed_shapes,
    placed_stats,
)
from attnlearn.compression._shape import Shape, Wanted
from attnlearn.compression._shaping import head_width, shaping_phases
from attnlearn.compression._sides import read_sides
from attnlearn.compression._state import Problem, State, padded, select_error
from attnlearn.engine import Engine, Learner, Options, Progress, Run, Tools, array_hash, learn
from attnlearn.solve._batch import example_scale
from attnlearn.solve._white import whitening


@dataclass(frozen=True)
class CompressConfig:
    """Limits of `compress`.

    `num_examples`: sequences to use at most (None: as many as the unknowns ask for). `down_to`: the smallest number
    of heads on the curve, where nothing but heads is asked for. `steps`, `steps_on_the_way`: the most Gauss-Newton steps at the wanted
    number of heads and elsewhere. `shape_steps`: the most steps on the factors of a shape.

    >>> CompressConfig(down_to=2).down_to
    2
    """

    num_examples: int | None = None
    down_to: int = 1
    steps: int = calibration.STEPS
    steps_on_the_way: int = calibration.STEPS_ON_THE_WAY
    shape_steps: int = calibration.SHAPE_STEPS

    def __post_init__(self) -> None:
        for name in ("num_examples", "down_to"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "must be at least 1", value)


def compress(
    layer: AttentionLayer,
    tokens: Any,
    *,
    num_heads: int | None = None,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    latent: int | None = None,
    kv_floats: int | None = None,
    mask: ArrayLike | None = None,
    config: CompressConfig | None = None,
    target: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    engine: Engine | str | int | None = None,
    device: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """The best smaller layer on given activations, and what each size costs.

    `tokens` is an array (n, k, d), recorded examples or their path (their outputs are not read), or a data model. The
    outputs to match are the layer's own. At least one size is given, and any of the first four together:

    num_heads   so many heads
    head_dim    queries, keys and values of so many coordinates
    kv_heads    so many keys and values, each shared by as many heads; which heads share is found
    latent      keys and values are linear images of one vector of that length (not with kv_heads)
    kv_floats   the best of these shapes that keeps at most so many floats a token

    Layers with positions, windows, norms, caps or sinks keep these; rotary heads keep their width, so `num_heads`, `kv_heads` and `kv_floats` are
    what can be asked of them. They have no `latent`.

    `stats["curve"]` lists the shapes that were fitted, with the floats they keep for each token, their parameters and their
    relative error on examples that were not fitted; where only `num_heads` is given, it has every smaller number of heads.
    `stats["shape"]` is the answer's. Claim C1 bounds the error against the source; with `target` it must also be below that, or the run is
    not established. After `time_limit` seconds the run ends after the number of heads, the shape or the last step at hand: with
    BUDGET_SPENT, or, once the size is reached, with a certified answer.

    >>> from attnlearn import AttentionLayer, data
    >>> layer = AttentionLayer.random(num_heads=3, dim=4, seed=0)
    >>> twice = AttentionLayer(layer.theta[[0, 1, 1]], layer.w, layer.query_bias[[0, 1, 1]])
    >>> solution = compress(twice, data.Gaussian(4, 4), num_heads=2)
    >>> solution.outcome.name, solution.layer.num_heads, solution.stats["exact"]
    ('COMPRESSED', 2, True)
    """
    wanted = Wanted(num_heads, head_dim, kv_heads, latent, kv_floats)
    require(isinstance(layer, AttentionLayer), "layer", "must be an AttentionLayer", type(layer).__name__)
    given = wanted.shaped or num_heads is not None
    require(given, "num_heads", "must be given, or head_dim, kv_heads, latent or kv_floats", None)
    heads = wanted.heads(layer.num_heads)
    config = CompressConfig() if config is None else config
    require(isinstance(config, CompressConfig), "config", "must be a CompressConfig", config)
    options = Options(
        target=target, time_limit=time_limit, seed=seed, engine=engine, device=device, checkpoint=checkpoint,
        resume=resume, progress=progress, raise_on_failure=raise_on_failure,
    )  # fmt: skip
    tools = options.tools()
    sides = read_sides(layer, tokens, mask, heads, config.num_examples, seed)
    source = layer.astype(sides.fit.x.dtype)
    if not is_plain(layer):
        placed = PlacedProblem(source, sides, placed_shapes(layer, wanted), config.shape_steps)
        return learn(PlacedCompression(placed, target, config), options, tools)
    problem = Problem(
        source.canonical(), sides, heads, wanted, config.steps, config.steps_on_the_way, config.shape_steps
    )
    return learn(Compression(source, problem, target, config), options, tools)


class Compression(Learner):
    """`compress` as the engine runs it."""

    name = "compress"

    def __init__(
        self, layer: AttentionLayer, problem: Problem, target: float | None, config: CompressConfig
    ) -> None:
        self.layer, self.problem, self.target, self.config = layer, problem, target, config
        self.state = first_state(problem)
        self.support = whitening(problem.sides.fit.x, problem.sides.fit.mask).support
        heads = problem.num_heads
        down_to = heads if problem.wanted.shaped else min(config.down_to, heads)
        self.phases = [*counting_phases(problem, down_to), *shaping_phases(problem)]

    def identity(self) -> dict[str, Any]:
        """The layer, the tokens and the limits."""
        return {
            "layer": array_hash(*self.layer.parameters, np.array(self.layer.causal)),
            "data": self.problem.sides.fit.fingerprint(),
            "configuration": repr(self.config),
            "num_heads": self.problem.num_heads,
            "shape": repr(self.problem.wanted),
        }

    def so_far(self, state: State) -> tuple[AttentionLayer | None, dict[str, Any]]:
        """The best layer with at most the wanted number of heads, and the curve."""
        sides, found = self.problem.sides, state.answer(self.layer.causal)
        shown = None if sides.select.mask is None else sides.select.mask[:INPUTS]
        stats: dict[str, Any] = {
            "curve": curve(state, self.problem, self.layer),
            "source_heads": self.layer.num_heads,
            "distinct_heads": self.problem.layer.num_heads,
            "examples": sum(side.num for side in (sides.fit, sides.select, sides.certify)),
            "sequence_length": sides.fit.x.shape[1],
            "split": {"fit": sides.fit.num, "select": sides.select.num, "certify": sides.certify.num},
            "sample_inputs": SampleInputs(sides.select.x[:INPUTS], shown),
            "support": self.support,
        }
        if found is not None:
            found = padded(found, self.problem.num_heads)
            stats["shape"] = (state.shape or own_shape(found)).row(
                found.dim, found.out_dim, state.answer_error
            )
        return found, stats

    def finished(self, state: State) -> bool:
        """Whether the wanted size was reached; what is missing then is the rest of the curve."""
        return state.fitted if self.problem.wanted.shaped else min(state.heads) <= self.problem.num_heads

    def conclude(self, run: Run, layer: AttentionLayer | None, tools: Tools) -> Solution:
        """Claim C1 against the source."""
        assert layer is not None, "the curve goes down to the wanted number of heads"
        sides = self.problem.sides
        certificate = certify_compressed(
            layer, sides.certify, example_scale(sides.fit), self.target, sides.unit
        )
        error = select_error(layer, sides.certify)
        stats = {"relative_error": error, "exact": bool(error <= calibration.EXACT[layer.dtype.name])}
        ended = Outcome.COMPRESSED if certificate.certified else Outcome.NOT_ESTABLISHED
        return Solution(layer, ended, certificate, stats=stats)


class PlacedCompression(Compression):
    """`compress` of layers with positions, windows, norms, caps or sinks."""

    def __init__(self, problem: PlacedProblem, target: float | None, config: CompressConfig) -> None:
        self.layer, self.problem, self.target, self.config = problem.layer, problem, target, config
        self.state, self.phases = PlacedState(), placed_phases(problem)

    def identity(self) -> dict[str, Any]:
        """The layer, the tokens and the limits."""
        return placed_identity(self.problem) | {"configuration": repr(self.config)}

    def so_far(self, state: PlacedState) -> tuple[AttentionLayer | None, dict[str, Any]]:
        """The best layer of a shape that was tried, and the errors of all."""
        return state.layer(self.layer), placed_stats(self.problem, state)

    def finished(self, state: PlacedState) -> bool:
        """Whether the shape was fitted to the end."""
        return state.fitted


def curve(state: State, problem: Problem, source: AttentionLayer) -> list[dict[str, Any]]:
    """The shapes that were fitted and their errors, those that keep most first.

    Where heads are counted, a row has the error of the best layer with at most so many heads.
    """
    width, rows, best = head_width(source), [], np.inf
    sizes = source.dim, source.out_dim
    if problem.wanted.shaped:
        whole = Shape(source.num_heads, width, source.num_heads).row(*sizes, state.errors[0])
        rows = [shape.row(*sizes, error) for shape, error in zip(state.shapes, state.shape_errors)]
        return [whole, *sorted(rows, key=lambda row: -row["kv_floats"])]
    errors = dict(zip(state.heads, state.errors))
    for heads in range(min(errors), source.num_heads + 1):
        best = min(best, errors.get(heads, np.inf))
        # Fewer heads have a W of any rank: their values are the tokens themselves.
        shape = Shape(heads, width if heads == source.num_heads else source.dim, heads)
        rows.append(shape.row(*sizes, best))
    return rows[::-1]


def own_shape(layer: AttentionLayer) -> Shape:
    """The shape of a layer whose heads share nothing."""
    return Shape(layer.num_heads, head_width(layer), layer.num_heads)
