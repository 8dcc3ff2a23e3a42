"""Layers with positions: those that the given kind holds, and those taken for another kind, base, window or number of heads.

Tokens are Gaussian but for antipodal ones. What is no layer of the kind that is asked for must not be certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.scores import Visible, frequencies
from tests.problems._plain import forward
from tests.problems._positioned import RELATIVE, Shape, random_by_offset
from tests.problems._problem import FIT_FAILED, FOUND, WITHHELD, Fresh, Problem, random_layer

NUM, TIME = 1500, 60.0
MISFIT = FIT_FAILED | {"BUDGET_SPENT", "HEADS_INDISTINGUISHABLE"}
"""Nothing that was asked for explains the outputs; a search that fails may take all the time it is given."""


def _shape(rng: np.random.Generator, **more: Any) -> Shape:
    sizes = {"heads": 2, "dim": int(rng.integers(6, 9)), "width": 4, "tokens": int(rng.integers(6, 9))}
    return Shape(**sizes, scale=float(rng.uniform(1.0, 2.5)), causal=bool(rng.random() < 0.75), **more)


def _problem(
    name: str,
    layer: AttentionLayer,
    tokens: int,
    rng: np.random.Generator,
    right: frozenset[str],
    antipodal: bool = False,
    **options: Any,
) -> Problem:
    """Examples of a layer, and how `recover` is asked about them."""
    seed = int(rng.integers(2**31))

    def examples(num: int, side: int) -> Fresh:
        x = np.random.default_rng([seed, side]).standard_normal((num, tokens, layer.dim))
        if antipodal:
            x[:, 1::2] = -x[:, : 2 * (tokens // 2) : 2]
        return Fresh(x, forward(layer, x))

    x, y = examples(NUM, 0)[:2]
    asked = {"num_heads": layer.num_heads, "causal": layer.visible, "time_limit": TIME} | options
    return Problem(
        f"positions: {name}", x, y, layer, right, options=asked, draw=lambda num, _: examples(num, 1),
        identifiable=right == FOUND,
    )  # fmt: skip


def _own(kind: str) -> Callable[[np.random.Generator], Problem]:
    """A layer of a kind that is given."""

    def make(rng: np.random.Generator) -> Problem:
        shape = _shape(rng, window=4)
        layer = random_by_offset(kind, shape, rng)
        given = "relative" if kind in RELATIVE else layer.form.rotation
        return _problem(kind, layer, shape.tokens, rng, FOUND, positions=given)

    return make


def antipodal(rng):
    shape = _shape(rng)
    layer = random_by_offset("rotary", shape, rng)
    options = {"antipodal": True, "positions": layer.form.rotation}
    return _problem("antipodal tokens", layer, shape.tokens, rng, WITHHELD | MISFIT, **options)


def _as_plain(kind: str) -> Callable[[np.random.Generator], Problem]:
    def make(rng: np.random.Generator) -> Problem:
        shape = _shape(rng)
        layer = random_by_offset(kind, shape, rng)
        options = {"num_heads": None, "causal": layer.causal, "positions": "none"}
        return _problem(f"{kind} as plain", layer, shape.tokens, rng, MISFIT, **options)

    return make


def _found(kind: str) -> Callable[[np.random.Generator], Problem]:
    """A layer of a kind that nobody names, with a mask and a number of heads that nobody names either."""

    def make(rng: np.random.Generator) -> Problem:
        shape = _shape(rng, window=4)
        layer = random_by_offset(kind, shape, rng)
        options = {"num_heads": None, "causal": None}
        problem = _problem(f"{kind}, not named", layer, shape.tokens, rng, FOUND | MISFIT, **options)
        return replace(problem, identifiable=True)

    return make


def plain_as_rotary(rng):
    shape = _shape(rng)
    layer = random_layer(rng, shape.dim, shape.heads, causal=shape.causal)
    given = frequencies(shape.width).rotation
    return _problem("plain as rotary", layer, shape.tokens, rng, MISFIT, positions=given)


def wrong_base(rng):
    shape = _shape(rng)
    layer = random_by_offset("rotary", shape, rng)
    given = frequencies(shape.width, base=float(10 ** rng.uniform(0.5, 3.5))).rotation
    return _problem("wrong base", layer, shape.tokens, rng, MISFIT, positions=given)


def wrong_window(rng):
    shape = _shape(rng, window=4)
    layer = random_by_offset("window", shape, rng)
    given = Visible(layer.causal, int(rng.choice([3, 5])))
    return _problem(
        "wrong window", layer, shape.tokens, rng, MISFIT, positions=layer.form.rotation, causal=given
    )


def rotary_as_relative(rng):
    shape = _shape(rng)
    layer = random_by_offset("rotary", shape, rng)
    return _problem("rotary as relative", layer, shape.tokens, rng, MISFIT, positions="relative")


def relative_as_rotary(rng):
    shape = _shape(rng)
    layer = random_by_offset(str(rng.choice(RELATIVE)), shape, rng)
    given = frequencies(shape.width).rotation
    return _problem("relative as rotary", layer, shape.tokens, rng, MISFIT, positions=given)


def too_few_heads(rng):
    shape = _shape(rng)
    layer = random_by_offset("rotary", shape, rng)
    return _problem(
        "too few heads", layer, shape.tokens, rng, MISFIT, positions=layer.form.rotation, num_heads=1
    )


POSITIONS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "positions: rotary": _own("rotary"),
    "positions: window": _own("window"),
    "positions: key bias": _own("key bias"),
    "positions: table": _own("table"),
    "positions: slopes": _own("slopes"),
    "positions: antipodal": antipodal,
    "positions: rotary as plain": _as_plain("rotary"),
    "positions: table as plain": _as_plain("table"),
    "positions: plain as rotary": plain_as_rotary,
    "positions: wrong base": wrong_base,
    "positions: wrong window": wrong_window,
    "positions: rotary as relative": rotary_as_relative,
    "positions: relative as rotary": relative_as_rotary,
    "positions: too few heads": too_few_heads,
    "positions: rotary, not named": _found("rotary"),
    "positions: window, not named": _found("window"),
    "positions: table, not named": _found("table"),
}
