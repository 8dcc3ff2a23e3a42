"""Repairs: each gives a start where it applies, and the fit mends starts with wrong heads, ranks and mixtures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery import _repairs as repairs
from attnlearn.recovery._fit import Attempt, Fit, Fitting, Start, Verdict
from attnlearn.solve.refinement import Refined

from ._problems import made_candidate, problem, signals

DIM, TOKENS, NUM = 6, 4, 600


@pytest.fixture
def truth(seed) -> AttentionLayer:
    return AttentionLayer.random(2, DIM, seed=seed, bias=True)


def with_head(layer: AttentionLayer, theta: np.ndarray, w: np.ndarray, bias: np.ndarray) -> AttentionLayer:
    parts = zip((layer.theta, layer.w, layer.query_bias), (theta, w, bias), strict=True)
    return AttentionLayer(*(np.concatenate([there, one[None]]) for there, one in parts), layer.output_bias)


def split_head(truth: AttentionLayer) -> AttentionLayer:
    """The first head as two that nearly coincide, with half its values each."""
    half = truth.replace(w=truth.w * np.array([0.5, 1])[:, None, None])
    return with_head(half, 1.001 * truth.theta[0], half.w[0], truth.query_bias[0])


def mixed_heads(truth: AttentionLayer) -> AttentionLayer:
    """Mixtures of the heads with the same first order."""
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])
    theta, w, bias = (np.tensordot(turn, part, 1) for part in (truth.theta, truth.w, truth.query_bias))
    return AttentionLayer(theta, w, bias, truth.output_bias)


def fitting_of(
    truth: AttentionLayer, start: AttentionLayer, seed: int, rank: int | None = None, **options
) -> Fitting:
    x = np.random.default_rng([seed, 3]).standard_normal((NUM, TOKENS, DIM))
    whole = problem(truth, x, **options)
    return Fitting(whole, signals(whole), made_candidate(start, rank=rank), Tools(seed=seed))


def fitted(
    truth: AttentionLayer, start: AttentionLayer, seed: int, rank: int | None = None, **options
) -> Fit:
    work = fitting_of(truth, start, seed, rank)
    candidate = made_candidate(start, rank=rank, **options)
    return repairs.fit(work.problem, work.signals, candidate, work.tools)


def attempt(
    layer: AttentionLayer, error: float = 0.1, stop: str = "noise", rank: int | None = None, **changes
) -> Attempt:
    refined = Refined(layer, changes.pop("residual", error), stop, 300, rank, [])
    plain = Attempt(Start(layer, rank), refined, error, False, False)
    return dataclasses.replace(plain, **changes)


APPLIES = {
    # repair: (start of the candidate, the attempt as keywords) where it applies, and where it does not
    "merge_duplicates": [(split_head, {}, True), (lambda truth: truth, {}, False)],
    "mix_otherwise": [(mixed_heads, {}, True), (lambda truth: truth, {}, False)],
    "take_more_steps": [
        (lambda truth: truth, {"stop": "max_steps"}, True),
        (lambda truth: truth, {"error": 1e-9}, True),
        (lambda truth: truth, {"stop": "noise"}, False),
    ],
    "keep_apart": [(split_head, {}, True), (lambda truth: truth, {}, False)],
    "go_beyond_the_target": [
        (lambda truth: truth, {"stop": "target"}, True),
        (lambda truth: truth, {"stop": "noise"}, False),
    ],
    "free_the_rank": [(lambda truth: truth, {"rank": 2}, True), (lambda truth: truth, {}, False)],
    "use_every_example": [
        (lambda truth: truth, {"error": 0.01}, True),
        (lambda truth: truth, {"error": 0.01, "stop": "max_steps"}, False),
        (lambda truth: truth, {"error": 0.2}, True),  # large, and the input explains nothing of it
        (lambda truth: truth.replace(w=2 * truth.w), {"error": 0.2}, False),
    ],
}
CASES = [(name, *case) for name, cases in APPLIES.items() for case in cases]


@pytest.mark.parametrize(("name", "start", "found", "applies"), CASES)
def test_a_repair_gives_a_start_where_it_applies(name, start, found, applies, truth, seed):
    layer = start(truth)
    work, best = fitting_of(truth, layer, seed), attempt(layer, **found)
    repair = getattr(repairs, name)
    assert (repair(work, best) is not None) is applies
    again = found.get("stop") == "max_steps"  # more steps may win the certificate a digit
    enough = repair(work, dataclasses.replace(best, enough=True))
    assert (enough is not None) is (again and name == "take_more_steps")


def test_every_repair_of_the_table_was_looked_at():
    names = {repair.start.__name__ for repair in repairs.REPAIRS}
    assert names == {*APPLIES, "drop_idle_heads", "drop_a_needless_head"}
    assert [repair.name for repair in repairs.REPAIRS if repair.repeats] == [
        "merge duplicates",
        "unmix again",
        "drop a needless head",
    ]


def test_a_head_that_does_next_to_nothing_is_idle(truth, seed, rng):
    idle = with_head(truth, *rng.standard_normal((2, DIM, DIM)), np.zeros(DIM))
    idle = idle.replace(w=idle.w * np.array([1, 1, 1e-6])[:, None, None])
    work = fitting_of(truth, idle, seed)
    start = repairs.drop_idle_heads(work, attempt(idle, error=1e-3))
    assert start.layer.num_heads == 2
    assert repairs.drop_idle_heads(work, attempt(truth, error=1e-3)) is None
    assert repairs.drop_idle_heads(work, attempt(truth, error=1e6)) is None  # else nothing were left


def test_more_steps_are_taken_by_an_exact_attempt_that_ran_out_of_them(truth, seed):
    work = fitting_of(truth, truth, seed)
    for stop, more in (("max_steps", True), ("floor", False), ("target", False)):
        best = attempt(truth, 1e-15, stop, exact=True, enough=True)
        start = repairs.take_more_steps(work, best)
        assert (start is not None) is more
        if more:
            assert start.limits == repairs.LONG
            assert start.layer is truth


def near_head(truth: AttentionLayer, away: float) -> AttentionLayer:
    """The first head as two that differ by `away`, with half its values each: to first order the same function."""
    half = truth.replace(w=truth.w * np.array([0.5, 1])[:, None, None])
    two = with_head(half, (1 + away) * truth.theta[0], half.w[0], (1 + away) * truth.query_bias[0])
    theta, bias = two.theta.copy(), two.query_bias.copy()
    theta[0], bias[0] = (1 - away) * truth.theta[0], (1 - away) * truth.query_bias[0]
    return two.replace(theta=theta, query_bias=bias)


def test_of_two_heads_that_nearly_coincide_in_an_exact_fit_one_is_dropped(truth, seed):
    near = near_head(truth, 1e-3)
    work = fitting_of(truth, near, seed)
    exact = attempt(near, 1e-15, "floor", exact=True, enough=True)
    start = repairs.drop_a_needless_head(work, exact)
    assert start.layer.num_heads == 2
    assert start.limits == repairs.LONG
    found = work.attempt("drop a needless head", start)
    assert found.exact
    assert distance(found.layer, truth).max < 1e-9


def test_a_head_is_not_dropped_from_an_inexact_fit_or_where_heads_are_apart_or_from_the_last_one(truth, seed):
    work, near = fitting_of(truth, truth, seed), near_head(truth, 1e-3)
    exact = {"error": 1e-15, "stop": "floor", "exact": True, "enough": True}
    assert repairs.drop_a_needless_head(work, attempt(near)) is None
    assert repairs.drop_a_needless_head(work, attempt(near, enough=True)) is None  # on target is not exact
    assert repairs.drop_a_needless_head(work, attempt(truth, **exact)) is None
    alone = AttentionLayer(truth.theta[:1], truth.w[:1], truth.query_bias[:1], truth.output_bias)
    assert repairs.drop_a_needless_head(work, attempt(alone, **exact)) is None


def test_a_drop_is_kept_only_by_a_fit_that_is_enough(truth):
    (drop,) = (repair for repair in repairs.REPAIRS if repair.start is repairs.drop_a_needless_head)
    best = attempt(truth, error=1e-3)
    assert not drop.kept(attempt(truth, error=1e-9), best)
    assert drop.kept(attempt(truth, error=1e-3, enough=True), best)


def test_heads_that_differ_by_little_and_are_both_needed_stay(truth, seed):
    rng = np.random.default_rng([seed, 6])
    away = 1e-3 * rng.standard_normal((DIM, DIM))
    close = with_head(truth, truth.theta[0] + away, rng.standard_normal((DIM, DIM)), truth.query_bias[0])
    found = fitted(close, close, seed)
    assert found.layer.num_heads == 3
    assert found.verdict is Verdict.EXACT
    assert distance(found.layer, close).max < 1e-6


@pytest.mark.parametrize(
    ("away", "target", "verdict"),
    [(1.2, None, Verdict.UNFINISHED), (1.2, 1e-3, Verdict.UNFINISHED), (1.0, 1e-3, Verdict.ON_TARGET)],
)
def test_without_time_a_fit_is_unfinished_unless_it_is_enough(away, target, verdict, truth, seed):
    work = fitting_of(truth, truth, seed, target=target)
    candidate = made_candidate(truth.replace(theta=away * truth.theta))
    found = repairs.fit(work.problem, work.signals, candidate, Tools(seed=seed, deadline=0.0))
    assert found.verdict is verdict
    assert found.evidence["verdict"] == verdict.name
    assert [entry["repair"] for entry in found.evidence["tried"]] == ["first"]


def test_more_steps_are_taken_once(truth, seed):
    work, best = fitting_of(truth, truth, seed), attempt(truth, stop="max_steps")
    start = repairs.take_more_steps(work, best)
    assert start.limits == repairs.LONG
    assert repairs.take_more_steps(work, dataclasses.replace(best, start=start)) is None


@pytest.mark.parametrize("repair", ["take_more_steps", "free_the_rank"])
def test_heads_whose_number_was_only_tried_are_not_fitted_further_by_heart(repair, truth, seed):
    work = fitting_of(truth, truth, seed)
    by_heart = attempt(truth, error=0.1, residual=0.01, stop="max_steps", rank=2)
    assert getattr(repairs, repair)(work, by_heart) is not None
    work.tentative = True
    assert getattr(repairs, repair)(work, by_heart) is None
    assert (
        getattr(repairs, repair)(work, attempt(truth, error=0.1, residual=0.05, stop="max_steps", rank=2))
        is not None
    )


def test_what_is_repaired_starts_from_the_best_attempt_and_keeps_its_aim(truth, seed):
    best = dataclasses.replace(attempt(truth, rank=2), start=Start(truth, 2, beyond=True))
    freed = repairs.free_the_rank(fitting_of(truth, truth, seed), best)
    assert freed.rank is None
    assert freed.beyond
    assert freed.limits["lower"] is False


@pytest.mark.parametrize(
    ("error", "enough", "keep", "kept"),
    [
        (0.9, False, 1.0, True),
        (1.1, False, 1.0, False),
        (1.1, True, 0.9, True),
        (0.95, False, 0.9, False),
        (9, False, np.inf, True),
    ],
)
def test_an_attempt_is_kept_by_the_factor_of_its_repair(error, enough, keep, kept, truth):
    repair = repairs.Repair("one", repairs.free_the_rank, keep)
    found = attempt(truth, error=error, enough=enough)
    assert repair.kept(found, attempt(truth, error=1.0)) is kept


def test_a_head_that_was_split_is_one_again(truth, seed) -> None:
    found = fitted(truth, split_head(truth), seed)
    assert found.layer.num_heads == 2
    assert found.verdict is Verdict.EXACT
    assert found.proposed_heads == 3
    assert distance(found.layer, truth).max < 1e-9


def test_heads_that_differ_by_little_are_kept(truth, seed) -> None:
    rng = np.random.default_rng([seed, 4])
    away = 1e-5 * rng.standard_normal((DIM, DIM))
    close = with_head(truth, truth.theta[0] + away, rng.standard_normal((DIM, DIM)), truth.query_bias[0])
    found = fitted(close, close, seed)
    assert found.layer.num_heads == 3
    assert "keep duplicates apart" in [entry["repair"] for entry in found.evidence["tried"]]


def test_a_rank_that_was_too_large_is_lowered_for_the_certificate_too(seed) -> None:
    low = AttentionLayer.random(2, DIM, rank=2, seed=seed, bias=True)
    noise = np.random.default_rng([seed, 5]).standard_normal(low.theta.shape)
    found = fitted(low, low.replace(theta=low.theta + 1e-2 * noise), seed, rank=4)
    assert found.rank == 2
    assert distance(found.layer, low).max < 1e-9


def test_a_rank_that_was_too_small_is_freed(truth, seed) -> None:
    found = fitted(truth, truth.replace(theta=1.02 * truth.theta), seed, rank=2)
    assert found.rank is None
    assert found.verdict is Verdict.EXACT
    assert "free rank" in [entry["repair"] for entry in found.evidence["tried"]]


def test_a_mixture_of_the_heads_is_fitted(truth, seed) -> None:
    found = fitted(truth, mixed_heads(truth), seed)
    assert found.verdict is Verdict.EXACT
    assert distance(found.layer, truth).max < 1e-8


def test_an_idle_head_is_dropped(truth, seed, rng) -> None:
    theta = 0.3 * rng.standard_normal((DIM, DIM))
    found = fitted(truth, with_head(truth, theta, np.zeros((DIM, DIM)), np.zeros(DIM)), seed)
    assert found.verdict is Verdict.EXACT
    assert found.layer.num_heads == 2
    assert distance(found.layer, truth).max < 1e-8


def test_scores_that_are_rounding_are_zero(truth, seed) -> None:
    flat = truth.replace(theta=truth.theta * np.array([0, 1])[:, None, None], query_bias=np.zeros((2, DIM)))
    start = flat.replace(theta=flat.theta + 1e-3)
    found = fitted(flat, start, seed)
    assert found.verdict is Verdict.EXACT
    sizes = np.sort(np.linalg.norm(found.layer.theta, axis=(1, 2)))
    assert sizes[0] == 0 < sizes[1]


def test_scores_that_are_small_and_needed_stay(truth, seed) -> None:
    work = fitting_of(truth, truth, seed)
    small = truth.replace(theta=truth.theta * np.array([1e-9, 1])[:, None, None])
    exact = attempt(small, error=1e-15, exact=True, enough=True)
    assert repairs.with_flat_heads(work, exact) is exact  # without it the fit would not be exact
    assert repairs.with_flat_heads(work, attempt(small)).layer is small  # nor is this one


def test_an_answer_is_judged_as_it_is(truth, seed) -> None:
    moved = truth.replace(theta=1.01 * truth.theta)
    for layer, verdict in ((truth, Verdict.EXACT), (moved, Verdict.MISFIT)):
        found = fitted(truth, layer, seed, refined=True)
        assert found.verdict is verdict
        assert np.array_equal(found.layer.theta, layer.theta)
        assert found.evidence["tried"] == []


def test_a_fit_says_whose_candidate_it_was_and_what_was_tried(truth, seed) -> None:
    found = fitted(truth, truth, seed, by="wide search", tentative=True, clear_view=77)
    assert (found.by, found.tentative, found.clear_view) == ("wide search", True, 77)
    assert found.evidence["of"] == "wide search"
    assert found.evidence["verdict"] == "EXACT"
    assert found.evidence["tried"][0]["repair"] == "first"
    assert found.evidence["select_error"] == found.select_error


def test_a_candidate_at_its_optimum_is_an_answer_only_if_it_is_exact(truth, seed):
    exact = fitted(truth, truth, seed, at_optimum=True)
    assert (exact.verdict, exact.stop, exact.examples) == (Verdict.EXACT, "given", 0)
    moved = fitted(truth, truth.replace(theta=1.1 * truth.theta), seed, at_optimum=True)
    assert moved.verdict is Verdict.EXACT
    assert moved.examples > 0
    assert distance(moved.layer, truth).max < 1e-9


def test_heads_that_the_moment_shows_twice_are_taken_for_one(seed: int, rng) -> None:
    """Heads of rank one and their swaps look alike: a start with copies of them is refined without the copies."""
    truth, x = AttentionLayer.random(2, 16, rank=1, seed=seed), rng.uniform(-1.7, 1.7, (8_000, 6, 16))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
    assert found.phase("moment").evidence["count"]["heads"] > 2
    fit = found.phase("fit").evidence
    assert len(fit["tried"]) <= 3  # not those of a fit that creeps: a larger rank, every example
    assert len(fit["steps"]) < 20


def test_true_heads_that_are_close_are_told_apart_all_the_same(seed: int, rng) -> None:
    layer = AttentionLayer.random(2, 8, seed=seed)
    theta = np.stack([layer.theta[0], layer.theta[0] + 0.2 * layer.theta[1]])
    truth, x = layer.replace(theta=theta), rng.standard_normal((8_000, 5, 8))
    found = recover(x, truth(x))
    assert found.certified
    assert found.layer.num_heads == 2
    assert distance(found.layer, truth).max < 1e-8


def test_a_rank_that_is_low_up_to_rounding_is_no_noise(seed: int, rng) -> None:
    """Weights that were once multiplied in float32: the fit of low rank stalls at 1e-8, and the whole Theta is exact."""
    truth = AttentionLayer.random(2, 12, rank=2, seed=seed).astype(np.float32).astype(np.float64)
    x = rng.standard_normal((2_000, 5, 12))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-10


@pytest.mark.parametrize("number", range(3))
def test_a_target_that_only_the_average_meets_is_passed_by_whole_matrices_too(seed: int, number: int) -> None:
    """A rank that is too small is given up; on tokens with heavy tails the worst example then still misses the target."""
    truth = AttentionLayer.random(2, 8, rank=6, seed=seed + number, bias=True)
    x = np.random.default_rng(seed + number).standard_t(2.2, size=(1_500, 4, 8))
    whole = problem(truth, x, target=1e-6)
    candidate = made_candidate(truth.replace(theta=1.05 * truth.theta), rank=5)
    found = repairs.fit(whole, signals(whole), candidate, Tools(seed=seed))
    assert found.verdict.settled
