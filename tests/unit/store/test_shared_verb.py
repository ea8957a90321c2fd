"""Verbs that all threads may call in an overlap block: one at a time, and only in the block."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from tests.harness.context import context_of


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init(["a", "b"], [np.zeros(2), np.zeros(2)])
        yield store


class Slow:
    """An array that takes a moment to read, and records by how many threads it is read."""

    def __init__(self, array: np.ndarray, readers: list[int]) -> None:
        self._array = array
        self._readers = readers

    def __dlpack__(self, **options: object) -> object:
        self._readers.append(self._readers[-1] + 1)
        time.sleep(0.01)
        self._readers.append(self._readers[-1] - 1)
        return self._array.__dlpack__(**options)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_one_thread_pushes_at_a_time() -> None:
    keys = [f"k{number}" for number in range(8)]
    readers = [0]
    with ncclkv.create("local") as kv:
        kv.init(keys, [np.zeros(2)] * len(keys))
        with kv.overlap():
            threads = [
                threading.Thread(target=kv.push, args=(key, Slow(np.ones(2), readers)))
                for key in keys
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert all(np.array_equal(value, np.ones(2)) for value in kv.pull(keys))
    assert len(readers) == 1 + 2 * len(keys)
    assert max(readers) == 1


def test_a_push_that_waits_for_its_turn_at_the_end_is_refused(kv: ncclkv.KVStore) -> None:
    raised: list[BaseException] = []

    def push() -> None:
        try:
            kv.push("b", np.ones(2))
        except BaseException as error:
            raised.append(error)

    lock = context_of(kv).comm.lock
    thread = threading.Thread(target=push, name="late")
    with lock, kv.overlap(["a"]):
        kv.push("a", np.ones(2))
        thread.start()
        time.sleep(0.1)  # until it waits for the lock
    thread.join()
    assert isinstance(raised[0], UsageError)
    assert "rank 0 of 1: push was called from thread 'late'" in str(raised[0])
    assert np.array_equal(kv.pull("b"), np.zeros(2))


def test_a_push_inside_a_push_of_the_same_thread_is_refused(kv: ncclkv.KVStore) -> None:
    raised: list[BaseException] = []

    class Nested:
        def __dlpack__(self, **options: object) -> object:
            with pytest.raises(UsageError, match="push was called inside push"):
                kv.push("b", np.ones(2))
            return np.ones(2).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    def push() -> None:
        try:
            kv.push("a", Nested())
        except BaseException as error:
            raised.append(error)

    with kv.overlap(["a"]):
        thread = threading.Thread(target=push)
        thread.start()
        thread.join()
    assert raised == []
    assert np.array_equal(kv.pull("a"), np.ones(2))


def test_a_thread_with_the_number_of_an_ended_thread_has_a_record_of_its_own(
    kv: ncclkv.KVStore,
) -> None:
    """A verb inside another store's verb is refused, also in such a thread."""
    first: list[int] = []
    raised: list[BaseException] = []

    class Nested:
        def __dlpack__(self, **options: object) -> object:
            with pytest.raises(UsageError, match="push was called inside push") as caught:
                kv.push("b", np.ones(2))
            raised.append(caught.value)
            return np.ones(2).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    def push() -> None:
        if not first:
            first.append(threading.get_ident())
            kv.push("a", np.ones(2))
        elif threading.get_ident() == first[0] and not raised:
            other.push("c", Nested())

    with ncclkv.create("local") as other:
        other.init("c", np.zeros(2))
        with kv.overlap(missing="zeros"), other.overlap(missing="zeros"):
            for _ in range(200):
                thread = threading.Thread(target=push)
                thread.start()
                thread.join()
    if not raised:
        pytest.skip("the system gave no thread the number of an ended thread")
    assert len(raised) == 1


def test_an_interrupted_push_leaves_the_lock_to_other_threads(kv: ncclkv.KVStore) -> None:
    lock = context_of(kv).comm.lock
    with pytest.raises(KeyboardInterrupt), kv.overlap():  # noqa: PT012
        lock.acquire()  # as a push has done when an exception begins its ``__exit__``
        raise KeyboardInterrupt
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=0.5)))
    thread.start()
    thread.join()
    assert taken == [True]
