"""Footprints of positions and windows in the data, and their absence in plain attention."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.scores import Offsets, Relative, Rotary, frequencies
from attnlearn.solve._by_offset import linear_share, met_share, window_reach
from attnlearn.solve._calibration import FEW, SUPPORTED
from attnlearn.solve._diagnose import diagnose

M, D, K, WIDTH, N = 3, 8, 10, 4, 2000


def rotary(base, rng):
    query, key = rng.standard_normal((2, M, D, WIDTH))
    size = np.linalg.norm(query @ np.swapaxes(key, 1, 2), axis=(1, 2))
    scores = Rotary.of_factors(
        query * (2 / size)[:, None, None], key, frequencies(WIDTH, base=100.0).rotation
    )
    return AttentionLayer.from_scores(scores, base.w, causal=base.causal)


def relative(offsets, table):
    def make(base, rng):
        numbers = table(rng, offsets)
        return AttentionLayer.from_scores(Relative(base.form, numbers, offsets), base.w, causal=base.causal)

    return make


POSITIONS = {
    "rotary": rotary,
    "table": relative(Offsets("table", reach=K - 1), lambda rng, o: rng.standard_normal((M, o.numbers))),
    "slopes": relative(Offsets("slope"), lambda rng, o: np.array([[0.5], [0.25], [0.125]])),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", POSITIONS.values(), ids=POSITIONS.keys())
def test_scores_that_depend_on_the_offset_are_named(make, causal, seed, rng):
    layer = make(AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=causal), rng)
    x = rng.standard_normal((N, K, D))
    assert diagnose(x, layer(x), None, causal).cause == "position"


@pytest.mark.parametrize("causal", [False, True])
def test_windows_are_named_with_their_reach(causal, seed, rng):
    layer = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=causal).replace(window=4)
    x = rng.standard_normal((N, K, D))
    found = diagnose(x, layer(x), None, causal)
    assert found.cause == "window"
    assert "distance 4 or more" in found.causes[0].text


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_plain_attention_raises_no_alarm(causal, scale, mixed, seed, rng):
    layer = AttentionLayer.random(M, D, seed=seed, causal=causal, scale=scale, bias=True)
    x = rng.standard_normal((N, K, D))
    x = x @ rng.standard_normal((D, D)) / 3 + rng.standard_normal(D) if mixed else x
    evidence = {cause.name: cause.evidence for cause in diagnose(x, layer(x), None, causal).causes}
    assert evidence["position"] < SUPPORTED
    assert evidence["window"] == 0


def test_halves_that_share_nothing_show_nothing(rng):
    x, y = rng.standard_normal((500, 6, 4)), rng.standard_normal((500, 6, 4))
    assert met_share(x, y, np.arange(500) % 2, causal=False) < FEW
    first, second = rng.standard_normal((2, 6, 6, 4, 4))
    assert window_reach(first, second, causal=False) is None


def test_chance_alone_is_no_share_of_the_linear_influence(rng):
    """Heads with opposite W hardly have a linear influence: what the halves show of it is chance."""
    shares = [linear_share(*rng.standard_normal((2, 3, 3, D, D)), False) for _ in range(100)]
    assert np.count_nonzero(shares) <= 3


def test_few_examples_are_not_looked_at(rng):
    x = rng.standard_normal((20, 6, 4))
    assert met_share(x, x, np.arange(20) % 2, causal=True) == 0
