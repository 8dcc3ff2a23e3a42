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
