from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from attnlearn._files import read_tensors, temporary_name, write_tensors
from attnlearn.engine import Checkpoint, CheckpointError, array_hash, storable
from attnlearn.engine._checkpoint import _metadata
from attnlearn.engine._encode import decode, encode

ROOT = Path(__file__).parents[2]

STATE = {
    "theta": np.arange(6.0).reshape(2, 3).T,
    "half": np.ones(3, np.float16),
    "mask": np.array([True, False]),
    "count": np.arange(3, dtype=np.int32),
    "nothing": np.zeros((0, 4)),
    "point": np.array(2.5),
    "scalar": np.float32(0.1),
    "step": 7,
    "rate": 0.1,
    "worst": float("inf"),
    "name": "späte Phase",
    "flag": True,
    "missing": None,
    "list": [1, 2.5, None, np.ones(2)],
    "pair": (1, "two"),
    "nested": {"a": {"b": [np.zeros(1)]}},
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray | np.generic):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, strict=isinstance(a, np.ndarray))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    else:
        assert a == b


def test_state_comes_back_exactly(tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("fit", STATE)
        name, state = checkpoint.load()
    assert name == "fit"
    same(state, STATE)


def test_nan_round_trip():
    assert np.isnan(decode(*encode({"x": float("nan")}))["x"])


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), np.array(["a"]), np.ones(2) * 1j, {1: 2}, {"$array": 1}, b"x"]
)
def test_what_cannot_be_saved_is_refused(tmp_path, value):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint, pytest.raises(ValueError, match=r"^state"):
        checkpoint.save("fit", {"bad": value})


@storable
class Colour(Enum):
    RED = "of the first kind"
    BLUE = "of the second"


@storable
@dataclass(frozen=True)
class Spot:
    colour: Colour
    where: np.ndarray
    inner: Spot | None = None
    notes: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Undeclared:
    row: int = 1


def test_records_come_back_exactly(tmp_path):
    spot = Spot(Colour.RED, np.arange(3.0), Spot(Colour.BLUE, np.ones((2, 2), np.float32)), {"a": (1, None)})
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("fit", {"spot": spot, "all": [spot, Colour.BLUE]})
        _, state = checkpoint.load()
    for found in (state["spot"], state["all"][0]):
        assert type(found) is Spot
        assert found.colour is Colour.RED
        same(found.where, spot.where)
        assert found.inner.colour is Colour.BLUE
        same(found.inner.where, spot.inner.where)
        assert found.inner.inner is None
        same(found.notes, spot.notes)
    assert state["all"][1] is Colour.BLUE


def test_records_that_were_not_declared_are_not_saved(tmp_path):
    class Spot:  # of a declared name, but another class
        pass

    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        for value in (Undeclared(), Spot()):
            with pytest.raises(ValueError, match=r"^state.*must hold arrays.*records"):
                checkpoint.save("fit", {"bad": value})


RECORD = {"colour": {"$record": ["Colour", "RED"]}, "where": None}


@pytest.mark.parametrize(
    "record",
    [
        ["Undeclared", {"row": 1}],
        ["Path", {}],
        ["Colour", "GREEN"],
        ["Colour", 1],
        ["Colour", ["RED"]],
        ["Spot", {}],
        ["Spot", RECORD | {"size": 3}],
        ["Spot", [1, 2]],
        ["Spot", None],
        ["Spot", "RED"],
        ["Spot"],
        ["Spot", RECORD, 1],
        [["Spot"], RECORD],
        [None, {}],
        "Spot",
        7,
        None,
        {},
    ],
)
def test_a_damaged_or_unknown_record_is_refused(record, tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("fit", {"x": np.ones(2)})
    path = tmp_path / "state-000001.safetensors"
    tensors, _ = read_tensors(path)
    for value, whole in ((["Spot", RECORD], True), (record, False)):
        text = json.dumps({"name": "fit", "state": {"x": {"$record": value}}})
        write_tensors(path, tensors, _metadata(tensors, text))
        with Checkpoint(tmp_path, {}, resume=True) as checkpoint:
            if whole:
                assert checkpoint.load()[1]["x"] == Spot(Colour.RED, None)
                continue
            with pytest.raises(CheckpointError, match="damaged") as caught:
                checkpoint.load()
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_newest_wins_and_old_ones_go(tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        assert checkpoint.load() is None
        for step in range(5):
            checkpoint.save(f"phase {step}", {"step": step})
        checkpoint.save("inner", {"step": 99}, slot="inner")
        assert checkpoint.load() == ("phase 4", {"step": 4})
        checkpoint.drop("inner")
        assert checkpoint.load(slot="inner") is None
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_changed_problem_is_refused_by_name(tmp_path):
    identity = {"data": "a1", "configuration": {"heads": 4, "seed": 0}, "version": "1.0"}
    Checkpoint(tmp_path, identity, resume=False).close()
    Checkpoint(tmp_path, identity, resume=True).close()
    changed = {"data": "a1", "configuration": {"heads": 8, "seed": 0}, "version": "1.1", "new": None}
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path, changed, resume=True)
    assert "configuration.heads was 4 and is 8" in str(caught.value)
    assert 'version was "1.0" and is "1.1"' in str(caught.value)
    assert "new was absent and is null" in str(caught.value)
    assert "data" not in str(caught.value)
    assert "seed" not in str(caught.value)


def test_not_overwritten_without_resume(tmp_path):
    Checkpoint(tmp_path, {}, resume=False).close()
    with pytest.raises(CheckpointError, match="already holds"):
        Checkpoint(tmp_path, {}, resume=False)


def test_files_are_no_pickles_and_damage_is_named(tmp_path):
    with Checkpoint(tmp_path, {"a": 1}, resume=False) as checkpoint:
        checkpoint.save("one", STATE)
        checkpoint.save("two", STATE)
        newest = max(tmp_path.glob("*.safetensors"))
        newest.write_bytes(newest.read_bytes()[:-5])
        with pytest.raises(CheckpointError, match=r"damaged.*delete that file"):
            checkpoint.load()
        newest.unlink()
        assert checkpoint.load()[0] == "one"
    assert json.loads((tmp_path / "identity.json").read_text())["version"] == 2
    (tmp_path / "identity.json").write_text(
        '{"schema": "attnlearn/checkpoint", "version": 9, "identity": {}}'
    )
    with pytest.raises(CheckpointError, match="version 9"):
        Checkpoint(tmp_path, {"a": 1}, resume=True)


def test_bad_folders(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint(tmp_path / "file", {}, resume=False)
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint(tmp_path / "file" / "below", {}, resume=False)


def victim(folder, tmp_path, kind):
    """Something that a checkpoint must not write to, under the name of its lock."""
    target = tmp_path / "victim.txt"
    target.write_text("mine\n")
    if kind == "symlink":
        (folder / "lock").symlink_to(target)
    elif kind == "hard link":
        (folder / "lock").hardlink_to(target)
    elif kind == "pipe":
        os.mkfifo(folder / "lock")
    else:
        (folder / "lock").write_text("mine\n")
        target = folder / "lock"
    return target


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe", "foreign file"])
def test_the_lock_overwrites_nothing_of_others(kind, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    target = victim(folder, tmp_path, kind)
    with pytest.raises(ValueError, match="lock"):
        Checkpoint(folder, {}, resume=True)
    assert target.read_text() == "mine\n"
    assert not (folder / "identity.json").exists()


def test_only_own_leftovers_are_removed(tmp_path):
    own = [tmp_path / temporary_name(name) for name in ("state-000001.safetensors", "identity.json")]
    foreign = [tmp_path / name for name in (".notes.tmp", ".cache.0123456789abcdef.tmp")]
    for path in (*own, *foreign):
        path.write_text("half")
    folder = tmp_path / temporary_name("inner-000001.safetensors")
    folder.mkdir()
    Checkpoint(tmp_path, {}, resume=True).close()
    assert not any(path.exists() for path in own)
    assert all(path.read_text() == "half" for path in foreign)
    assert folder.is_dir()


@pytest.mark.parametrize("text", [100_000 * "[", 200 * '{"a":' + "1" + 200 * "}", "[]", "null", "{", "\x00"])
def test_a_damaged_identity_is_one_line(text, tmp_path):
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not the identity of a checkpoint") as caught:
        Checkpoint(tmp_path, {}, resume=True)
    assert "\n" not in str(caught.value)


def test_a_state_or_an_identity_behind_a_link_is_not_read(tmp_path):
    folder = tmp_path / "saved"
    with Checkpoint(folder, {}, resume=False) as checkpoint:
        checkpoint.save("one", STATE)
        state = folder / "state-000001.safetensors"
        state.rename(tmp_path / "elsewhere")
        state.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CheckpointError, match="no link"):
            checkpoint.load()
    (folder / "identity.json").rename(tmp_path / "identity.json")
    (folder / "identity.json").symlink_to(tmp_path / "identity.json")
    with pytest.raises(CheckpointError, match="no link"):
        Checkpoint(folder, {}, resume=True)


def test_one_flipped_bit_is_noticed(tmp_path, rng):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("one", STATE)
        path = tmp_path / "state-000001.safetensors"
        whole = path.read_bytes()
        for place in (len(whole) - 1, len(whole) - 40, *rng.integers(len(whole), size=20)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                checkpoint.load()


def test_second_user_is_refused_and_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    process = run_worker(tmp_path, steps=1000, pause=0.01)
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(CheckpointError, match=f"in use by process {process.pid}"):
        Checkpoint(tmp_path, {"steps": 1000}, resume=True)
    process.kill()
    process.communicate()
    with (
        Checkpoint(tmp_path, {"steps": 1000}, resume=True),
        pytest.raises(CheckpointError, match="in use"),
    ):
        Checkpoint(tmp_path, {"steps": 1000}, resume=True)


def test_array_hash_sees_bytes_shape_dtype_and_absence():
    x = np.arange(4.0)
    others = [x + 1e-16 * np.array([1, 0, 0, 0]), x.reshape(2, 2), x.astype(np.float32), None]
    assert len({array_hash(value) for value in [x, *others]}) == 5
    assert array_hash(x.reshape(2, 2).T) == array_hash(np.array([[0.0, 2.0], [1.0, 3.0]]))


def run_worker(folder, steps, pause):
    command = [sys.executable, "-m", "tests.engine._work", str(folder), str(steps), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def finish(folder, steps, pause):
    output, errors = run_worker(folder, steps, pause).communicate(timeout=120)
    assert errors == ""
    return output.removeprefix("ready\n")


@pytest.mark.parametrize("value", ["1" * 5000, "two\nlines", "\x1b[2Jgone", "\u202eback"])
def test_what_a_damaged_state_says_is_one_short_plain_line(value, tmp_path):
    with Checkpoint(tmp_path, {}, resume=False) as checkpoint:
        checkpoint.save("fit", {"x": np.ones(2)})
    tensors, _ = read_tensors(tmp_path / "state-000001.safetensors")
    text = json.dumps({"name": "fit", "state": {"x": {"$array": [value, "<f8", [2]]}}})
    write_tensors(tmp_path / "state-000001.safetensors", tensors, _metadata(tensors, text))
    with Checkpoint(tmp_path, {}, resume=True) as checkpoint, pytest.raises(CheckpointError) as caught:
        checkpoint.load()
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_a_foreign_identity_is_named_in_plain_words(tmp_path):
    Checkpoint(tmp_path, {"\x1b[2J\nseed": 0}, resume=False).close()
    with pytest.raises(CheckpointError, match=r"^the checkpoint is of another problem: seed was 0") as caught:
        Checkpoint(tmp_path, {}, resume=True)
    assert str(caught.value).isprintable()


def killed_runs_end_in_the_same_bytes(tmp_path, kills, rng):
    steps, pause = 40, 0.004
    expected = finish(tmp_path / "whole", steps, pause)
    assert "'three'" in expected
    folder, done = tmp_path / "killed", 0
    while done < kills:
        process = run_worker(folder, steps, pause)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        output, errors = process.communicate()
        assert errors == ""
        if output:  # it finished before the signal: compare and begin again
            assert output == expected
            folder = folder.with_name(folder.name + "+")
        else:
            done += 1
    assert finish(folder, steps, pause) == expected


def test_kill_at_random_moments_ends_in_the_same_bytes(tmp_path, rng):
    killed_runs_end_in_the_same_bytes(tmp_path, 6, rng)


@pytest.mark.slow
def test_fifty_kills_end_in_the_same_bytes(tmp_path, rng):
    killed_runs_end_in_the_same_bytes(tmp_path, 50, rng)


def test_ctrl_c_leaves_a_checkpoint(tmp_path):
    process = run_worker(tmp_path, steps=40, pause=0.01)
    assert process.stdout.readline() == "ready\n"
    while not list(tmp_path.glob("*.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "")
    assert list(tmp_path.glob("*.safetensors"))
    assert finish(tmp_path, 40, 0.0) == finish(tmp_path / "whole", 40, 0.0)
