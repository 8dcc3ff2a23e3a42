"""The diagnosis names the right cause for every teacher, and none for plain attention."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._diagnose import diagnose
from tests.problems import _teachers as teachers
from tests.problems._positioned import Shape, random_by_offset

TEACHERS = {
    "residual": lambda x, layer, rng: x + layer(x),
    "normalised": lambda x, layer, rng: teachers.normalise(layer(x), rng),
    "causal": lambda x, layer, rng: layer.replace(causal=True)(x),
    "window": lambda x, layer, rng: teachers.with_score_bias(
        layer, x, np.where(teachers.gaps(x.shape[1]) > 1, -1e9, 0.0)
    ),
    "position": lambda x, layer, rng: teachers.with_score_bias(layer, x, -0.5 * teachers.gaps(x.shape[1])),
    "not attention": lambda x, layer, rng: teachers.mlp(x, rng),
}


@pytest.mark.parametrize("shape", [(8, 4, 2), (12, 6, 3)], ids=str)
@pytest.mark.parametrize("cause", TEACHERS)
def test_each_teacher_is_recognised(cause: str, shape, seed: int, rng) -> None:
    d, k, m = shape
    layer = AttentionLayer.random(m, d, seed=seed + 11)
    x = rng.standard_normal((4000, k, d))
    found = diagnose(x, TEACHERS[cause](x, layer, rng))
    assert found.cause == cause, found


def test_plain_attention_has_no_supported_cause(seed: int, rng) -> None:
    x = rng.standard_normal((4000, 5, 8))
    assert diagnose(x, AttentionLayer.random(3, 8, seed=seed)(x)).cause == "not attention"


def test_repeated_inputs_show_noise(rng) -> None:
    x = np.repeat(rng.standard_normal((200, 4, 6)), 2, axis=0)
    y = AttentionLayer.random(2, 6)(x)
    assert diagnose(x, y).cause == "not attention"
    assert diagnose(x, y + 0.01 * rng.standard_normal(y.shape)).cause == "noise"


@pytest.mark.parametrize(("kind", "first"), [("rotary", "rotary"), ("table", "relative")])
def test_the_likelier_kind_of_positions_is_named_first(kind: str, first: str, rng) -> None:
    layer = random_by_offset(kind, Shape(heads=2, dim=6, width=4, tokens=8), rng)
    x = rng.standard_normal((4000, 8, 6))
    likeliest = diagnose(x, layer(x), causal=True).causes[0]
    assert likeliest.name == "position"
    assert f"{first} rather than" in likeliest.text
