"""Work on the threads of one process: order, context, nesting, failures, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from threading import Event, Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from attnlearn.engine._threads import in_order, limited_blas, overlooked, own_blas_threads


@pytest.fixture(autouse=True, params=["1", "2", "3"])
def _threads(request, monkeypatch) -> None:
    monkeypatch.setenv("PJRT_NPROC", request.param)


def test_values_come_in_order_and_few_items_are_taken_at_a_time():
    taken = []

    def items():
        for item in range(9):
            taken.append(item)
            yield item

    values = in_order(lambda item: item**2, items())
    assert next(values) == 0
    assert len(taken) <= 3
    assert list(values) == [item**2 for item in range(1, 9)]


def test_what_the_caller_set_for_its_context_holds_for_all():
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        list(in_order(lambda item: np.ones(2) / item, [1.0, 1.0, 0.0]))
    with np.errstate(divide="ignore"):
        assert len(list(in_order(lambda item: np.ones(2) / item, [0.0] * 5))) == 5


def test_work_inside_work_does_not_wait_for_itself():
    def outer(item):
        return sum(in_order(lambda inner: inner * item, range(4)))

    assert list(in_order(outer, range(6))) == [6 * item for item in range(6)]


def test_a_failure_arrives_and_no_thread_goes_on():
    begun, ended = [], []

    def work(item):
        if item == 0:
            raise ValueError("no")
        begun.append(item)
        time.sleep(0.05)
        ended.append(item)

    with pytest.raises(ValueError, match=r"^no$"):
        list(in_order(work, range(3)))
    assert sorted(begun) == sorted(ended)
    assert list(in_order(abs, [-1, -2])) == [1, 2]


def test_blas_is_limited_and_restored():
    before = own_blas_threads()
    with limited_blas(1):
        assert own_blas_threads() == 1
    assert own_blas_threads() == before


@pytest.fixture
def two_blas_threads():
    before = own_blas_threads()
    set_blas_threads(2)
    yield
    set_blas_threads(before)


def set_blas_threads(number: int) -> None:
    """From a thread that ends: threadpoolctl lets nobody else set the number while the one that set it lives."""
    thread = Thread(target=threadpool_limits, args=(number,), kwargs={"user_api": "blas"})
    thread.start()
    thread.join()


@pytest.mark.usefixtures("two_blas_threads")
def test_blocks_that_overlap_in_threads_give_back_what_was_there():
    first_in, second_in, first_out = Event(), Event(), Event()
    seen = {}

    def first():
        with limited_blas(1):
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second():
        first_in.wait(10)
        with limited_blas(1):
            second_in.set()
            first_out.wait(10)
            seen["while the second runs"] = own_blas_threads()
        seen["after both"] = own_blas_threads()

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {"while the second runs": 1, "after both": 2}


@pytest.mark.usefixtures("two_blas_threads")
def test_the_innermost_block_decides():
    with limited_blas(1):
        with limited_blas(2):
            assert own_blas_threads() == 2
        assert own_blas_threads() == 1
    assert own_blas_threads() == 2


def test_errors_of_a_thread_are_overlooked_while_any_block_is_open(monkeypatch):
    heard = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: heard.append(failure.thread.name))
    mine = threading.excepthook

    def die(name, error):
        def work():
            raise error

        thread = Thread(target=work, name=name)
        thread.start()
        thread.join()

    first, second = overlooked("manager", KeyError), overlooked("manager", KeyError)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    die("manager", KeyError("gone"))
    die("manager", ValueError("heard"))
    die("other", KeyError("heard"))
    second.__exit__(None, None, None)
    assert threading.excepthook is mine
    die("manager", KeyError("heard"))
    assert heard == ["manager", "other", "manager"]


FORK = """
import os, warnings
warnings.simplefilter("ignore")
from attnlearn.engine._threads import in_order
assert list(in_order(abs, range(4))) == [0, 1, 2, 3]
child = os.fork()
if not child:
    os._exit(0 if list(in_order(abs, range(4))) == [0, 1, 2, 3] else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_has_threads_of_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)
