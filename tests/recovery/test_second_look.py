"""The moment reads as many examples as show the heads clearly, and all of them when the answer leaves a misfit."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, distance, recover


def evidence(solution) -> dict[str, dict]:
    return {phase.name: phase.evidence for phase in solution.phases}


def test_clear_heads_need_few_of_many_examples(seed: int, rng) -> None:
    truth, x = AttentionLayer.random(3, 10, rank=4, seed=seed), rng.standard_normal((12_000, 5, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert evidence(found)["moment"]["examples"] < 0.6 * len(x)
    assert "second_look" not in evidence(found)["refine"]


@pytest.mark.slow
def test_a_head_hidden_in_few_examples_is_found_after_all(seed: int, rng) -> None:
    """Its value lies below the noise of the examples that showed the two others."""
    layer = AttentionLayer.random(3, 10, rank=3, seed=seed)
    truth = layer.replace(w=layer.w * np.array([1, 1, 0.02])[:, None, None])
    x = rng.standard_normal((8_000, 5, 10))
    found = recover(x, truth(x))
    assert found.certified
    assert distance(found.layer, truth).max < 1e-9
    assert evidence(found)["moment"]["visible"] == 2
    assert {"second_look", "grown"} & set(evidence(found)["refine"])


def test_noise_asks_all_examples_and_finds_no_more_heads(seed: int, rng) -> None:
    truth, x = AttentionLayer.random(2, 8, seed=seed), rng.standard_normal((6_000, 4, 8))
    y = truth(x)
    found = recover(x, y + 3e-3 * y.std() * rng.standard_normal(y.shape), raise_on_failure=False)
    assert found.layer.num_heads == 2
    assert evidence(found)["refine"]["second_look"] == "no more heads"
