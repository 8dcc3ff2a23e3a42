"""Starts of the wide search: as many heads as the equations can determine, narrow ones first, with small scores."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.recovery.wide._starts import Width, random_heads, widths
from attnlearn.solve._white import Whitening
from tests.recovery._problems import made_problem, made_signals


def test_narrow_widths_come_first_with_full_and_with_low_rank():
    found = widths(made_problem(), made_signals(), 10**7)
    assert found == [
        [Width(8, None), Width(8, 4)],
        [Width(16, None), Width(16, 4)],
        [Width(32, None), Width(32, 4)],
    ]


def test_the_low_rank_is_a_quarter_of_many_directions_and_none_below_that_of_few():
    assert [width.rank for width in widths(made_problem(), made_signals(40), 10**9)[0]] == [None, 10]
    assert [width.rank for width in widths(made_problem(), made_signals(4), 10**9)[0]] == [None]


def test_few_equations_allow_fewer_heads_which_are_tried_twice():
    found = widths(made_problem(), made_signals(), 4 * 5 * 60)
    assert len(found) == 1
    full = [width for width in found[0] if width.rank is None]
    assert len(full) == 2
    assert full[0] == full[1]
    assert 0 < full[0].heads < 8
    assert widths(made_problem(), made_signals(), 10) == []


@pytest.mark.parametrize(("given", "expected"), [(2, 8), (12, 12), (40, 40)])
def test_at_least_as_many_heads_as_are_given(given, expected):
    found = widths(made_problem(num_heads=given), made_signals(), 10**7)
    assert found[0][0].heads == expected
    assert all(width.heads >= given for group in found for width in group)
    assert widths(made_problem(num_heads=given), made_signals(), 4 * 5 * 50) == [] or given == 2


def test_in_many_directions_students_have_low_rank_and_the_second_is_twice_as_wide():
    many = made_signals(128)
    plenty = made_problem(num=20_000, dim=128)
    assert widths(plenty, many, 0) == [[Width(16, 32)], [Width(32, 64)]]
    assert widths(made_problem(num=20_000, dim=128, num_heads=2), many, 0) == [
        [Width(8, 64)],
        [Width(8, 128)],
    ]
    assert widths(made_problem(num=20_000, dim=128, num_heads=12), many, 0) == [
        [Width(24, 32)],
        [Width(48, 64)],
    ]
    few = widths(made_problem(num=800, dim=128), many, 0)
    assert [width.heads for group in few for width in group] < [16, 32]
    assert widths(made_problem(num=40, dim=128), many, 0) == []


@pytest.mark.parametrize("rank", [None, 2])
def test_random_heads_have_small_scores_of_their_rank_and_no_values(rng, rank):
    layer = random_heads(made_signals(6, causal=True), 3, Width(5, rank), rng)
    assert (layer.num_heads, layer.dim, layer.out_dim, layer.causal) == (5, 6, 3, True)
    assert not layer.w.any()
    assert not layer.query_bias.any()
    ranks = np.linalg.matrix_rank(layer.theta)
    assert (ranks == (6 if rank is None else rank)).all()
    assert 0.1 < np.linalg.norm(layer.theta, axis=(1, 2)).mean() < 2


def test_scores_stay_inside_the_support_of_the_tokens(rng):
    inside = made_signals(3, white=Whitening(np.zeros(5), np.eye(5)[:, :3], np.eye(5)[:3]))
    layer = random_heads(inside, 4, Width(2, None), rng)
    assert layer.dim == 5
    assert not layer.theta[:, 3:].any()
    assert not layer.theta[:, :, 3:].any()
