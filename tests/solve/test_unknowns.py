"""How many sequences and combinations of outputs determine a layer."""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._unknowns import combinations, outputs_wanted, sequences_wanted


def test_scores_want_twice_the_equations_in_the_directions_they_can_change():
    scores = Bilinear.whole(np.zeros((8, 40, 40)), np.zeros((8, 40)))
    wanted = sequences_wanted(scores, out=40, tokens=3, causal=False, equations=4, least_rows=0)
    assert wanted == 2 * 4 * scores.unknowns() / 16 / 3  # 8 heads, two keys beside the first
    assert sequences_wanted(scores, 40, 3, True, 4, 0) == 2 * wanted
    assert sequences_wanted(scores, 40, 3, False, 4, 10**9) == 10**9 / 3
    small = Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2)))
    assert sequences_wanted(small, 2, 4, False) == calibration.LEAST_ROWS / 4


def test_few_outputs_stand_for_all_where_there_are_twice_as_many():
    scores = Bilinear.whole(np.zeros((8, 40, 40)), np.zeros((8, 40)))
    assert outputs_wanted(scores, 511, 33, False) == 511
    assert outputs_wanted(scores, 512, 33, False) == 256  # 8 heads, 32 keys beside the first
    assert outputs_wanted(scores, 512, 3, False) == calibration.PIECE


def test_combinations_make_no_output_larger(rng, seed):
    columns = combinations(20, 6, seed)
    np.testing.assert_allclose(columns.T @ columns, np.eye(6), atol=1e-12)
    u = rng.standard_normal((50, 20))
    assert (np.linalg.norm(u @ columns, axis=1) <= np.linalg.norm(u, axis=1)).all()
