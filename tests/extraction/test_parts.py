"""The parts of the extraction against the layers they are meant to see through, without any oracle."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.engine import Tools
from attnlearn.extraction._complete import complete
from attnlearn.extraction._joint import solve_joint
from attnlearn.extraction._logits import free_slopes, linear_logits, sigmoid, solve_slices
from attnlearn.extraction._match import Displaced, Swept, logit_scale, match
from attnlearn.extraction._measure import measure
from attnlearn.extraction._polish import Fitted, _merged, candidate_ranks, likely_first
from attnlearn.extraction._probe import crossing, features, probe, respond
from attnlearn.extraction._separate import doubled_signs, joint_rays, parabola_lengths, separate
from attnlearn.extraction._spans import solve_values, value_spaces
from attnlearn.extraction._state import Inquiry, Problem, State
from attnlearn.oracle import Oracle

PHASES = (measure, probe, separate, match, complete)


def run_until(layer, last, seed, **options):
    problem, state, tools = Problem(Oracle.wrap(layer), layer.dim, **options), State(), Tools(seed=seed)
    for phase in PHASES[: PHASES.index(last) + 1]:
        state, info = phase(problem, state, tools)
    return state, info


@pytest.mark.parametrize("causal", [False, True])
def test_two_tokens_are_a_sum_of_sigmoids(seed, rng, causal):
    layer = AttentionLayer.random(3, 5, bias=True, seed=seed, causal=causal)
    state = State(causal=causal, total=layer.w.sum(0), bias=layer.output_bias)
    x, delta = rng.standard_normal((4, 5)), rng.standard_normal(5)
    g = respond(Inquiry(Problem(Oracle.wrap(layer), 5), state), x, delta[None])[0]
    queries = x if causal else np.vstack([x, x - delta])
    logits = np.einsum("nd,mde,e->nm", queries, layer.theta, delta) + layer.query_bias @ delta
    expected = sigmoid(logits) @ np.einsum("d,mdo->mo", delta, layer.w)
    assert np.abs(g - expected).max() < 1e-13


@pytest.mark.parametrize("causal", [False, True])
def test_single_tokens_give_the_sum_and_the_mask(seed, causal):
    layer = AttentionLayer.random(3, 6, bias=True, seed=seed, causal=causal)
    state, info = run_until(layer, measure, seed)
    assert np.abs(state.total - layer.w.sum(0)).max() < 1e-12
    assert np.abs(state.bias - layer.output_bias).max() < 1e-12
    assert state.causal is causal
    assert 0 < state.noise < 1e-13
    assert info["sequences"] < 6 + 60


def test_noise_of_float32_is_seen(seed):
    layer = AttentionLayer.random(3, 16, seed=seed).astype(np.float32)
    state, _ = run_until(layer, measure, seed)
    assert 1e-9 < state.noise < 1e-5
    assert state.rounding == "float32"


@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e3])
def test_the_scale_follows_the_scores(seed, factor):
    layer = AttentionLayer.random(4, 12, seed=seed)
    layer = layer.replace(theta=factor * layer.theta)
    state, _ = run_until(layer, probe, seed)
    logits = state.scale**2 * np.linalg.norm(layer.theta, axis=(1, 2))
    assert 0.2 < np.median(logits) < 5


def test_joint_rays_separate_exact_jacobians(rng):
    heads, q, o = 4, 6, 9
    a, v = rng.standard_normal((q, heads)), rng.standard_normal((heads, o))
    slopes = np.einsum("qm,pm,mo->pqo", a, rng.uniform(0.05, 0.25, (7, heads)), v)
    rays = joint_rays(slopes, heads, rng)
    found = rays.directions / np.linalg.norm(rays.directions, axis=1, keepdims=True)
    cosines = np.abs(found @ (v / np.linalg.norm(v, axis=1, keepdims=True)).T)
    assert np.abs(np.sort(cosines.max(0)) - 1).max() < 1e-10
    assert len(set(cosines.argmax(0))) == heads


def test_parabola_needs_a_sigmoid(rng):
    z = rng.standard_normal((20, 2))
    s = sigmoid(z)
    lengths, offsets = parabola_lengths(s * (1 - s), s * np.array([2.0, 5.0]) + np.array([0.5, -1.0]))
    assert np.allclose(lengths, [2.0, 5.0])
    assert np.allclose(offsets, [0.5, -1.0])


def test_doubling_the_second_token_tells_the_sign(seed, rng):
    layer = AttentionLayer.random(3, 6, bias=True, seed=seed)
    state = State(total=layer.w.sum(0), bias=layer.output_bias, scale=0.7)
    inquiry = Inquiry(Problem(Oracle.wrap(layer), 6), state)
    delta, points = rng.standard_normal(6), rng.standard_normal((10, 6))
    slopes = np.c_[np.einsum("mde,e->md", layer.theta, delta), layer.query_bias @ delta, np.zeros(3)]
    values = np.einsum("d,mdo->mo", delta, layer.w)
    flip = np.array([1.0, -1.0, 1.0])[:, None]
    signs = doubled_signs(inquiry, np.eye(6), points, delta, flip * values, flip * slopes)
    assert signs.tolist() == [1.0, -1.0, 1.0]


def test_slices_converge_to_rounding_from_near_starts(rng):
    heads, q, o, batch = 3, 3, 7, 5
    points = 2 * rng.standard_normal((12, q))
    x = features(points, causal=False)
    slopes = rng.standard_normal((batch, heads, q + 2))
    values = rng.standard_normal((batch, heads, o))
    g = sigmoid(np.einsum("rp,bmp->brm", x, slopes)) @ values
    start = slopes + 0.02 * rng.standard_normal(slopes.shape)
    found, back, residual, outside = solve_slices(
        start, x, g, values.sum(1), free_slopes(heads, q + 2, constant_head=False)
    )
    assert np.abs(found - slopes).max() < 1e-9
    assert np.abs(back - values).max() < 1e-9
    assert max(residual.max(), outside.max()) < 1e-12


def test_slices_report_an_extra_head(rng):
    x = features(2 * rng.standard_normal((12, 2)), causal=False)
    slopes, values = rng.standard_normal((1, 3, 4)), rng.standard_normal((1, 3, 6))
    g = sigmoid(np.einsum("rp,bmp->brm", x, slopes)) @ values
    *_, residual, outside = solve_slices(slopes[:, :2], x, g, values.sum(1), free_slopes(2, 4, False))
    assert max(residual[0], outside[0]) > 1e-4


def test_linear_logits_ignore_saturated_rows(rng):
    x = np.c_[rng.standard_normal((30, 2)), np.ones(30)]
    slopes = np.array([[1.0, -0.5, 0.3]])
    weights = sigmoid(x @ slopes.T)
    weights[0] = 1.7
    assert np.abs(linear_logits(x, weights) - slopes).max() < 1e-4


@pytest.mark.parametrize(
    ("dim", "heads", "rank", "causal"), [(8, 3, None, False), (24, 4, 3, False), (8, 2, 2, True)]
)
def test_closed_form_before_any_fit(seed, dim, heads, rank, causal):
    layer = AttentionLayer.random(heads, dim, rank=rank, bias=True, seed=seed, causal=causal)
    state, info = run_until(layer, complete, seed)
    assert len(state.w) == heads
    order = [int(np.argmin(np.linalg.norm(layer.w - w, axis=(1, 2)))) for w in state.w]
    assert sorted(order) == list(range(heads))
    assert np.abs(state.w - layer.w[order]).max() < 1e-8
    assert np.abs(state.theta - layer.theta[order]).max() < 1e-6
    assert np.abs(state.query_bias - layer.query_bias[order]).max() < 1e-6
    if rank is not None and rank < dim // 2:
        assert state.ranks == [rank] * heads
        assert info["references"] < dim


def test_low_rank_saves_queries(seed):
    spent = {}
    for rank in (2, 24):
        _, info = run_until(AttentionLayer.random(3, 24, rank=rank, seed=seed), complete, seed)
        spent[rank] = info["references"]
    assert spent[2] <= 6 < spent[24] == 25


def test_token_scale_of_swept_heads():
    theta = np.zeros((1, 4, 4))
    theta[0, 0, 0] = 9.0
    swept = Swept(np.zeros((1, 4, 4)), np.zeros((1, 4)), theta)
    assert np.isclose(logit_scale(swept, 1.0) ** 2 * 9.0, 1.1)


def test_crossing_is_followed_down_from_the_peak():
    grid = 2.0 ** np.arange(5)
    assert crossing(grid, np.array([5.0, 0.01, 1.0, 6.0, 6.0])) > 2.0


def test_one_misread_rank_does_not_change_that_of_all():
    assert candidate_ranks([8, 9, 8, 8]) == [[8] * 4, [8, 9, 8, 8], [9] * 4, None]
    assert candidate_ranks([3, 3]) == [[3, 3], None]
    assert candidate_ranks(None) == [None]


@pytest.mark.parametrize(("read", "first"), [([3, 1, 3], [3, 3, 3]), ([3, 3, 4], [3, 3, 3])])
def test_ranks_that_explain_the_answers_are_fitted_first(seed, rng, read, first):
    truth = AttentionLayer.random(3, 8, rank=3, seed=seed)
    x = rng.standard_normal((30, 3, 8))
    state = State(asked_x=[x], asked_y=[truth(x)])
    start = truth.replace(theta=truth.theta + 1e-3 * rng.standard_normal(truth.theta.shape))
    assert likely_first(candidate_ranks(read), start, state)[0] == first


def test_heads_that_a_search_split_are_fitted_as_one(seed, rng):
    truth = AttentionLayer.random(2, 4, bias=True, seed=seed)
    xs = [rng.standard_normal((40, k, 4)) for k in (1, 2, 3)]
    state = State(asked_x=xs, asked_y=[truth(x) for x in xs], noise=1e-15)
    shares = np.array([0.3, 0.7, 1.0])[:, None, None]
    split = AttentionLayer(
        truth.theta[[0, 0, 1]], shares * truth.w[[0, 0, 1]], truth.query_bias[[0, 0, 1]], truth.output_bias
    )
    found = _merged(Fitted(split, None, 0.0, {}), state, Tools(seed=seed)).layer
    assert found.num_heads == 2
    assert distance(found, truth).max < 1e-12


@pytest.mark.parametrize(("heads", "causal"), [(3, False), (3, True), (9, False)])
def test_values_of_low_rank_take_few_queries_each(seed, heads, causal):
    """Nine heads of rank three write to more directions than there are outputs."""
    layer = AttentionLayer.random(heads, 24, rank=3, bias=True, seed=seed, causal=causal)
    state, info = run_until(layer, match, seed)
    sweep = info["sweeps"][-1]
    assert sweep["slices"] == [8]
    assert sweep["lean_slices"] == 16
    assert sweep["lean_sequences"] <= 3
    assert max(np.abs(layer.w - w).max((1, 2)).min() for w in state.w) < 1e-9


def test_values_of_full_rank_are_asked_whole(seed):
    _, info = run_until(AttentionLayer.random(3, 12, seed=seed), match, seed)
    assert info["sweeps"][-1]["slices"] == [12]
    assert info["sweeps"][-1]["lean_slices"] == 0


def test_a_misread_rank_of_values_is_found_out(monkeypatch, seed):
    """Directions that are missing leave a residual, and every displacement is asked as a whole slice."""
    monkeypatch.setattr(
        "attnlearn.extraction._match.value_spaces",
        lambda *slices: [space[:-1] for space in value_spaces(*slices) or []] or None,
    )
    layer = AttentionLayer.random(3, 24, rank=3, seed=seed)
    state, info = run_until(layer, match, seed)
    assert info["sweeps"][-1]["slices"] == [24]
    assert max(np.abs(layer.w - w).max((1, 2)).min() for w in state.w) < 1e-9


def test_values_are_solved_from_one_query(rng):
    heads, rank, out = 3, 2, 9
    spaces = [np.linalg.qr(rng.standard_normal((out, rank)))[0].T for _ in range(heads)]
    values = np.stack([rng.standard_normal(rank) @ space for space in spaces])
    moves = 0.05 * np.stack([rng.standard_normal((4, rank)) @ space for space in spaces], 1)
    g = rng.uniform(0.1, 0.9, (4, 2, heads)) @ (values + moves)
    found, residual = solve_values(values, spaces, g, moves.sum(1))
    assert residual.max() < 1e-12
    assert np.abs(found - values - moves).max() < 1e-10
    assert solve_values(values, [space[:1] for space in spaces], g, moves.sum(1))[1].min() > 1e-4


def test_a_slice_much_worse_than_the_others_is_doubted():
    residual = np.array([1.0, 2.0, 1.5, 20.0, 99.0])
    empty = np.zeros((5, 1, 1))
    slices = Displaced(empty[:, 0], empty, empty, empty, residual, residual < 30)
    assert slices.unreliable().tolist() == [3, 4]


def test_longer_displacements_are_solved_from_shorter_ones(monkeypatch, seed):
    """At a displacement of 0.4 most slices do not converge from delta; the shorter ones lead there."""
    monkeypatch.setattr("attnlearn.extraction._calibration.DISPLACEMENT", 0.4)
    layer = AttentionLayer.random(6, 12, scale=6.0, seed=seed)
    state, info = run_until(layer, match, seed)
    sweep = info["sweeps"][-1]
    assert sweep["extended"] > 0
    assert sweep["bilinearity"] < 1e-9
    assert max(np.abs(layer.w - w).max((1, 2)).min() for w in state.w) < 1e-8


def test_dependent_values_are_solved_jointly(rng):
    heads, q = 4, 2
    slopes = rng.standard_normal((heads, q + 2))
    values = np.array([1.0, -1.0, 1.0, -1.0])[:, None] * np.array([[0.5, 2.0]])
    x = features(2 * rng.standard_normal((60, q)), causal=False)
    shift = np.where(np.arange(len(x)) % 3 == 0, -np.log(2), 0.0)
    rows = np.vstack([sigmoid(x @ slopes.T + shift[:, None]) @ values, values.sum(0)])[None]
    near = slopes + 0.01 * rng.standard_normal(slopes.shape)
    found, weights, residual = solve_joint(near[None], x, shift, rows)
    assert residual[0] < 1e-13
    assert np.abs(found[0] - slopes).max() < 1e-8
    assert np.abs(weights[0] - values).max() < 1e-8
    flipped = near * np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    assert solve_joint(flipped[None], x, 0 * shift, rows[:, :, :1])[2][0] > 1e-6
