"""Layers whose scores depend on positions: the constructor, evaluation, files, canonical form, distance."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn._canonical import Support
from attnlearn.scores import (
    Bilinear,
    Capped,
    Normalised,
    Offsets,
    Relative,
    Rotary,
    Sinks,
    Visible,
    frequencies,
)

D, M, K = 6, 3, 7


def rotary(rng, still=2):
    rotation = frequencies(4 + still, base=50.0, rotated=4).rotation
    query, key = rng.standard_normal((2, M, D, rotation.width)) / 2
    return Rotary.of_factors(
        query,
        key,
        rotation,
        **dict(zip(("query_bias", "key_bias"), rng.standard_normal((2, M, rotation.width)))),
    )


def relative(rng, offsets):
    base = Bilinear.whole(rng.standard_normal((M, D, D)) / 3, rng.standard_normal((M, D)))
    return Relative(base, rng.standard_normal((M, offsets.numbers)), offsets)


def normalised(rng):
    gains = 1 + rng.standard_normal((2, M, 4)) / 3
    return Normalised(rotary(rng, 0), *gains, 1e-2, 1e-3)


FORMS = {
    "rotary": rotary,
    "table": lambda rng: relative(rng, Offsets("table", reach=4)),
    "buckets": lambda rng: relative(rng, Offsets("buckets", reach=6, number=8)),
    "slopes": lambda rng: relative(rng, Offsets("slope")),
    "capped": lambda rng: Capped(rotary(rng, 0), 1.5),
    "sinks": lambda rng: Sinks(rotary(rng, 0), *(rng.standard_normal(s) for s in ((M,), (M, 5)))),
    "normalised": normalised,
}
MASKS = {
    "none": Visible(),
    "causal": Visible(True),
    "window": Visible(False, 3),
    "causal window": Visible(True, 3),
    "prefix": Visible(True, None, 2),
}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request, rng):
    return request.param(rng)


@pytest.fixture(params=MASKS.values(), ids=MASKS.keys())
def layer(request, form, rng):
    w, b = rng.standard_normal((M, D, 5)), rng.standard_normal(5)
    return AttentionLayer.from_scores(form, w, b, causal=request.param)


def by_hand(layer, x, positions):
    """One pair at a time, from scores_at and the mask's definition."""
    k, v = len(x), layer.visible
    out = np.tile(layer.output_bias, (k, 1))
    for head in range(layer.num_heads):
        scores = np.full((k, k), -np.inf)
        for a in range(k):
            for b in range(k):
                if (v.causal and b > a and b >= v.prefix) or (v.window and abs(a - b) >= v.window):
                    continue
                offset = positions[b] - positions[a]
                theta, c = (part[head] for part in layer.scores_at(offset))
                t, t0 = (part[head] for part in layer.form.bias_at(offset))
                bilinear = x[a] @ theta @ x[b] + c @ x[b] + t @ x[a] + t0
                scores[a, b] = made(layer.form, head, bilinear, x[a], x[b])
        weights = np.exp(scores)
        sunk = isinstance(layer.form, Sinks)
        sink = np.exp(layer.form.own["sink"][head]) if sunk else 0.0
        weights /= weights.sum(axis=1, keepdims=True) + sink
        out += weights @ x @ layer.w[head]
        out += np.outer(1 - weights.sum(axis=1), layer.form.sink_value[head]) if sunk else 0
    return out


def made(form, head, bilinear, query, key):
    """The score that a member makes of a bilinear form, by its definition."""
    if isinstance(form, Capped):
        return form.cap * np.tanh(bilinear / form.cap)
    if not isinstance(form, Normalised):
        return bilinear
    d, forms = (D + 1) ** 2, form.beyond()[head]
    for token, matrix, eps in ((query, forms[:d], forms[-2]), (key, forms[d : 2 * d], forms[-1])):
        extended = np.append(token, 1)
        bilinear /= np.sqrt(extended @ matrix.reshape(D + 1, D + 1) @ extended / 4 + eps)
    return bilinear


def test_outputs_are_those_of_the_scores_at_each_offset(layer, rng):
    x = rng.standard_normal((2, K, D))
    places = np.stack([np.arange(K), np.cumsum(rng.integers(1, 4, K))])
    np.testing.assert_allclose(layer(x)[0], by_hand(layer, x[0], np.arange(K)), atol=1e-10)
    found = layer(x, positions=places)
    for one, at, wanted in zip(x, places, found):
        np.testing.assert_allclose(wanted, by_hand(layer, one, at), atol=1e-10)
    np.testing.assert_allclose(layer(x, positions=places[1])[1], found[1], atol=1e-12)


def test_many_sequences_are_evaluated_in_chunks_with_their_positions(rng):
    layer = AttentionLayer.from_scores(rotary(rng), rng.standard_normal((M, D, D)))
    x, places = rng.standard_normal((3000, K, D)), np.cumsum(rng.integers(1, 4, (3000, K)), axis=1)
    whole = layer(x, positions=places)
    np.testing.assert_allclose(whole[-3:], layer(x[-3:], positions=places[-3:]), atol=1e-12)


def test_patterns_keep_to_the_mask(layer, rng):
    found = layer.patterns(rng.standard_normal((2, K, D)))
    np.testing.assert_allclose(
        found.sum(axis=-1), 1 if not isinstance(layer.form, Sinks) else found.sum(axis=-1)
    )
    assert not isinstance(layer.form, Sinks) or (found.sum(axis=-1) < 1).all()
    hidden = layer.visible.hidden(K)
    assert hidden is None or not found[:, :, hidden].any()


def test_files_and_copies_are_the_same_layer(layer, tmp_path):
    layer.save(tmp_path / "layer.safetensors")
    for again in (
        AttentionLayer.load(tmp_path / "layer.safetensors"),
        pickle.loads(pickle.dumps(layer)),
        copy.deepcopy(layer),
        layer.replace(),
    ):
        assert again == layer
        assert hash(again) == hash(layer)
        assert repr(again) == repr(layer)
    assert layer.astype(np.float32) != layer
    assert layer.replace(w=2 * layer.w) != layer


def test_jax_takes_it_apart_and_together(layer):
    jax = pytest.importorskip("jax")
    leaves, tree = jax.tree_util.tree_flatten(layer)
    assert jax.tree_util.tree_unflatten(tree, leaves) == layer


def test_damaged_files_are_said_in_one_line(rng, tmp_path):
    from attnlearn._files import read_tensors, write_tensors

    path = tmp_path / "layer.safetensors"
    AttentionLayer.from_scores(rotary(rng), rng.standard_normal((M, D, D))).save(path)
    tensors, metadata = read_tensors(path)
    for changes in (
        {"scores": "[]"},
        {"scores": '{"kind": "spiral"}'},
        {"scores": '{"kind": "rotary"}'},
        {"mask": "{}, 1"},
        {"version": "3"},
    ):
        write_tensors(path, tensors, {**metadata, **changes})
        with pytest.raises(ValueError, match=r"^path: must ") as caught:
            AttentionLayer.load(path)
        assert "\n" not in str(caught.value)


def test_canonical_keeps_the_function_and_knows_equal_heads(layer, rng):
    x = rng.standard_normal((2, K, D))
    order = [2, 0, 1]
    np.testing.assert_allclose(layer.canonical()(x), layer(x), atol=1e-10)
    assert distance(layer, layer.chosen(order)).max < 1e-12
    twice = layer.chosen([0, 1, 2, 1], np.concatenate([layer.w, layer.w[1:2]]))
    assert twice.canonical().num_heads == M
    np.testing.assert_allclose(twice.canonical()(x), twice(x), atol=1e-10)


def test_distance_sees_every_offset_that_the_mask_lets_through(rng):
    layer = AttentionLayer.from_scores(rotary(rng), rng.standard_normal((M, D, D)), causal=True)
    faster = Rotary(layer.form.a, layer.form.b, frequencies(6, base=20.0, rotated=4).rotation)
    other = layer.replace(form=faster)
    assert distance(layer, other, offsets=[0]).max < 1e-12
    assert distance(layer, other, offsets=[-1]).theta > 1e-3
    assert distance(layer, other).theta > distance(layer, other, offsets=[-1]).theta
    with pytest.raises(ValueError, match="b: must have the mask of a"):
        distance(layer, layer.replace(window=3))


def test_distance_sees_tables_up_to_their_constant(rng):
    form = relative(rng, Offsets("table", reach=4))
    layer = AttentionLayer.from_scores(form, rng.standard_normal((M, D, D)))
    assert distance(layer, layer.replace(table=form.table + 3)).max < 1e-12
    moved = form.table.copy()
    moved[:, 0] += 1
    assert distance(layer, layer.replace(table=moved)).query_bias > 1e-2


def test_a_table_of_zeros_is_plain_attention(rng):
    form = relative(rng, Offsets("table", reach=4))
    w = rng.standard_normal((M, D, D))
    plain = AttentionLayer(form.base.theta(), w, form.base.c)
    with_table = AttentionLayer.from_scores(Relative(form.base, 0 * form.table, form.offsets), w)
    assert distance(plain, with_table).max < 1e-12
    x = rng.standard_normal((2, K, D))
    np.testing.assert_allclose(with_table(x), plain(x), atol=1e-12)
    assert AttentionLayer.from_scores(form.base, w) == plain


@pytest.mark.parametrize("sunk", [False, True], ids=["rotary", "sinks"])
def test_support_compares_what_tokens_can_show(rng, sunk):
    form = rotary(rng, 0 if sunk else 2)
    form = Sinks(form, *(rng.standard_normal(s) for s in ((M,), (M, D)))) if sunk else form
    layer = AttentionLayer.from_scores(form, rng.standard_normal((M, D, D)), rng.standard_normal(D))
    support = Support(rng.standard_normal(D), np.linalg.qr(rng.standard_normal((D, 4)))[0])
    rest = np.linalg.qr(np.concatenate([support.basis, rng.standard_normal((D, 2))], axis=1))[0][:, 4:]
    hidden = rest @ rest.T @ rng.standard_normal((D, D))  # acts on what tokens do not have
    moved = layer.replace(w=layer.w + hidden, output_bias=layer.output_bias - support.mean @ hidden * M)
    if sunk:
        moved = moved.replace(sink_value=form.sink_value + support.mean @ hidden)
    x = support.mean + rng.standard_normal((4, K, 4)) @ support.basis.T
    np.testing.assert_allclose(moved(x), layer(x), atol=1e-10)
    assert distance(layer, moved, support=support).max < 1e-10
    assert distance(layer, moved).w > 1e-2


def test_plain_names_say_where_the_matrices_are(rng):
    layer = AttentionLayer.from_scores(rotary(rng), rng.standard_normal((M, D, D)))
    with pytest.raises(
        AttributeError, match=r"theta: this layer has rotary positions .* see scores_at\(offset\)"
    ):
        layer.theta  # noqa: B018
    with pytest.raises(ValueError, match="layer: must have no positions, window or prefix here, got 'rotary"):
        layer.factors()
    with pytest.raises(TypeError, match="unexpected keyword argument 'theta'"):
        layer.replace(theta=np.zeros((M, D, D)))


@pytest.mark.parametrize("name", ["rotary", "sinks", "window"])
def test_conditions_measure_weights_at_every_offset(rng, name):
    from attnlearn import conditions

    w = rng.standard_normal((M, D, 5))
    if name == "window":
        layer = AttentionLayer(rng.standard_normal((M, D, D)) / 3, w).replace(window=3)
    else:
        layer = AttentionLayer.from_scores(FORMS[name](rng), w, causal=True)
    found = conditions(layer, rng.standard_normal((800, K, D)))
    worst = min(
        np.sum(s**2) / s[0] ** 2
        for offset in layer.visible.offsets(K)
        for s in np.linalg.svd(layer.scores_at(offset).theta, compute_uv=False)
    )
    assert found.check("theta.effective_rank").value == pytest.approx(worst, rel=1e-9)
    recover, extract = (found.advice.of(route) for route in ("recover", "extract"))
    assert recover.feasible is (False if name == "sinks" else None)
    assert ("a sink for each head" in recover.reason) is (name == "sinks")
    assert extract.feasible is False
    with pytest.raises(ValueError, match="y: must hold tokens of shape"):
        conditions(layer, rng.standard_normal((800, K, D + 1)))


@pytest.mark.parametrize("name", ["rotary", "slopes", "window"])
def test_an_oracle_with_fixed_positions_is_named_and_equal_positions_show_theta_at_0(rng, name):
    from attnlearn import extract

    w = rng.standard_normal((M, D, 5))
    if name == "window":
        layer = AttentionLayer(rng.standard_normal((M, D, D)) / 3, w).replace(causal=True, window=2)
    else:
        layer = AttentionLayer.from_scores(FORMS[name](rng), w, causal=True)
    found = extract(layer, raise_on_failure=False)
    assert found.outcome.name == "NOT_ATTENTION"
    assert "where tokens stand" in found.phases[0].evidence["cause"]
    assert found.stats["sequences"] < 100
    if name == "window":
        return
    alike = extract(lambda x: layer(x, positions=np.zeros(x.shape[1])), D)
    at = layer.scores_at(0)
    assert distance(alike.layer, AttentionLayer(at.theta, w, at.query_bias, causal=True)).max < 1e-9
