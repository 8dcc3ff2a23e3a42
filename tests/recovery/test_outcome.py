"""The outcome: the table of `_outcome` as a table test of a pure function."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import Outcome
from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn.recovery._fit import Verdict
from attnlearn.recovery._outcome import Judged, clear_view, outcome, unmet_need, weak, weak_remedy
from attnlearn.recovery._problem import Need
from attnlearn.recovery._trail import UNKNOWN, Trail

from ._problems import FEW, MISFITS, made_fit, made_signals

NUM = 400
WEAK, DEGENERATE = Need(Outcome.ATTENTION_TOO_WEAK), Need(Outcome.TOKENS_DEGENERATE)
CAUSE = dataclasses.replace(MISFITS, cause="residual", evidence={"diagnosis": {}})
NO_CAUSE = dataclasses.replace(MISFITS, cause=UNKNOWN)
SIGNALS = made_signals()


def certificate(*failed: str, established: str = "", apart: float = 0.5) -> Certificate:
    """Claims C1 to C3, of which some are established, and checks, of which some fail."""
    claims = tuple(Claim(code, "", code in established.split()) for code in ("C1", "C2", "C3"))
    codes = {"C1.coverage", "C2.rivals", "C2.keys", *failed} - {"C2.apart"}
    checks = [Check(code, Status.FAILS if code in failed else Status.HOLDS) for code in sorted(codes)]
    return Certificate(claims, (*checks, Check("C2.apart", Status.HOLDS, apart)))


def judged(fit: float, select: float, *failed: str, **options) -> Judged:
    return Judged(certificate(*failed, **options), fit, select, 1e-12)


def fitted(**changes) -> Trail:
    return Trail(signals=SIGNALS, fits=(made_fit(Verdict.MISFIT, **changes),))


@pytest.mark.parametrize(
    ("trail", "expected"),
    [
        (Trail(signals=WEAK), Outcome.ATTENTION_TOO_WEAK),
        (Trail(signals=DEGENERATE), Outcome.TOKENS_DEGENERATE),
        (Trail(signals=SIGNALS, needs={"moment": FEW}), Outcome.TOO_FEW_EXAMPLES),
        (Trail(signals=SIGNALS, needs={"moment": DEGENERATE, "wide search": FEW}), Outcome.TOKENS_DEGENERATE),
        (Trail(signals=SIGNALS, needs={"moment": FEW, "wide search": MISFITS}), Outcome.NOT_ATTENTION),
        (Trail(signals=SIGNALS), Outcome.NOT_ESTABLISHED),
    ],
)
def test_without_a_fit_the_outcome_is_what_is_needed(trail, expected):
    assert outcome(trail, None, num=NUM) is expected


ALL = "C1 C2 C3"


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        # every claim is established
        (judged(1e-15, 1e-15, established=ALL), Outcome.RECOVERED),
        (judged(0.5, 0.5, established=ALL), Outcome.RECOVERED),
        # both sides exact
        (judged(1e-15, 1e-15, "C2.rivals"), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-15, 1e-15, "C2.rivals", "C2.keys"), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-15, 1e-15, "C2.keys"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-15, 1e-15, "C2.tied", "C1.coverage"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-15, 1e-15, "C2.spread"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-15, 1e-15, "C2.manifold"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-15, 1e-15, "C2.symmetry"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-15, 1e-15, "C1.coverage"), Outcome.TOO_FEW_EXAMPLES),
        (judged(1e-15, 1e-15, "C1.copies", "C2.evidence", "C3.count"), Outcome.TOO_FEW_EXAMPLES),
        (judged(1e-15, 1e-15, "C1.coverage", "C3.bound"), Outcome.NOT_ESTABLISHED),
        (judged(1e-15, 1e-15, "C3.bound"), Outcome.NOT_ESTABLISHED),
        (judged(1e-15, 1e-15, "C3.bound", apart=1e-9), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-15, 1e-15, "C3.bound", established="C1 C2"), Outcome.NOT_ESTABLISHED),
        # select side much worse than fit side
        (judged(1e-9, 1e-3), Outcome.TOO_FEW_EXAMPLES),
        (judged(0.01, 0.5), Outcome.TOO_FEW_EXAMPLES),
        # equal errors that the input explains in part, small
        (judged(1e-3, 1.1e-3), Outcome.NOT_ATTENTION),
        (judged(1e-3, 1.1e-3, apart=0.01), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-8, 1.1e-8), Outcome.NOT_ESTABLISHED),
        # large
        (judged(0.1, 0.11), Outcome.NOT_ATTENTION),
        (judged(0.1, 0.11, apart=0.01), Outcome.NOT_ATTENTION),
    ],
)
def test_with_a_fit_the_outcome_is_what_certificate_and_errors_say(evidence, expected):
    assert outcome(fitted(), evidence, num=NUM) is expected


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (judged(1e-3, 1.1e-3, "C3.bound"), Outcome.BELOW_NOISE_FLOOR),
        (judged(0.3, 0.31, "C1.error"), Outcome.BELOW_NOISE_FLOOR),
        (judged(1e-3, 1.1e-3, "C2.rivals"), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-3, 1.1e-3, "C2.tied"), Outcome.TOKENS_DEGENERATE),
        (judged(1e-3, 1.1e-3, apart=0.01), Outcome.HEADS_INDISTINGUISHABLE),
        (judged(1e-3, 1.1e-3, established=ALL), Outcome.RECOVERED),
        (judged(0.01, 0.5), Outcome.TOO_FEW_EXAMPLES),
    ],
)
def test_errors_that_nothing_explains_are_noise_whatever_their_size(evidence, expected):
    noisy = Trail(signals=SIGNALS, fits=(made_fit(Verdict.NOISE),))
    assert outcome(noisy, evidence, num=NUM) is expected


def test_a_small_misfit_of_a_fit_that_did_not_end_is_not_established():
    stalled = Trail(signals=SIGNALS, fits=(made_fit(Verdict.MISFIT, stop="stalled"),))
    assert outcome(stalled, judged(1e-8, 1e-8), num=NUM) is Outcome.NOT_ESTABLISHED


FAINT = made_signals(nonlinear_share=1e-3)


@pytest.mark.parametrize(
    ("failed", "apart", "expected"),
    [
        (("C3.bound",), 0.5, Outcome.ATTENTION_TOO_WEAK),
        (("C3.bound", "C1.coverage"), 0.5, Outcome.NOT_ESTABLISHED),
        (("C3.bound",), 1e-9, Outcome.HEADS_INDISTINGUISHABLE),
        (("C3.bound", "C2.rivals"), 0.5, Outcome.HEADS_INDISTINGUISHABLE),
        (("C3.bound", "C2.keys"), 0.5, Outcome.TOKENS_DEGENERATE),
        (("C1.coverage",), 0.5, Outcome.TOO_FEW_EXAMPLES),
        ((), 0.5, Outcome.NOT_ESTABLISHED),
    ],
)
def test_weak_attention_is_the_reason_only_where_nothing_but_the_bound_fails(failed, apart, expected):
    faint = dataclasses.replace(fitted(), signals=FAINT)
    evidence = judged(1e-15, 1e-15, *failed, apart=apart)
    assert outcome(faint, evidence, num=NUM) is expected
    if expected is Outcome.ATTENTION_TOO_WEAK:
        assert outcome(fitted(), evidence, num=NUM) is Outcome.NOT_ESTABLISHED
        assert outcome(faint, judged(1e-15, 1e-15, established=ALL), num=NUM) is Outcome.RECOVERED


def test_attention_is_weak_where_the_linear_fit_leaves_less_than_a_hundredth():
    shares = {0.3: False, 0.011: False, 0.009: True, 1e-9: True}
    found = {share: weak(Trail(signals=made_signals(nonlinear_share=share))) for share in shares}
    assert found == shares
    assert not weak(Trail())
    assert not weak(Trail(signals=WEAK))


@pytest.mark.parametrize(
    ("view", "need", "expected"),
    [
        (None, NO_CAUSE, Outcome.NOT_ATTENTION),
        (900, NO_CAUSE, Outcome.TOO_FEW_EXAMPLES),
        (900, None, Outcome.TOO_FEW_EXAMPLES),
        (900, CAUSE, Outcome.NOT_ATTENTION),
        (300, NO_CAUSE, Outcome.NOT_ATTENTION),  # so many there are already
    ],
)
def test_a_misfit_without_a_cause_may_come_from_too_few_examples(view, need, expected):
    trail = dataclasses.replace(
        fitted(clear_view=view), needs={} if need is None else {"cause of the misfit": need}
    )
    assert outcome(trail, judged(0.1, 0.1), num=NUM) is expected
    assert clear_view(trail, NUM) == (view if expected is Outcome.TOO_FEW_EXAMPLES else None)


@pytest.mark.parametrize(
    ("established", "expected"), [("C1", Outcome.ON_TARGET), ("", Outcome.NOT_ATTENTION)]
)
def test_a_target_that_is_met_is_not_called_a_misfit(established, expected):
    evidence = judged(0.1, 0.1, established=established)
    assert outcome(fitted(), evidence, num=NUM, target=0.5) is expected
    assert outcome(fitted(), evidence, num=NUM) is Outcome.NOT_ATTENTION


def test_the_fewest_examples_that_anybody_asks_for_are_needed():
    many = Need(Outcome.TOO_FEW_EXAMPLES, 5_000)
    trail = Trail(signals=SIGNALS, needs={"moment": many, "wide search": FEW, "suggested count": WEAK})
    assert unmet_need(trail).examples == 900
    assert unmet_need(trail).outcome is Outcome.TOO_FEW_EXAMPLES
    assert unmet_need(fitted()) is None


def test_the_need_with_the_cause_is_the_last_of_the_misfits():
    trail = Trail(signals=SIGNALS, needs={"wide search": MISFITS, "cause of the misfit": CAUSE})
    assert unmet_need(trail) is CAUSE


@pytest.mark.parametrize(
    ("stored", "precision", "says"),
    [
        ("float32", "float32", "record the outputs in float64"),
        ("float64", "float32", "let the model compute in float64 throughout"),
        ("float64", "float64", "use larger tokens"),
    ],
)
def test_weak_attention_comes_with_what_the_precision_of_the_outputs_allows(stored, precision, says):
    told = weak_remedy(np.dtype(stored), np.dtype(precision))
    assert told.startswith(says)
    assert told.endswith("(rounding is bounded by its worst case, which more examples do not lower)")
