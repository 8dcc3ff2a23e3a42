"""Layers that break a condition of the theorem, or give too little to see: the outcome names it."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, NotEstablished, Outcome, data, hard, recover
from attnlearn.engine import Stop, Tools
from attnlearn.recovery.sculpt import SculptConfig
from attnlearn.recovery.sculpt._diagnose import measured, reason_of
from attnlearn.recovery.sculpt._source import FitSide
from attnlearn.recovery.sculpt._state import Problem, State
from attnlearn.solve._split import Split
from attnlearn.solve._white import whitening
from attnlearn.solve.refinement import Refined

FEW = SculptConfig(num_examples=40_000, held_examples=20_000)
# All layers here act on the same tokens, so that what names the reason is compiled once.
TOKENS = data.Boolean(4, 8)


def sculpt(layer, **options):
    return recover(TOKENS, layer, method="sculpt", config=FEW, raise_on_failure=False, **options)


def broken(kind: str, seed: int = 0) -> AttentionLayer:
    """A random layer of two heads that breaks the condition `kind`."""
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    theta, w = layer.theta.copy(), layer.w.copy()
    if kind == "small Theta":
        theta[1] *= 0.02
    elif kind == "large Theta":
        theta[1] *= 30
    elif kind == "small W":
        w[1] *= 0.02
    elif kind == "parallel Theta":
        theta[1] = 2 * theta[0] + 0.05 * theta[1]
    elif kind == "parallel W":
        w[1] = w[0] + 0.05 * w[1]
    elif kind == "singular sum":
        left, values, right = np.linalg.svd(w.sum(axis=0))
        w[1] -= values[-1] * np.outer(left[:, -1], right[-1])
    elif kind == "rank one":
        left, _, right = np.linalg.svd(theta)
        theta = 4 * left[:, :, :1] * right[:, :1, :]
    return AttentionLayer(theta, w)


NAMES = {
    "small Theta": Outcome.HEADS_UNBALANCED,
    "parallel Theta": Outcome.HEADS_COHERENT,
    "singular sum": Outcome.PROJECTIONS_CANCEL,
    "large Theta": Outcome.HEADS_UNBALANCED,
    "small W": Outcome.HEADS_UNBALANCED,
    "parallel W": Outcome.HEADS_COHERENT,
    "rank one": Outcome.LOW_EFFECTIVE_RANK,
}
LONGER = ["large Theta", "small W", "parallel W", "rank one"]


@pytest.mark.parametrize("kind", NAMES)
def test_one_condition_is_seen_to_be_broken(kind, seed):
    seen = [condition for condition in measured(broken(kind, seed).parameters, 4) if not condition.holds]
    assert {condition.outcome for condition in seen} == {NAMES[kind].name}


def test_too_many_heads_are_seen():
    (seen,) = [c for c in measured(AttentionLayer.random(3, 8, seed=0).parameters, 4) if not c.holds]
    assert (seen.outcome, seen.left, seen.right) == ("TOO_MANY_HEADS", 9, 8)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k in LONGER else ()) for k in NAMES]
)
def test_the_broken_condition_is_the_outcome(kind):
    solution = sculpt(broken(kind))
    assert solution.outcome is NAMES[kind]
    assert not solution.certified
    named = [condition for condition in measured(broken(kind).parameters, 4) if not condition.holds]
    assert solution.stats["condition"] in {condition.text for condition in named}
    assert solution.stats["condition"] in solution.verdict
    assert solution.stats["examples"] <= FEW.num_examples


def test_the_condition_on_heads_and_outputs_is_named():
    solution = sculpt(AttentionLayer.random(3, 8, scale=4.0, seed=0), num_heads=3)
    assert solution.outcome is Outcome.TOO_MANY_HEADS
    assert solution.stats["condition"] == "m (k - 1) <= d_out"
    assert "d_out" in solution.outcome.reason


def test_the_condition_is_named_without_being_told_the_heads():
    solution = sculpt(AttentionLayer.random(3, 8, scale=4.0, seed=0))
    assert solution.outcome is Outcome.TOO_MANY_HEADS
    assert (solution.stats["left"], solution.stats["right"]) == (9, 8)


def test_projections_that_cancel_are_named():
    layer = hard.near_degenerate("cancelling-projections", 8, 2, 0.0, scale=4.0)
    assert sculpt(layer).outcome is Outcome.PROJECTIONS_CANCEL


def test_weak_attention_is_named():
    assert sculpt(AttentionLayer.random(2, 8, scale=1e-4, seed=0)).outcome is Outcome.ATTENTION_TOO_WEAK


@pytest.mark.parametrize("right", [True, False])
def test_a_fit_that_other_examples_contradict_names_nothing(right, monkeypatch):
    """With fewer equations than unknowns every layer fits to rounding."""
    truth, wrong = broken("small Theta"), broken("small W", seed=1)
    x = TOKENS.sample(60)
    examples = data.as_examples(x, truth(x))
    white = whitening(x, None)
    state = State(causal=False, shift=white.mean, root=white.basis, unroot=white.inverse)
    problem = Problem(examples, Split.make(60), FitSide(examples, np.arange(60), 60), FEW, num_heads=2)
    fitted = Refined(truth if right else wrong, 0.0, "floor", 42, None, [])
    monkeypatch.setattr("attnlearn.recovery.sculpt._diagnose.refine", lambda *_, **__: fitted)
    otherwise = Stop("TOO_FEW_EXAMPLES", {"examples_needed": 600}, state)
    reason = reason_of(problem, state, Tools(), otherwise)
    assert reason.outcome_name == ("HEADS_UNBALANCED" if right else "TOO_FEW_EXAMPLES")
    assert reason.evidence["examples_needed"] == 600


def test_too_few_examples_say_how_many():
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=0)
    x = TOKENS.sample(4_000)
    with pytest.raises(NotEstablished) as raised:
        recover(x, layer(x), method="sculpt")
    assert raised.value.solution.outcome is Outcome.TOO_FEW_EXAMPLES
    assert raised.value.solution.stats["examples_needed"] > 4_000
    assert "condition" not in raised.value.solution.stats
