"""Tracebacks of the package's errors: the program's frames, and the cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import ncclkv
from ncclkv import tracebacks
from ncclkv.errors import CommAborted, OrderMismatch, RankDied, RankLost, UsageError

INSIDE = "/ncclkv/"


@contextmanager
def broken_off() -> Iterator[None]:
    """Raise an error of the package from the block's error."""
    try:
        yield
    except ValueError as error:
        raise CommAborted("rank 0 of 2: interrupted") from error


def raised_by_push(array: object) -> BaseException:
    kv = ncclkv.create("local")
    kv.init("w", np.zeros(3))
    try:
        kv.push("w", array)
    except UsageError as error:
        return error
    finally:
        kv.close()
    pytest.fail("push raised nothing")


def frames(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("  File ")]


def test_only_the_frames_of_the_program_are_shown() -> None:
    error = raised_by_push(np.zeros(4))
    assert any(INSIDE in each for each in frames("".join(traceback.format_exception(error))))
    text = tracebacks.text(error)
    assert [line.split(", in ")[1] for line in frames(text)] == ["raised_by_push"], text
    first, hint, *_, last = text.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "NCCLKV_TRACEBACK=full" in hint
    assert last.startswith("ncclkv.errors.ShapeMismatch: rank 0 of 1: push of key 'w'")


def test_all_frames_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_TRACEBACK", "full")
    text = tracebacks.text(raised_by_push(np.zeros(4)))
    assert any(INSIDE in each for each in frames(text)), text
    assert "NCCLKV_TRACEBACK" not in text


def test_a_cause_in_the_program_is_shown() -> None:
    def updater() -> None:
        raise ValueError("in the program")

    with pytest.raises(CommAborted) as caught, broken_off():
        updater()
    text = tracebacks.text(caught.value)
    assert "ValueError: in the program" in text
    assert "in updater" in text
    assert text.splitlines()[-1].endswith("CommAborted: rank 0 of 2: interrupted")


def test_a_cause_inside_the_package_is_left_out() -> None:
    inner = raised_by_push(np.zeros(4))
    trace = inner.__traceback__
    while trace is not None and INSIDE not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    inner.__traceback__ = trace  # a traceback as if the package had called push
    inner.__context__ = outer = CommAborted("rank 0 of 2: outside")
    outer.__cause__ = inner
    text = tracebacks.text(outer)
    assert text == "ncclkv.errors.CommAborted: rank 0 of 2: outside\n"


def test_errors_of_others_keep_their_frames() -> None:
    with pytest.raises(ValueError, match="of another") as caught:
        raise ValueError("of another")
    assert not tracebacks.trim(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RankLost("rank 0 of 2: rank 1 left"), True),
        (RankDied("rank 0 of 2: rank 1 was killed by signal 9"), True),
        (OrderMismatch("rank 0 of 3: rank 1 left with OrderMismatch: the ranks differ"), True),
        (OrderMismatch("rank 0 of 3: rank 1 found: rank 1 of 3: the ranks differ"), True),
        (OrderMismatch("rank 0 of 3: the ranks differ in call 8 of this store"), False),
        (ValueError("mine"), False),
    ],
)
def test_errors_that_follow_another_rank(error: Exception, expected: bool) -> None:
    assert tracebacks.follows(error) == expected
