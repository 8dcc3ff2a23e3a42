"""How much memory is free, and the one way in which a file that would not fit is refused.

A file says in its header what it will unpack to. That number is compared here before anything is allocated, so a file of
a few kilobytes cannot take the machine's memory. Cost: three small reads of /proc. Where the system does not say what is
free, only the caller's own limit counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and reclaimable pages of a container, version 2 and version 1."""


def require_room(needed: int, parameter: str, what: str, limit: int | None = None) -> None:
    """Refuse what needs more than `limit` or more than is free, in one line.

    >>> require_room(2_000_000_000, "path", "x unpacks", limit=500_000_000)
    Traceback (most recent call last):
    ValueError: path: x unpacks to 2.00 GB, more than the 0.50 GB allowed by memory
    """
    if limit is not None and needed > limit:
        raise ValueError(
            f"{parameter}: {what} to {_size(needed)}, more than the {_size(limit)} allowed by memory"
        )
    free = free_bytes()
    if free is not None and needed > free:
        raise ValueError(f"{parameter}: {what} to {_size(needed)}, more than the {_size(free)} that are free")


def free_bytes() -> int | None:
    """Bytes this process can still take: the least of machine, container and its own limit; None if unknown.

    >>> free_bytes() is None or free_bytes() > 0
    True
    """
    return min((max(0, number) for number in _rooms()), default=None)


def _rooms() -> Iterator[int]:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        yield 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    for limit, used, stat in _CGROUPS:
        with suppress(OSError, ValueError):
            fields = dict(line.split() for line in Path(stat).read_text("ascii").splitlines())
            reclaimable = int(fields.get("inactive_file", 0))
            yield int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii")) + reclaimable
    with suppress(OSError, ValueError, ImportError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY:
            taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
            yield soft - taken


def _size(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number:,} bytes"
