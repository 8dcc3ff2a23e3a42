"""What a training run is given, checked once: tokens, labels, settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._errors import describe, require
from attnlearn._precision import promoted, require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.data._base import require_count
from attnlearn.training._calibration import (
    ADAM_STEP,
    LARGEST_TOKEN,
    NORMALIZED_STEP,
    RADIUS_ROUNDING,
    REPLAYS,
)
from attnlearn.training._descent import OPTIMIZERS
from attnlearn.training._initialize import INITIALIZATIONS, initialize
from attnlearn.training._model import AttentionModel, Model, Weights


@dataclass(frozen=True)
class TrainConfig:
    """Settings that few runs change.

    `init_scale` multiplies the start; `replays` leave-one-out runs are replayed; `recursion` runs the
    leave-one-out recursion; `radius` is a bound on the *distribution's* token norms, if one is known (the
    sample's largest norm is used otherwise, and the premise is then reported as not established).

    >>> TrainConfig(replays=0).replays
    0
    """

    init_scale: float = 1.0
    replays: int = REPLAYS
    recursion: bool = True
    radius: float | None = None

    def __post_init__(self) -> None:
        require(_positive(self.init_scale), "init_scale", "must be a number > 0", self.init_scale)
        object.__setattr__(self, "replays", require_count(self.replays, "replays", least=0))
        known = self.radius is None or _positive(self.radius)
        require(known, "radius", "must be a number > 0, or None", self.radius)


@dataclass(frozen=True)
class Problem:
    """One training problem; built by `make_problem`."""

    x: Float[np.ndarray, "n k d"]
    y: Float[np.ndarray, "n"]
    num_heads: int
    init: str = "first-step"
    optimizer: str = "gd"
    step: Any = "auto"
    max_steps: int = 1000
    model: Model = field(default_factory=AttentionModel)
    config: TrainConfig = field(default_factory=TrainConfig)
    test: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def dtype(self) -> np.dtype:
        """The dtype everything is computed in."""
        return self.x.dtype

    @property
    def rows(self) -> int:
        """Read-out rows, the T of the bounds."""
        return self.model.positions(self.x.shape[1])

    @property
    def radius(self) -> float:
        """R: the known bound on token norms, or the sample's largest."""
        return self.config.radius or token_radius(self.x)

    def constants(self, norm: float) -> tuple[float, float]:
        """beta1 and beta2 where max_h ‖U_h‖ <= norm; infinite rather than an error for absurd tokens."""
        tokens = self.x.shape[1]
        with np.errstate(over="ignore"):
            radius, norm = np.float64(self.radius), np.float64(norm)
            return float(self.model.beta1(tokens, radius, norm)), float(
                self.model.beta2(tokens, radius, norm)
            )

    def first_weights(self, rng: np.random.Generator) -> Weights:
        """theta_0."""
        start = self.model, self.init, self.x, self.y, self.num_heads
        return initialize(*start, rng, self.config.init_scale)

    @property
    def first_step(self) -> Any:
        """The step as given, or the default of optimizers whose step no theory sets."""
        if self.step == "auto" and self.optimizer in ("adam", "normalized"):
            return ADAM_STEP if self.optimizer == "adam" else NORMALIZED_STEP
        return self.step


def _positive(value: Any) -> bool:
    """Whether `value` is a finite number > 0; booleans are none."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return bool(number and np.isfinite(value) and value > 0)


def token_radius(x: Float[np.ndarray, "n k d"]) -> float:
    """The largest token norm.

    >>> token_radius(np.ones((2, 3, 4)))
    2.0
    """
    return float(np.sqrt(np.einsum("nkd,nkd->nk", x, x).max()))


def check_examples(x: ArrayLike, y: ArrayLike, name: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Tokens (n, k, d) and labels ±1 (n,) in one dtype, or one clear line why not.

    >>> check_examples(np.ones((2, 3, 4)), [1, 2])
    Traceback (most recent call last):
    ValueError: y: must hold the labels -1 and +1 only (2 * y - 1 makes them of 0 and 1), got [1, 2]
    """
    x = to_numpy(x, f"{name}x")
    require(x.ndim == 3, f"{name}x", "must have shape (examples, tokens, dim)", x)
    require(min(x.shape) >= 1, f"{name}x", "must have no empty axis", x.shape)
    require_finite(x, f"{name}x")
    largest, most = float(np.abs(x).max()), float(np.finfo(x.dtype).max) ** LARGEST_TOKEN
    require(largest <= most, f"{name}x", f"must hold no token above {most:.0e} in {x.dtype}", largest)
    try:
        labels = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
    except ValueError:
        raise ValueError(f"{name}y: must be one label for each example, got {describe(y)}") from None
    require(
        labels.shape == x.shape[:1],
        f"{name}y",
        f"must be one label for each of the {len(x):,} examples of x, in one axis",
        labels,
    )
    require(labels.dtype.kind in "iuf", f"{name}y", "must be numbers", str(labels.dtype))
    found = np.unique(labels)
    require(
        set(found.tolist()) <= {-1, 1},
        f"{name}y",
        "must hold the labels -1 and +1 only (2 * y - 1 makes them of 0 and 1)",
        found[:5].tolist(),
    )
    return x, labels.astype(x.dtype)


def make_problem(x: ArrayLike, y: ArrayLike, *, num_heads: int, test: Any = None, **settings: Any) -> Problem:
    """Check everything a user can get wrong, then freeze it."""
    x, y = check_examples(x, y)
    require(len(np.unique(y)) == 2, "y", "must hold both labels, -1 and +1", np.unique(y).tolist())
    num_heads = require_count(num_heads, "num_heads")
    settings = {key: value for key, value in settings.items() if value is not None}
    held_out = _check_test(test, x)
    if held_out is not None:  # a copy of a training sequence must have its bytes
        x, y, new_x, new_y = promoted(x, y, *held_out)
        held_out = new_x, new_y
    problem = Problem(x, y, num_heads, test=held_out, **settings)
    _check_settings(problem)
    return problem


def _check_test(test: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    if test is None:
        return None
    pair = isinstance(test, tuple) and len(test) == 2
    require(pair, "test", "must be a pair (x, y)", type(test).__name__)
    held_out = check_examples(*test, name="test ")
    same = held_out[0].shape[1:] == x.shape[1:]
    require(same, "test", f"must have tokens of shape {x.shape[1:]} as x", held_out[0])
    return held_out


def _check_settings(problem: Problem) -> None:
    for name, value, known in (
        ("init", problem.init, INITIALIZATIONS),
        ("optimizer", problem.optimizer, OPTIMIZERS),
    ):
        require(isinstance(value, str) and value in known, name, f"must be one of {', '.join(known)}", value)
    step = problem.step
    named = isinstance(step, str) and step in ("auto", "theory")
    require(named or _positive(step), "step", "must be a number > 0, auto or theory", step)
    require_count(problem.max_steps, "max_steps")
    require(isinstance(problem.config, TrainConfig), "config", "must be a TrainConfig", problem.config)
    require(problem.rows >= 1, "model", "must read out at least one position", problem.model)
    known, sets = problem.config.radius, [problem.x, *(problem.test or ())[:1]]
    largest = max(map(token_radius, sets))
    bounds = known is None or largest <= known * (1 + RADIUS_ROUNDING)
    require(bounds, "radius", f"must bound every token norm, the largest of which is {largest:.6g}", known)
