"""Examples on demand: tokens of a data model at a chosen scale, outputs of an oracle."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, data
from attnlearn.data import RecordedWriter
from attnlearn.data._intake import is_data_model
from attnlearn.recovery._draw import draw_examples

LAYER, MODEL = AttentionLayer.random(2, 6, seed=1), data.Gaussian(4, 6)


def test_tokens_are_those_of_the_model_and_outputs_those_of_the_oracle():
    drawn = draw_examples(MODEL, LAYER, 5_000, 3, None)
    x, y, mask = drawn.examples.take(np.arange(5_000))
    assert drawn.scale == 1.0
    assert mask is None
    assert np.array_equal(x, MODEL.sample(5_000, seed=3))
    assert np.allclose(y, LAYER(x))


def test_the_oracle_sees_tokens_at_the_scale_that_was_chosen():
    drawn = draw_examples(MODEL, LAYER, 100, 3, lambda model, oracle, seed: 2.0 + seed)
    x, y, _ = drawn.examples.take(np.arange(100))
    assert drawn.scale == 5.0
    assert np.allclose(x, 5 * MODEL.sample(100, seed=3))
    assert np.allclose(y, LAYER(x))


def test_a_data_model_draws_and_arrays_and_recordings_do_not(tmp_path):
    with RecordedWriter(tmp_path / "data") as writer:
        writer.write(MODEL.sample(30), LAYER(MODEL.sample(30)))
    assert is_data_model(MODEL)
    assert not is_data_model(MODEL.sample(3))
    assert not is_data_model(data.Recorded(tmp_path / "data"))
    assert not is_data_model(str(tmp_path / "data"))


def test_without_an_oracle_it_is_one_line():
    with pytest.raises(ValueError, match=r"^y: must be an oracle when x is a data model"):
        draw_examples(MODEL, None, 10, 0, None)
