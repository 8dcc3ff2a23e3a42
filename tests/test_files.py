"""Files: durable before they have their name, as readable as the user wants, the same bytes every time, bounded when read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from attnlearn._files import atomic_path, parse_json, read_tensors, require_writable, write_tensors
from attnlearn._memory import free_bytes, require_room
from attnlearn.data import RecordedWriter


def test_bytes_reach_the_disk_before_the_name_and_the_name_after_it(tmp_path, monkeypatch) -> None:
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (done.append(name), real(*a))[1])
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_umask_is_the_users_and_is_never_set(mask, tmp_path, monkeypatch) -> None:
    real = os.umask
    before = real(mask)
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask of the whole process was set"))
    try:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("whole")
        with RecordedWriter(tmp_path / "folder") as writer:
            writer.write(np.ones((2, 3, 2)), np.ones((2, 3, 2)))
    finally:
        real(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def test_tensors_and_metadata_are_the_same_bytes_every_time(tmp_path) -> None:
    tensors = {
        "b": np.arange(6.0).reshape(2, 3).T,
        "a": np.ones(3, np.float16),
        "flag": np.array([True, False]),
        "empty": np.zeros((0, 4), np.int32),
        "big": np.arange(3, dtype=">i8"),
    }
    written = set()
    for number in range(20):
        metadata = {str(key): "v" for key in np.random.default_rng(number).permutation(9)}
        write_tensors(tmp_path / "t.safetensors", tensors, metadata)
        written.add((tmp_path / "t.safetensors").read_bytes())
    assert len(written) == 1
    read, about = read_tensors(tmp_path / "t.safetensors")
    assert about == metadata
    for name, tensor in load_file(tmp_path / "t.safetensors").items():  # another reader of the format
        np.testing.assert_array_equal(tensor, tensors[name])
        np.testing.assert_array_equal(read[name], tensors[name])


def test_probing_leaves_what_is_there(tmp_path) -> None:
    (tmp_path / "a").write_text("old")
    require_writable(tmp_path / "a")
    require_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
    require_writable("/dev/null")


def test_a_name_as_long_as_the_file_system_takes_can_be_written(tmp_path) -> None:
    with atomic_path(tmp_path / (255 * "n")) as temporary:
        temporary.write_text("whole")
    assert (tmp_path / (255 * "n")).read_text() == "whole"


@pytest.mark.parametrize(
    "text", [65 * "[" + 65 * "]", 65 * '{"a":' + "1" + 65 * "}", 10**6 * "[", "{", "", b"\xff"]
)
def test_deep_or_damaged_json_is_a_few_words(text) -> None:
    with pytest.raises(ValueError, match=r"^(nested deeper than 64|not JSON)$"):
        parse_json(text)
    assert parse_json(60 * "[" + 60 * "]")


def test_a_file_larger_than_memory_is_refused_by_its_header(tmp_path) -> None:
    """A sparse file: a terabyte by its header and its length, a kilobyte on the disk."""
    size = 8 * 2**37
    header = b'{"x":{"dtype":"F64","shape":[137438953472],"data_offsets":[0,%d]}}' % size
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as handle:
        handle.write(len(header).to_bytes(8, "little") + header)
        handle.truncate(8 + len(header) + size)
    with pytest.raises(
        ValueError, match=r"^path: its tensors grow to 1099.51 GB, more than the .* that are free$"
    ):
        read_tensors(path)


def test_free_memory_knows_the_limit_of_the_process(monkeypatch) -> None:
    resource = pytest.importorskip("resource", reason="this system has no limits of processes")
    free = free_bytes()
    assert free is None or 0 < free < 2**50
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    assert free_bytes() == 0
    with pytest.raises(ValueError, match="more than the 0 bytes that are free"):
        require_room(1, "path", "grows")


def test_writers_in_threads_do_not_meet(tmp_path) -> None:
    def write(number: int) -> None:
        write_tensors(tmp_path / "same.safetensors", {"x": np.full(1000, float(number))}, {})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tensors, _ = read_tensors(tmp_path / "same.safetensors")
    assert len(set(tensors["x"])) == 1
    assert [path.name for path in Path(tmp_path).iterdir()] == ["same.safetensors"]
