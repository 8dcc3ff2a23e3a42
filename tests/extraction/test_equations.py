"""How much queries tell: long sequences tell more, and what is known already is not asked again."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.extraction._equations import (
    certify_sequences,
    determined,
    missing_sequences,
    score_equations,
    score_unknowns,
)
from attnlearn.extraction._state import State

RANKS, LENGTHS = [32] * 8, list(range(2, 17))


def wide(number=0, length=3, **changes) -> State:
    """A layer of d = 256 with eight heads of rank 32, of which so many sequences were asked."""
    asked = [np.zeros((5, 1, 256)), np.zeros((number, length, 256))]
    w = np.zeros((8, 256, 256))
    known = {"w": w, "ranks": RANKS, "asked_x": asked, "asked_y": asked, "noise": 0.0, "longest": 16}
    return State(**(known | changes))


def test_what_the_fit_asked_already_counts_for_the_certificate():
    small = wide(w=np.zeros((8, 16, 16)), ranks=[4] * 8)
    assert certify_sequences(small, LENGTHS) == 277
    assert certify_sequences(wide(), LENGTHS) > 400
    assert certify_sequences(wide(5000), LENGTHS) == 277


def test_an_oracle_of_short_sequences_is_asked_more_of_them():
    assert certify_sequences(wide(), [2, 3]) > 5 * certify_sequences(wide(), LENGTHS)
    assert missing_sequences(wide(longest=3), RANKS) > 5 * missing_sequences(wide(), RANKS)


def test_what_was_asked_already_is_not_asked_again():
    assert missing_sequences(wide(300, 16), RANKS) == missing_sequences(wide(), RANKS) - 300
    assert missing_sequences(wide(5000, 16), RANKS) == 32


@pytest.mark.parametrize("causal", [False, True])
def test_no_row_shows_more_than_it_has_outputs(causal):
    assert score_equations(8, 4, causal, [16]) == 64
    assert score_equations(2, 99, causal, [3, 3]) == (12 if causal else 24)


def test_whole_scores_want_more_than_low_ranks():
    assert determined(2, 8, 8, False, [16] * 200)
    assert not determined(2, 8, 8, False, [16] * 5)
    assert not determined(2, 8, 8, False, [1] * 10_000)
    assert score_unknowns(2, 8, None) > score_unknowns(2, 8, [3, 3])
