"""The paper's own steps: the sum by correlation, the span by membership queries, every tuple of a net."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, SculptConfig, data, recover
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._body import Body
from attnlearn.recovery.sculpt._paper_search import every_tuple, span_net, validation_errors
from attnlearn.recovery.sculpt._paper_span import Membership, centre, facets, reach
from attnlearn.recovery.sculpt._paper_sum import margin_sum
from attnlearn.recovery.sculpt._search import Grams
from attnlearn.reproduce._steps import problem_of, stepwise


@pytest.mark.parametrize("heads", [None, 3])
def test_the_number_of_heads_must_be_told_and_small(heads):
    x = np.zeros((4, 3, 2))
    with pytest.raises(ValueError, match="num_heads"):
        recover(x, x, method="sculpt", num_heads=heads, config=SculptConfig(faithful=True))


def test_unknown_steps_are_refused():
    with pytest.raises(ValueError, match="faithful"):
        SculptConfig(faithful=("net",))


def test_one_head_is_learned_by_the_papers_steps_alone():
    """The correlation is off by a quarter; rows that the minimum-norm point picks take it to rounding of the attention."""
    layer = AttentionLayer.random(1, 8, scale=4.0, seed=3)
    found = stepwise(layer, data.Boolean(3, 8), "paper", 3, 400_000)
    assert found["outcome"] == "answered"
    assert found["sum_error"] > 0.1
    assert found["refined_sum_error"] < 1e-3
    assert found["span_error"] < 0.02
    assert found["weights_error"] < 0.05


def test_rows_that_the_head_itself_picks_give_the_sum():
    layer = AttentionLayer.random(1, 8, scale=4.0, seed=1)
    problem, tools = problem_of(layer, data.Boolean(3, 8), "paper", 0, 20_000)
    from attnlearn.recovery.sculpt._paper_sum import correlation_sum
    from attnlearn.recovery.sculpt._state import State

    state, _ = correlation_sum(problem, State(), tools)
    true = state.whitening.enter(layer.parameters)
    point = np.concatenate([true.theta[0], true.query_bias])
    better, evidence = margin_sum(problem, dataclasses.replace(state, minimum_norm=point))
    assert evidence["used"]
    errors = [np.linalg.norm(each.sum[:-1] - true.w[0]) for each in (state, better)]
    assert errors[1] < 0.01 * errors[0]


def test_membership_agrees_with_the_body_and_counts():
    rng = np.random.default_rng(0)
    body = Body.box(np.array([1.0, 2.0, 0.5]))
    inside, points = Membership(body), rng.uniform(-2, 2, (200, 3))
    assert inside(points).tolist() == [body.violation(point) == 0 for point in points]
    assert inside.queries == 200


def test_the_centre_and_the_distance_to_the_boundary_of_a_box():
    body = Body.box(np.array([1.0, 3.0, 0.5]))
    assert abs(centre(body)[2]) < 1e-9
    lengths = reach(Membership(body), np.zeros(3), np.eye(3))
    np.testing.assert_allclose(lengths, [1.0, 3.0, 0.5], rtol=1e-6)


def test_facets_show_where_a_turned_body_is_long():
    rng = np.random.default_rng(2)
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    box = Body.box(np.array([5.0, 0.1, 0.2, 0.1]))
    body = dataclasses.replace(box, normals=box.normals @ turn.T)
    normals = facets(Membership(body), np.zeros(4), 60, rng)
    axes = np.linalg.eigh(normals.T @ normals)[1]
    assert abs(axes[:, 0] @ turn[:, 0]) > 0.999


def test_validation_errors_are_those_of_a_direct_regression():
    rng = np.random.default_rng(4)
    p, q, y, z = (rng.standard_normal((50, n)) for n in (7, 7, 2, 2))
    fit, fresh = (Grams(a.T @ a, a.T @ b, float(np.sum(b**2)), 2) for a, b in ((p, y), (q, z)))
    (error,) = validation_errors(fit, fresh, np.array([[0, 2]]))
    chosen = [0, 1, 4, 5, 6]
    w = np.linalg.lstsq(p[:, chosen], y, rcond=None)[0]
    np.testing.assert_allclose(error, np.sum((q[:, chosen] @ w - z) ** 2), rtol=1e-5)


def test_every_pair_of_the_net_finds_heads_that_lie_on_it(monkeypatch):
    monkeypatch.setattr(calibration, "PAPER_NET", 49)
    layer = AttentionLayer.random(2, 4, scale=3.0, seed=5)
    problem, tools = problem_of(layer, data.Boolean(4, 4), "search", 0, 4_000)
    from attnlearn.recovery.sculpt._paper_sum import correlation_sum
    from attnlearn.recovery.sculpt._state import State

    state, _ = correlation_sum(problem, State(), tools)
    true = state.whitening.enter(layer.parameters)
    heads = np.concatenate([true.theta, true.query_bias[:, None]], axis=1)
    along = heads[1] - heads[0]
    base = heads[0] - np.sum(heads[0] * along) / np.sum(along**2) * along
    state = dataclasses.replace(state, num_heads=2, base=base, directions=along[None] / np.linalg.norm(along))
    net, basis = span_net(state)
    _, info = every_tuple(problem, state, tools)
    assert info["tuples"] == len(net) * (len(net) - 1) // 2
    # No pair of the net is further from the heads than half a diagonal, so the answer explains most of the outputs.
    assert info["select_error"] < 0.5
    np.testing.assert_allclose(np.einsum("ife,jfe->ij", basis, basis), np.eye(2), atol=1e-12)
