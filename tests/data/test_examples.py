"""Examples from arrays and from disk read alike, and every way of getting them wrong is one clear line."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlearn.data import Boolean, Gaussian, Recorded, RecordedWriter, as_examples

N, K, D, O = 23, 4, 5, 3


@pytest.fixture
def arrays(rng):
    mask = rng.random((N, K)) < 0.7
    mask[:, 0] = True
    return rng.standard_normal((N, K, D)), rng.standard_normal((N, K, O)), mask


def write(folder, x, y, mask=None, per_shard=7):
    per_sequence = x[0].nbytes + y[0].nbytes
    with RecordedWriter(folder, shard_bytes=per_shard * per_sequence) as writer:
        writer.write(x, y, mask)
    return folder


@pytest.fixture(params=["arrays", "folder", "one shard", "npz", "npz compressed"])
def source(request, arrays, tmp_path):
    x, y, _ = arrays
    if request.param == "arrays":
        return as_examples(x, y)
    if request.param.startswith("npz"):
        save = np.savez if request.param == "npz" else np.savez_compressed
        save(tmp_path / "data.npz", x=x, y=y)
        return as_examples(tmp_path / "data.npz")
    return as_examples(write(tmp_path / "data", x, y, per_shard=7 if request.param == "folder" else 99))


def test_shapes(source):
    assert (source.num, source.tokens, source.dim, source.out_dim) == (N, K, D, O)
    assert len(source) == N
    assert source.dtype == np.float64
    assert not source.masked


@pytest.mark.parametrize("size", [1, 5, 7, 10, 1000])
def test_chunks_are_the_data(source, arrays, size):
    chunks = list(source.chunks(size))
    assert [len(c.x) for c in chunks[:-1]] == [size] * (len(chunks) - 1)
    assert (np.concatenate([c.x for c in chunks]) == arrays[0]).all()
    assert (np.concatenate([c.y for c in chunks]) == arrays[1]).all()
    assert all(c.mask is None for c in chunks)


def test_selections_keep_their_order(source, arrays, rng):
    chosen = rng.integers(0, N, size=30)
    taken = source.take(chosen)
    assert (taken.x == arrays[0][chosen]).all()
    assert (taken.y == arrays[1][chosen]).all()
    chunks = list(source.chunks(4, chosen))
    assert (np.concatenate([c.y for c in chunks]) == arrays[1][chosen]).all()
    assert source.take(np.array([], int)).x.shape == (0, K, D)


@pytest.mark.parametrize("bad", [np.array([N]), np.array([-1]), np.array([0.5]), np.zeros((2, 2), int)])
def test_bad_indices_are_refused(source, bad):
    with pytest.raises(ValueError, match=r"^indices: must "):
        source.take(bad)


def test_the_fingerprint_does_not_depend_on_where_the_data_lies(source, arrays):
    x, y, mask = arrays
    assert source.fingerprint() == as_examples(x, y).fingerprint()
    assert source.fingerprint() != as_examples(x, y, mask).fingerprint()
    changed = y.copy()
    changed[-1, -1, -1] += 1e-9
    assert source.fingerprint() != as_examples(x, changed).fingerprint()
    assert source.fingerprint() != as_examples(x[::-1], y[::-1]).fingerprint()


def test_masks_are_kept(arrays, tmp_path):
    x, y, mask = arrays
    zero_x, zero_y = (np.where(mask[..., None], array, 0) for array in (x, y))
    for examples in (as_examples(zero_x, zero_y, mask), as_examples(write(tmp_path / "data", x, y, mask))):
        chunks = list(examples.chunks(6))
        assert (np.concatenate([c.mask for c in chunks]) == mask).all()
        assert (np.concatenate([c.x for c in chunks]) == zero_x).all()
        assert (examples.take(np.array([8, 2])).mask == mask[[8, 2]]).all()
        assert examples.fingerprint() == as_examples(zero_x, zero_y, mask).fingerprint()
    assert not as_examples(x, y, np.ones((N, K), bool)).masked


def test_arrays_are_neither_copied_nor_writable(arrays):
    x, y, _ = arrays
    chunk = next(as_examples(x, y).chunks(5))
    assert np.shares_memory(chunk.x, x)
    with pytest.raises(ValueError, match="read-only"):
        chunk.x[0] = 0
    x[0] = 7  # the caller's array stays the caller's


@pytest.mark.parametrize("kind", ["float32", "jax", "torch"])
def test_other_libraries(arrays, kind):
    x, y, _ = arrays
    x, y = x.astype(np.float32), y.astype(np.float32)
    if kind == "jax":
        import jax.numpy as jnp

        examples = as_examples(jnp.asarray(x), jnp.asarray(y))
    elif kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        examples = as_examples(torch.from_numpy(x), torch.from_numpy(y).requires_grad_())
    else:
        examples = as_examples(x, y)
    assert examples.dtype == np.float32
    assert examples.fingerprint() == as_examples(x, y).fingerprint()


def test_a_folder_is_streamed_not_loaded(tmp_path):
    # 40 MB in shards of 2 MB, read and scanned with a few MB of memory.
    model = Boolean(8, 32)
    with RecordedWriter(tmp_path / "data", shard_bytes=2 * 2**20) as writer:
        for x in model.stream(10_000, 1000):
            writer.write(x, x)
    tracemalloc.start()
    try:
        examples = as_examples(tmp_path / "data")
        examples.fingerprint()
        total = sum(float(c.x.sum()) for c in examples.chunks(500))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == model.sample(10_000).sum()
    assert peak < 12 * 2**20


def finite(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


X, Y = finite((4, 3, 2)), finite((4, 3, 5))


def spoiled(array, value):
    array = array.copy()
    array[2, 1, 0] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "^y: must be given when x is an array"),
        ((spoiled(X, np.nan), Y), r"^x: must be finite, got nan at index \(2, 1, 0\)$"),
        ((X, spoiled(Y, -np.inf)), r"^y: must be finite, got -inf at index \(2, 1, 0\)$"),
        ((X[0], Y[0]), r"^x: must have shape \(n, k, d\); one sequence is x\[None\]"),
        ((X[0], Y), r"^x: must have shape \(n, k, d\); one sequence"),
        ((X[None], Y), r"^x: must have shape \(n, k, d\), got"),
        ((X, Y[:, 0]), r"^y: must have shape \(n, k, d_out\), the output of every token"),
        ((X, finite(4)), r"^y: must have shape \(n, k, d_out\) \(labels are for train.fit\)"),
        ((finite(4), X), r"^x: must have shape \(n, k, d\) \(are x and y swapped\?\)"),
        ((Y, np.sign(X)), r"^y: must hold outputs, got only ±1 while x does not \(are x and y swapped"),
        ((X.swapaxes(1, 2), Y), r"^x: must be \(n, k, d\), tokens before coordinates; try x.swapaxes"),
        ((X, Y.swapaxes(1, 2)), r"^y: must be \(n, k, d_out\), tokens before coordinates; try y.swapaxes"),
        ((X, finite((4, 7, 5))), r"^y: must have one row per token of x \(3\)"),
        ((X[:3], Y), r"^y: must have as many sequences as x \(3\)"),
        ((np.zeros((4, 3), int), Y), r"^x: .*not integers \(embed token ids first\)"),
        ((X, Y > 0), "^y: must be float32 or float64"),
        ((X.astype(complex), Y), "^x: must be float32 or float64"),
        ((X.astype(np.float16), Y), "^x: must be float32 or float64"),
        ((X[:0], Y[:0]), "^x: must not be empty"),
        ((X[:, :0], Y[:, :0]), "^x: must not be empty"),
        ((X, Y[..., :0]), "^y: must not be empty"),
        ((X[:, :1], Y[:, :1]), "^x: must have at least 2 tokens a sequence"),
        ((X, Y, np.ones((4, 3))), "^mask: must be boolean"),
        ((X, Y, np.ones((3, 3), bool)), r"^mask: must have shape \(4, 3\)"),
        ((X, Y, np.ones(3, bool)), r"^mask: must have shape \(4, 3\)"),
        ((X, Y, np.zeros((4, 3), bool)), "^mask: must keep at least one token"),
        (([[1.0], [2.0, 3.0]], Y), "^x: must be a rectangular numeric array"),
        (({"x": X}, Y), "^x: must be an array"),
        (
            ("no-such-folder",),
            "^path: must be a folder .* or an .npz file .*, got 'no-such-folder' .no such file",
        ),
        ((X, "file.npz"), "^y: must be an array of outputs"),
    ],
)
def test_bad_examples_are_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        as_examples(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y"), [(X.astype(np.float32), Y), (X, Y.astype(np.float32)), (np.sign(X).astype(int), Y)]
)
def test_mixed_dtypes_are_promoted(x, y):
    examples = as_examples(x, y)
    assert examples.dtype == np.float64
    part = examples.take(np.arange(len(x)))
    np.testing.assert_array_equal(part.x, x.astype(np.float64))
    np.testing.assert_array_equal(part.y, y.astype(np.float64))


def test_torch_token_ids_are_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(ValueError, match="not integers"):
        as_examples(torch.zeros((4, 3), dtype=torch.long), Y)


def test_recorded_brings_its_own_outputs(arrays, tmp_path):
    folder = write(tmp_path / "data", *arrays[:2])
    with pytest.raises(ValueError, match=r"^y: must be left out"):
        as_examples(folder, arrays[1])
    recorded = Recorded(folder)
    assert as_examples(recorded) is recorded


def test_fewer_tokens_when_asked():
    assert as_examples(X[:, :1], Y[:, :1], min_tokens=1).tokens == 1


def test_sums_that_overflow_are_still_finite():
    x = np.full((4, 3, 2), 1e308)
    assert as_examples(x, x).num == 4


def test_boolean_tokens_may_be_outputs_of_boolean_tokens():
    x = Boolean(3, 4).sample(10)
    assert as_examples(x, x).num == 10
    assert as_examples(x, Gaussian(3, 4).sample(10)).num == 10


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.data()
)
def test_any_shape_reads_back(n, k, d, o, size, data):
    x, y = finite((n, k, d)), finite((n, k, o), 1)
    chosen = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1)))
    examples = as_examples(x, y, min_tokens=1)
    assert (np.concatenate([c.x for c in examples.chunks(size)]) == x).all()
    assert (np.concatenate([c.y for c in examples.chunks(size, chosen)]) == y[chosen]).all()
