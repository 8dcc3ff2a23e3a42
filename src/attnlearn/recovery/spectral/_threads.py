"""Threads of the spectral route: whole chunks in parallel, one BLAS thread each.

The products of the phases are many and small; BLAS threads would wait for each other more than they work
(measured with two busy cores: 69 s with two BLAS threads, 4.8 s with one). Chunks are independent, so they run on
as many Python threads as there are cores, and their results are added in order: the bytes of a result do not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from itertools import islice
from typing import TypeVar

from attnlearn.engine._threads import inside_worker, limited_blas, own_threads

Item = TypeVar("Item")
Value = TypeVar("Value")


def in_order(function: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Value]:
    """`function` of each item, in order; as many at a time as there are cores, so few are alive at once.

    >>> list(in_order(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    threads = 1 if inside_worker() else own_threads()
    if threads == 1:
        yield from map(function, items)
        return
    remaining = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        while group := list(islice(remaining, threads)):
            yield from pool.map(function, group)


def one_blas_thread(phase: Callable[..., Value]) -> Callable[..., Value]:
    """`phase` with BLAS confined to one thread, restored after it."""

    @wraps(phase)
    def limited(*arguments, **options):
        with limited_blas(1):
            return phase(*arguments, **options)

    return limited
