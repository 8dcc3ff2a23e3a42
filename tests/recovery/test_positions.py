"""Data of layers with positions, given as plain attention: never certified, and the cause is named."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, recover
from attnlearn.scores import Offsets, Relative, Rotary, frequencies

M, D, K, WIDTH = 2, 6, 8, 4


def teachers(base, rng):
    query, key = rng.standard_normal((2, M, D, WIDTH))
    size = np.linalg.norm(query @ np.swapaxes(key, 1, 2), axis=(1, 2))
    turned = Rotary.of_factors(query * (2 / size)[:, None, None], key, frequencies(WIDTH).rotation)
    table = Relative(base.form, rng.standard_normal((M, 2 * K - 1)), Offsets("table", reach=K - 1))
    return {
        "rotary": AttentionLayer.from_scores(turned, base.w, causal=base.causal),
        "table": AttentionLayer.from_scores(table, base.w, causal=base.causal),
        "window": base.replace(window=3),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("kind", "cause"), [("rotary", "position"), ("table", "position"), ("window", "window")]
)
def test_plain_recovery_names_what_it_lacks(kind, cause, causal, seed, rng):
    base = AttentionLayer.random(M, D, rank=WIDTH, seed=seed, causal=causal)
    layer = teachers(base, rng)[kind]
    x = rng.standard_normal((4000, K, D))
    solution = recover(x, layer(x), causal=causal, raise_on_failure=False)
    assert not solution.certified
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert solution.stats["diagnosis"]["cause"] == cause
