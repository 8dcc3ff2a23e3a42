"""Refinement of layers whose scores depend on positions, from starts that are nearly right."""

from __future__ import annotations

import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.scores import Bilinear, Offsets, Relative, Rotary, Visible, frequencies
from attnlearn.solve.refinement import refine

M, D, K, N = 2, 5, 6, 400


def rotary(rng, rotated):
    rotation = frequencies(4, base=30.0, rotated=rotated).rotation
    query, key = rng.standard_normal((2, M, D, 4)) / 2
    query_bias, key_bias = rng.standard_normal((2, M, 4)) / 2
    return Rotary.of_factors(query, key, rotation, query_bias=query_bias, key_bias=key_bias)


def relative(rng, offsets):
    base = Bilinear.whole(rng.standard_normal((M, D, D)) / 3, rng.standard_normal((M, D)) / 3)
    return Relative(base, rng.standard_normal((M, offsets.numbers)), offsets)


FORMS = {
    "rotary": lambda rng: rotary(rng, 4),
    "rotary, partly": lambda rng: rotary(rng, 2),
    "table": lambda rng: relative(rng, Offsets("table", reach=K - 1)),
    "slopes": lambda rng: relative(rng, Offsets("slope")),
}


@pytest.mark.parametrize(
    "visible", [Visible(), Visible(True), Visible(True, 4)], ids=["all", "causal", "window"]
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_near_start_becomes_the_layer(form, visible, rng):
    truth = AttentionLayer.from_scores(
        form(rng), rng.standard_normal((M, D, D)), rng.standard_normal(D), causal=visible
    )
    near = truth.form.shaped(truth.form.flat() * (1 + 0.03 * rng.standard_normal(truth.form.flat().size)))
    x = 0.5 + rng.standard_normal((N, K, D))
    found = refine(truth.replace(form=near), x, truth(x))
    reached = [offset for offset in range(1 - K, K) if not visible.causal or offset <= 0]
    reached = [offset for offset in reached if visible.window is None or abs(offset) < visible.window]
    assert found.residual < 1e-10
    assert found.layer.visible == visible
    assert distance(found.layer, truth, offsets=reached).max < 1e-7
