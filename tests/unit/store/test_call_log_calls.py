"""The calls of a store that the log records, and the calls that count as equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from tests.harness.context import context_of
from tests.unit.store.recorded_calls import full, noted, on_two_ranks


def test_a_failed_call_is_not_recorded() -> None:
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
            lambda: kv.row_sparse_pull("a", out=full(), row_ids=full()),
        ]
        for call in calls:
            with pytest.raises((UsageError, NotImplementedError)):
                call()
            assert noted(kv) == before

    on_two_ranks(body)


def test_local_calls_are_not_recorded() -> None:
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


def test_pushes_and_pulls_of_a_group_are_recorded_once_at_its_end() -> None:
    def body(kv: Any) -> None:
        before, _ = noted(kv)
        with kv.group():
            kv.push("a", full())
            kv.pushpull("b", full(), out=full(0))
            assert noted(kv)[0] == before + 1
        assert noted(kv)[0] == before + 2

    on_two_ranks(body)


def test_a_group_left_by_an_error_is_recorded_once() -> None:
    def body(kv: Any) -> None:
        before, _ = noted(kv)
        with contextlib.suppress(ZeroDivisionError), kv.group():
            kv.push("a", full())
            raise ZeroDivisionError
        assert noted(kv)[0] == before + 1

    on_two_ranks(body)


def marks(kv: Any, calls: list[Callable[[], Any]]) -> list[int]:
    """Return the digest of each call alone."""
    found = []
    for call in calls:
        context_of(kv).comm.digest.value = 0
        call()
        found.append(context_of(kv).comm.digest.value)
    return found


def test_equal_calls_have_equal_digests() -> None:
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


def test_different_calls_have_different_digests() -> None:
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


def test_repeated_calls_are_recorded_each_time() -> None:
    def body(kv: Any) -> int:
        value, before = full(), noted(kv)[0]
        seen = set()
        for _ in range(50):
            kv.pushpull(["a", "b"], [value, value])
            seen.add(noted(kv)[1])
        assert noted(kv)[0] == before + 50
        return len(seen)

    assert on_two_ranks(body) == [50, 50]


def test_more_calls_than_interned_texts() -> None:
    """Check two thousand call sites and keys, some of them in use all the time."""

    def body(kv: Any) -> None:
        keys = [f"k{number}" for number in range(1500)]
        kv.init(keys, [np.zeros(1)] * len(keys))
        one, expected = np.ones(1), []
        for number in [*range(1000), *range(600), *range(1000, 1500)]:
            kv.push(keys[number], one)
            expected.append(f"push('k{number}')")
        calls = context_of(kv).comm.calls.recorder.read(kv.rank).calls
        texts = [call.text.partition(" at ")[0] for call in calls]
        assert texts == expected[-len(texts) :]

    on_two_ranks(body)


def test_a_call_from_a_deleted_directory_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
