"""The call site of a store's call: a line in the user's program."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.store.recorded_calls import full, last, on_two_ranks

HERE = Path(__file__).name


def line(offset: int = 0) -> int:
    """Return the number of the caller's line, or of one near it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + offset


def called(kv: Any, words: str, number: int) -> None:
    """Check that the last recorded call is this one, from that line of this file."""
    said = last(kv).text
    verb, _, place = said.rpartition(" at ")
    assert verb == words, said
    assert place.endswith(f"{HERE}:{number}"), said


def test_every_verb_is_recorded_with_its_line() -> None:
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


def test_a_call_over_several_lines_has_pythons_line() -> None:
    def body(kv: Any) -> None:
        kv.push(
            ["a", "b"],
            [full(), full()],
        )
        called(kv, "push('a', 'b')", line(-4))

    on_two_ranks(body)


def test_a_groups_end_is_recorded_at_its_with() -> None:
    def body(kv: Any) -> None:
        with kv.group():
            called(kv, "group()", line(-1))
            kv.push("a", full())
            kv.push("b", full())
        begin = line(-4)
        assert last(kv).text.endswith(f"{HERE}:{begin}")
        assert "('a', 'b')" in last(kv).text

    on_two_ranks(body)


def test_a_repeated_call_has_the_line_of_each_call() -> None:
    def body(kv: Any) -> None:
        gradient, out = full(), full()
        for _ in range(3):
            kv.push("a", gradient)
            called(kv, "push('a')", line(-1))
            kv.push("a", gradient, priority=2)
            called(kv, "push('a', priority=2)", line(-1))
            kv.pull("a", out=out)
            called(kv, "pull('a')", line(-1))
            kv.pushpull("a", gradient, out=out)
            called(kv, "pushpull('a')", line(-1))
            kv.wait(["a", "b"])
            called(kv, "wait('a', 'b')", line(-1))
            kv.wait(["a", "b"])
            called(kv, "wait('a', 'b')", line(-1))

    on_two_ranks(body)


def test_a_repeated_call_from_c_has_no_line_of_the_program() -> None:
    def body(kv: Any) -> None:
        gradient = full()
        for _ in range(2):
            kv.push("a", gradient)
            called(kv, "push('a')", line(-1))
        list(map(kv.push, "a", [gradient]))
        called(kv, "push('a')", line(-1))

    on_two_ranks(body)


def test_a_call_in_a_function_of_the_program_has_the_functions_line() -> None:
    def step(kv: Any, key: str) -> int:
        kv.push(key, full())
        return line(-1)

    def body(kv: Any) -> None:
        called(kv, "push('a')", step(kv, "a"))
        called(kv, "push('b')", (lambda: step(kv, "b"))())

    on_two_ranks(body)


def test_a_call_in_a_context_manager_of_the_program() -> None:
    @contextlib.contextmanager
    def pushed(kv: Any) -> Iterator[int]:
        yield line(+1)
        kv.push("a", full())

    def body(kv: Any) -> None:
        with pushed(kv) as number:
            pass
        called(kv, "push('a')", number)

    on_two_ranks(body)


def test_two_calls_in_one_line_are_two_call_sites() -> None:
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
def test_paths_of_call_sites(path: str, shown: str) -> None:
    code = compile("\nkv.push('a', value)", path, "exec")

    def body(kv: Any) -> str:
        exec(code, {"kv": kv, "value": full()})
        return last(kv).text

    for said in on_two_ranks(body):
        assert re.fullmatch(rf"push\('a'\) at {shown}", said), said
        assert len(said) < 100
