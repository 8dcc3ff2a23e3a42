"""Which lengths are asked: those that the caller wants and the oracle takes."""

from __future__ import annotations

import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import Stop
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._lengths import accepted_lengths
from attnlearn.extraction._state import Inquiry, Problem
from attnlearn.oracle import Oracle
from tests.extraction.test_ask import D, Recorder, learned, run


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=D, bias=True, seed=seed)


def lengths_of(oracle, layer, **options):
    problem = Problem(Oracle.wrap(oracle, **options), D)
    return accepted_lengths(problem, learned(layer), Inquiry(problem, learned(layer)), fresh=True)


@pytest.mark.parametrize(("most", "wanted"), [(99, 16), (16, 16), (15, 15), (6, 6), (4, 4), (3, 3)])
def test_lengths_that_the_oracle_takes(most, wanted, layer):
    found = lengths_of(Recorder(layer, most), layer)
    assert found == [length for length in calibration.CERTIFY_LENGTHS if length <= wanted]


def test_an_empty_budget_is_not_taken_for_a_refusal(layer):
    with pytest.raises(Stop) as caught:
        lengths_of(layer, layer, budget=0)
    assert caught.value.outcome_name == "BUDGET_SPENT"


@pytest.mark.parametrize("most", [3, 5])
def test_an_oracle_of_few_tokens_is_learned_all_the_same(most, layer, seed):
    oracle = Recorder(layer, most)
    solution = run(oracle, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert max(oracle.lengths()) == most
