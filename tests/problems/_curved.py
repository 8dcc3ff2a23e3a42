"""Tokens on curves and surfaces, with hidden dependencies, and with masks that depend on what the tokens say.

Most of these show their layer, though the theorem does not always say so: finding it and withholding the claim are both right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.problems._problem import FIT_FAILED, HONEST, Problem, from_tokens, mixed, random_layer

LOOSELY = HONEST | FIT_FAILED


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(4, 8)), int(rng.integers(3, 6)), int(rng.integers(1, 4))


def latent(rng):
    """All tokens of a sequence are smooth functions of two to four numbers."""
    d, k, m = int(rng.integers(4, 7)), int(rng.integers(3, 6)), int(rng.integers(1, 3))
    numbers, waves = int(rng.integers(2, 5)), 12
    inner = rng.standard_normal((k, numbers, waves)) / np.sqrt(numbers)
    outer, phases = rng.standard_normal((k, waves, d)) / 2, rng.uniform(-3, 3, (k, 1, waves))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        z = g.standard_normal((1, n, numbers))
        return np.swapaxes(np.sin(1.5 * z @ inner + phases) @ outer, 0, 1)

    return from_tokens("sequences of few numbers", rng, random_layer(rng, d, m), tokens, LOOSELY, n=5000)


def templates(rng):
    """A few sequences and noise around them, of a thousandth to half of their size."""
    d, k, m = _shape(rng)
    few, size = rng.standard_normal((int(rng.integers(2, 12)), k, d)), float(10.0 ** rng.uniform(-3, -0.3))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return few[g.integers(len(few), size=n)] + size * g.standard_normal((n, k, d))

    return from_tokens("templates and noise", rng, random_layer(rng, d, m), tokens, LOOSELY)


def spheres(rng):
    """Tokens of two parts, each on a sphere, as two LayerNorms side by side make them."""
    d, (_, k, m) = int(rng.choice([4, 6])), _shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, k, 2, d // 2))
        return 1.5 * (x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(n, k, d)

    return from_tokens("product of spheres", rng, random_layer(rng, d, m), tokens, LOOSELY)


def curve(rng):
    """Tokens on one curve that has parts in all directions."""
    d, k, m = int(rng.integers(3, 5)), int(rng.integers(3, 6)), int(rng.integers(1, 3))
    mix, waves = rng.standard_normal((d, d)), 0.7 * np.arange(1, d + 1)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return np.sin(g.uniform(0, 2 * np.pi, (n, k, 1)) * waves + waves) @ mix

    return from_tokens("tokens on a curve", rng, random_layer(rng, d, m), tokens, LOOSELY)


def surface(rng):
    """The last coordinate is the product of the first three: a cubic surface, on no quadric."""
    d, k, m = _shape(rng)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, k, d))
        x[..., -1] = x[..., 0] * x[..., 1] * x[..., 2]
        return x @ turn

    return from_tokens("cubic surface", rng, random_layer(rng, d, m), tokens, LOOSELY)


def nearly_constant(rng):
    """One position that hardly changes."""
    d, k, m = _shape(rng)
    place, size = rng.standard_normal(d), float(10.0 ** rng.uniform(-8, -2))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        first = place + size * g.standard_normal((n, 1, d))
        return np.concatenate([first, g.standard_normal((n, k - 1, d))], axis=1)

    return from_tokens("one position hardly changes", rng, random_layer(rng, d, m), tokens, LOOSELY)


def function_of_two(rng):
    """The third token is a function of the first two, and no linear or quadratic one."""
    d, _, m = _shape(rng)
    how = str(rng.choice(["sizes", "maximum", "sorted", "cubes"]))
    mix = rng.standard_normal((d, d)) / np.sqrt(d)
    function = {
        "sizes": lambda u, v: np.abs(u) + v @ mix,
        "maximum": np.maximum,
        "sorted": lambda u, v: np.sort(u, axis=1) + v,
        "cubes": lambda u, v: u**3 / 3 - v,
    }[how]

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, 2, d))
        return mixed(np.concatenate([u, function(u[:, 0], u[:, 1])[:, None]], axis=1), g)

    return from_tokens(f"third token by {how}", rng, random_layer(rng, d, m), tokens, LOOSELY)


def few_directions(rng):
    """The tokens of every sequence lie in a plane of its own."""
    d, m, k = int(rng.integers(5, 8)), int(rng.integers(1, 4)), int(rng.integers(4, 6))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return g.standard_normal((n, k, 2)) @ g.standard_normal((n, 2, d))

    return from_tokens("a plane for each sequence", rng, random_layer(rng, d, m), tokens, LOOSELY)


def mask_by_content(rng):
    """What is padded depends on the tokens, and so does the length."""
    d, _, m = _shape(rng)
    layer, hidden = random_layer(rng, d, m), []

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, 6, d))
        hidden[:] = [(x[..., 0] < -0.7) & (np.arange(6) > 1)]
        return x

    return from_tokens("mask by content", rng, layer, tokens, HONEST, padding=lambda g, n: ~hidden[0])


CURVED: dict[str, Callable[[np.random.Generator], Problem]] = {
    "latent": latent,
    "templates": templates,
    "product of spheres": spheres,
    "curve": curve,
    "cubic surface": surface,
    "nearly constant": nearly_constant,
    "function of two": function_of_two,
    "few directions": few_directions,
    "mask by content": mask_by_content,
}
