"""The features: directions are the derivatives that they are said to be, nobody looks at padded rows or hidden keys."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve.noise._features import FAMILIES, Family, families

SMALL, SINK = 1e-6, 1e-9


def of(layer: AttentionLayer, x: np.ndarray, mask: np.ndarray | None = None) -> dict[str, Family]:
    found = list(families(layer, Batch(x, np.zeros((*x.shape[:2], layer.out_dim)), mask)))
    assert tuple(family.name for family in found) == FAMILIES
    return {family.name: family for family in found}


def outputs(layer: AttentionLayer, scores: np.ndarray, x: np.ndarray, sink: float = 0.0) -> np.ndarray:
    """The outputs (rows * outputs, heads) of every head that has these scores, beside one more key without a value."""
    k = x.shape[1]
    sees = np.tri(k) if layer.causal else np.ones((k, k))
    weights = np.exp(scores) * sees
    alpha = weights / (weights.sum(axis=3, keepdims=True) + sink)
    return np.moveaxis(np.einsum("nmab,nbd,mdo->nmao", alpha, x, layer.w), 1, 3).reshape(-1, layer.num_heads)


@pytest.mark.parametrize("causal", [False, True])
def test_directions_are_derivatives_of_the_outputs(causal, rng):
    layer = AttentionLayer.random(2, 4, seed=3).replace(causal=causal)
    x = rng.standard_normal((30, 3, 4))
    found, scores = of(layer, x), layer.scores(x)
    offset = (np.arange(3)[None] - np.arange(3)[:, None]) / 2
    changes = {
        "scores": [scores**2, scores**3],
        "distance": [offset, np.abs(offset), offset * scores, np.abs(offset) * scores],
    }
    for name, kinds in changes.items():
        slopes = [
            (outputs(layer, scores + SMALL * g, x) - outputs(layer, scores - SMALL * g, x)) / (2 * SMALL)
            for g in kinds
        ]
        expected = np.concatenate(slopes, axis=1)
        np.testing.assert_allclose(
            found[name].columns[:, : expected.shape[1]], expected, rtol=1e-3, atol=1e-5
        )
    lost = (outputs(layer, scores, x) - outputs(layer, scores, x, sink=SINK)) / SINK
    np.testing.assert_allclose(found["sink"].columns, lost, rtol=1e-3, atol=1e-5)


def test_padded_rows_are_zero_and_hidden_tokens_change_nothing(rng):
    layer = AttentionLayer.random(2, 4, seed=3)
    x = rng.standard_normal((30, 3, 4))
    mask = np.arange(3) < rng.integers(1, 4, (30, 1))
    other = np.where(mask[..., None], x, 5.0)
    for name, family in of(layer, x, mask).items():
        rows = family.columns.reshape(30, 3, -1)
        assert not rows[~mask].any(), name
        assert rows[mask].any(), name
        changed = of(layer, other, mask)[name].columns.reshape(rows.shape)
        np.testing.assert_allclose(changed[mask], rows[mask], rtol=1e-3, atol=1e-4, err_msg=name)


def test_own_token_spans_the_token_and_the_mean_of_those_seen(rng):
    layer = AttentionLayer.random(1, 4, seed=3).replace(causal=True)
    x = rng.standard_normal((40, 3, 4))
    columns = of(layer, x)["own token"].columns
    means = np.cumsum(x, axis=1) / np.arange(1, 4)[:, None]
    for wanted, explained in ((x, True), (means, True), (x**2, False)):
        rows = wanted.reshape(-1, 4)
        left = rows - columns @ np.linalg.lstsq(columns, rows, rcond=None)[0]
        assert (np.linalg.norm(left) < 1e-4 * np.linalg.norm(rows)) == explained


def test_many_outputs_are_combined(rng):
    layer = AttentionLayer(rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 300)))
    found = of(layer, rng.standard_normal((5, 3, 4)))
    combined = found["sink"].outputs
    assert combined is not None
    assert combined.shape[0] == 300 > combined.shape[1]
    assert len(found["sink"].columns) == 5 * 3 * combined.shape[1]


def test_outputs_beyond_a_size_are_told_from_the_others(rng):
    layer = AttentionLayer.random(2, 4, seed=3)
    x = rng.standard_normal((200, 3, 4))
    family = of(layer, x)["output"]
    own = layer(x).reshape(-1)
    large = np.abs(own) > np.quantile(np.abs(own), 0.999)
    beyond = family.columns[:, -1]
    assert ((beyond != 0) == large).all()
    assert (np.sign(beyond[large]) == np.sign(own[large])).all()
