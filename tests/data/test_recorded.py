"""Recorded folders: what is written is read; what is hostile or damaged is refused before it is allocated."""

from __future__ import annotations

import json
import os
import struct
import zipfile

import numpy as np
import pytest

from attnlearn.data import DataModel, Recorded, RecordedWriter

PER_SHARD = 6 * (3 * 4 + 3 * 2) * 8


@pytest.fixture
def arrays(rng):
    return rng.standard_normal((20, 3, 4)), rng.standard_normal((20, 3, 2))


def write(folder, batches):
    with RecordedWriter(folder, shard_bytes=PER_SHARD) as writer:
        for batch in batches:
            writer.write(*batch)


@pytest.fixture
def folder(arrays, tmp_path):
    path = tmp_path / "recorded"
    with RecordedWriter(path, causal=True, provenance={"model": "m"}, shard_bytes=PER_SHARD) as writer:
        for start in range(0, 20, 2):
            writer.write(arrays[0][start : start + 2], arrays[1][start : start + 2])
    return path


def test_what_is_written_is_read(folder, arrays):
    recorded = Recorded(folder)
    assert sorted(os.listdir(folder)) == ["manifest.json"] + [f"shard-{i:06d}.safetensors" for i in range(4)]
    assert (recorded.take(np.arange(20)).x == arrays[0]).all()
    assert (recorded.take(np.arange(20)).y == arrays[1]).all()
    assert recorded.causal is True
    assert recorded.provenance == {"model": "m"}
    recorded.verify()


def test_other_tools_can_read_the_shards(folder, arrays):
    from safetensors.numpy import load_file

    shard = load_file(folder / "shard-000000.safetensors")
    assert set(shard) == {"x", "y"}
    assert (shard["x"] == arrays[0][:6]).all()


def test_float32_stays_float32(tmp_path, arrays):
    with RecordedWriter(tmp_path / "data") as writer:
        writer.write(arrays[0].astype(np.float32), arrays[1].astype(np.float32))
    assert Recorded(tmp_path / "data").dtype == np.float32


def test_a_recording_is_a_data_model(folder, arrays, seed):
    recorded = Recorded(folder)
    assert isinstance(recorded, DataModel)
    x, y = recorded.sample(20, seed)
    order = [int(np.flatnonzero((arrays[0] == row).all(axis=(1, 2)))[0]) for row in x]
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert (y == arrays[1][order]).all()
    for chunk in (1, 3, 50):
        assert (np.concatenate([x for x, _ in recorded.stream(20, chunk, seed)]) == x).all()
    assert (recorded.sample(7, seed)[0] == x[:7]).all()
    assert not (recorded.sample(20, seed + 1)[0] == x).all()
    with pytest.raises(ValueError, match=r"^num: must be at most the 20 recorded sequences"):
        recorded.sample(21)


def test_lengths_are_padded_to_the_longest(tmp_path, rng):
    batches = [(rng.standard_normal((3, k, 4)), rng.standard_normal((3, k, 2))) for k in (2, 3, 2, 5, 4)]
    with RecordedWriter(tmp_path / "data", shard_bytes=300) as writer:
        for x, y in batches:
            writer.write(x, y)
    recorded = Recorded(tmp_path / "data")
    assert (recorded.num, recorded.tokens, recorded.masked) == (15, 5, True)
    whole = recorded.take(np.arange(15))
    for number, (x, y) in enumerate(batches):
        rows, k = slice(3 * number, 3 * number + 3), x.shape[1]
        assert (whole.x[rows, :k] == x).all()
        assert (whole.y[rows, :k] == y).all()
        assert (whole.mask[rows] == (np.arange(5) < k)).all()
        assert not whole.x[rows, k:].any()
        assert not whole.y[rows, k:].any()
    with pytest.raises(ValueError, match="must hold no padding to be sampled"):
        recorded.sample(3)


def test_padding_may_hold_anything(tmp_path, arrays):
    x, y = (array.copy() for array in arrays)
    mask = np.ones((20, 3), bool)
    mask[4:, 2] = False
    x[~mask], y[~mask] = np.nan, np.inf
    with RecordedWriter(tmp_path / "data", shard_bytes=PER_SHARD) as writer:
        writer.write(x[:4], y[:4])
        writer.write(x[4:], y[4:], mask[4:])
    whole = Recorded(tmp_path / "data").take(np.arange(20))
    assert (whole.mask == mask).all()
    assert (whole.x == np.where(mask[..., None], x, 0)).all()
    assert (whole.y == np.where(mask[..., None], y, 0)).all()


def test_buffers_may_be_reused(tmp_path):
    buffer = np.zeros((2, 3, 4))
    with RecordedWriter(tmp_path / "data") as writer:
        for value in (1.0, 2.0):
            buffer[:] = value
            writer.write(buffer, buffer)
    assert Recorded(tmp_path / "data").take(np.arange(4)).x[:, 0, 0].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_writer_leaves_nothing(tmp_path, arrays, error):
    def batches():
        yield arrays
        raise error

    with pytest.raises(error):
        write(tmp_path / "data", batches())
    assert list(tmp_path.iterdir()) == []


def test_nothing_appended_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"^batches: must hold at least one sequence"):
        RecordedWriter(tmp_path / "data").close()
    assert list(tmp_path.iterdir()) == []


def test_writers_refuse_bad_targets(tmp_path, folder, arrays):
    with pytest.raises(ValueError, match=r"^folder: must not exist yet or be empty"):
        RecordedWriter(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^folder: must not exist yet or be empty"):
        RecordedWriter(tmp_path / "file")
    with pytest.raises(ValueError, match=r"^folder: cannot write"):
        RecordedWriter(tmp_path / "missing" / "data")
    (tmp_path / "empty").mkdir()
    with RecordedWriter(tmp_path / "empty") as writer:
        writer.write(*arrays)
    assert Recorded(tmp_path / "empty").num == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[0], y[0]), r"^x: must have shape \(n, k, d\)"),
        (lambda x, y: (x[:0], y[:0]), r"^x: must have shape \(n, k, d\), none of them zero"),
        (lambda x, y: (x, y[:3]), r"^y: must have shape \(20, 3, d_out\)"),
        (
            lambda x, y: (x.astype(np.float32), y.astype(np.float32)),
            "^x: must keep the dimensions and dtype of the first batch 4 2 float64",
        ),
        (
            lambda x, y: (x[..., :3], y),
            "^x: must keep the dimensions and dtype of the first batch 4 2 float64",
        ),
        (lambda x, y: (x * np.nan, y), "^x: must be finite"),
        (lambda x, y: (x, y, np.zeros((20, 3), bool)), "^mask: must keep at least one token"),
        (lambda x, y: (x, y, np.ones((20, 3))), "^mask: must be boolean"),
    ],
)
def test_writers_refuse_bad_batches(tmp_path, arrays, change, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "data", [arrays, change(*arrays)])
    assert list(tmp_path.iterdir()) == []


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


SHARDS = [{"name": f"shard-{i:06d}.safetensors", "sequences": n} for i, n in enumerate((6, 6, 6, 2))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "manifest version 2, this release reads 1"),
        ({"version": "1"}, "manifest version 1, this release reads 1"),
        ({"version": True}, "manifest version True"),
        ({"schema": "other"}, "does not say schema attnlearn/recorded"),
        ({"dtype": "object"}, "dtype object, expected one of"),
        ({"dtype": "float32"}, "dtype F64, expected F32"),
        ({"tokens": -3}, "tokens is not a positive integer"),
        ({"tokens": 3.0}, "tokens is not a positive integer"),
        ({"dim": 10**30}, "dim is not a positive integer"),
        ({"dim": 2**40}, "shape .* expected"),
        ({"out_dim": 3}, "y: shape"),
        ({"masked": 1}, "masked or causal is not a boolean"),
        ({"masked": True}, r"holds \['x', 'y'\], expected \['mask', 'x', 'y'\]"),
        ({"causal": "yes"}, "masked or causal is not a boolean"),
        ({"sequences": 21}, "the shards do not add up"),
        ({"shards": []}, "shards is not a list"),
        ({"shards": [*SHARDS[:3], {"name": "../evil.safetensors", "sequences": 2}]}, "is not of the form"),
        ({"shards": [*SHARDS[:3], {"name": "/etc/passwd", "sequences": 2}]}, "is not of the form"),
        (
            {"shards": [*SHARDS[:3], {"name": "shard-000003.safetensors\n", "sequences": 2}]},
            "is not of the form",
        ),
        (
            {"shards": [*SHARDS[:3], {"name": "shard-٠٠٠٠٠٣.safetensors", "sequences": 2}]},
            "is not of the form",
        ),
        ({"shards": [*SHARDS[:3], {"name": "shard-000002.safetensors", "sequences": 2}]}, "named twice"),
        ({"shards": [*SHARDS[:3], {"name": "shard-000009.safetensors", "sequences": 2}]}, "no such file"),
        ({"shards": [*SHARDS[:3], {"sequences": 2}]}, "is not of the form"),
        ({"shards": [*SHARDS[:3], "shard-000003.safetensors"]}, "no positive number of sequences"),
        ({"shards": [*SHARDS[::-1]]}, None),
        ({"provenance": [1]}, "provenance not an object"),
    ],
)
def test_hostile_manifests_are_refused(folder, changes, message):
    edit(folder, **changes)
    if message is None:  # the order of shards is the manifest's choice, but then the content is another one
        with pytest.raises(ValueError, match="must match its fingerprint"):
            Recorded(folder).verify()
        return
    with pytest.raises(ValueError, match=message) as caught:
        Recorded(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 200_000, '{"schema": 1' + "0" * 5000 + "}", "\ud800", "\0"]
)
def test_manifests_that_are_not_json_objects_are_refused(folder, text):
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"^path: must be a folder of recorded activations") as caught:
        Recorded(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["version", "dtype", "shards"])
def test_what_a_manifest_says_is_shown_in_plain_words(folder, name):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: "\x1b[2J\nsecond line"}))
    with pytest.raises(ValueError, match=r"^path: must be a folder of recorded activations") as caught:
        Recorded(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["causal", "shards", "tokens", "fingerprint", "dtype", "masked"])
def test_a_missing_field_is_refused(folder, name):
    path = folder / "manifest.json"
    value = json.loads(path.read_text())
    del value[name]
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"^path: must be a folder of recorded activations"):
        Recorded(folder)


def test_a_shard_that_leads_outside_is_refused(folder, tmp_path):
    shard = folder / "shard-000001.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ValueError, match="shards must lie inside the folder"):
        Recorded(folder)


def test_a_shard_that_is_no_file_is_refused(folder):
    shard = folder / "shard-000001.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(ValueError, match="no such file"):
        Recorded(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1, -100])
def test_truncated_shards_are_refused(folder, keep):
    shard = folder / "shard-000001.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(ValueError, match="must be a valid shard"):
        Recorded(folder)


def test_appended_bytes_are_refused(folder):
    shard = folder / "shard-000001.safetensors"
    shard.write_bytes(shard.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="truncated or padded"):
        Recorded(folder)


def test_a_changed_value_breaks_the_fingerprint(folder):
    shard = folder / "shard-000001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match="must match its fingerprint"):
        Recorded(folder).verify()


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD_X, GOOD_Y = entry("F64", [6, 3, 4], 0, 576), entry("F64", [6, 3, 2], 576, 864)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "header is not an object"),
        ({"x": GOOD_X}, "holds"),
        ({"x": GOOD_X, "y": GOOD_Y, "z": GOOD_Y}, "holds"),
        ({"x": GOOD_X, "y": 3}, "y: malformed entry"),
        ({"x": GOOD_X, "y": {**GOOD_Y, "dtype": "F32"}}, "y: dtype F32"),
        ({"x": {**GOOD_X, "shape": [6, 3, 2**60]}, "y": GOOD_Y}, "x: shape"),
        ({"x": {**GOOD_X, "shape": [2**63, 2**63, 2**63]}, "y": GOOD_Y}, "x: shape"),
        ({"x": {**GOOD_X, "data_offsets": [0, 2**60]}, "y": GOOD_Y}, "x: offsets"),
        ({"x": {**GOOD_X, "data_offsets": [-576, 0]}, "y": GOOD_Y}, "x: offsets"),
        ({"x": {**GOOD_X, "data_offsets": [0.0, 576.0]}, "y": GOOD_Y}, "x: malformed offsets"),
        ({"x": {**GOOD_X, "data_offsets": 7}, "y": GOOD_Y}, "x: malformed offsets"),
        ({"x": GOOD_X, "y": entry("F64", [6, 3, 2], 0, 288)}, "overlap or leave gaps"),
        ({"x": GOOD_X, "y": entry("F64", [6, 3, 2], 600, 888)}, "overlap or leave gaps"),
    ],
)
def test_hostile_shard_headers_are_refused(folder, header, message):
    text = json.dumps(header).encode()
    (folder / "shard-000001.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(864))
    with pytest.raises(ValueError, match=message) as caught:
        Recorded(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**40, 900, 100])
def test_hostile_header_lengths_are_refused(folder, length):
    (folder / "shard-000001.safetensors").write_bytes(struct.pack("<Q", length) + b"{" * 500)
    with pytest.raises(ValueError, match="must be a valid shard"):
        Recorded(folder)


def test_a_folder_without_manifest_and_other_files_are_refused(tmp_path, layers):
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        Recorded(tmp_path)
    with pytest.raises(
        ValueError, match=r"^path: must be a folder that attnlearn record or sample wrote, or an \.npz file"
    ):
        Recorded(layers / "rxnmapper-layer.safetensors")


def test_npz_with_mask_and_fortran_order(tmp_path, arrays):
    x, y = arrays
    mask = np.ones((20, 3), bool)
    mask[1, 2] = False
    for name, save in (("plain", np.savez), ("small", np.savez_compressed)):
        save(tmp_path / f"{name}.npz", x=np.asfortranarray(x), y=y, mask=mask, other=np.arange(3))
        chunk = Recorded(tmp_path / f"{name}.npz").take(np.arange(20))
        assert (chunk.x == x).all()
        assert (chunk.mask == mask).all()
    base = Recorded(tmp_path / "plain.npz")._parts[0].open().y
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)


X, Y = np.ones((4, 3, 2)), np.ones((4, 3, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": X}, r"must hold x and y"),
        ({"x": X, "y": Y[:3]}, "^y: must have as many sequences as x"),
        ({"x": X[0], "y": Y[0]}, r"^x: must have shape \(n, k, d\)"),
        ({"x": X.astype(bool), "y": Y}, "^x: must be float32 or float64"),
        ({"x": np.array([{}], object), "y": Y}, "^x: must hold numbers, not pickled objects"),
        ({"x": X[:0], "y": Y[:0]}, "^x: must not be empty"),
        ({"x": X, "y": Y, "mask": np.ones((4, 3))}, "^mask: must be boolean"),
        ({"x": X, "y": Y, "mask": np.ones((4, 2), bool)}, "^mask: must have shape"),
    ],
)
def test_bad_npz_files_are_refused(tmp_path, content, message):
    np.savez(tmp_path / "data.npz", **content)
    with pytest.raises(ValueError, match=message):
        Recorded(tmp_path / "data.npz")


def npy(shape, payload):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(payload)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(2**20, 2**20, 2**10), (4, 3, 3), (-4, 3, 2), (2**63, 2**63, 2**63)])
def test_npz_headers_that_lie_are_refused(tmp_path, shape, compression):
    with zipfile.ZipFile(tmp_path / "data.npz", "w", compression) as archive:
        for name in ("x", "y"):
            archive.writestr(f"{name}.npy", npy(shape, 4 * 3 * 2 * 8))
    with pytest.raises(ValueError, match=r"^x: must be as long as its header says"):
        Recorded(tmp_path / "data.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nonsense" * 100])
def test_files_that_are_no_archives_are_refused(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"^path: must be a valid \.npz file"):
        Recorded(tmp_path / "data.npz")


def test_a_damaged_npz_is_refused(tmp_path, rng):
    np.savez_compressed(
        tmp_path / "data.npz", x=rng.standard_normal((40, 3, 2)), y=rng.standard_normal((40, 3, 2))
    )
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[300:320] = bytes(20)
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"^path: must be a valid \.npz file"):
        Recorded(tmp_path / "data.npz")
    (tmp_path / "data.npz").write_bytes(content[:500])
    with pytest.raises(ValueError, match=r"^path: must be a valid \.npz file"):
        Recorded(tmp_path / "data.npz")


@pytest.mark.parametrize(
    "dtypes", [(np.float32, np.float64), (np.float64, np.float32), (np.int64, np.float32)]
)
def test_mixed_dtypes_are_promoted(tmp_path, dtypes):
    x, y = (array.astype(dtype) for array, dtype in zip((X, Y), dtypes))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    with RecordedWriter(tmp_path / "folder") as writer:
        writer.write(x, y)
    for path in (tmp_path / "data.npz", tmp_path / "folder"):
        assert Recorded(path).dtype == np.float64
