"""Many runs at once: seeds and head counts share one compiled, vectorised loop; blocks go to the engine.

Runs with fewer heads than the largest are padded with heads of scale 0, which stay where they start. The heads of a
block of runs stand side by side over one shared copy of the tokens, as the last axis of every array (`_wide.py`): to
the products they are only more heads, which is faster than mapping the step over the runs. Blocks are mapped by the
engine in order, or by as many threads as there are cores, so the result does not depend on the number of workers. Cost:
a padded run costs as much as the largest. What can fail: too large a step gives NaN losses for that run only.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnlearn._errors import require
from attnlearn._jax import jnp
from attnlearn._precision import precision
from attnlearn._types import ArrayLike
from attnlearn.data._base import require_count
from attnlearn.engine import Engine, blocks
from attnlearn.engine._threads import in_order
from attnlearn.training._calibration import SEGMENT_STEPS, SWEEP_HEADS
from attnlearn.training._compare import to_device, working_set
from attnlearn.training._descent import Curves, advance_many, start
from attnlearn.training._loss import cut
from attnlearn.training._model import AttentionModel, Model, Weights
from attnlearn.training._problem import Problem, TrainConfig, make_problem
from attnlearn.training._tangent import largest_eigenvalue
from attnlearn.training._trained import TrainedClassifier
from attnlearn.training._wide import WideModel


@dataclass(frozen=True)
class Sweep:
    """Runs in the order of `seeds` x `num_heads`: losses (runs, steps), margins, accuracies, classifiers.

    >>> losses = np.array([[0.7, 0.4, 0.2]])
    >>> Sweep((0,), (2,), 0.1, losses, losses, losses, ()).steps_to(0.5).tolist()
    [1]
    """

    seeds: tuple[int, ...]
    num_heads: tuple[int, ...]
    step: float
    losses: np.ndarray
    margins: np.ndarray
    accuracies: np.ndarray
    classifiers: tuple[TrainedClassifier, ...]

    def steps_to(self, loss: float) -> np.ndarray:
        """First step whose loss is at most `loss`, per run; -1 if none."""
        below = self.losses <= loss
        return np.where(below.any(axis=1), below.argmax(axis=1), -1)


def fit_many(
    x: ArrayLike,
    y: ArrayLike,
    *,
    num_heads: int | Iterable[int],
    seeds: int | Iterable[int] = 0,
    init: str = "first-step",
    optimizer: str = "gd",
    step: float | str = "auto",
    max_steps: int = 1000,
    model: Model | None = None,
    config: TrainConfig | None = None,
    engine: Engine | str | int | None = None,
) -> Sweep:
    """Train for every seed and head count without certificates; `fit` certifies one run.

    step="auto" takes the smallest of the tangent steps of the first seed's head counts, the same for all runs.

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=3, dim=5).sample(12, seed=0)
    >>> fit_many(x, y, num_heads=(1, 2), seeds=range(3), max_steps=5).losses.shape
    (6, 5)
    """
    counts = _several(num_heads, "num_heads")
    seeds = tuple(require_count(seed, "seeds", least=0) for seed in _several(seeds, "seeds"))
    settings = {"init": init, "optimizer": optimizer, "step": step, "max_steps": max_steps}
    problems = [
        make_problem(x, y, num_heads=count, model=model, config=config, **settings) for count in counts
    ]
    chosen = _step(problems, seeds[0])
    runs = [(seed, index) for seed in seeds for index in range(len(counts))]
    pieces = [runs[piece] for piece in blocks(len(runs), _block_size(len(runs), max(counts)))]
    engine, run = Engine.parse(engine), partial(_run_block, problems, chosen)
    found = list(in_order(run, pieces)) if engine.in_process else engine.map(run, pieces)
    traces = np.concatenate([trace for trace, _ in found], axis=1)
    curves = Curves(*traces)
    return Sweep(
        seeds,
        counts,
        chosen,
        curves.loss,
        curves.margin,
        curves.accuracy,
        tuple(classifier for _, classifiers in found for classifier in classifiers),
    )


def _several(values: int | Iterable[int], name: str) -> tuple[int, ...]:
    """The values as a tuple, one value as a tuple of one."""
    several = tuple(values) if isinstance(values, Iterable) else (values,)
    require(len(several) > 0, name, "must not be empty", several)
    return several


def _block_size(runs: int, most_heads: int) -> int:
    """Runs in a block: at most SWEEP_HEADS heads, blocks about equal, because each size is compiled anew."""
    most = max(1, SWEEP_HEADS // most_heads)
    return -(-runs // -(-runs // most))


def _start(problem: Problem, seed: int) -> Weights:
    rng = np.random.default_rng([seed, zlib.crc32(b"initialize")])  # the start of `fit` with this seed
    return problem.first_weights(rng)


def _step(problems: list[Problem], seed: int) -> float:
    if problems[0].first_step not in ("auto", "theory"):
        return float(problems[0].first_step)
    require(problems[0].step == "auto", "step", "must be a number or auto for many runs", problems[0].step)
    with precision(problems[0].dtype):
        kernels = [working_set(p, _start(p, seed), np.random.default_rng(seed))[1] for p in problems]
    return 4 / max(map(largest_eigenvalue, kernels))


def _run_block(problems: list[Problem], step: float, runs: list[tuple[int, int]]) -> tuple[np.ndarray, list]:
    """The runs of one block: traces (fields, runs, steps) and classifiers."""
    first = problems[0]
    most = max(problem.num_heads for problem in problems)
    starts = [_start(problems[index], seed) for seed, index in runs]
    with precision(first.dtype):
        stacked = Weights(*(jnp.asarray(np.stack([_pad(s[k], most) for s in starts])) for k in (0, 1)))
        heads = np.array([problems[index].num_heads for _, index in runs])
        scales = np.where(np.arange(most) < heads[:, None], heads[:, None] ** -0.5, 0.0).astype(first.dtype)
        chunks = to_device(cut(first.x, first.y, most * len(runs)))
        states = start(first.optimizer, stacked, np.zeros((), first.dtype))
        model = WideModel() if type(first.model) is AttentionModel else first.model
        traces = []
        for done in range(0, first.max_steps, SEGMENT_STEPS):
            steps = min(SEGMENT_STEPS, first.max_steps - done)
            numbers = jnp.asarray(scales), jnp.asarray(step, first.dtype), jnp.asarray(steps)
            states, trace = advance_many(model, first.optimizer, states, chunks, *numbers)
            traces.append(np.stack([np.asarray(part)[:steps].T for part in trace]))
        u, w = map(np.asarray, states.weights)
    tokens = first.x.shape[1]
    classifiers = [
        TrainedClassifier(u[run, :count], w[run, :count], first.model, tokens)
        for run, count in enumerate(heads)
    ]
    return np.concatenate(traces, axis=2), classifiers


def _pad(part: np.ndarray, heads: int) -> np.ndarray:
    if len(part) == heads:
        return part
    return np.concatenate([part, np.zeros((heads - len(part), *part.shape[1:]), part.dtype)])
