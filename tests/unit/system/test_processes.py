"""The state of other processes: running, stopped or ended, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ncclkv.system import processes, stacks
from ncclkv.system.processes import Process
from tests.harness.slow import stretched

SECONDS = stretched(10.0)


@contextmanager
def sleeper(code: str = "import time; time.sleep(60)") -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that the block's end kills, and that nobody waits for earlier."""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def soon(what: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true in time."""
    limit = time.monotonic() + SECONDS
    while not what():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def test_a_running_process_has_not_ended() -> None:
    with sleeper() as other:
        known = Process(other.pid)
        assert not known.has_ended()
        assert known.state() == ""


@pytest.mark.parametrize("seen_before", [True, False])
@pytest.mark.parametrize("descriptors", [True, False])
def test_a_killed_process_has_its_signal(
    seen_before: bool, descriptors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not descriptors:

        def refuse(number: int) -> int:
            raise OSError("not on this kernel")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    with sleeper() as other:
        known = Process(other.pid)
        if seen_before:
            assert not known.has_ended()
        os.kill(other.pid, signal.SIGKILL)
        # Without a wait by the parent, the system still has the exit code.
        assert soon(known.has_ended)
        assert known.state() == "has ended"
        assert known.end() == "was killed by signal 9"
        other.wait()
        assert known.has_ended()
        assert known.end() == "has ended"


def test_an_exited_process_has_its_code() -> None:
    with sleeper("import os; os._exit(3)") as other:
        known = Process(other.pid)
        assert soon(known.has_ended)
        assert known.end() == "has ended with exit code 3"


def test_a_stopped_process_has_not_ended() -> None:
    with sleeper() as other:
        known = Process(other.pid)
        os.kill(other.pid, signal.SIGSTOP)
        assert soon(lambda: known.state() == "is stopped")
        assert not known.has_ended()
        os.kill(other.pid, signal.SIGCONT)
        assert soon(lambda: known.state() == "")


def test_each_process_has_one_object_and_one_descriptor() -> None:
    assert processes.process(os.getpid()) is processes.process(os.getpid())


def test_numbers_of_processes_are_valid_in_one_namespace() -> None:
    code = "from ncclkv.system.processes import namespace; print(namespace())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(said.stdout) == processes.namespace() > 0


@pytest.mark.parametrize("descriptors", [True, False])
def test_a_signal_reaches_a_process_that_runs(
    descriptors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    with sleeper() as other:
        Process(other.pid).signal(signal.SIGTERM)
        assert other.wait(SECONDS) == -signal.SIGTERM


def test_a_signal_does_not_reach_another_process_of_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check a reused number: the system may give it to a new process after the wait."""
    killed: list[int] = []
    with sleeper() as old, sleeper() as new:
        known = processes.process(old.pid)
        assert not known.has_ended()
        old.kill()
        old.wait()
        known._pid = new.pid  # the id of the new program
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda number, chosen: killed.append(number))
            stacks.show(old.pid, signal.SIGTERM)
            patch.setattr(Process, "has_ended", lambda self: False)
            stacks.show(old.pid, signal.SIGTERM)  # the process ends after its check
        time.sleep(0.05)
        assert new.poll() is None
    assert killed == []
