"""Masks by place."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn._attention import weigh
from attnlearn.scores import Visible, as_visible


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("prefix", [0, 2])
def test_weights_follow_the_definition(rng, causal, window, prefix):
    if prefix and not causal:
        with pytest.raises(ValueError, match="prefix: must be an integer >= 0, and 0 unless causal"):
            as_visible(causal, window, prefix)
        return
    visible = as_visible(causal, window, prefix)
    logits = rng.standard_normal((2, 6, 3, 6))
    found = weigh(logits.copy(), None, visible)
    for a in range(6):
        for b in range(6):
            near = window is None or abs(a - b) < window
            seen = near and (not causal or b <= a or b < prefix)
            assert (found[:, a, :, b] > 0).all() == seen
    np.testing.assert_allclose(found.sum(axis=-1), 1)


def test_a_flag_is_a_mask(rng):
    logits = rng.standard_normal((2, 5, 3, 5))
    for causal in (False, True):
        np.testing.assert_array_equal(
            weigh(logits.copy(), None, causal), weigh(logits.copy(), None, Visible(causal))
        )
    assert as_visible(Visible(True, 4)) == Visible(True, 4)


def test_bad_sizes_are_said_in_one_line():
    for window in (0, 1.5, True):
        with pytest.raises(ValueError, match="window: must be None or an integer >= 1"):
            as_visible(True, window)
    with pytest.raises(ValueError, match="causal: must be True or False"):
        as_visible("yes")
