"""How many sequences determine a layer."""

from __future__ import annotations

import numpy as np

from attnlearn.scores import Bilinear
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._unknowns import sequences_wanted


def test_scores_want_twice_the_equations_in_the_directions_they_can_change():
    scores = Bilinear.whole(np.zeros((8, 40, 40)), np.zeros((8, 40)))
    wanted = sequences_wanted(scores, out=40, tokens=3, causal=False, equations=4, least_rows=0)
    assert wanted == 2 * 4 * scores.unknowns() / 16 / 3  # 8 heads, two keys beside the first
    assert sequences_wanted(scores, 40, 3, True, 4, 0) == 2 * wanted
    assert sequences_wanted(scores, 40, 3, False, 4, 10**9) == 10**9 / 3
    small = Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2)))
    assert sequences_wanted(small, 2, 4, False) == calibration.LEAST_ROWS / 4
