"""What is noted of a store's calls: which, from where in the user's program, and which are not."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.board import Call
from ncclkv.errors import UsageError
from ncclkv.testing import run_ranks

HERE = Path(__file__).name


def full(value: float = 1.0) -> np.ndarray:
    return np.full(3, value, np.float64)


def line(offset: int = 0) -> int:
    """The line of the caller, or one near it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + offset


def last(kv: Any) -> Call:
    """The last call that is noted."""
    return kv._comm.calls.board.read(kv.rank, 1).calls[-1]


def noted(kv: Any) -> tuple[int, int]:
    """How many calls there were, and the mark of all of them."""
    return kv._comm.calls.board.count, kv._comm.mark.value


def on_two_ranks(body: Callable[[Any], Any]) -> list[Any]:
    """Run ``body(kv)`` on both ranks, with keys "a" and "b"."""

    def rank() -> Any:
        with ncclkv.create("threads", timeout=10) as kv:
            kv.init(["a", "b"], [full(0), full(0)])
            return body(kv)

    return run_ranks(2, rank, timeout=10)


def called(kv: Any, words: str, number: int) -> None:
    """Fail unless the last call noted is this one, from that line of this file."""
    said = last(kv).text
    verb, _, place = said.rpartition(" at ")
    assert verb == words, said
    assert place.endswith(f"{HERE}:{number}"), said


# Where a call comes from


def test_every_verb_is_noted_with_its_line() -> None:
    def body(kv: Any) -> None:
        kv.push("a", full())
        called(kv, "push('a')", line(-1))
        kv.pull("a")
        called(kv, "pull('a')", line(-1))
        kv.pushpull("b", full(), priority=3)
        called(kv, "pushpull('b', priority=3)", line(-1))
        kv.wait()
        called(kv, "wait()", line(-1))
        kv.wait(["b", "a"])
        called(kv, "wait('b', 'a')", line(-1))
        kv.barrier()
        called(kv, "barrier()", line(-1))
        kv._barrier()
        called(kv, "barrier()", line(-1))
        kv.set_updater(lambda key, grad, stored: None)
        assert last(kv).text.startswith("set_updater()")
        kv.init("c", full())
        assert last(kv).text.startswith("init(")
        kv.reset("c", full())
        assert last(kv).text.startswith("reset(")
        kv.broadcast("c", full(), full())
        assert last(kv).text.startswith("broadcast(")

    on_two_ranks(body)


def test_a_call_over_several_lines_is_where_python_says() -> None:
    def body(kv: Any) -> None:
        kv.push(
            ["a", "b"],
            [full(), full()],
        )
        called(kv, "push('a', 'b')", line(-4))

    on_two_ranks(body)


def test_a_groups_end_is_noted_at_its_with() -> None:
    def body(kv: Any) -> None:
        with kv.group():
            called(kv, "group()", line(-1))
            kv.push("a", full())
            kv.push("b", full())
        begin = line(-4)
        assert last(kv).text.endswith(f"{HERE}:{begin}")
        assert "('a', 'b')" in last(kv).text

    on_two_ranks(body)


def test_a_function_of_the_programs_own_is_where_the_call_is() -> None:
    def step(kv: Any, key: str) -> int:
        kv.push(key, full())
        return line(-1)

    def body(kv: Any) -> None:
        called(kv, "push('a')", step(kv, "a"))
        called(kv, "push('b')", (lambda: step(kv, "b"))())

    on_two_ranks(body)


def test_a_block_of_the_programs_own() -> None:
    @contextlib.contextmanager
    def pushed(kv: Any) -> Iterator[int]:
        yield line(+1)
        kv.push("a", full())

    def body(kv: Any) -> None:
        with pushed(kv) as number:
            pass
        called(kv, "push('a')", number)

    on_two_ranks(body)


def test_two_calls_of_one_line_are_two_places() -> None:
    def body(kv: Any) -> list[str]:
        texts = []
        for key in ("a", "b"):
            kv.push(key, full()), kv.pull(key)
            texts.append(last(kv).text.partition(" at ")[0])
        return texts

    assert on_two_ranks(body) == [["pull('a')", "pull('b')"]] * 2


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("<string>", "<string>:2"),
        ("/" + "long/" * 60 + "train.py", r"\.\.\.[long/]*/train\.py:2"),
        ("train.py", r"train\.py:2"),
        ("/ein/ö/weg.py", r"/ein/ö/weg\.py:2"),
    ],
)
def test_paths(path: str, shown: str) -> None:
    code = compile("\nkv.push('a', value)", path, "exec")

    def body(kv: Any) -> str:
        exec(code, {"kv": kv, "value": full()})
        return last(kv).text

    for said in on_two_ranks(body):
        assert re.fullmatch(rf"push\('a'\) at {shown}", said), said
        assert len(said) < 100


# What is noted


def test_a_failed_call_is_not_noted() -> None:
    def body(kv: Any) -> None:
        before = noted(kv)
        calls: list[Callable[[], Any]] = [
            lambda: kv.push("a", np.zeros(7)),
            lambda: kv.push("nobody", full()),
            lambda: kv.push(["a", "b"], [full()]),
            lambda: kv.push("a", full(), priority="high"),
            lambda: kv.pull("a", out=np.zeros(7)),
            lambda: kv.pull(["a", "nobody"]),
            lambda: kv.pushpull("a", full(), out=np.zeros(7)),
            lambda: kv.wait("nobody"),
            lambda: kv.set_gradient_compression({"type": "2bit"}),
        ]
        for call in calls:
            with pytest.raises((UsageError, NotImplementedError)):
                call()
            assert noted(kv) == before

    on_two_ranks(body)


def test_local_calls_are_not_noted() -> None:
    def body(kv: Any) -> None:
        kv.pushpull("a", full())
        before = noted(kv)
        kv.value("a")
        kv.grad_view("b")
        kv.spec("a")
        kv.keys()
        kv.pull("a", local=True)
        kv.pull("a", out=full(), local=True)
        kv.explain_plan()
        repr(kv)
        assert noted(kv) == before

    on_two_ranks(body)


def test_pushes_and_pulls_of_a_group_are_noted_once_at_its_end() -> None:
    def body(kv: Any) -> None:
        before, _ = noted(kv)
        with kv.group():
            kv.push("a", full())
            kv.pushpull("b", full(), out=full(0))
            assert noted(kv)[0] == before + 1
        assert noted(kv)[0] == before + 2

    on_two_ranks(body)


def test_a_group_that_is_dropped_is_not_ended() -> None:
    def body(kv: Any) -> None:
        before, _ = noted(kv)
        with contextlib.suppress(ZeroDivisionError), kv.group():
            kv.push("a", full())
            raise ZeroDivisionError
        assert noted(kv)[0] == before + 1

    on_two_ranks(body)


def marks(kv: Any, calls: list[Callable[[], Any]]) -> list[int]:
    """What each call alone would make of the mark."""
    found = []
    for call in calls:
        kv._comm.mark.value = 0
        call()
        found.append(kv._comm.mark.value)
    return found


def test_what_is_the_same_call() -> None:
    def body(kv: Any) -> None:
        two = [full(), full()]
        same: list[list[Callable[[], Any]]] = [
            [lambda: kv.push(["a", "b"], two), lambda: kv.push(["b", "a"], two)],
            [
                lambda: kv.push("a", full()),
                lambda: kv.push("a", two),
                lambda: kv.push(["a"], [two]),
            ],
            [lambda: kv.pull("a"), lambda: kv.pull("a", out=full()), lambda: kv.pull("a", out=two)],
            [lambda: kv.pull(["a", "b"]), lambda: kv.pull(["b", "a"]), lambda: kv.pull(["b", "a"])],
            [lambda: kv.wait("a"), lambda: kv.wait(["a"]), lambda: kv.wait(["a", "a"])],
        ]
        found = [marks(kv, calls) for calls in same]
        for each in found:
            assert len(set(each)) == 1
        assert len({each[0] for each in found}) == len(found)

    on_two_ranks(body)


def test_what_is_another_call() -> None:
    def body(kv: Any) -> None:
        two = [full(), full()]
        calls: list[Callable[[], Any]] = [
            lambda: kv.push("a", full()),
            lambda: kv.push("b", full()),
            lambda: kv.push(["a", "b"], two),
            lambda: kv.push("a", full(), priority=1),
            lambda: kv.push("a", full(), priority=-1),
            lambda: kv.pull("a"),
            lambda: kv.pull("b"),
            lambda: kv.pushpull("a", full()),
            lambda: kv.pushpull("a", full(), out=full(0), priority=1),
            lambda: kv.wait(),
            lambda: kv.wait("a"),
            lambda: kv.barrier(),
        ]
        assert len(set(marks(kv, calls))) == len(calls)

    on_two_ranks(body)


def test_calls_that_come_again_are_noted_again() -> None:
    def body(kv: Any) -> int:
        value, before = full(), noted(kv)[0]
        seen = set()
        for _ in range(50):
            kv.pushpull(["a", "b"], [value, value])
            seen.add(noted(kv)[1])
        assert noted(kv)[0] == before + 50
        return len(seen)

    assert on_two_ranks(body) == [50, 50]


def test_more_calls_than_there_is_room_for_words() -> None:
    """Two thousand places and keys, of which some are called all the time."""

    def body(kv: Any) -> None:
        keys = [f"k{number}" for number in range(1500)]
        kv.init(keys, [np.zeros(1)] * len(keys))
        one, expected = np.ones(1), []
        for number in [*range(1000), *range(600), *range(1000, 1500)]:
            kv.push(keys[number], one)
            expected.append(f"push('k{number}')")
        calls = kv._comm.calls.board.read(kv.rank).calls
        texts = [call.text.partition(" at ")[0] for call in calls]
        assert texts == expected[-len(texts) :]

    on_two_ranks(body)


def test_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    def body() -> None:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(2))
            kv.push("w", np.ones(2))
            assert (kv.pull("w") == 2).all()

    ncclkv.testing.run_ranks(2, body)
