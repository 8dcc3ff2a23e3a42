"""Checkpoints: a folder that a killed run continues from, to the same bytes.

A folder holds `identity.json` (what problem this is), `lock`, and numbered state files such as
`state-000003.safetensors`. A state file carries its arrays as tensors and everything else as JSON in its
header, and appears by one rename, so at any moment the newest file is whole: kill -9 loses at most the work
since the last save. Nothing is pickled; reading a checkpoint runs no code, follows no link, and compares a hash of the
whole state before it is used. Files of others in the folder stay as they are.

The folder is locked by the operating system (`_lock`) while a `Checkpoint` is open: a second process gets a
`CheckpointError`, and the lock of a dead process vanishes with it. On file systems without locks opening
fails; use a local folder there.

Cost: one write of the state and its hash. What can fail: a folder of another problem is refused with the names of the
entries that differ; a folder with a checkpoint is not overwritten unless it is resumed or emptied. A state that cannot be
written (a full disk) is a `CheckpointWarning`; the run goes on with the states before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attnlearn._errors import AttnlearnError, one_line, require
from attnlearn._files import CannotWrite, is_temporary, read_json, read_tensors, write_json, write_tensors
from attnlearn.engine._calibration import CHECKPOINTS_KEPT, IDENTITY_BYTES
from attnlearn.engine._encode import decode, encode
from attnlearn.engine._lock import Held, NoLock, acquire

SCHEMA = "attnlearn/checkpoint"
VERSION = 2
_MISSING = "absent"


class CheckpointError(AttnlearnError, ValueError):
    """The checkpoint belongs to another problem or another process, or is damaged.

    >>> issubclass(CheckpointError, AttnlearnError)
    True
    """


class CheckpointWarning(UserWarning):
    """A state could not be written: the run goes on, and a later one would start from the state before.

    >>> issubclass(CheckpointWarning, UserWarning)
    True
    """


def array_hash(*arrays: Any) -> str:
    """SHA-256 of the bytes, shapes and dtypes of `arrays`; None is allowed and counts.

    >>> array_hash(np.zeros(2)) == array_hash(np.zeros(2)) != array_hash(np.zeros((2, 1)))
    True
    """
    digest = hashlib.sha256()
    for value in arrays:
        if value is None:
            digest.update(b"none;")
            continue
        array = np.asarray(value)
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Checkpoint:
    """An open checkpoint folder; also a context manager that closes (unlocks) it.

    `identity` is what must not change between the runs: hashes of the data, configuration, version. It is
    JSON (nested mappings allowed). With `resume=False` the folder must not hold a checkpoint yet.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Checkpoint(folder, {"seed": 0}, resume=False) as checkpoint:
    ...     checkpoint.save("fit", {"theta": np.ones(2), "step": 3})
    True
    >>> with Checkpoint(folder, {"seed": 0}, resume=True) as checkpoint:
    ...     checkpoint.load()
    ('fit', {'theta': array([1., 1.]), 'step': 3})
    >>> Checkpoint(folder, {"seed": 1}, resume=True)
    Traceback (most recent call last):
    attnlearn.engine._checkpoint.CheckpointError: the checkpoint is of another problem: seed was 0 and is 1
    """

    def __init__(self, folder: str | os.PathLike[str], identity: Mapping[str, Any], resume: bool) -> None:
        self.folder = Path(folder)
        require(not self.folder.is_file(), "checkpoint", "must be a folder", str(folder))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"checkpoint: cannot make {folder} ({error.strerror})") from error
        self._lock = _lock(self.folder)
        try:
            self._open(json.loads(json.dumps(dict(identity))), resume)
        except BaseException:
            self.close()
            raise

    def _open(self, identity: dict[str, Any], resume: bool) -> None:
        for leftover in self.folder.iterdir():
            own = re.match(r"\.(identity\.json|[a-z]+-\d+\.safetensors)\.", leftover.name)
            if own and is_temporary(leftover.name) and _is_regular(leftover):
                leftover.unlink(missing_ok=True)
        target = self.folder / "identity.json"
        if os.path.lexists(target):
            if not resume:
                raise CheckpointError(
                    f"{self.folder} already holds a checkpoint: resume it, or name another folder"
                )
            _same_problem(_read_identity(target), identity)
        else:
            write_json(target, {"schema": SCHEMA, "version": VERSION, "identity": identity})

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder; the files stay."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def save(self, name: str, state: Mapping[str, Any], *, slot: str = "state") -> bool:
        """Write `state` as the newest of `slot`, then drop the older ones; warn and say False if the disk is full.

        Values may be arrays, numbers, strings, bools, None, and lists, tuples and mappings of those.
        """
        require(self._lock >= 0, "checkpoint", "must be open", str(self.folder))
        require(re.fullmatch(r"[a-z]+", slot) is not None, "slot", "must be lowercase letters", slot)
        numbers = self._numbers(slot)
        tensors, text = encode({"name": name, "state": dict(state)})
        path = self._path(slot, numbers[-1] + 1 if numbers else 1)
        try:
            write_tensors(path, tensors, _metadata(tensors, text))
        except CannotWrite as error:
            warnings.warn(f"no checkpoint after {name}: {error}", CheckpointWarning, stacklevel=2)
            return False
        for number in numbers[: max(0, len(numbers) + 1 - CHECKPOINTS_KEPT)]:
            self._path(slot, number).unlink(missing_ok=True)
        return True

    def load(self, *, slot: str = "state") -> tuple[str, dict[str, Any]] | None:
        """The newest `(name, state)` of `slot`, or None when nothing was saved yet."""
        numbers = self._numbers(slot)
        if not numbers:
            return None
        path = self._path(slot, numbers[-1])
        try:
            require(_is_regular(path), "path", "must be a file, no link", path)
            tensors, metadata = read_tensors(path)
            text = metadata.get("json", "")
            require(metadata == _metadata(tensors, text), "sha256", "must be that of the state", path)
            value = decode(tensors, text)
            return value["name"], dict(value["state"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "delete that file to continue from the one before" if len(numbers) > 1 else "start anew"
            raise CheckpointError(f"{path} is damaged ({one_line(str(error), 300)}); {hint}") from error

    def drop(self, slot: str) -> None:
        """Forget what was saved in `slot`, newest last so that no older one reappears."""
        for number in self._numbers(slot):
            self._path(slot, number).unlink(missing_ok=True)

    def _path(self, slot: str, number: int) -> Path:
        return self.folder / f"{slot}-{number:06d}.safetensors"

    def _numbers(self, slot: str) -> list[int]:
        matches = (re.fullmatch(rf"{slot}-(\d+)\.safetensors", path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)


def _is_regular(path: Path) -> bool:
    """Whether `path` itself is a file: no link, folder, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _metadata(tensors: Mapping[str, np.ndarray], text: str) -> dict[str, str]:
    """What stands in the header of a state; `read_tensors` gives half precision in float32, which the hash takes too."""
    names = sorted(tensors)
    flat = [np.ravel(tensors[name]) for name in names]
    flat = [array.astype(np.float32) if array.dtype == np.float16 else array for array in flat]
    said = np.frombuffer("\0".join([text, *names]).encode("utf-8", "replace"), np.uint8)
    return {"schema": SCHEMA, "version": str(VERSION), "json": text, "sha256": array_hash(said, *flat)}


def _lock(folder: Path) -> int:
    try:
        return acquire(folder / "lock")
    except Held as held:
        raise CheckpointError(f"{folder} is in use by process {held.owner}") from None
    except NoLock as error:
        raise CheckpointError(str(error)) from None
    except OSError as error:
        why = f"checkpoint: cannot lock {folder} ({error.strerror}): it must be local and writable"
        raise CheckpointError(why) from error


def _read_identity(path: Path) -> dict[str, Any]:
    try:
        require(_is_regular(path), "path", "must be a file, no link", path)
        stored = read_json(path, IDENTITY_BYTES)
        schema, version, identity = stored["schema"], stored["version"], stored["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not the identity of a checkpoint ({one_line(str(error), 300)})"
        ) from error
    if (schema, version) != (SCHEMA, VERSION) or not isinstance(identity, dict):
        read = f"{_short(schema)} version {_short(version)}"
        raise CheckpointError(f"{path} is {read}; this attnlearn reads version {VERSION}")
    return identity


def _same_problem(stored: dict[str, Any], current: dict[str, Any]) -> None:
    before, now = _flat(stored), _flat(current)
    changed = [
        f"{one_line(name, 60)} was {_short(before.get(name, _MISSING))} and is {_short(now.get(name, _MISSING))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]
    if changed:
        raise CheckpointError(f"the checkpoint is of another problem: {'; '.join(changed[:12])}")


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            flat.update(_flat(entry, f"{prefix}{name}."))
        else:
            flat[prefix + name] = entry
    return flat


def _short(value: Any) -> str:
    text = value if value is _MISSING else json.dumps(value)
    return text if len(text) <= 40 else text[:18] + "..." + text[-18:]
