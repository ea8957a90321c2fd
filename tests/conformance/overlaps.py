"""``with kv.overlap()``: pushes of any thread in any order, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.errors import CommAborted, KeyNotInitialized, ShapeMismatch, UpdaterError, UsageError
from tests.conformance.expect import check_words, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores

KEYS = [f"k{number}" for number in range(12)]


def in_thread(call: Callable[[], Any], name: str = "other") -> None:
    """Call a function in a thread of its own, and raise what it raises."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=body, name=name)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def small_buckets(create: Stores, bucket_bytes: int = 512, **options: Any) -> Any:
    """Return a store of `KEYS`, several of them in a bucket, which hold their numbers."""
    kv = create(bucket_bytes=bucket_bytes, **options)
    kv.init(KEYS, [full(number) for number in range(len(KEYS))])
    return kv


def push_in_order(kv: Any, order: Sequence[int], scale: float = 1) -> None:
    """Push to each key its number times the rank plus 1, in the order of the numbers."""
    for number in order:
        kv.push(KEYS[number], full(scale * number * (kv.rank + 1)))


@case()
def pushes_in_another_order_on_each_rank(create: Stores) -> None:
    for bucket_bytes in (0, 512, 1 << 20):
        kv = small_buckets(create, bucket_bytes)
        for step in range(1, 4):
            with kv.overlap():
                push_in_order(kv, np.random.default_rng(kv.rank).permutation(len(KEYS)), step)
            for number, key in enumerate(KEYS):
                same(pulled(kv, key), step * number * total(kv))


@case()
def pushes_of_another_thread(create: Stores) -> None:
    kv = probed(create)
    for step in range(1, 4):
        with kv.overlap():
            if kv.rank % 2:
                kv.push(3, full(step * (kv.rank + 1)))
                in_thread(lambda: kv.push(5, full(10)))
            else:
                in_thread(lambda step=step: kv.push([5, 3], [full(10), full(step * (kv.rank + 1))]))
        same(pulled(kv, 3), step * total(kv))
        same(pulled(kv, 5), 10 * kv.num_workers)
    intact(kv, 3 * total(kv), 10 * kv.num_workers)


@case()
def a_buffer_may_change_after_each_push(create: Stores) -> None:
    kv = probed(create)
    buffer = full(kv.rank + 1)
    with kv.overlap():
        kv.push(5, [buffer, buffer])
        buffer[:] = 10
        kv.push(3, buffer)
        buffer[:] = 50
    same(pulled(kv, 5), 2 * total(kv))
    same(pulled(kv, 3), 10 * kv.num_workers)


@case()
def gradients_in_views(create: Stores) -> None:
    kv = probed(create)
    views = {key: kv.grad_view(key) for key in (3, 5)}
    for step in range(1, 4):
        with kv.overlap():
            views[5][...] = 10 * step * (kv.rank + 1)
            in_thread(lambda: kv.push(5, views[5]))
            kv.grad_view(3)[...] = step
            kv.push(3, views[3])
        same(pulled(kv, 3), step * kv.num_workers)
        same(pulled(kv, 5), 10 * step * total(kv))


@case()
def waiting_pushes_are_flushed_first(create: Stores) -> None:
    kv = probed(create)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push(3, full(1))
    with kv.overlap():
        kv.push(5, full(4))
        kv.push(3, full(2))
    n = kv.num_workers
    # Momentum -n/2, then -n/4 - n; a sum of both pushes would have made one step of -3n/2.
    same(pulled(kv, 3), 2 - 1.75 * n)
    same(pulled(kv, 5), 4 - 2 * n)


@case()
def an_optimizer_updates_each_key_once(create: Stores) -> None:
    kv = small_buckets(create)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    for step in range(1, 4):
        with kv.overlap():
            push_in_order(kv, range(len(KEYS))[:: 1 if kv.rank % 2 else -1], scale=2)
        for number, key in enumerate(KEYS):
            same(pulled(kv, key), number - step * number * total(kv))


@case()
def the_optimizer_numbers_are_those_of_the_begin(create: Stores) -> None:
    kv = small_buckets(create)
    sgd = optimizer.SGD(learning_rate=0.5)
    kv.set_optimizer(sgd)
    with kv.overlap():
        push_in_order(kv, range(1, 6))
        sgd.learning_rate = 100.0
        # No bucket is launched before the first key's.
        push_in_order(kv, [*range(11, 5, -1), 0])
    sgd.learning_rate = 0.5
    for number, key in enumerate(KEYS):
        same(pulled(kv, key), number - 0.5 * number * total(kv))


@case()
def a_function_is_called_in_order_at_the_end(create: Stores) -> None:
    kv = probed(create)
    kv.init(4, full(0))
    calls: list[tuple[Any, float]] = []

    def add(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        calls.append((key, float(grad.flat[0])))
        stored += grad

    kv.set_updater(add)
    with kv.overlap():
        kv.push(5, full(1))
        in_thread(lambda: kv.push(4, [full(3), full(4)]))
        kv.push(3, full(10))
        assert calls == []
    n = kv.num_workers
    wanted = [(3, 10 * n), (4, 7 * n), (5, n)]
    assert calls == [call for call in wanted if create.updates_here(kv, call[0])]
    same(pulled(kv, 3), 2 + 10 * n)
    same(pulled(kv, 5), 4 + n)


@case()
def an_exception_of_the_function_leaves_the_block(create: Stores) -> None:
    kv = probed(create)

    def add(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        if key == 3:
            raise ZeroDivisionError

    kv.set_updater(add)
    if create.updates_here(kv, 3):
        with pytest.raises(ZeroDivisionError) as caught, kv.overlap():
            kv.push([5, 3], [full(1), full(1)])
        check_words(caught.value, "key 3", f"rank {kv.rank}")
        kv.wait()
    else:
        with kv.overlap():
            kv.push([5, 3], [full(1), full(1)])
        with refused(kv, UpdaterError, "key 3"):
            kv.wait()
    same(pulled(kv, 3), 2)


@case()
def some_keys_of_a_bucket(create: Stores) -> None:
    kv = small_buckets(create, 1 << 20)
    chosen = [7, 2, 5]
    for step in range(1, 3):
        with kv.overlap([KEYS[number] for number in chosen]):
            push_in_order(kv, chosen[:: 1 if kv.rank % 2 else -1], scale=step)
        for number, key in enumerate(KEYS):
            same(pulled(kv, key), step * number * total(kv) if number in chosen else number)


@case()
def dtypes_and_ops_of_several_buckets(create: Stores) -> None:
    kv = create()
    kv.init("h", full(0, dtype=np.float16))
    kv.init("mean", full(0, dtype=np.float64), op="avg")
    kv.init("top", full(0, dtype=np.int32), op="max")
    with kv.overlap():
        for key in ("top", "mean", "h") if kv.rank % 2 else ("h", "top", "mean"):
            dtype = kv.spec(key).dtype
            kv.push(key, full(kv.rank + 1, dtype=dtype))
    same(kv.pull("h"), total(kv))
    same(kv.pull("mean"), total(kv) / kv.num_workers)
    same(kv.pull("top"), kv.num_workers)


@case()
def missing_keys_as_zeros(create: Stores) -> None:
    kv = small_buckets(create)
    kv.init("least", full(0), op="min")
    own = [number for number in range(len(KEYS)) if number % kv.num_workers == kv.rank]
    with kv.overlap(missing="zeros"):
        push_in_order(kv, own)
        if kv.rank == 0:
            kv.push("least", full(7))
    for number, key in enumerate(KEYS):
        same(pulled(kv, key), number * (number % kv.num_workers + 1))
    same(pulled(kv, "least"), 7)
    with kv.overlap(missing="zeros"):
        pass
    same(pulled(kv, KEYS[3]), 0)


@case()
def zeros_fill_a_bucket_that_another_rank_has_filled(create: Stores) -> None:
    for fused in (False, True):
        kv = small_buckets(create, 0)  # a key a bucket
        values = np.arange(len(KEYS))
        if fused:
            kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
        for step in range(1, 4):
            with kv.overlap(missing="zeros"):
                push_in_order(kv, range(min(step * kv.rank, len(KEYS)), len(KEYS)))
            sums = [
                number * sum(rank + 1 for rank in range(kv.num_workers) if step * rank <= number)
                for number in range(len(KEYS))
            ]
            values = values - sums if fused else np.array(sums)
            for key, value in zip(KEYS, values, strict=True):
                same(pulled(kv, key), value)


@case()
def a_missing_key_is_an_error(create: Stores) -> None:
    kv = probed(create)
    words = "3", "overlap", "'other'", "missing='zeros'"
    with refused(kv, UsageError, *words), kv.overlap():
        in_thread(lambda: kv.push(5, full(100)))
    intact(kv)
    kv = small_buckets(create)
    with refused(kv, UsageError, "2 keys, 'k9' the first"), kv.overlap():
        push_in_order(kv, [11, *range(9)])
    same(pulled(kv, KEYS[1]), total(kv))
    same(pulled(kv, KEYS[11]), 11)


@case()
def an_exception_drops_what_is_not_launched(create: Stores) -> None:
    kv = small_buckets(create, 0)
    with pytest.raises(ZeroDivisionError) as caught, kv.overlap():  # noqa: PT012
        push_in_order(kv, [0, 1, 2, 5, 6])
        raise ZeroDivisionError
    check_words(caught.value, "3 keys", "'k0'", f"rank {kv.rank}")
    for number, key in enumerate(KEYS):
        same(pulled(kv, key), number * total(kv) if number < 3 else number)
    with kv.overlap():
        push_in_order(kv, range(12))
    same(pulled(kv, KEYS[11]), 11 * total(kv))


@case()
def an_exception_before_a_launch_changes_nothing(create: Stores) -> None:
    kv = probed(create)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    with pytest.raises(ZeroDivisionError), kv.overlap():  # noqa: PT012
        kv.push(5, full(100))
        raise ZeroDivisionError
    same(pulled(kv, 5), 4)
    kv.push([3, 5], [full(2), full(2)])
    same(pulled(kv, 3), 2 - kv.num_workers)


@case()
def an_exception_after_an_update_breaks_the_store(create: Stores) -> None:
    kv = small_buckets(create, 0)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    with pytest.raises(ZeroDivisionError), kv.overlap():  # noqa: PT012
        push_in_order(kv, [0, 1, 5])
        raise ZeroDivisionError
    with pytest.raises(CommAborted) as caught:
        kv.pull(KEYS[0])
    check_words(caught.value, "overlap", "ZeroDivisionError", "updated and others not")


@case()
def a_key_twice(create: Stores) -> None:
    kv = probed(create)
    with kv.overlap():
        in_thread(lambda: kv.push(5, full(kv.rank + 1)), "first")
        with refused(kv, UsageError, "push of key 5", "'second'", "'first'"):
            in_thread(lambda: kv.push(5, full(100)), "second")
        with refused(kv, UsageError, "push of key 5", "thread", "'first'"):
            kv.push([3, 5], [full(100), full(100)])
        kv.push(3, full(1))
    intact(kv, kv.num_workers, total(kv))


@case()
def keys_that_are_not_of_the_block(create: Stores) -> None:
    kv = probed(create)
    with kv.overlap([3]):
        for call in (lambda: kv.push(5, full(100)), lambda: kv.grad_view(5)):
            with refused(kv, UsageError, "key 5", "thread", "keys="):
                call()
        with refused(kv, ShapeMismatch, "3"):
            kv.push(3, full(100, (7,)))
        kv.push(3, full(kv.rank + 1))
    intact(kv, total(kv), 4)


@case()
def a_view_of_a_pushed_gradient(create: Stores) -> None:
    kv = probed(create)
    with kv.overlap():
        kv.push(3, full(kv.rank + 1))
        with refused(kv, UsageError, "grad_view of key 3", "'late'", "pushed"):
            in_thread(lambda: kv.grad_view(3), "late")
        taken: list[Any] = []
        in_thread(lambda: taken.append(kv.grad_view(5)))
        # Written in this thread: another may have another device current, on which CuPy warns.
        taken[0][...] = kv.rank + 1
        kv.push(5, kv.grad_view(5))
    intact(kv, total(kv), total(kv))


@case()
def verbs_refused_inside(create: Stores) -> None:
    kv = probed(create)
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: kv.init(7, full(0)),
        "pull": lambda: kv.pull(3, out=full(0)),
        "pushpull": lambda: kv.pushpull(3, full(0)),
        "value": lambda: kv.value(3),
        "wait": kv.wait,
        "barrier": kv.barrier,
        "group": lambda: kv.group().__enter__(),
        "overlap": lambda: kv.overlap().__enter__(),
        "uneven": lambda: kv.uneven().__enter__(),
        "close": kv.close,
    }
    with kv.overlap():
        for name, call in calls.items():
            with refused(kv, UsageError, name, "an overlap block"):
                call()
            with refused(kv, UsageError, name, "thread 'other'"):
                in_thread(call)
        kv.push([5, 3], [full(1), full(kv.rank + 1)])
    intact(kv, total(kv), kv.num_workers)


@case()
def other_threads_outside(create: Stores) -> None:
    kv = probed(create)
    for _ in range(2):
        for call in (lambda: kv.push(3, full(9)), lambda: kv.grad_view(3), kv.overlap().__enter__):
            with refused(kv, UsageError, "thread 'other'", "kv.overlap()"):
                in_thread(call)
        with kv.overlap():
            kv.push([3, 5], [full(2), full(4)])
    intact(kv, 2 * kv.num_workers, 4 * kv.num_workers)


@case()
def overlap_inside_a_group(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        with refused(kv, UsageError, "overlap", "a group"), kv.overlap():
            pass
        kv.push(3, full(kv.rank + 1))
    intact(kv, total(kv), 4)


@case()
def wrong_arguments(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, UsageError, "missing", "'zero'", "zeros"), kv.overlap(missing="zero"):
        pass
    with refused(kv, KeyNotInitialized, "7"), kv.overlap([3, 7]):
        pass
    intact(kv)


@case()
def in_an_uneven_block(create: Stores) -> None:
    kv = create(bucket_bytes=0)
    kv.init(KEYS, [full(0)] * len(KEYS), op="avg")
    with kv.uneven():
        for step in range(1 + kv.rank):
            with kv.overlap():
                for key in KEYS[:: -1 if step % 2 else 1]:
                    kv.push(key, full(step + kv.rank))
            kv.wait()
    # The last rank alone makes the last step.
    last = kv.num_workers - 1
    for key in KEYS:
        same(pulled(kv, key), 2 * last)


@case()
def with_missing_keys_in_the_store(create: Stores) -> None:
    kv = create(missing="zeros")
    kv.init([3, 5], [full(2), full(4)])
    with kv.overlap([3] if kv.rank else [3, 5]):
        kv.push(3, full(kv.rank + 1))
        if not kv.rank:
            kv.push(5, full(10))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), 10)


@case(sizes=SEVERAL)
def a_refused_end_leaves_no_push(create: Stores) -> None:
    kv = probed(create, missing="zeros")
    sgd = optimizer.SGD(learning_rate=0.5, wd=1.0)
    kv.set_optimizer(sgd)
    with refused(kv, UsageError, "lr_mult", "nan"), kv.overlap(missing="zeros"):
        kv.push(3, full(100))
        sgd.lr_mult[3] = float("nan")
    sgd.lr_mult = {}
    with pytest.raises(ZeroDivisionError), kv.overlap():  # noqa: PT012
        kv.push(3, full(100))
        sgd.lr_mult[3] = float("nan")
        raise ZeroDivisionError
    sgd.lr_mult = {}
    # A pending push of zeros would decay the value.
    same(pulled(kv, 3), 2)
    same(pulled(kv, 5), 4)
    kv.push([3, 5], [full(2), full(4)])
    same(pulled(kv, 3), 1 - kv.num_workers)
    same(pulled(kv, 5), 2 - 2 * kv.num_workers)


@case()
def nonfinite_gradients_skip_the_block(create: Stores) -> None:
    kv = create(nonfinite="skip_step")
    kv.init([3, 5], [full(2), full(4)])
    for value in (np.nan, 1):
        with kv.overlap():
            kv.push(5, full(kv.rank + 1))
            kv.push(3, full(value))
        kv.wait()
    assert kv.skipped == 1
    same(pulled(kv, 3), kv.num_workers)


@case()
def two_stores_at_once(create: Stores) -> None:
    one, other = probed(create), probed(create)
    with one.overlap():
        in_thread(lambda: one.push(3, full(one.rank + 1)))
        other.pushpull(3, full(1), out := full(0))
        same(out, one.num_workers)
        with other.overlap([5]):
            in_thread(lambda: one.push(5, full(1)))
            in_thread(lambda: other.push(5, full(other.rank + 1)))
        same(pulled(other, 5), total(other))
    same(pulled(one, 3), total(one))
    same(pulled(one, 5), one.num_workers)


@case()
def many_random_blocks(create: Stores) -> None:
    kv = small_buckets(create)
    shared = np.random.default_rng(11)
    expected = np.arange(len(KEYS), dtype=np.float64)
    for _ in range(20):
        numbers = shared.permutation(len(KEYS))[: shared.integers(1, len(KEYS) + 1)]
        order = np.random.default_rng(shared.integers(1 << 30) + kv.rank).permutation(numbers)
        parts = np.array_split(order, 3)
        with kv.overlap([KEYS[number] for number in numbers]):
            threads = [
                Thread(target=push_in_order, args=(kv, part), name=f"part {index}")
                for index, part in enumerate(parts[1:])
            ]
            for thread in threads:
                thread.start()
            push_in_order(kv, parts[0])
            for thread in threads:
                thread.join()
        expected[numbers] = numbers * total(kv)
        number = int(shared.integers(len(KEYS)))
        same(pulled(kv, KEYS[number]), expected[number])
    for number, key in enumerate(KEYS):
        same(pulled(kv, key), expected[number])
