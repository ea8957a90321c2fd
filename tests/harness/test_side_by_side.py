"""Runs side by side: their number, their private memory, and their complete output."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import run
from tests.harness.side_by_side import ALONE, has_private_memory, side_by_side
from tests.suite import Run


@dataclass(frozen=True)
class Work:
    name: str
    weight: int


def done(works: list[Work], room: int) -> list[int]:
    """Do works that take 0.1 s; return the shares taken whenever one began."""
    lock, taken, seen = threading.Lock(), [0], []

    def start(work: Work) -> str:
        with lock:
            taken[0] += work.weight
            seen.append(taken[0])
        time.sleep(0.1)
        with lock:
            taken[0] -= work.weight
        return work.name

    results = side_by_side(works, start, lambda work, result: None, lambda: None, room)
    assert results == [work.name for work in works]
    return seen


def test_works_take_no_more_than_the_room() -> None:
    seen = done([Work(str(n), 1 + n % 2) for n in range(8)], room=3)
    assert len(seen) == 8
    assert max(seen) == 3


def test_a_work_that_fits_nowhere_is_done_alone() -> None:
    works = [Work("a", 1), Work("heavy", ALONE), Work("b", 1)]
    assert sorted(done(works, room=2)) == [1, 2, ALONE]
    assert sorted(done(works, room=0)) == [1, 1, ALONE]


def test_an_error_stops_the_others() -> None:
    stopped = threading.Event()

    def start(work: Work) -> None:
        if work.name == "bad":
            raise ValueError("bad")
        assert stopped.wait(10)

    works = [Work("waits", 1), Work("bad", 1)]
    with pytest.raises(ValueError, match="bad"):
        side_by_side(works, start, lambda *_: None, stopped.set, 2)


def python(name: str, program: str) -> Run:
    return Run(name, (sys.executable, "-c", program), 20.0)


def test_the_output_of_a_run_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    lines = "import time\nfor n in range(5): print({0!r}, n, flush=True); time.sleep(0.05)"
    runs = [python(name, lines.format(name)) for name in ("one", "two")]
    results = run.execute_all(runs, 2)
    assert all(result.startswith("passed") for result in results)
    text = capfd.readouterr().out
    for name in ("one", "two"):
        assert "".join(f"{name} {n}\n" for n in range(5)) in text


def test_runs_share_no_folder_for_temporary_files(tmp_path: Path) -> None:
    program = f"""
import pathlib, tempfile, time
folder = pathlib.Path(tempfile.gettempdir())
assert not list(folder.iterdir()), list(folder.iterdir())
(folder / "left").touch()
pathlib.Path({str(tmp_path)!r}, "seen-" + folder.name).touch()
"""
    results = run.execute_all([python("one", program), python("two", program)], 2)
    assert all(result.startswith("passed") for result in results)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not has_private_memory(), reason="only root can mount a /dev/shm of its own")
def test_runs_share_no_memory_of_the_machine() -> None:
    program = """
import os
assert not os.listdir("/dev/shm"), os.listdir("/dev/shm")
open("/dev/shm/mpich_shm_test", "x").close()
"""
    results = run.execute_all([python("one", program), python("two", program)], 2)
    assert all(result.startswith("passed") for result in results)
