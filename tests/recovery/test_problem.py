"""What everything shares: sides of the split, unknowns, examples for them, and records that a checkpoint can keep."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine._encode import decode, encode
from attnlearn.recovery._problem import Candidate, Need, Weights, examples_for, memorised
from attnlearn.solve._batch import Batch
from attnlearn.solve._unknowns import layer_unknowns, unknowns

from ._problems import problem, tokens


@pytest.mark.parametrize(
    ("heads", "dim", "out", "rank"), [(1, 4, 3, None), (3, 5, 5, 5), (2, 6, 6, 2), (2, 6, 1, 2)]
)
def test_unknowns_are_the_parameters_without_the_gauge(heads, dim, out, rank):
    """Matrices of rank r have r (a + b - r) free entries: W, made of Theta's values, has rank r as well."""

    def free(rows, columns, rank):
        return rank * (rows + columns - rank)

    low = rank is not None and rank < dim
    theta = free(dim, dim, rank) if low else dim * dim
    w = free(dim, out, min(rank, out)) if low else dim * out
    assert unknowns(heads, dim, out, rank) == heads * (theta + dim + w) + out


def test_unknowns_of_a_layer_are_those_of_its_sizes():
    layer = AttentionLayer.random(3, 6, rank=2)
    assert layer_unknowns(layer, 2) == unknowns(3, 6, 6, 2) < layer_unknowns(layer, None)


def test_examples_for_unknowns_give_four_equations_each_on_the_fit_side():
    assert examples_for(10, 4 * 5) == 200  # the least that can be certified
    many = examples_for(60_000, 4 * 5)
    assert 0.75 * many * 4 * 5 == pytest.approx(4 * 60_000, rel=1e-3)


@pytest.mark.parametrize(
    ("fit", "select", "expected"),
    [(1e-3, 2.9e-3, False), (1e-3, 3.1e-3, True), (1e-9, 9e-7, False), (1e-9, 2e-6, True), (0.2, 0.2, False)],
)
def test_a_fit_is_memorised_when_the_select_error_is_noticeable_and_three_times_as_large(
    fit, select, expected
):
    assert memorised(fit, select) is expected


def test_equations_and_sides_are_those_of_the_split(rng):
    whole = problem(AttentionLayer.random(2, 5), tokens(rng, "normal", 100, 4, 5))
    assert whole.equations == 75 * 4 * 5
    assert whole.fit_side().num == 75
    assert whole.fit_side(30).num == 30
    assert np.array_equal(whole.select_side().x, whole.examples.take(whole.split.select).x)
    grouped = Batch.of(whole.examples, whole.split.select, np.arange(100) // 2)
    assert np.array_equal(grouped.groups, whole.split.select // 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_candidates_and_needs_come_back_from_a_checkpoint_as_they_were(dtype):
    layer = AttentionLayer.random(2, 4, rank=1, bias=True, seed=3, causal=True).astype(dtype)
    candidate = Candidate(Weights.of(layer), 1, "moment", tentative=True, clear_view=900)
    need = Need(Outcome.TOO_FEW_EXAMPLES, 500, heads=3, cause="residual", evidence={"floor": 0.5})
    back = decode(*encode({"candidate": candidate, "need": need}))
    assert back["need"] == need
    again = back["candidate"]
    assert (again.rank, again.by, again.tentative, again.clear_view, again.refined) == (
        1,
        "moment",
        True,
        900,
        False,
    )
    for there, here in zip(again.weights.layer.parameters, layer.parameters, strict=True):
        assert there.dtype == here.dtype
        assert there.tobytes() == here.tobytes()
    assert again.weights.layer.causal
