"""Layer 0: the thread that checks works in flight outside of calls of ncclkv."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.comm.nccl.watcher import INTERVAL, Watcher
from tests.harness.slow import stretched

pytestmark = pytest.mark.limit(20)

SOON = stretched(5.0)


class CheckedCommunicator:
    """A communicator with work in flight for so many checks."""

    def __init__(self, checks: int, error: Exception | None = None) -> None:
        self.left = checks
        self.threads: list[int] = []
        self.over = threading.Event()
        self._error = error

    def look_over(self) -> bool:
        self.threads.append(threading.get_ident())
        self.left -= 1
        if self._error is not None:
            self.over.set()
            raise self._error
        if not self.left:
            self.over.set()
        return self.left > 0


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher(interval=0.01)
    yield made
    made.stop()


def test_it_checks_until_nothing_is_in_flight_and_then_sleeps(watcher):
    checked = CheckedCommunicator(3)
    watcher.add(checked)
    assert checked.over.wait(SOON)
    time.sleep(0.1)
    assert len(checked.threads) == 3
    assert threading.get_ident() not in checked.threads
    checked.left = 2
    checked.over.clear()
    watcher.add(checked)
    assert checked.over.wait(SOON)
    assert len(set(checked.threads)) == 1, "one thread for all"


def test_there_is_no_thread_before_there_is_a_work_to_check():
    before = threading.active_count()
    made = Watcher(interval=0.01)
    assert threading.active_count() == before
    made.stop()


def test_it_checks_ten_times_a_second():
    assert INTERVAL == 0.1


def test_a_check_that_fails_is_logged_once_and_others_continue(watcher, caplog):
    broken, other = CheckedCommunicator(5, ValueError("on purpose")), CheckedCommunicator(5)
    with caplog.at_level(logging.ERROR, "ncclkv"):
        watcher.add(broken)
        watcher.add(other)
        assert broken.over.wait(SOON)
        assert other.over.wait(SOON)
    assert len(broken.threads) == 1
    (record,) = caplog.records
    assert "are not checked any more" in record.message
    assert record.exc_info is not None
    assert "on purpose" in str(record.exc_info[1])


def test_communicators_are_checked_in_the_order_in_which_they_were_added():
    watcher, order = Watcher(), []

    class Ordered(CheckedCommunicator):
        def look_over(self) -> bool:
            order.append(self)
            return super().look_over()

    watcher.stop()  # the test takes the place of the thread
    made = [Ordered(2) for _ in range(100)]
    added = [made[number * 37 % 100] for number in range(100)]
    for each in added:
        watcher.add(each)
    watcher._look()
    watcher._look()
    assert order == added * 2


def test_after_stop_nothing_is_checked(watcher):
    checked = CheckedCommunicator(1000)
    watcher.add(checked)
    watcher.stop()
    count = len(checked.threads)
    watcher.add(checked)
    time.sleep(0.1)
    assert len(checked.threads) == count


def test_no_watcher_starts_when_python_starts_no_threads(watcher, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    watcher.add(CheckedCommunicator(1))


def test_a_forked_child_has_no_such_thread_and_no_lock_of_it_held(watcher):
    checked = CheckedCommunicator(10_000)
    watcher.add(checked)
    for _ in range(20):
        child = os.fork()
        if child == 0:  # the child must not run pytest's exit
            free = watcher._looking.acquire(timeout=5) and not watcher._watched
            os._exit(0 if free and threading.active_count() == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    count, end = len(checked.threads), time.monotonic() + SOON
    while len(checked.threads) == count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(checked.threads) > count, "the watcher of the parent still checks"


ENDS = """
import threading, time
from ncclkv.comm.nccl import lifetime
from ncclkv.comm.nccl.watcher import WATCHER
class Busy:
    def look_over(self):
        print("checked", flush=True)
        return True
WATCHER.add(Busy())
time.sleep(0.3)
print("ends", flush=True)
"""


def test_the_process_ends_with_it():
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, check=True, timeout=50
    )
    assert ended.stdout.startswith("checked\n")
    assert ended.stderr == ""
