"""`deputized`: a thread calls a store for the thread that created it, and only meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.store.deputy import deputized


def in_thread(call: Callable[[], object]) -> None:
    """Run a call in another thread, and raise its exception."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="hooks")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_a_deputy_makes_any_call_and_may_begin_what_another_ends() -> None:
    def work() -> list[float]:
        with ncclkv.create("threads") as kv:
            kv.init("w", np.zeros(1))
            block = kv.overlap()

            def begin() -> None:
                with deputized(kv):
                    block.__enter__()
                kv.push("w", np.ones(1))

            def end() -> None:
                with deputized(kv):
                    block.__exit__(None, None, None)
                    kv.pushpull("w", kv.pull("w"))

            in_thread(begin)
            in_thread(end)
            return kv.pull("w").tolist()

    assert ncclkv.testing.run_ranks(2, work) == [[4.0], [4.0]]


def test_the_permission_ends_with_the_block() -> None:
    def call() -> None:
        with deputized(kv):
            kv.push("w", np.ones(1))
        kv.push("w", np.ones(1))

    with ncclkv.create("local") as kv:
        kv.init("w", np.zeros(1))
        with pytest.raises(UsageError, match="push was called from thread 'hooks'"):
            in_thread(call)
        kv.wait()


def test_a_deputy_of_a_closed_store_is_refused() -> None:
    kv = ncclkv.create("local")
    kv.close()
    with pytest.raises(UsageError, match=r"wait: the store 'local' is closed"), deputized(kv):
        kv.wait()
