"""Threads of the spectral route: whole chunks in parallel, one BLAS thread each.

The products of the phases are many and small; BLAS threads would wait for each other more than they work
(measured with two busy cores: 69 s with two BLAS threads, 4.8 s with one). Chunks are independent, so they run on
as many Python threads as there are cores, and their results are added in order: the bytes of a result do not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from attnlearn.engine._threads import limited_blas

Value = TypeVar("Value")


def one_blas_thread(phase: Callable[..., Value]) -> Callable[..., Value]:
    """`phase` with BLAS confined to one thread, restored after it."""

    @wraps(phase)
    def limited(*arguments, **options):
        with limited_blas(1):
            return phase(*arguments, **options)

    return limited
