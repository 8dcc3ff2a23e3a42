"""Heads that the moment cannot show are found after it: flat, nearly flat, faint, with W parallel or opposite."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, distance, recover

SLOW = pytest.mark.slow


def hidden(kind: str, seed: int) -> AttentionLayer:
    """Three heads, of which the moment shows two."""
    layer = AttentionLayer.random(3, 10, seed=seed)
    theta, w = layer.theta.copy(), layer.w.copy()
    if kind == "flat":
        theta[0] = 0
    elif kind == "nearly flat":
        theta[0] *= 0.02
    elif kind == "faint":
        w[0] *= 0.01
    else:
        w[1] = w[0] * {"parallel": 0.7, "opposite": -1.0}[kind]
    return AttentionLayer(theta, w)


@pytest.mark.parametrize(
    "kind",
    ["faint", *(pytest.param(kind, marks=SLOW) for kind in ("parallel", "flat", "nearly flat", "opposite"))],
)
def test_a_head_that_the_moment_does_not_show_is_found(kind: str, seed: int, rng) -> None:
    truth, x = hidden(kind, seed), rng.standard_normal((4_000, 5, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
    assert found.phase("moment").evidence["visible"] < 3
    fitted = [phase.evidence for phase in found.phases if phase.name == "fit"]
    assert fitted[0]["of"] == "moment"
    assert fitted[-1]["of"] in ("wide search after the moment", "one more head")
    assert fitted[-1]["heads"] == 3


def test_three_faint_heads_of_which_one_alone_would_hardly_pay(seed: int, rng) -> None:
    """Each of the three explains a third of what the others leave: the first lowers the error by a fifth."""
    layer = AttentionLayer.random(5, 10, seed=seed)
    truth = AttentionLayer(layer.theta, layer.w * np.array([1, 1, 0.02, 0.02, 0.02])[:, None, None])
    x = rng.standard_normal((5_000, 4, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-8


def test_heads_that_attend_by_their_query_bias_alone(seed: int, rng) -> None:
    """No Theta stands out of the noise, so no rank can be read off: the whole of it is refined, to zero."""
    layer = AttentionLayer.random(2, 8, seed=seed)
    truth = layer.replace(theta=np.zeros_like(layer.theta), query_bias=2 * rng.standard_normal((2, 8)))
    x = rng.standard_normal((2_000, 4, 8))
    found = recover(x, truth(x), raise_on_failure=False)
    assert found.layer is not None
    fresh = rng.standard_normal((200, 4, 8))
    assert not found.certified or np.abs(found.layer(fresh) - truth(fresh)).max() < 1e-9


def test_a_given_number_of_heads_is_kept(seed: int, rng) -> None:
    truth, x = hidden("parallel", seed), rng.standard_normal((4_000, 5, 10))
    found = recover(x, truth(x), num_heads=2, raise_on_failure=False)
    assert not found.certified
    assert found.layer.num_heads == 2


def test_noise_is_not_taken_for_a_head(seed: int, rng) -> None:
    truth, x = AttentionLayer.random(2, 8, seed=seed), rng.standard_normal((2_000, 4, 8))
    y = truth(x)
    found = recover(x, y + 3e-3 * y.std() * rng.standard_normal(y.shape), raise_on_failure=False)
    assert found.outcome is Outcome.RECOVERED
    assert found.layer.num_heads == 2
    assert found.phase("one more head").evidence == {"residual": "shows no head"}


def test_what_is_no_attention_stays_so(rng) -> None:
    x = rng.standard_normal((2_000, 4, 6))
    weights = rng.standard_normal((2, 6, 6))
    y = np.tanh(x @ weights[0]).mean(axis=1, keepdims=True) * (x @ weights[1])
    found = recover(x, y, raise_on_failure=False)
    assert not found.certified
    assert found.outcome is not Outcome.RECOVERED


def test_a_moment_that_skewed_tokens_mislead_gives_way_to_the_search(seed: int, rng) -> None:
    x = np.exp(0.7 * rng.standard_normal((3_000, 4, 8)))
    x = (x - x.mean()) / x.std()
    truth = AttentionLayer.random(4, 8, rank=2, seed=seed)
    found = recover(x, truth(x), seed=seed)
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
