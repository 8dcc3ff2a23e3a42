"""`compress`: the best layer with fewer heads on given activations, and the error for every number of heads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._errors import NotEstablished, raise_if_interrupted, require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._types import ArrayLike
from attnlearn._version import __version__
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._certify import certify_compressed
from attnlearn.compression._phases import Problem, State, counting_phases, first_state, select_error
from attnlearn.compression._sides import Sides, read_sides
from attnlearn.engine import Checkpoint, Engine, PhaseFailed, Progress, Run, Tools, array_hash, run_phases
from attnlearn.solve._held import example_scale


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
    target: float | None = None,
    config: CompressConfig | None = None,
    seed: int = 0,
    engine: Engine | str | int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | bool | str | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """The best layer with `num_heads` heads on given activations, and the error for every smaller number.

    `data` gives the tokens: an array (n, k, d), recorded examples or their path (their outputs are not read), or a
    data model. The outputs to match are the layer's own. `stats["curve"]` lists, for every number of heads, the
    relative error on examples that were not fitted. Claim C1 bounds the error against the source; with `target` it
    must also be below that, or the run is not established.

    >>> from attnlearn import AttentionLayer, data
    >>> layer = AttentionLayer.random(num_heads=3, dim=4, seed=0)
    >>> twice = AttentionLayer(layer.theta[[0, 1, 1]], layer.w, layer.query_bias[[0, 1, 1]])
    >>> solution = compress(twice, data.Gaussian(4, 4), num_heads=2)
    >>> solution.outcome.name, solution.layer.num_heads, solution.stats["exact"]
    ('COMPRESSED', 2, True)
    """
    require(isinstance(layer, AttentionLayer), "layer", "must be an AttentionLayer", type(layer).__name__)
    rule = f"must lie between 1 and the layer's {layer.num_heads}"
    require(1 <= num_heads <= layer.num_heads, "num_heads", rule, num_heads)
    require(target is None or target > 0, "target", "must be positive", target)
    config = CompressConfig() if config is None else config
    require(isinstance(config, CompressConfig), "config", "must be a CompressConfig", config)
    tools = Tools(Engine.parse(engine), Progress.make(progress), seed)
    sides = read_sides(layer, data, mask, num_heads, config.num_examples, seed)
    source = layer.canonical()
    problem = Problem(source, sides, num_heads, config.head_dim, config.steps, config.steps_on_the_way)
    phases = counting_phases(problem, min(config.down_to, num_heads))
    identity = _identity(layer, sides, problem, config, seed)
    saved = None if checkpoint is None else Checkpoint(checkpoint, identity, resume=resume)
    try:
        run = run_phases(phases, problem, first_state(problem), tools, saved)
    except PhaseFailed as failure:
        solution = Solution.failed(Outcome.NUMERICAL_FAILURE, _phases(failure.run), reason=str(failure))
    else:
        solution = _solution(run, layer, problem, target, seed)
    finally:
        if saved is not None:
            saved.close()
    raise_if_interrupted(solution)
    if raise_on_failure and not solution.certified:
        raise NotEstablished(solution)
    return solution


def _identity(
    layer: AttentionLayer, sides: Sides, problem: Problem, config: CompressConfig, seed: int
) -> dict[str, Any]:
    return {
        "version": __version__,
        "layer": array_hash(*layer.parameters, np.array(layer.causal)),
        "data": sides.fit.fingerprint(),
        "configuration": repr(config),
        "num_heads": problem.num_heads,
        "seed": seed,
    }


def _phases(run: Run | None) -> tuple[Phase, ...]:
    return () if run is None else tuple(Phase(*record) for record in run.records)


def _solution(run: Run, layer: AttentionLayer, problem: Problem, target: float | None, seed: int) -> Solution:
    sides, found = problem.sides, run.state.answer(layer.causal)
    stats: dict[str, Any] = {
        "curve": curve(run.state, layer.num_heads),
        "source_heads": layer.num_heads,
        "distinct_heads": problem.layer.num_heads,
        "examples": sum(side.num for side in (sides.fit, sides.select, sides.certify)),
        "split": {"fit": sides.fit.num, "select": sides.select.num, "certify": sides.certify.num},
        "seed": seed,
        "sample_inputs": SampleInputs(
            sides.select.x[:INPUTS], None if sides.select.mask is None else sides.select.mask[:INPUTS]
        ),
    }
    phases = _phases(run)
    if run.interrupted or found is None:
        return Solution(found, Outcome.INTERRUPTED, phases=phases, stats=stats)
    found = padded(found, problem.num_heads)
    certificate = certify_compressed(found, sides.certify, example_scale(sides.fit), target, sides.unit)
    error = select_error(found, sides.certify)
    stats |= {"error": error, "exact": bool(error <= calibration.EXACT[layer.dtype.name])}
    outcome = Outcome.COMPRESSED if certificate.certified else Outcome.NOT_ESTABLISHED
    return Solution(found, outcome, certificate, phases, stats)


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
