"""`explain`: the rows of the table with their answers before anything is tried, and what `recover` then does."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from attnlearn import AttentionLayer, data, recover
from attnlearn.engine import Tools
from attnlearn.recovery._explain import Look, explain, explained, first_look, rows_of
from attnlearn.recovery._plan import Size, make_plan
from attnlearn.recovery._proposers import TABLES

from ._problems import made_problem, made_signals, problem, signals, tokens
from .kinds import KINDS


@pytest.mark.parametrize(
    "name", ["gaussian", "signs", "words", "correlated", "heavy tails", "causal", "masked"]
)
def test_the_first_row_that_is_said_to_run_is_the_one_that_runs(name, seed):
    x, y, keywords = KINDS[name](np.random.default_rng([seed, list(KINDS).index(name)]))
    said = explain(x, y, **keywords)
    found = recover(x, y, raise_on_failure=False, **keywords)
    ran = [phase.name for phase in found.phases[1:] if "skipped" not in phase.evidence]
    assert said.first == ran[0]
    assert [row.name for row in said.rows] == [row.name for row in TABLES["auto"]]
    no = {row.name: row.why for row in said.rows if row.runs == "no"}
    skipped = {phase.name: phase.evidence.get("skipped") for phase in found.phases}
    fitted = "the best fit leaves nothing to explain"
    assert all(skipped[name] in (why, fitted) for name, why in no.items())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"wide search": "no", "moment": "yes", "wide search after the moment": "if needed"}),
        ({"repeated": True}, {"residual connection": "no", "wide search": "yes", "moment": "if needed"}),
        ({"repeated": True, "residual": True}, {"residual connection": "yes", "wide search": "if needed"}),
        ({"residual": True}, {"residual connection": "no", "moment": "yes"}),
    ],
)
def test_one_row_runs_and_later_ones_if_needed(changes, expected):
    rows = {row.name: row.runs for row in rows_of(TABLES["auto"], made_problem(), made_signals(**changes))}
    assert rows | expected == rows
    assert list(rows.values()).count("yes") == 1


def test_a_first_look_sees_the_heads_and_their_rank(seed, rng):
    low = AttentionLayer.random(2, 16, rank=2, seed=seed)
    whole = problem(low, tokens(rng, "normal", 6000, 6, 16))
    look = first_look(whole, signals(whole), Tools(seed=seed))
    assert look.heads == 2
    assert look.moment_examples >= 1_024


@pytest.mark.parametrize(
    ("ranks", "fit", "looks"),
    [
        ([3], 50_000, [1_024]),
        ([None, 3], 50_000, [1_024, 4_096]),
        ([None, None], 6_000, [1_024, 4_096]),
        ([None, None], 2_000, [1_024]),
    ],
)
def test_a_look_is_repeated_on_more_examples_until_the_rank_shows(monkeypatch, ranks, fit, looks):
    asked, answers = [], iter(ranks)

    def look_at(problem, signals, tools, most):
        asked.append(most)
        return Look(8, next(answers), most)

    monkeypatch.setattr("attnlearn.recovery._explain.look_at", look_at)
    whole = made_problem(num=fit + fit // 2, dim=128)
    whole = dataclasses.replace(whole, split=dataclasses.replace(whole.split, fit=np.arange(fit)))
    first_look(whole, made_signals(), Tools())
    assert asked == looks


def test_a_look_that_would_take_as_long_as_the_run_is_not_repeated(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "attnlearn.recovery._explain.look_at",
        lambda *given: asked.append(given[-1]) or Look(None, None, None),
    )
    first_look(made_problem(num=60_000, tokens=8), made_signals(), Tools())
    assert asked == [1_024]


@pytest.fixture
def at_one_speed(monkeypatch):
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)


@pytest.mark.usefixtures("at_one_speed")
@pytest.mark.parametrize("given", [None, 5])
def test_the_plan_is_of_the_heads_that_are_given_or_seen(given, seed, rng):
    whole = problem(
        AttentionLayer.random(2, 16, rank=2, seed=seed), tokens(rng, "normal", 6000, 6, 16), num_heads=given
    )
    said = explained("auto", TABLES["auto"], whole, Tools(seed=seed))
    look = first_look(whole, signals(whole), Tools(seed=seed))
    assert (said.first, said.heads, said.rank) == ("moment", look.heads, look.rank)
    size = Size(given or 2, look.rank, look.moment_examples)
    assert said.plan == make_plan(whole.examples, len(whole.split.fit), size, False, None)


@pytest.mark.usefixtures("at_one_speed")
def test_where_the_search_runs_first_its_time_is_planned(seed, rng):
    words = rng.standard_normal((30, 6))[rng.integers(30, size=(2000, 5))]
    whole = problem(AttentionLayer.random(2, 6, seed=seed), words)
    said = explained("auto", TABLES["auto"], whole, Tools(seed=seed))
    assert (said.first, said.heads, said.rank) == ("wide search", None, None)
    size = Size(8, wide=True)
    assert said.plan == make_plan(whole.examples, len(whole.split.fit), size, False, None)


def test_what_would_end_at_once_says_so(rng):
    x = tokens(rng, "normal", 300, 4, 5)
    said = explain(x, AttentionLayer.random(2, 5, scale=0.0)(x))
    assert said.first is None
    assert said.outcome.startswith("ATTENTION_TOO_WEAK")
    assert "would end at once" in str(said)


def test_the_explanation_is_text_json_and_a_table(rng):
    said = explain(data.Gaussian(4, 6), AttentionLayer.random(2, 6))
    rows = {row["name"]: row for row in json.loads(json.dumps(said.to_json()))["rows"]}
    assert list(rows) == [row.name for row in TABLES["auto"]]
    assert rows["moment"] == {"name": "moment", "runs": "yes", "why": "always"}
    assert "one more head" in str(said)
    assert said.heads == 2
    assert list(said.frame()["name"]) == [row.name for row in said.rows]
