"""Timeouts: of an argument, of ``NCCLKV_TIMEOUT``, and of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.host import threads
from ncclkv.errors import CommTimeout, LaunchError, UsageError
from ncclkv.testing import run_ranks

NO_TIMES = ["0", "-1", "nan", "inf", "-inf", "1e999", "soon", " "]


def test_the_default_timeout_is_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCLKV_TIMEOUT", raising=False)
    assert ncclkv.comm.world().timeout == 300
    monkeypatch.setenv("NCCLKV_TIMEOUT", "")
    assert ncclkv.comm.world().timeout == 300


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("0.25", 0.25), ("1e3", 1000.0)])
def test_the_variable_is_in_seconds(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_TIMEOUT", text)
    assert ncclkv.comm.world().timeout == seconds


@pytest.mark.parametrize("text", NO_TIMES)
def test_a_wrong_value_of_the_variable_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_TIMEOUT", text)
    calls: list[Callable[[], Any]] = [
        ncclkv.comm.world,
        ncclkv.create,
        lambda: ncclkv.create("dist"),
        lambda: ncclkv.create("threads"),
    ]
    for call in calls:
        with pytest.raises(LaunchError) as caught:
            call()
        assert str(caught.value) == (
            f"NCCLKV_TIMEOUT={text!r} is not a number of seconds; set one above 0, or unset it for "
            f"the default of 300"
        )


@pytest.mark.parametrize("given", [*map(float, NO_TIMES[:5]), "5", b"5", True, [5.0], 5j])
def test_a_wrong_argument_is_refused(given: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: ncclkv.comm.world(timeout=given),
        lambda: ncclkv.create(timeout=given),
        lambda: ncclkv.create("dist_sync", timeout=given),
        lambda: ncclkv.create("dist_sync", comm=ncclkv.comm.world(), timeout=given),
        lambda: ncclkv.create("threads", timeout=given),
        lambda: run_ranks(1, lambda: None, timeout=given),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == (
            f"timeout={given!r} is not a number of seconds; give one above 0"
        )


@pytest.mark.parametrize("given", [5, 5.0, np.int64(5), np.float32(5)])
def test_an_argument_wins_over_the_variable(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_TIMEOUT", "soon")
    assert ncclkv.comm.world(timeout=given).timeout == 5
    for name in ("local", "dist_sync", "threads"):
        ncclkv.create(name, timeout=given).close()


def waited(create: Callable[[], Any]) -> str:
    """Return rank 0's error when it waits in a store for rank 1, which never arrives."""
    over = threading.Event()

    def body() -> str:
        kv = create()
        if kv.rank == 1:
            over.wait(20)
            return ""
        try:
            with pytest.raises(CommTimeout) as caught:
                kv.barrier()
        finally:
            over.set()
        return str(caught.value)

    return run_ranks(2, body, timeout=0.5)[0]


def test_stores_over_threads_have_the_timeout_of_run_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCLKV_TIMEOUT", "50")
    assert "(timeout 0.5 s)" in waited(lambda: ncclkv.create("threads"))
    assert "(timeout 0.4 s)" in waited(lambda: ncclkv.create("threads", timeout=0.4))


def test_stores_over_a_communicator_have_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(**options: float) -> ncclkv.KVStore:
        kv = ncclkv.create("dist_sync", comm=threads.world(0.3), **options)
        assert isinstance(kv, ncclkv.KVStore)
        return kv

    monkeypatch.setenv("NCCLKV_TIMEOUT", "50")
    assert "(timeout 0.3 s)" in waited(create)
    assert "(timeout 0.4 s)" in waited(lambda: create(timeout=0.4))
