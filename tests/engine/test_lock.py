"""The lock of a folder: held once, named, and taken on Windows by a byte."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from attnlearn.engine import _lock
from attnlearn.engine._lock import Held, acquire


def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As on Windows: no `fcntl`, and `msvcrt` locks bytes where the file stands."""
    bytes_held: list[int] = []

    def locking(handle: int, mode: int, number: int) -> None:
        place = os.lseek(handle, 0, os.SEEK_CUR)
        assert (mode, number) == (2, 1)
        if place in bytes_held:
            raise PermissionError(13, "Permission denied")
        bytes_held.append(place)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    return bytes_held


@pytest.mark.parametrize("system", ["this", "windows"])
def test_a_second_user_is_told_the_first(system, tmp_path, monkeypatch):
    bytes_held = windows(monkeypatch) if system == "windows" else []
    handle = acquire(tmp_path / "lock")
    assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} on ")
    with pytest.raises(Held, match=f"held by process {os.getpid()} on "):
        acquire(tmp_path / "lock")
    assert bytes_held == ([_lock.FAR] if system == "windows" else [])
    os.close(handle)
    if system == "this":
        os.close(acquire(tmp_path / "lock"))
