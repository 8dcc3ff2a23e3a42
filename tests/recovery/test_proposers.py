"""The rows of the tables: which data they suit, when they are wanted, and what they propose."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, recover
from attnlearn.engine import Tools
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._of_moment import last_step
from attnlearn.recovery._of_search import OneMoreHead
from attnlearn.recovery._problem import Need, Weights
from attnlearn.recovery._proposer import Given, Proposer
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery._repairs import fit
from attnlearn.recovery._trail import UNKNOWN, Trail
from attnlearn.scores import Bilinear, Offsets, Relative

from ._problems import (
    FEW,
    MISFITS,
    counted,
    made_fit,
    made_moment,
    made_problem,
    made_signals,
    problem,
    signals,
    tokens,
)

ROWS = {row.name: row for table in TABLES.values() for row in table}
WORDS = {"repeated": True}
SKIP = {"repeated": True, "residual": True}
LOW_RANK = Need(Outcome.LOW_EFFECTIVE_RANK, heads=2)
CAUSE = dataclasses.replace(MISFITS, cause="residual")
NO_CAUSE = dataclasses.replace(MISFITS, cause=UNKNOWN)
MOMENT = made_moment(np.array([3.0, 2.0, 1.0]), examples=300)
SOME = made_moment(np.array([3.0, 2.0, 1.0]), examples=100)
TABLE = Offsets("table", reach=3)
PLACED = made_fit(
    weights=Weights.of(
        AttentionLayer.from_scores(
            Relative(
                Bilinear.whole(np.ones((1, 5, 5)), np.zeros((1, 5))), np.ones((1, TABLE.numbers)), TABLE
            ),
            np.ones((1, 5, 5)),
        )
    )
)
MISFIT, NOISE = made_fit(Verdict.MISFIT), made_fit(Verdict.NOISE)


def test_every_row_says_when_it_runs():
    assert list(TABLES) == ["auto", "moment", "wide"]
    for table in TABLES.values():
        assert len({row.name for row in table}) == len(table)
        assert all(row.when for row in table)
        assert all(isinstance(row, Proposer) for row in table)
    repeated = [row.name for row in TABLES["auto"] if row.repeats]
    assert repeated == ["scores with positions", OneMoreHead().name]


@pytest.mark.parametrize("table", TABLES)
def test_what_proposes_nothing_comes_after_what_finds_heads(table):
    names = [row.name for row in TABLES[table]]
    assert names[-2:] == ["one more head", "unrelated outputs"]
    assert "cause of the misfit" in names


@pytest.mark.parametrize(
    ("row", "directions", "changes", "options", "why"),
    [
        ("residual connection", 5, WORDS, {}, "the own token does not enter the outputs as itself"),
        ("residual connection", 5, {"residual": True}, {}, "the moment models these tokens"),
        ("residual connection", 64, SKIP, {}, None),
        ("residual connection", 65, SKIP, {}, "the tokens vary in 65 directions, more than 64"),
        ("wide search", 5, {}, {}, "the moment models these tokens"),
        ("wide search", 5, WORDS, {}, None),
        ("wide search", 1024, WORDS, {}, None),
        ("wide search", 1025, WORDS, {}, "the tokens vary in 1025 directions, more than 1024"),
        ("wide search after the moment", 64, {}, {}, None),
        ("wide search after the moment", 65, {}, {}, "the tokens vary in 65 directions, more than 64"),
        ("wide search after the moment", 1024, WORDS, {}, None),
        (
            "wide search after the moment",
            1025,
            WORDS,
            {},
            "the tokens vary in 1025 directions, more than 1024",
        ),
        ("moment", 500, {}, {}, None),
        ("moment", 500, WORDS, {}, None),
        ("one more head", 128, {}, {}, None),
        ("one more head", 129, {}, {}, "the tokens vary in 129 directions, more than 128"),
        ("one more head", 5, {}, {"num_heads": 2}, "the number of heads is given"),
    ],
)
def test_which_data_a_row_suits(row, directions, changes, options, why):
    assert ROWS[row].suits(made_problem(**options), made_signals(directions, **changes)) == why


@pytest.mark.parametrize(
    ("row", "trail", "why"),
    [
        ("residual connection", Trail(), None),
        ("moment", Trail(), None),
        ("wide search", Trail(), None),
        ("moment of every example", Trail(), "the moment has proposed no heads"),
        (
            "moment of every example",
            Trail(moment=SOME, needs={"moment": FEW}),
            "the moment has proposed no heads",
        ),
        ("moment of every example", Trail(moment=SOME, fits=(MISFIT,)), None),
        (
            "moment of every example",
            Trail(moment=MOMENT, fits=(MISFIT,)),
            "the moment has read every example",
        ),
        ("suggested count", Trail(), "the moment has established its heads, or shows none"),
        (
            "suggested count",
            Trail(moment=MOMENT, fits=(MISFIT,)),
            "the moment has established its heads, or shows none",
        ),
        ("suggested count", Trail(moment=MOMENT, needs={"moment": FEW}), None),
        ("suggested count", Trail(moment=MOMENT, needs={"moment": LOW_RANK}), None),
        (
            "suggested count",
            Trail(moment=MOMENT, needs={"moment": Need(Outcome.TOKENS_DEGENERATE)}),
            "the moment has established its heads, or shows none",
        ),
        ("cause of the misfit", Trail(), "there is no fit"),
        ("cause of the misfit", Trail(needs={"moment": FEW}), "there is no fit"),
        ("cause of the misfit", Trail(needs={"wide search": MISFITS}), None),
        ("cause of the misfit", Trail(fits=(MISFIT,)), None),
        ("cause of the misfit", Trail(fits=(NOISE,)), "the best fit explains the outputs"),
        ("wide search after the moment", Trail(asked=("wide search",)), "the wide search was made"),
        (
            "wide search after the moment",
            Trail(fits=(MISFIT,), needs={"cause of the misfit": CAUSE}),
            "the cause of the misfit is known: residual",
        ),
        (
            "wide search after the moment",
            Trail(fits=(MISFIT,), needs={"cause of the misfit": NO_CAUSE}),
            None,
        ),
        ("wide search after the moment", Trail(fits=(NOISE,)), "the moment's heads explain the outputs"),
        ("wide search after the moment", Trail(needs={"moment": LOW_RANK}), None),
        (
            "wide search after the moment",
            Trail(needs={"moment": FEW}),
            "the moment would show heads in so many examples",
        ),
        ("unrelated outputs", Trail(), None),
        ("unrelated outputs", Trail(fits=(MISFIT,)), "a layer was fitted"),
        ("one more head", Trail(), "there is no fit to add a head to"),
        ("one more head", Trail(fits=(MISFIT,)), None),
        ("one more head", Trail(fits=(PLACED,)), "the best fit has scores with positions"),
        ("one more head", Trail(fits=(MISFIT,), needs={"cause of the misfit": NO_CAUSE}), None),
        (
            "one more head",
            Trail(fits=(MISFIT,), needs={"cause of the misfit": CAUSE}),
            "the cause of the misfit is known: residual",
        ),
        (
            "one more head",
            Trail(fits=(made_fit(Verdict.NOISE, 1e-9),)),
            "so small an error is a matter of conditioning",
        ),
        (
            "one more head",
            Trail(fits=(MISFIT, *(2 * [made_fit(error=0.2, heads=3, by="one more head", tentative=True)]))),
            "another head does not lower the error",
        ),
        (
            "one more head",
            Trail(fits=(made_fit(heads=16),)),
            "16 heads are as many as are looked for one by one",
        ),
    ],
)
def test_when_a_row_is_wanted(row, trail, why):
    assert ROWS[row].wanted(made_problem(), made_signals(), trail) == why


def test_no_head_is_added_that_the_examples_could_not_determine():
    trail = Trail(fits=(made_fit(heads=14),))
    why = [ROWS["one more head"].wanted(made_problem(num), made_signals(), trail) for num in (100, 400)]
    assert why == ["the examples could not determine another head", None]


def test_a_given_number_is_not_suggested_otherwise_but_rank_one_is():
    given, row = made_problem(num_heads=2), ROWS["suggested count"]
    few, low = (Trail(moment=MOMENT, needs={"moment": need}) for need in (FEW, LOW_RANK))
    assert row.wanted(given, made_signals(), few) == "the number of heads is given"
    assert row.wanted(given, made_signals(), low) is None


@pytest.mark.parametrize(
    ("changes", "why"), [({"heavy_tails": True}, None), ({"equations_per_unknown": 5.0}, None), (WORDS, None)]
)
def test_scarce_examples_and_tokens_that_are_not_modelled_are_searched_widely(changes, why):
    trail = Trail(needs={"moment": FEW})
    assert ROWS["wide search after the moment"].wanted(made_problem(), made_signals(**changes), trail) == why


@pytest.mark.parametrize("verdict", [Verdict.NOISE, Verdict.MISFIT])
def test_a_suggested_count_that_proves_nothing_gives_way_to_the_search(verdict):
    guess = made_fit(verdict, 0.02, by="suggested count", tentative=True)
    trail = Trail(fits=(guess,), needs={"moment": FEW})
    row = ROWS["wide search after the moment"]
    assert row.wanted(made_problem(), made_signals(equations_per_unknown=5.0), trail) is None
    assert Trail(
        fits=(made_fit(Verdict.EXACT, by="suggested count", tentative=True),)
    ).settled  # and ends the table


def test_heads_that_come_close_end_the_growing():
    twins = AttentionLayer.random(3, 5)
    near = twins.replace(theta=np.stack([twins.theta[0], twins.theta[0] * 1.01, twins.theta[2]]))
    grown = made_fit(error=0.01, by="one more head", tentative=True, weights=Weights.of(near))
    why = ROWS["one more head"].wanted(made_problem(4000), made_signals(), Trail(fits=(MISFIT, grown)))
    assert why == "two heads nearly coincide, and another would come as close"


def noise(rng: np.random.Generator, count: int) -> np.ndarray:
    """Values that follow each other within half a per cent to one per cent."""
    return np.cumprod(1 - rng.uniform(0.002, 0.01, count))


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_the_last_step_is_where_noise_begins(rng, heads) -> None:
    values = np.concatenate([np.linspace(1.4, 1.1, heads), noise(rng, 16)])
    assert last_step(values) == heads


def test_noise_has_no_step(rng) -> None:
    assert last_step(noise(rng, 24)) is None
    assert last_step(noise(rng, 3)) is None


@pytest.mark.parametrize(
    ("changes", "fit", "why"),
    [
        (WORDS, made_fit(Verdict.NOISE, 1e-8, by="wide search"), "the best fit misses no head"),
        (WORDS, made_fit(Verdict.NOISE, 1e-4, by="wide search"), None),
        (WORDS, made_fit(Verdict.NOISE, 1e-8, by="wide search", tentative=True), None),
        ({}, made_fit(Verdict.NOISE, 1e-8, by="wide search"), None),
    ],
)
def test_a_moment_that_does_not_model_the_tokens_is_not_asked_where_no_head_is_missing(changes, fit, why):
    assert ROWS["moment"].wanted(made_problem(), made_signals(5, **changes), Trail(fits=(fit,))) == why


def asked(row: str, whole, trail: Trail | None = None, seed: int = 0):
    return ROWS[row].propose(
        whole, signals(whole, seed), Trail() if trail is None else trail, Tools(seed=seed)
    )


def test_too_few_examples_are_reported_with_a_number_that_is_right(seed, rng):
    layer = AttentionLayer.random(4, 24, rank=6, seed=seed)
    x = tokens(rng, "normal", 12_000, 6, 24)
    found = asked("moment", problem(layer, x[:160]), seed=seed)
    assert found.candidate is None
    assert found.need.outcome is Outcome.TOO_FEW_EXAMPLES
    needed = found.need.examples
    assert 1.5 * 160 <= needed < 6_000
    assert counted(problem(layer, x[: 2 * needed]), seed).evidence["heads"] == 4


def test_the_moment_proposes_its_heads_with_what_was_measured(seed, rng):
    whole = problem(AttentionLayer.random(2, 8, seed=seed), tokens(rng, "normal", 3000, 5, 8))
    found = asked("moment", whole, seed=seed)
    assert found.candidate.weights.heads == 2
    assert found.candidate.by == "moment"
    assert not found.candidate.tentative
    assert found.candidate.clear_view is not None
    assert found.moment.visible == 2
    assert found.evidence["count"]["heads"] == 2
    assert {"singular_values", "floor", "visible", "unmix"} <= set(found.evidence)


def test_the_moment_of_every_example_proposes_nothing_where_it_sees_the_same_heads(seed, rng):
    whole = problem(AttentionLayer.random(2, 8, seed=seed), tokens(rng, "normal", 6000, 5, 8))
    before = made_fit(Verdict.NOISE, 0.01)
    found = asked("moment of every example", whole, Trail(moment=SOME, fits=(before,)), seed)
    assert found.candidate is None
    assert found.evidence["heads"] == "no more than before"
    assert found.moment.examples == len(whole.split.fit)
    misfit = Trail(moment=SOME, fits=(made_fit(Verdict.MISFIT, 0.1),))
    assert asked("moment of every example", whole, misfit, seed).candidate.weights.heads == 2


def test_a_suggested_number_is_tentative_and_too_many_for_the_examples_is_dropped(seed, rng):
    whole = problem(AttentionLayer.random(3, 10, seed=seed), tokens(rng, "normal", 2_000, 5, 10))
    moment = asked("moment", whole, seed=seed).moment
    trail = Trail(moment=moment, needs={"moment": Need(Outcome.TOO_FEW_EXAMPLES, heads=2)})
    found = asked("suggested count", whole, trail, seed)
    assert found.evidence["heads"] == 2
    assert found.candidate.weights.heads == 2
    assert found.candidate.tentative
    few = problem(AttentionLayer.random(3, 10, seed=seed), tokens(rng, "normal", 60, 5, 10))
    moment = asked("moment", few, seed=seed).moment
    found = asked("suggested count", few, Trail(moment=moment, needs={"moment": FEW}), seed)
    assert found.candidate is None
    assert found.evidence["dropped"]


def test_a_suggested_number_that_does_not_fit_is_no_answer(rng, seed) -> None:
    truth = AttentionLayer.random(3, 10, seed=seed)
    whole = problem(truth, rng.standard_normal((2_000, 5, 10)))
    moment = asked("moment", whole, seed=seed).moment
    values = moment.floor * np.concatenate([[1.5], noise(rng, len(moment.values) - 1)])
    trail = Trail(moment=dataclasses.replace(moment, values=values), needs={"moment": FEW})
    found = asked("suggested count", whole, trail, seed)
    assert found.evidence["heads"] == last_step(values) == 1
    judged = fit(whole, signals(whole, seed), found.candidate, Tools(seed=seed))
    assert judged.select_error > 1e-3
    assert dataclasses.replace(trail, fits=(judged,)).best is None


def test_a_residual_is_the_cause_that_is_named(seed, rng):
    x = tokens(rng, "normal", 1000, 4, 6)
    layer = AttentionLayer.random(2, 6, seed=seed)
    whole = problem(lambda x, mask: x + layer(x, mask), x)
    found = asked("cause of the misfit", whole, Trail(fits=(MISFIT,)))
    assert found.candidate is None
    assert found.need.outcome is Outcome.NOT_ATTENTION
    assert found.need.cause == "residual"
    assert found.evidence["diagnosis"]["cause"] == "residual"


def test_a_residual_connection_is_named_only_where_the_outputs_less_their_tokens_are_attention(seed, rng):
    words = rng.standard_normal((30, 6))[rng.integers(30, size=(1_500, 5))]
    layer = AttentionLayer.random(2, 6, seed=seed)
    found = asked("residual connection", problem(lambda x, mask: x + layer(x, mask), words), seed=seed)
    assert found.candidate is None
    assert found.need.outcome is Outcome.NOT_ATTENTION
    assert found.need.cause == "residual"
    assert found.need.final
    assert found.need.evidence["diagnosis"]["cause"] == "residual"
    assert found.evidence["starts"][-1]["left"] == 2
    gated = problem(lambda x, mask: x + np.tanh(3 * x) * layer(x, mask), words[:400], num_heads=2)
    found = asked("residual connection", gated, seed=seed)
    assert found.candidate is None
    assert found.need is None
    assert found.evidence["starts"]


def test_a_skip_with_nothing_else_names_no_cause(seed, rng):
    words = rng.standard_normal((30, 6))[rng.integers(30, size=(600, 5))]
    flat = AttentionLayer.random(2, 6, scale=0.0, seed=seed)
    whole = problem(lambda x, mask: x + flat(x, mask), words)
    row = ROWS["residual connection"]
    found = row.propose(whole, made_signals(6, keys=5, **SKIP), Trail(), Tools(seed=seed))
    assert (found.candidate, found.need, found.evidence) == (None, None, {})


def test_one_more_head_is_added_to_a_misfit_and_to_noise_that_shows_one(seed, rng):
    layer = AttentionLayer.random(3, 6, seed=seed)
    whole = problem(layer, tokens(rng, "normal", 4000, 5, 6))
    two = Weights.of(AttentionLayer(layer.theta[:2], layer.w[:2]))
    moved = Weights.of(layer.replace(output_bias=layer.output_bias + 0.01))
    for best, grows in (
        (made_fit(Verdict.MISFIT, 0.1, weights=two), True),
        (made_fit(Verdict.NOISE, 0.01, weights=two), True),
        (made_fit(Verdict.NOISE, 0.01, weights=moved), False),
    ):
        found = asked("one more head", whole, Trail(fits=(best,)))
        assert (found.candidate is not None) is grows
        if grows:
            assert found.evidence == {"heads": 3, "start": 0}
            assert found.candidate.tentative
            assert found.candidate.weights.heads == 3
        else:
            assert found.evidence == {"residual": "shows no head"}


def test_a_given_layer_is_the_candidate(rng):
    layer = AttentionLayer.random(2, 5, rank=1)
    whole = problem(layer, tokens(rng, "normal", 100, 4, 5).astype(np.float32).astype(np.float64))
    found = Given(layer=layer, rank=1).propose(whole, signals(whole), Trail(), Tools())
    assert np.array_equal(found.candidate.weights.layer.theta, layer.theta)
    assert found.candidate.rank == 1
    assert found.evidence == {"heads": 2, "rank": 1}


DIM, HEADS, NUM = 68, 4, 640  # more directions than the search takes


def test_heads_a_little_above_the_noise_are_recovered(seed) -> None:
    truth = AttentionLayer.random(HEADS, DIM, rank=4, seed=seed)
    x = data.Gaussian(8, DIM).sample(NUM, seed=seed + 1)
    solution = recover(x, truth(x))
    assert solution.certified
    assert solution.phase("suggested count").evidence["heads"] == HEADS
    assert distance(solution.layer, truth).max < 1e-8


@pytest.mark.slow
def test_a_suggested_count_beside_noise_is_kept_and_not_certified(seed) -> None:
    truth = AttentionLayer.random(HEADS, DIM, rank=4, seed=seed)
    x = data.Gaussian(8, DIM).sample(NUM, seed=seed + 1)
    y = truth(x)
    y += 1e-3 * y.std() * np.random.default_rng(seed).standard_normal(y.shape)
    solution = recover(x, y, raise_on_failure=False)
    assert solution.outcome is Outcome.BELOW_NOISE_FLOOR
    assert solution.phase("suggested count").evidence["heads"] == HEADS
    assert distance(solution.layer, truth).max < 0.05
