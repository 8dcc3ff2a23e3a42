"""A file that one process holds: the lock of a checkpoint's folder, which vanishes with the process.

`flock` where the system has it, and on Windows a lock on one byte far behind the text. What can fail: a file system without locks,
a file that somebody else holds (`Held` names the owner), a name under which something else lies; nothing of others is overwritten.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from pathlib import Path

FAR = 2**30
"""Where Windows locks a byte: readers of the owner's name stay below it."""


class Held(OSError):
    """Another process holds the lock; `owner` is what it wrote there.

    >>> Held("12 on host").owner
    '12 on host'
    """

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by process {owner}")
        self.owner = owner


class NoLock(ValueError):
    """What lies under the name is no lock.

    >>> issubclass(NoLock, ValueError)
    True
    """


def acquire(path: Path) -> int:
    """An open handle of `path`, locked until it is closed; the name of this process is written into it."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | careful, 0o666)
    try:
        owner = _require_own(path, handle)
        try:
            _exclusive(handle)
        except BlockingIOError:
            raise Held(owner or "unknown") from None
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"{os.getpid()} on {platform.node()}\n".encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


def _require_own(path: Path, handle: int) -> str:
    """Who wrote the lock; what is no lock, or has a second name elsewhere, is not overwritten."""
    about = os.fstat(handle)
    plain = stat.S_ISREG(about.st_mode) and about.st_nlink == 1
    owner = os.read(handle, 300).decode("utf-8", "replace") if plain else ""
    if not plain or re.fullmatch(r"(\d+ on \S*\n)?", owner) is None:
        raise NoLock(f"{path} is not the lock of a checkpoint: name another folder")
    return owner.strip()


def _exclusive(handle: int) -> None:
    """Lock the file, or raise `BlockingIOError` at once."""
    try:
        import fcntl
    except ImportError:  # Windows
        _exclusive_byte(handle)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _exclusive_byte(handle: int) -> None:
    import msvcrt

    os.lseek(handle, FAR, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError as error:
        raise BlockingIOError(error.errno, "in use") from error
