"""Threads inside a callback of a communicator."""

from __future__ import annotations

from threading import Thread

import pytest

from ncclkv.comm import callbacks
from ncclkv.errors import UsageError


def test_only_the_thread_of_the_callback_is_refused() -> None:
    refused: list[UsageError] = []

    def attempt() -> None:
        try:
            callbacks.refuse("barrier")
        except UsageError as error:
            refused.append(error)

    def elsewhere(*_: int) -> None:
        thread = Thread(target=attempt)
        thread.start()
        thread.join()

    callbacks.run("rank 1 of 2", elsewhere, 0, 4)
    assert not refused
    callbacks.run("rank 1 of 2", attempt)
    assert "rank 1 of 2: barrier was called inside 'apply' or a step" in str(refused[0])


def test_an_exception_ends_the_callback() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        callbacks.run("rank 0 of 1", fail)
    assert not callbacks.inside
    callbacks.refuse("barrier")
