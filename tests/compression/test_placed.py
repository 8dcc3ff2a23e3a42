"""Compression of layers with positions: every member of `scores`; shared heads found exactly, gradients, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, CompressConfig, compress, data
from attnlearn.compression._members import factored, groups_of, put_together
from attnlearn.compression._projection import Projection
from attnlearn.compression._shape import Shape
from attnlearn.scores import (
    Bilinear,
    Capped,
    Normalised,
    Offsets,
    Relative,
    Rotary,
    Rotation,
    Sinks,
    Visible,
    build,
    describe,
)
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression

TOKENS, DIM, HEADS, WIDTH = 6, 7, 4, 4
MODEL = data.Gaussian(TOKENS, DIM)
QUICK = CompressConfig(num_examples=1200, shape_steps=10)
ORDER = np.array([2, 0, 3, 1])


def rotary(rng, still=0):
    """Heads 0 and 1 share a key, and so do 2 and 3, each in a gauge of its own."""
    rotation = Rotation((1.0, 0.1)[: 2 - still // 2], still)
    a, b = rng.standard_normal((2, HEADS, DIM + 1, WIDTH))
    b = b[[0, 0, 2, 2]]
    p = rotation.pairs
    z = np.exp(rng.standard_normal((HEADS, 1, p)) + 1j * rng.standard_normal((HEADS, 1, p)))
    pairs = [part[..., :p] + 1j * part[..., p : 2 * p] for part in (a, b)]
    pairs = [pairs[0] * z, pairs[1] / z.conj()]
    a, b = (np.concatenate([q.real, q.imag, f[..., 2 * p :]], axis=-1) for q, f in zip(pairs, (a, b)))
    b[:, -1, 2 * p :] = 0
    return Rotary(a / 2, b / 2, rotation)


def relative(rng):
    query, key = rng.standard_normal((2, HEADS, DIM, WIDTH)) / 2
    base = Bilinear.whole(query @ np.swapaxes(key[[0, 0, 2, 2]], 1, 2), np.zeros((HEADS, DIM)))
    return Relative(base, rng.standard_normal((HEADS, 9)), Offsets("table", reach=4))


def normalised(rng):
    a, b = rng.standard_normal((2, HEADS, DIM + 1, WIDTH))
    gains = 1 + rng.standard_normal((2, 1, WIDTH)) / 3
    gains = np.repeat(gains, HEADS, axis=1)
    return Normalised(Rotary(a, b[[0, 0, 2, 2]], Rotation((1.0, 0.1))), *gains, 1e-2, 1e-2)


FORMS = {
    "rotary": rotary,
    "rotary, coordinates at rest": lambda rng: rotary(rng, 2),
    "relative": relative,
    "plain": lambda rng: relative(rng).base,
    "capped": lambda rng: Capped(rotary(rng), 3.0),
    "sinks": lambda rng: Sinks(rotary(rng), *(rng.standard_normal(s) for s in ((HEADS,), (HEADS, DIM)))),
    "normalised": normalised,
}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def layer(request, rng):
    """Heads that share keys and values in pairs, in another order."""
    value, output = rng.standard_normal((2, HEADS, DIM, WIDTH))
    w = value[[0, 0, 2, 2]] @ np.swapaxes(output, 1, 2) / 3
    whole = AttentionLayer.from_scores(request.param(rng), w, rng.standard_normal(DIM), causal=True, window=4)
    return whole.chosen(ORDER)


def test_shared_keys_and_values_are_found_and_cost_nothing(layer):
    solution = compress(layer, MODEL, kv_heads=2, config=QUICK)
    assert solution.certified
    assert solution.stats["exact"], solution.stats["relative_error"]
    assert solution.stats["shape"]["kv_heads"] == 2
    x = MODEL.sample(50, seed=9)
    np.testing.assert_allclose(solution.layer(x), layer(x), atol=1e-9)
    assert solution.layer.visible == Visible(True, 4)


def test_fewer_heads_are_fitted_with_a_certificate(layer):
    solution = compress(layer, MODEL, num_heads=3, config=QUICK)
    assert solution.outcome.name == "COMPRESSED"
    assert solution.layer.num_heads == 3
    x = MODEL.sample(400, seed=9)
    wanted = layer(x)
    error = np.linalg.norm(solution.layer(x) - wanted) / np.linalg.norm(wanted - wanted.mean(axis=(0, 1)))
    assert error == pytest.approx(solution.stats["relative_error"], rel=0.2)
    assert 0 < error < 0.9
    assert describe(solution.layer.form)["kind"] == describe(layer.form)["kind"]


def test_the_gradient_is_that_of_the_eliminated_error(layer, rng):
    x = rng.standard_normal((40, TOKENS, DIM))
    mask = np.arange(TOKENS) < rng.integers(2, TOKENS + 1, (40, 1))
    ground = WhitenedRegression(Batch(x, AttentionLayer.random(3, DIM)(x), mask), layer.visible)
    shape = Shape(HEADS, WIDTH, 2)
    form, w = ground.white.inside(layer.form), ground.white.enter_linear(layer.w, layer.output_bias)[0]
    form, at = factored(form, w, shape)
    projection = Projection(ground.chunks, ground.causal, ground.total, form)
    along, step = rng.standard_normal(at.flat().size), 1e-5
    ends = [projection(at.shaped(at.flat() + sign * step * along)).cost for sign in (1, -1)]
    slope = projection(at).gradient.flat() @ along
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), slope, rtol=1e-4, atol=1e-7)


def test_factors_of_groups_are_the_scores_again(layer, rng):
    shape = Shape(HEADS, WIDTH, 2)
    order = np.concatenate(groups_of(layer.form, layer.w, shape))
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({1, 3}), frozenset({0, 2})}
    chosen = layer.chosen(order)
    again = put_together(*factored(chosen.form, chosen.w, shape))
    x = rng.standard_normal((3, TOKENS, DIM))
    wanted = chosen.patterns(x)
    np.testing.assert_allclose(chosen.replace(form=again).patterns(x), wanted, atol=1e-9)
    assert build(describe(again), again.arrays()).heads == HEADS


def test_a_layer_without_biases_stays_without(layer):
    form = layer.form
    if isinstance(form, Sinks):
        form = form.base
    arrays = {name: np.array(array) for name, array in form.arrays().items()}
    for name in {"query", "key"} & set(arrays):
        arrays[name][:, -1] = 0
    bare = layer.replace(form=build(describe(form), arrays), output_bias=np.zeros(DIM))
    x = 1 + MODEL.sample(1200, seed=1)
    exact = compress(bare, x, kv_heads=2, config=QUICK)
    assert exact.stats["exact"]
    fitted = compress(bare, x, kv_heads=1, config=QUICK).layer
    for found in (exact.layer, fitted):
        assert not found.output_bias.any()
        own = found.form.arrays()
        assert all(np.abs(own[name][:, -1]).max() == 0 for name in {"query", "key"} & set(own))
        assert np.abs(own.get("query_bias", np.zeros(1))).max() < 1e-12


def test_floats_and_checkpoints(rng, tmp_path):
    layer = AttentionLayer.from_scores(rotary(rng), rng.standard_normal((HEADS, DIM, DIM)), causal=True)
    solution = compress(layer, MODEL, kv_floats=17, config=QUICK, checkpoint=tmp_path)
    assert solution.stats["shape"]["kv_floats"] == 16
    again = compress(layer, MODEL, kv_floats=17, config=QUICK, checkpoint=tmp_path)
    assert again.layer == solution.layer


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"head_dim": 2}, "head_dim: must be 4 or left out: the width of rotary heads"),
        ({"latent": 3}, "latent: must be left out for a layer with positions"),
        ({"kv_floats": 7}, "kv_floats: must be at least 8, one key and one value of width 4"),
        ({"kv_heads": 3}, "kv_heads: must divide the 4 heads"),
    ],
)
def test_what_has_no_meaning_is_refused(rng, asked, rule):
    layer = AttentionLayer.from_scores(rotary(rng), rng.standard_normal((HEADS, DIM, DIM)))
    with pytest.raises(ValueError, match=rule):
        compress(layer, MODEL, **asked, config=QUICK)
