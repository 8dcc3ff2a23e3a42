"""What is checked before a run: sizes of the numbers, independent units, a given start."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.recovery._intake import check_range, check_start, independent_units, low_rank, start_hash

TRUTH = AttentionLayer.random(3, 8, rank=2, bias=True, seed=5)


@pytest.mark.parametrize(("rank", "expected"), [(1, 1), (2, 2), (3, 3), (4, None), (8, None)])
def test_a_rank_is_low_where_factors_have_fewer_unknowns(rank, expected):
    assert low_rank(AttentionLayer.random(2, 8, rank=rank, seed=1)) == expected
    single = AttentionLayer.random(2, 8, rank=rank, seed=1).astype(np.float32)
    assert low_rank(single) == expected  # rounding does not count


def test_the_rank_is_that_of_the_largest_head_and_of_no_flat_one():
    one, three = (AttentionLayer.random(1, 8, rank=rank, seed=1).theta for rank in (1, 3))
    assert low_rank(AttentionLayer(np.concatenate([one, three]), np.ones((2, 8, 8)))) == 3
    assert low_rank(AttentionLayer(np.zeros((2, 8, 8)), np.ones((2, 8, 8)))) is None


@pytest.mark.parametrize("size", [1e-10, 1e10])
def test_numbers_out_of_range_are_one_line(size):
    x = np.full((30, 3, 2), 2, np.float32)
    big = (size * x).astype(np.float32)
    with pytest.raises(ValueError, match=r"^x: must have entries of ordinary size \(1e-09 to 1e\+09\)"):
        check_range(as_examples(big, x))
    with pytest.raises(ValueError, match=r"^y: must have entries of ordinary size"):
        check_range(as_examples(x, big))
    check_range(as_examples(x, x))
    check_range(as_examples(x, 0 * x))
    check_range(as_examples(big.astype(np.float64), x.astype(np.float64)))  # float64 has room for them


def test_each_sequence_is_a_unit_unless_it_repeats_or_is_grouped(rng):
    x = rng.standard_normal((40, 3, 2))
    units, name = independent_units(as_examples(x, x), None)
    assert (units, name) == (None, "input")
    x[20:] = x[:20]
    units, name = independent_units(as_examples(x, x), None)
    assert name == "distinct input"
    assert np.array_equal(units[:20], units[20:])
    assert len(np.unique(units)) == 20
    units, name = independent_units(as_examples(x, x), np.arange(40) // 2)
    assert name == "group"
    assert len(np.unique(units)) == 10  # groups that share a sequence are one


def test_a_start_is_known_by_its_weights():
    assert start_hash(TRUTH) == start_hash(AttentionLayer.random(3, 8, rank=2, bias=True, seed=5))
    assert start_hash(TRUTH) != start_hash(TRUTH.replace(w=TRUTH.w + 1e-9))


@pytest.mark.parametrize(
    ("start", "causal", "heads", "message"),
    [
        (AttentionLayer.random(3, 6), None, None, "start: must map 8 to 8 coordinates like the data"),
        (TRUTH, None, 4, r"num_heads: must be that of start \(3\) or left out, got 4"),
        (TRUTH, True, None, r"causal: must be that of start \(False\) or left out, got True"),
    ],
)
def test_a_start_that_does_not_belong_is_one_line(start, causal, heads, message):
    examples = as_examples(np.zeros((30, 4, 8)), np.zeros((30, 4, 8)))
    with pytest.raises(ValueError, match="^" + message):
        check_start(start, examples, causal, heads)
    check_start(TRUTH, examples, None, None)
    check_start(TRUTH, examples, False, 3)
