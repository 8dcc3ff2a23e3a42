"""`compress`: the best layer with fewer heads on given activations, and the error for every number of heads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._parts import require_plain
from attnlearn._result import Outcome, Solution
from attnlearn._types import ArrayLike
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._certify import certify_compressed
from attnlearn.compression._phases import Problem, State, counting_phases, first_state, select_error
from attnlearn.compression._sides import Sides, read_sides
from attnlearn.engine import Engine, Learner, Options, Progress, Run, Tools, array_hash, learn
from attnlearn.solve._batch import example_scale


@dataclass(frozen=True)
class CompressConfig:
    """Limits of `compress`.

    `head_dim`: the width of query, key, value and output factors that every head must fit into (None: any).
    `num_examples`: sequences to use at most (None: as many as the unknowns ask for). `down_to`: the smallest number
    of heads on the curve. `steps`, `steps_on_the_way`: the most Gauss-Newton steps at the wanted number of heads and elsewhere.

    >>> CompressConfig(head_dim=16).head_dim
    16
    """

    head_dim: int | None = None
    num_examples: int | None = None
    down_to: int = 1
    steps: int = calibration.STEPS
    steps_on_the_way: int = calibration.STEPS_ON_THE_WAY

    def __post_init__(self) -> None:
        for name in ("head_dim", "num_examples", "down_to"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "must be at least 1", value)


def compress(
    layer: AttentionLayer,
    data: Any,
    *,
    num_heads: int,
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
    """The best layer with `num_heads` heads on given activations, and the error for every smaller number.

    `data` gives the tokens: an array (n, k, d), recorded examples or their path (their outputs are not read), or a
    data model. The outputs to match are the layer's own. `stats["curve"]` lists, for every number of heads, the
    relative error on examples that were not fitted. Claim C1 bounds the error against the source; with `target` it
    must also be below that, or the run is not established. After `time_limit` seconds the run ends when the number of heads at hand
    is done: with BUDGET_SPENT, or, once `num_heads` is reached, with a shorter curve.

    >>> from attnlearn import AttentionLayer, data
    >>> layer = AttentionLayer.random(num_heads=3, dim=4, seed=0)
    >>> twice = AttentionLayer(layer.theta[[0, 1, 1]], layer.w, layer.query_bias[[0, 1, 1]])
    >>> solution = compress(twice, data.Gaussian(4, 4), num_heads=2)
    >>> solution.outcome.name, solution.layer.num_heads, solution.stats["exact"]
    ('COMPRESSED', 2, True)
    """
    require(isinstance(layer, AttentionLayer), "layer", "must be an AttentionLayer", type(layer).__name__)
    require_plain(layer, "layer")
    rule = f"must lie between 1 and the layer's {layer.num_heads}"
    require(1 <= num_heads <= layer.num_heads, "num_heads", rule, num_heads)
    config = CompressConfig() if config is None else config
    require(isinstance(config, CompressConfig), "config", "must be a CompressConfig", config)
    options = Options(
        target=target, time_limit=time_limit, seed=seed, engine=engine, device=device, checkpoint=checkpoint,
        resume=resume, progress=progress, raise_on_failure=raise_on_failure,
    )  # fmt: skip
    tools = options.tools()
    sides = read_sides(layer, data, mask, num_heads, config.num_examples, seed)
    source = layer.astype(sides.fit.x.dtype)
    return learn(Compression(source, sides, num_heads, target, config), options, tools)


class Compression(Learner):
    """`compress` as the engine runs it."""

    name = "compress"

    def __init__(
        self,
        layer: AttentionLayer,
        sides: Sides,
        num_heads: int,
        target: float | None,
        config: CompressConfig,
    ) -> None:
        self.layer, self.target, self.config = layer, target, config
        self.problem = Problem(
            layer.canonical(), sides, num_heads, config.head_dim, config.steps, config.steps_on_the_way
        )
        self.state = first_state(self.problem)
        self.phases = counting_phases(self.problem, min(config.down_to, num_heads))

    def identity(self) -> dict[str, Any]:
        """The layer, the tokens and the limits."""
        return {
            "layer": array_hash(*self.layer.parameters, np.array(self.layer.causal)),
            "data": self.problem.sides.fit.fingerprint(),
            "configuration": repr(self.config),
            "num_heads": self.problem.num_heads,
        }

    def so_far(self, state: State) -> tuple[AttentionLayer | None, dict[str, Any]]:
        """The best layer with at most the wanted number of heads, and the curve."""
        sides, found = self.problem.sides, state.answer(self.layer.causal)
        shown = None if sides.select.mask is None else sides.select.mask[:INPUTS]
        stats: dict[str, Any] = {
            "curve": curve(state, self.layer.num_heads),
            "source_heads": self.layer.num_heads,
            "distinct_heads": self.problem.layer.num_heads,
            "examples": sum(side.num for side in (sides.fit, sides.select, sides.certify)),
            "sequence_length": sides.fit.x.shape[1],
            "split": {"fit": sides.fit.num, "select": sides.select.num, "certify": sides.certify.num},
            "sample_inputs": SampleInputs(sides.select.x[:INPUTS], shown),
        }
        return (None if found is None else padded(found, self.problem.num_heads)), stats

    def finished(self, state: State) -> bool:
        """Whether the wanted number of heads was reached; what is missing then is the rest of the curve."""
        return min(state.heads) <= self.problem.num_heads

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


def curve(state: State, source_heads: int) -> list[dict[str, Any]]:
    """The error of the best layer with at most h heads, for every h, most heads first."""
    best, rows = np.inf, []
    for heads, error in sorted(zip(state.heads, state.errors)):
        best = min(best, error)
        rows.append({"heads": heads, "error": best})
    most = max(state.heads)
    rows += [{"heads": heads, "error": best} for heads in range(most + 1, source_heads + 1)]
    return rows[::-1]


def padded(layer: AttentionLayer, num_heads: int) -> AttentionLayer:
    """The layer with heads that do nothing added, up to `num_heads`."""
    missing = num_heads - layer.num_heads
    if missing <= 0:
        return layer

    def widen(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    return layer.replace(theta=widen(layer.theta), w=widen(layer.w), query_bias=widen(layer.query_bias))
