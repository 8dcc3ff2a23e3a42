"""The fit: the verdict on an attempt, the examples that it uses, and how far it is asked to go."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._fit import Attempt, Fitting, Start, Verdict, verdict_of
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._repairs import fit
from attnlearn.solve._split import Split
from attnlearn.solve.refinement import Refined

from ._problems import made_candidate, problem, signals, tokens

LAYER = AttentionLayer.random(2, 5, seed=1)


def attempt(error: float, residual: float, stop: str = "noise", *, exact=False, enough=False) -> Attempt:
    refined = Refined(LAYER, residual, stop, 300, None, [])
    return Attempt(Start(LAYER, None), refined, error, exact, exact or enough)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (attempt(1e-15, 1e-15, exact=True), Verdict.EXACT),
        (attempt(1e-9, 1e-15, "max_steps", exact=True), Verdict.EXACT),  # the select side decides
        (attempt(1e-3, 1e-3, "target", enough=True), Verdict.ON_TARGET),
        (attempt(1e-3, 1e-5, enough=True), Verdict.ON_TARGET),
        (attempt(0.01, 0.001), Verdict.MEMORISED),
        (attempt(0.5, 0.1), Verdict.MEMORISED),
        (attempt(0.01, 1e-12, "floor"), Verdict.MEMORISED),  # rounding on one side only
        (attempt(1e-8, 1e-8, "floor"), Verdict.EXACT),
        (attempt(0.5, 0.4, "max_steps"), Verdict.MISFIT),  # large, and more steps might explain it
    ],
)
def test_verdicts_that_need_no_test_of_fit(found, expected):
    assert verdict_of(found, pytest.fail) is expected


@pytest.mark.parametrize(
    "found",
    [
        attempt(0.01, 0.009),
        attempt(0.5, 0.4),
        attempt(1e-8, 1e-12, "max_steps"),  # too small to be noticed as memorised
    ],
)
def test_the_test_of_fit_and_not_the_size_tells_noise_from_structure(found):
    assert verdict_of(found, lambda: False) is Verdict.NOISE
    assert verdict_of(found, lambda: True) is Verdict.MISFIT


def test_noise_of_any_size_is_noise_and_a_soft_cap_of_any_size_is_not(rng):
    x = tokens(rng, "normal", 1_500, 4, 5)
    scores = 30 * np.tanh(LAYER.scores(x) / 30)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    capped = np.einsum("nmab,nbd,mdo->nao", weights / weights.sum(axis=3, keepdims=True), x, LAYER.w)
    y = LAYER(x)
    for outputs, expected in (
        (y + 0.3 * rng.standard_normal(y.shape), Verdict.NOISE),
        (y + 1e-5 * rng.standard_normal(y.shape), Verdict.NOISE),
        (capped, Verdict.MISFIT),
    ):
        whole = Problem(as_examples(x, outputs), Split.make(len(x)))
        found = fit(whole, signals(whole), made_candidate(LAYER), Tools())
        assert found.verdict is expected
        assert (found.structure == "scores") is (expected is Verdict.MISFIT)


def test_a_softmax_in_float32_inside_float64_is_exact_to_float32(rng):
    x = tokens(rng, "normal", 1_500, 4, 5)
    scores = LAYER.scores(x).astype(np.float32)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    weights = (weights / weights.sum(axis=3, keepdims=True)).astype(np.float64)
    whole = Problem(as_examples(x, np.einsum("nmab,nbd,mdo->nao", weights, x, LAYER.w)), Split.make(len(x)))
    found = fit(whole, signals(whole), made_candidate(LAYER), Tools())
    assert found.verdict is Verdict.EXACT
    assert found.precision == "float32"


def test_settled_fits_end_a_run_and_noise_explains():
    assert [verdict for verdict in Verdict if verdict.settled] == [Verdict.EXACT, Verdict.ON_TARGET]
    assert [verdict for verdict in Verdict if verdict.explains] == [
        Verdict.EXACT,
        Verdict.ON_TARGET,
        Verdict.NOISE,
    ]


def fitting(rng, num=600, truth=LAYER, start=None, rank=None, **options) -> Fitting:
    whole = problem(truth, tokens(rng, "normal", num, 4, 5), **options)
    return Fitting(
        whole, signals(whole), made_candidate(truth if start is None else start, rank=rank), Tools()
    )


def test_the_truth_is_exact_and_a_moved_layer_is_refined_to_it(rng):
    moved = LAYER.replace(theta=1.1 * LAYER.theta)
    work = fitting(rng, start=moved)
    kept = work.judged(work.proposed, Refined(moved, 0.1, "given", 0, None, []))
    assert not kept.exact
    assert not kept.enough
    found = work.attempt("first", work.proposed)
    assert found.exact
    assert found.enough
    assert found.layer.dtype == np.float64
    assert [entry["repair"] for entry in work.tried] == ["first"]
    assert work.tried[0]["select_error"] == found.error


def test_float32_examples_are_fitted_in_float64_and_judged_in_float32(rng):
    single = LAYER.astype(np.float32)
    x = tokens(rng, "normal", 600, 4, 5).astype(np.float32)
    whole = problem(single, x)
    start = single.replace(theta=np.float32(1.05) * single.theta)
    work = Fitting(whole, signals(whole), made_candidate(start), Tools())
    found = work.attempt("first", work.proposed)
    assert found.layer.dtype == np.float64
    assert found.exact
    assert 1e-9 < found.error < 1e-5


def test_with_a_target_an_attempt_stops_there_unless_it_must_go_beyond(rng):
    work = fitting(rng, start=LAYER.replace(theta=1.1 * LAYER.theta), target=1e-3)
    near = work.attempt("first", work.proposed)
    assert near.enough
    assert not near.exact
    assert work.verdict(near) is Verdict.ON_TARGET
    beyond = work.attempt("beyond the target", dataclasses.replace(work.proposed, beyond=True))
    assert beyond.exact


def test_memory_depends_on_the_layer_and_not_on_the_number_of_examples(rng):
    work = fitting(rng, num=12_000)
    assert work.side.num == 4_096
    assert work.every_example.num == len(work.problem.split.fit)
    assert fitting(rng, num=600).side.num == 450


def test_a_start_from_an_attempt_keeps_its_rank_and_aim():
    found = attempt(0.1, 0.1)
    beyond = dataclasses.replace(found, start=Start(LAYER, None, beyond=True))
    assert found.then().layer is LAYER
    assert found.then().rank is None
    assert beyond.then().beyond
    assert not beyond.then(beyond=False).beyond
    assert found.then(rank=2, limits={"max_steps": 3}).limits == {"max_steps": 3}


def test_rounded_outputs_are_fitted_to_their_optimum_where_rounding_averages_out(rng, seed):
    layer = AttentionLayer.random(3, 4, scale=0.2, seed=seed).astype(np.float32)
    x = tokens(rng, "normal", 2_000, 5, 4).astype(np.float32)
    whole = Problem(
        as_examples(x, layer.astype(np.float64)(x.astype(np.float64)).astype(np.float32)), Split.make(len(x))
    )
    near = layer.astype(np.float64)
    near = near.replace(theta=near.theta * (1 + 1e-2 * rng.standard_normal(near.theta.shape)))
    found = fit(whole, signals(whole), made_candidate(near), Tools())
    assert found.verdict is Verdict.EXACT
    assert (
        distance(found.layer.astype(np.float64), layer.astype(np.float64)).theta < 1e-7
    )  # 6e-7 to 2e-6 where half an epsilon is enough
