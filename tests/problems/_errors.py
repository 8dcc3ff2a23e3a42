"""Errors of outputs that are not the noise of a textbook: shared by neighbours, drifting, clipped, on a grid, with heavy tails, of a few.

What is claimed beside them is judged against the true layer. Some break what the claims assume of errors; then the claims must be
withheld where the data show it, and true where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.problems._noisy import NOISY, _layer, _problem, _random
from tests.problems._plain import forward
from tests.problems._problem import FIT_FAILED, HONEST, Problem


def _level(rng: np.random.Generator, low: float = -3.5, high: float = -1.7) -> float:
    return float(10.0 ** rng.uniform(low, high))


def _in_runs(y: np.ndarray, size: int, drawn: np.ndarray) -> np.ndarray:
    """One of the drawn numbers for every run of so many sequences."""
    return drawn[np.arange(len(y)) // size]


def shared_scale(rng):
    """Twenty to 150 sequences in a row are too large or too small by the same share."""
    level, size = _level(rng), int(rng.choice([20, 50, 150]))

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        scale = _in_runs(y, size, g.standard_normal((len(y) // size + 1, 1, 1)))
        return level * (y * scale + 0.2 * y.std() * g.standard_normal(y.shape))

    return _problem("runs of one scale", rng, errors)


def shared_offset(rng):
    """Twenty to 150 sequences in a row have the same offset."""
    level, size = _level(rng), int(rng.choice([20, 50, 150]))

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        offset = _in_runs(y, size, g.standard_normal((len(y) // size + 1, 1, y.shape[2])))
        return level * y.std() * (offset + g.standard_normal(y.shape))

    return _problem("runs of one offset", rng, errors)


def drift(rng):
    """Outputs grow slowly from the first sequence to the last."""
    level = _level(rng)

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        return level * (
            y * np.linspace(-1, 1, len(y))[:, None, None] + 0.3 * y.std() * g.standard_normal(y.shape)
        )

    return _problem("drift", rng, errors)


def _clipping(rng: np.random.Generator, noise: float) -> Problem:
    share = float(rng.choice([0.99, 0.999, 0.9999]))

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        most = np.quantile(np.abs(y), share)
        return np.clip(y + noise * y.std() * g.standard_normal(y.shape), -most, most) - y

    return _problem("clipped outputs", rng, errors, right=NOISY | {"NUMERICAL_FAILURE"})


def clipped(rng):
    """One output of a hundred to ten thousand is beyond the range."""
    return _clipping(rng, 0.0)


def clipped_noise(rng):
    return _clipping(rng, _level(rng, -3, -1.7))


def grid(rng):
    """Outputs on a grid of a thousandth to one."""
    step = _level(rng, -3, 0)
    return _problem("outputs on a grid", rng, lambda y, _: step * np.round(y / step) - y)


def _tails(
    name: str, by: Callable[[np.ndarray], tuple[int, ...]]
) -> Callable[[np.random.Generator], Problem]:
    def make(rng: np.random.Generator) -> Problem:
        freedom, level = float(rng.choice([1.0, 1.5, 2.0, 2.5])), _level(rng, -5, -2.5)

        def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
            return level * y.std() * g.standard_t(freedom, by(y)) * g.standard_normal(y.shape)

        return _problem(name, rng, errors)

    return make


def outliers(rng):
    """Two to ten sequences of a hundred have errors a hundred times as large."""
    share, level = float(rng.choice([0.02, 0.05, 0.1])), _level(rng, -4, -2.5)

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        sizes = np.where(g.random((len(y), 1, 1)) < share, 100.0, 1.0)
        return level * y.std() * sizes * g.standard_normal(y.shape)

    return _problem("outliers", rng, errors)


def half_clean(rng):
    """Half of the sequences have errors a thousand times smaller."""
    level = _level(rng, -4)

    def errors(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
        sizes = np.where(g.random((len(y), 1, 1)) < 0.5, 1e-3, 1.0)
        return level * y.std() * sizes * g.standard_normal(y.shape)

    return _problem("half of the outputs clean", rng, errors)


def _plainly(name: str, errors: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Any:
    def make(rng: np.random.Generator) -> Problem:
        level = _level(rng, -4)
        return _problem(name, rng, lambda y, g: level * y.std() * errors(y, g))

    return make


def _one_coordinate(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
    return g.standard_normal(y.shape) * (np.arange(y.shape[2]) == 0)


def _skewed(y: np.ndarray, g: np.random.Generator) -> np.ndarray:
    return np.exp(1.5 * g.standard_normal(y.shape)) - np.exp(1.125)


def hidden_structure(rng):
    """A function that is no layer, as small as the noise beside it."""
    d, _, m = _random(rng)
    layer, size, turn = _layer(rng, d, m), _level(rng, -4, -2), rng.standard_normal((d, d)) / d
    level = size * float(rng.choice([0.3, 1.0, 3.0]))

    def function(x: np.ndarray) -> np.ndarray:
        return forward(layer, x, None) + size * np.tanh(np.vecdot(x @ turn, x))[..., None]

    return _problem(
        "structure below noise", rng, lambda y, g: level * y.std() * g.standard_normal(y.shape), truth=layer,
        function=function, right=FIT_FAILED | HONEST,
    )  # fmt: skip


ERRORS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "errors: runs of one scale": shared_scale,
    "errors: runs of one offset": shared_offset,
    "errors: drift": drift,
    "errors: clipped": clipped,
    "errors: clipped noise": clipped_noise,
    "errors: grid": grid,
    "errors: heavy tails": _tails("heavy tails", np.shape),
    "errors: heavy sequences": _tails("heavy sequences", lambda y: (len(y), 1, 1)),
    "errors: outliers": outliers,
    "errors: half clean": half_clean,
    "errors: one coordinate": _plainly("errors in one coordinate", _one_coordinate),
    "errors: skewed": _plainly("skewed errors", _skewed),
    "errors: function of outputs": _plainly("errors that repeat", lambda y, _: np.sin(1e6 * y)),
    "errors: hidden structure": hidden_structure,
}
"""Kinds of errors that no textbook has."""
