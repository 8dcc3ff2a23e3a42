"""Rows: white tokens and whitened residuals, the same in any number of chunks, kept or made afresh."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._rows import RowSource, linear_features, output_whitening
from attnlearn.solve._batch import visible_keys

from ._problems import problem, signals, tokens


def test_visible_keys_are_those_of_mask_and_order():
    mask = np.array([[True, True, False]])
    assert visible_keys(3, None, False) is None
    assert np.array_equal(visible_keys(3, None, True)[0], np.tril(np.ones((3, 3), bool)))
    both = visible_keys(3, mask, True)
    assert both[0].tolist() == [[True, False, False], [True, True, False], [False, False, False]]


@pytest.mark.parametrize("causal", [False, True])
def test_constant_attention_is_linear_in_the_features(rng, causal):
    z, w = rng.standard_normal((50, 4, 3)), rng.standard_normal((3, 2))
    layer = AttentionLayer(np.zeros((1, 3, 3)), w[None], causal=causal)
    phi = linear_features(z, visible_keys(4, None, causal)).reshape(200, -1)
    outputs = layer(z).reshape(200, -1)
    rest = outputs - phi @ np.linalg.lstsq(phi, outputs, rcond=None)[0]
    assert np.abs(rest).max() < 1e-12


def test_a_key_alone_and_a_padded_query_have_finite_features(rng):
    z = rng.standard_normal((2, 3, 2))
    mask = np.array([[True, False, False], [True, True, True]])
    phi = linear_features(z, visible_keys(3, mask, False))
    assert np.isfinite(phi).all()
    assert not phi[0, 1:].any()


def test_whitened_outputs_have_covariance_below_one(rng):
    root = rng.standard_normal((4, 4))
    forth, back = output_whitening(root @ root.T)
    assert np.allclose(forth @ back, np.eye(4))
    assert np.linalg.eigvalsh(forth @ root @ root.T @ forth).max() <= 1 + 1e-9
    assert np.isfinite(output_whitening(np.zeros((3, 3)))[0]).all()


def test_rows_are_white_tokens_and_what_the_linear_fit_leaves(rng):
    whole = problem(AttentionLayer.random(2, 6), tokens(rng, "normal", 500, 4, 6) + 2.0)
    found = signals(whole)
    (rows,) = RowSource(whole.examples, found, whole.split.fit).whole()
    assert rows.tokens.dtype == rows.outputs.dtype == np.float32
    assert rows.visible is None
    flat = rows.tokens.reshape(-1, 6)
    assert np.abs(np.cov(flat.T) - np.eye(6)).max() < 0.05
    residual = rows.outputs.reshape(-1, 6)
    assert np.abs(flat.T @ residual).max() / len(flat) < 1e-3
    assert np.linalg.eigvalsh(residual.T @ residual / len(residual)).max() < 1.1


@pytest.mark.parametrize("kept", [True, False])
def test_chunks_hold_the_rows_of_their_block_whether_they_are_kept_or_not(rng, kept, monkeypatch):
    mask = np.arange(4) < rng.integers(2, 5, 500)[:, None]
    whole = problem(AttentionLayer.random(2, 6), tokens(rng, "normal", 500, 4, 6), mask=mask)
    source = RowSource(whole.examples, signals(whole), whole.split.fit)
    monkeypatch.setattr(calibration, "CACHE_BYTES", 2**40 if kept else 0)
    (together,) = source.whole()
    pieces = list(source.chunks(7, slice(10, 250)))
    assert len(pieces) >= 4
    for name, part in zip(together._fields, together):
        joined = np.concatenate([getattr(piece, name) for piece in pieces])
        assert np.array_equal(joined, part[10:250])


def test_padding_is_zero_and_outputs_are_left_as_they_are(rng):
    mask = np.arange(4) < rng.integers(2, 5, 300)[:, None]
    whole = problem(AttentionLayer.random(2, 6), tokens(rng, "normal", 300, 4, 6), mask=mask)
    found = signals(whole)
    source = RowSource(whole.examples, found, whole.split.fit)
    (rows,) = source.whole()
    real = mask[whole.split.fit]
    assert not rows.tokens[~real].any()
    assert not rows.outputs[~real].any()
    z, y, _, flags = next(iter(source.outputs()))
    assert np.array_equal(flags, real[: len(z)].reshape(-1))
    assert np.allclose(y, whole.examples.take(whole.split.fit[: len(y)]).y, atol=1e-6)


def test_the_mean_is_subtracted_before_rounding(rng):
    x = rng.standard_normal((200, 3, 4)) + 1e6
    whole = problem(AttentionLayer.random(1, 4, scale=0.1), x)
    white = signals(whole).white
    exact = (x - white.mean) @ white.inverse.T
    assert np.abs(white.tokens(x, np.float32) - exact).max() < 1e-5
