"""Chunks hold every example once, and sums do not depend on them."""

from __future__ import annotations

import numpy as np

from attnlearn.solve import _chunks
from attnlearn.solve._chunks import cut


def test_every_example_is_in_one_chunk(rng, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_ROWS", 20)
    x, y = rng.standard_normal((33, 4, 3)), rng.standard_normal((33, 4, 2))
    chunks = cut(x, y, None)
    assert len(chunks) == 7
    np.testing.assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), x)
    np.testing.assert_array_equal(np.concatenate([chunk.y for chunk in chunks]), y)
    assert chunks.rows == chunks.real == 33 * 4


def test_padded_tokens_are_zero_and_not_counted(rng):
    x, mask = rng.standard_normal((10, 4, 3)), rng.random((10, 4)) < 0.5
    chunks = cut(x, x, mask)
    assert chunks.real == mask.sum()
    assert all(not chunk.x[chunk.keep == 0].any() and not chunk.y[chunk.keep == 0].any() for chunk in chunks)
    assert chunks.astype(np.float32).dtype == np.float32


def test_padding_is_cut_off_and_every_example_keeps_its_place(rng, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_ROWS", 40)
    lengths = rng.integers(0, 17, 50)  # a sequence may have no real token at all
    x, mask = rng.standard_normal((50, 16, 3)), np.arange(16) < lengths[:, None]
    mask[:5, 0] = False  # padding need not be at the end
    chunks = cut(x, 2 * x, mask)
    assert sorted(np.concatenate([chunk.places for chunk in chunks])) == list(range(50))
    assert chunks.real == mask.sum()
    assert chunks.rows < 1.4 * mask.sum() + 40
    for chunk in chunks:
        k = chunk.x.shape[1]
        real = mask[chunk.places] if chunk.keep is None else np.pad(chunk.keep, ((0, 0), (0, 16 - k)))
        np.testing.assert_array_equal(real, mask[chunk.places])
        np.testing.assert_array_equal(chunk.x, (x * mask[..., None])[chunk.places, :k])
        np.testing.assert_array_equal(chunk.y, 2 * chunk.x)
        assert chunk.keep is None or not chunk.keep.all()
