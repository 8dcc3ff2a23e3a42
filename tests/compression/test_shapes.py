"""Shapes: factors, their gradient, grouping, closed forms, and what `compress` makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, CompressConfig, Outcome, compress, data
from attnlearn._attention import Parameters
from attnlearn.compression._closed import closed_form, scores
from attnlearn.compression._descend import descend
from attnlearn.compression._factored import Factored
from attnlearn.compression._grouping import best_groups
from attnlearn.compression._projection import Projection
from attnlearn.compression._shape import Shape, Wanted
from attnlearn.compression._shaping import trial_side, truncated
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression
from attnlearn.solve._rank import largest_rank

TOKENS, DIM = 5, 6
MODEL = data.Gaussian(TOKENS, DIM)
SHAPES = [Shape(4, 2, 4), Shape(4, 2, 2), Shape(4, 3, 1), Shape(4, 2, 4, latent=3)]
QUICK = CompressConfig(num_examples=1200, shape_steps=15)


def random_factors(shape: Shape, rng: np.random.Generator) -> Factored:
    inner = DIM if shape.latent is None else shape.latent
    latent = None if shape.latent is None else rng.standard_normal((DIM, inner))
    key, value = rng.standard_normal((2, shape.kv_heads, inner, shape.head_dim))
    return Factored(rng.standard_normal((shape.num_heads, DIM + 1, shape.head_dim)), key, value, latent)


def layer_of(shape: Shape, seed: int, causal: bool = False) -> AttentionLayer:
    """A layer that has the shape exactly."""
    rng = np.random.default_rng(seed)
    factors = random_factors(shape, rng)
    both = 0.3 * factors.scores()
    w = factors.projections(rng.standard_normal((shape.num_heads * shape.head_dim, DIM)))
    return AttentionLayer(both[:, :-1], w, both[:, -1], rng.standard_normal(DIM), causal=causal)


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.words)
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "causal and padded"])
def test_the_gradient_is_that_of_the_eliminated_error(shape: Shape, hidden: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, TOKENS, DIM))
    mask = np.arange(TOKENS) < rng.integers(2, TOKENS + 1, (40, 1)) if hidden else None
    ground = WhitenedRegression(Batch(x, AttentionLayer.random(3, DIM, seed=seed)(x), mask), hidden)
    projection = Projection(ground.chunks, hidden, ground.total)
    at = random_factors(shape, rng)
    at = at.shaped(0.4 * at.flat())
    along, step = rng.standard_normal(at.flat().size), 1e-5
    ends = [projection(at.shaped(at.flat() + sign * step * along)).cost for sign in (1, -1)]
    slope = projection(at).gradient.flat() @ along
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * step), slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.words)
def test_a_layer_of_the_shape_is_taken_apart_exactly(shape: Shape, seed: int) -> None:
    layer, x = layer_of(shape, seed), MODEL.sample(200, seed=3)
    ground = WhitenedRegression(Batch(x, layer(x)), False)
    inside = ground.enter(layer)
    factors = closed_form(inside, shape)
    assert len(factors.key) == shape.kv_heads
    np.testing.assert_allclose(factors.scores(), scores(inside), atol=1e-9)
    np.testing.assert_allclose(truncated(ground, inside, factors)(x), layer(x), atol=1e-9)


def test_heads_that_share_are_found_in_any_order(seed: int) -> None:
    layer = layer_of(Shape(6, 2, 3), seed)
    order = np.random.default_rng([seed, 1]).permutation(6)
    inside = Parameters(*(part[order] for part in layer.parameters[:3]), layer.output_bias)
    groups = best_groups(inside, 3, 2)
    assert sorted(tuple(sorted(order[list(group)] // 2)) for group in groups) == [(0, 0), (1, 1), (2, 2)]


def test_descent_lowers_the_error_below_the_closed_form(seed: int) -> None:
    layer, x = AttentionLayer.random(3, DIM, seed=seed), MODEL.sample(500, seed=seed)
    ground = WhitenedRegression(Batch(x, layer(x)), False)
    projection, start = (
        Projection(ground.chunks, False, ground.total),
        closed_form(ground.enter(layer), Shape(3, 2, 3)),
    )
    found = descend(projection, start, steps=20)
    assert np.all(np.diff(found.errors) <= 0)
    assert projection(found.factors).cost < 0.9 * projection(start).cost
    assert descend(projection, start, steps=20, deadline=0.0).stop == "deadline"


@pytest.mark.parametrize("wanted", [{"head_dim": 2}, {"kv_heads": 2}, {"head_dim": 2, "latent": 3}])
def test_an_exact_shape_is_exact_though_heads_are_shuffled(wanted: dict, seed: int) -> None:
    shape = Shape(4, 2, wanted.get("kv_heads", 4), wanted.get("latent"))
    layer = layer_of(shape, seed)
    order = np.random.default_rng(seed).permutation(4)
    shuffled = layer.replace(theta=layer.theta[order], w=layer.w[order], query_bias=layer.query_bias[order])
    solution = compress(shuffled, MODEL, **wanted, config=QUICK)
    assert solution.stats["exact"]
    x = MODEL.sample(100, seed=9)
    np.testing.assert_allclose(solution.layer(x), layer(x), atol=1e-9)


@pytest.mark.parametrize(
    "wanted", [{"head_dim": 2}, {"kv_heads": 2}, {"latent": 3}, {"num_heads": 2, "head_dim": 3}]
)
def test_the_answer_has_the_shape_and_beats_the_closed_form(wanted: dict, seed: int) -> None:
    layer = AttentionLayer.random(4, DIM, rank=4, bias=True, seed=seed)
    solution = compress(layer, MODEL, **wanted, config=QUICK)
    shape = solution.stats["shape"]
    assert solution.outcome is Outcome.COMPRESSED
    assert {name: shape[name] for name in wanted if name in shape} == {
        n: v for n, v in wanted.items() if n in shape
    }
    found, width = solution.layer, shape["head_dim"]
    both = scores(Parameters(*found.parameters))
    assert largest_rank(both) <= width
    assert largest_rank(found.w) <= width
    share = found.num_heads // shape["kv_heads"]
    for start in range(0, found.num_heads, share):
        assert largest_rank(both[start : start + share].reshape(1, -1, DIM)) <= width
        assert largest_rank(np.concatenate(list(found.w[start : start + share]), axis=1)[None]) <= width
    if "latent" in wanted:
        spans = np.concatenate([both.reshape(-1, DIM), np.swapaxes(found.w, 1, 2).reshape(-1, DIM)])
        assert largest_rank(spans[None]) <= wanted["latent"]
    trial, last = solution.phases[-3].evidence, solution.phases[-2].evidence
    assert last["error"] < trial["closed form"]
    assert [row["kv_floats"] for row in solution.stats["curve"]] == [
        40,
        shape["kv_floats"],
    ]  # the bias is a fifth direction


def test_a_budget_picks_the_best_shape(seed: int) -> None:
    layer = layer_of(Shape(4, 3, 2), seed)
    solution = compress(layer, MODEL, kv_floats=5, config=QUICK)
    rows = solution.stats["curve"]
    assert all(row["kv_floats"] <= 5 for row in rows[1:])
    assert len(rows) == 4  # the source, two groups of width 1, one of width 2, a latent of 5
    assert solution.stats["shape"]["error"] == min(row["error"] for row in rows[1:])
    # A token has six coordinates: keeping them all loses nothing, whatever the heads do with them.
    assert compress(layer, MODEL, kv_floats=6, config=QUICK).stats["exact"]


def test_a_shape_run_is_resumed_to_the_same_bytes(tmp_path) -> None:
    layer = AttentionLayer.random(4, DIM, rank=3, seed=1)
    settings = {"kv_floats": 4, "config": QUICK, "raise_on_failure": False}
    whole = compress(layer, MODEL, **settings)
    settings["checkpoint"] = tmp_path / "run"
    first = compress(layer, MODEL, **settings, time_limit=1e-9)
    assert first.outcome is Outcome.BUDGET_SPENT
    assert first.layer is not None
    assert len(first.phases) == 1
    again = compress(layer, MODEL, **settings)
    assert again.layer.w.tobytes() == whole.layer.w.tobytes()
    with pytest.raises(ValueError, match="shape was"):
        compress(layer, MODEL, **settings | {"kv_floats": 3})


def test_shapes_within_a_budget_keep_no_more_than_it() -> None:
    for floats in range(2, 40):
        shapes = Wanted(kv_floats=floats).shapes(8, 4)
        assert shapes
        assert all(shape.kv_floats <= floats for shape in shapes)
        assert len({shape.kv_heads for shape in shapes if shape.latent is None}) == len(shapes) - 1


@pytest.mark.parametrize("shape", [Shape(4, 1, 4), Shape(4, 1, 2), Shape(4, 2, 4, latent=3)], ids=Shape.words)
def test_a_layer_that_needs_less_than_is_allowed_gets_less(shape: Shape, seed: int) -> None:
    layer = layer_of(shape, seed)
    solution = compress(layer, MODEL, kv_floats=shape.kv_floats + 2, config=QUICK, seed=seed)
    assert solution.stats["exact"]
    assert solution.stats["shape"]["kv_floats"] <= shape.kv_floats
    assert (solution.stats["shape"]["kv_heads"] < 4) == (shape.kv_heads < 4)


def test_a_trial_sees_no_more_than_it_takes(seed: int) -> None:
    x = np.zeros((2_000, TOKENS, DIM))
    shape = Shape(4, 2, 2)
    few = trial_side(Batch(x, x), shape)
    assert few.num * TOKENS * DIM >= 30 * shape.parameters(DIM, DIM) > (few.num - 1) * TOKENS * DIM
    assert trial_side(Batch(x[:5], x[:5]), shape).num == 5
