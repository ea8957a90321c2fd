"""Captures and replays that are refused, after which the store is as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import (
    CommAborted,
    KeyNotInitialized,
    NotSupported,
    ShapeMismatch,
    SpecMismatch,
    UsageError,
)
from tests.cases.expect import full, intact, probed, pulled, refused, same, total
from tests.cases.place import here
from tests.cases.stores import Stores

MISUSES: dict[str, Callable[[Stores], None]] = {}
"""By name; each takes what opens stores."""


def misuse(body: Callable[[Stores], None]) -> Callable[[Stores], None]:
    """List a case."""
    MISUSES[body.__name__] = body
    return body


class Ready:
    """A store that has made a step once, with arrays for the next."""

    def __init__(self, create: Stores, **options: Any) -> None:
        self.kv = probed(create, **options)
        self.keys = [3, 5]
        self.gradients = [here().put(full(n * (self.kv.rank + 1))) for n in (1, 10)]
        self.outs = [here().put(full(-1)) for _ in self.keys]
        self.pushpull()

    def pushpull(self) -> None:
        self.kv.pushpull(self.keys, self.gradients, self.outs)

    def step(self) -> Any:
        """The step, captured."""
        with self.kv.capture() as step:
            self.pushpull()
        return step

    def intact(self) -> None:
        """Fail unless the store has the values of the first step, and can be captured yet."""
        intact(self.kv, total(self.kv), 10 * total(self.kv))
        for out in self.outs:
            here().write(out, -1)
        step = self.step()
        for out in self.outs:
            same(out, -1)
        step.replay()
        same(self.outs[1], 10 * total(self.kv))

    @contextmanager
    def refused(self, error: type[Exception], *words: str) -> Iterator[Any]:
        """Expect that a capture is refused and changes nothing; its block is this one."""
        with refused(self.kv, error, *words), self.kv.capture() as step:
            yield step
        with refused(self.kv, UsageError, "replay: there is no graph of this step", "again"):
            step.replay()
        self.intact()


# Other verbs


@misuse
def every_other_verb(create: Stores) -> None:
    ready = Ready(create)
    kv, value = ready.kv, full(1)
    calls: dict[str, Callable[[], object]] = {
        "init": lambda: kv.init(7, value),
        "reset": lambda: kv.reset(3, value),
        "broadcast": lambda: kv.broadcast(3, value, value),
        "wait": kv.wait,
        "barrier": kv.barrier,
        "set_updater": lambda: kv.set_updater(print),
        "set_optimizer": lambda: kv.set_optimizer(optimizer.SGD()),
        "close": kv.close,
        "capture": lambda: kv.capture().__enter__(),
    }
    for name, call in calls.items():
        with ready.refused(UsageError, f"{name} was called inside a capture; "):
            call()
    with ready.refused(UsageError, "replay was called inside a capture; call it after") as step:
        step.replay()


@misuse
def a_refusal_that_is_caught_inside(create: Stores) -> None:
    ready = Ready(create)
    with ready.kv.capture() as step:
        with refused(ready.kv, UsageError, "wait was called inside a capture"):
            ready.kv.wait()
        with refused(ready.kv, UsageError, "NumPy array"):
            ready.kv.push(3, full(1))
        ready.pushpull()
    here().write(ready.gradients[0], 5)
    step.replay()
    same(ready.outs[0], 5 * ready.kv.num_workers)


@misuse
def inside_a_group(create: Stores) -> None:
    ready = Ready(create)
    with (
        refused(ready.kv, UsageError, "capture was called inside a group; call it after its end"),
        ready.kv.group(),
        ready.kv.capture(),
    ):
        pass
    with ready.refused(UsageError, "wait was called inside a group"), ready.kv.group():
        ready.kv.wait()
    step = ready.step()
    with refused(ready.kv, UsageError, "replay was called inside a group"), ready.kv.group():
        step.replay()
    ready.intact()


# Arrays


@misuse
def arrays_in_host_memory(create: Stores) -> None:
    ready = Ready(create)
    kv = ready.kv
    words = ("a NumPy array cannot be part of a capture", "host memory", "cupy.asarray(array)")
    with ready.refused(UsageError, "push of key 3", *words):
        kv.push(3, full(1))
    with ready.refused(UsageError, "push of key 5", *words):
        kv.push([3, 5], [ready.gradients[0], full(1)])
    with ready.refused(UsageError, "pull of key 3", *words):
        kv.pull(3, out=full(1))
    with ready.refused(UsageError, "pull of key 3", *words):
        kv.pull(3, out=full(1), local=True)
    with ready.refused(UsageError, "pushpull of key 3", *words), kv.group():
        kv.pushpull(3, full(1))
    with ready.refused(UsageError, "pull inside a capture needs out"):
        kv.pull(3)
    with ready.refused(UsageError, "pull inside a capture needs out"):
        kv.pull(3, local=True)


@misuse
def arrays_that_were_pushed_before(create: Stores) -> None:
    """The call is known from outside, where these arrays may be pushed."""
    ready, mine = Ready(create), full(1)
    ready.kv.pushpull(3, mine)
    ready.pushpull()
    with ready.refused(UsageError, "pushpull of key 3", "a NumPy array cannot be part of"):
        ready.kv.pushpull(3, mine)


@misuse
def arrays_of_other_libraries(create: Stores) -> None:
    class Other:
        __cuda_array_interface__ = None

    ready = Ready(create)
    words = (
        "an object of type Other cannot be part of a capture",
        "CuPy's arrays alone",
        "cupy.from_dlpack",
    )
    with ready.refused(UsageError, "push of key 3", *words):
        ready.kv.push(3, Other())
    with ready.refused(UsageError, "pull of key 3", *words):
        ready.kv.pull(3, out=Other())


@misuse
def arrays_that_would_have_to_be_copied(create: Stores) -> None:
    ready = Ready(create)
    kv, mine = ready.kv, ready.gradients[0]
    with ready.refused(UsageError, "would have to be copied aside", "once in a group"), kv.group():
        kv.push(3, mine)
        kv.push(3, mine)
    with ready.refused(UsageError, "shape (2, 3) would have to be copied aside"), kv.group():
        kv.push(3, [mine, mine])
    with ready.refused(UsageError, "no part of another key's grad_view or value"):
        kv.push(3, kv.grad_view(5))
    wide = here().put(np.ones((2, 6), np.float32))
    with ready.refused(UsageError, "not in C order (strides (24, 8))", "pass it in C order"):
        kv.push(3, [mine, wide[:, ::2]])


@misuse
def wrong_calls_of_any_kind(create: Stores) -> None:
    ready = Ready(create)
    with ready.refused(KeyNotInitialized, "9"):
        ready.kv.push(9, ready.gradients[0])
    with ready.refused(ShapeMismatch, "(2, 3)"):
        ready.kv.push(3, ready.gradients[0][:1])


# Steps that were not made before


@misuse
def keys_without_a_place(create: Stores) -> None:
    kv = probed(create)
    mine = here().put(full(1))
    with (
        refused(kv, UsageError, "capture: some keys have no place yet", "make the same step once"),
        kv.capture(),
    ):
        kv.push(3, mine)
    intact(kv)


@misuse
def a_bucket_that_was_never_launched(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    kv = ready.kv
    kv.init(7, full(0))
    kv.value(7)
    words = ("capture: what is pushed of bucket 2 (key 7", "make the same step once before")
    with refused(kv, UsageError, *words), kv.capture():
        kv.push(3, ready.gradients[0])
        kv.push(7, ready.gradients[0])
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 7), 0)


@misuse
def an_optimizer_that_was_never_used(create: Stores) -> None:
    ready = Ready(create)
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0, momentum=0.5))
    words = ("capture: what is pushed of bucket 0", "make the same step once before")
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.pushpull()
    ready.pushpull()
    ready.step().replay()
    # Two steps of momentum: 1, then 1.5 times the sum.
    same(ready.outs[0], total(ready.kv) - 2.5 * total(ready.kv))


# Updaters


@misuse
def a_function_as_updater(create: Stores) -> None:
    ready = Ready(create)

    def add(key: Any, grad: Any, stored: Any) -> None:
        stored += grad

    ready.kv.set_updater(add)
    words = ("the updater add is a function, which a captured step would not call", "optimizer")
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.pushpull()
    same(pulled(ready.kv, 3), total(ready.kv))


@misuse
def an_optimizer_that_says_nothing_of_captures(create: Stores) -> None:
    class Half(optimizer.SGD):
        """Inherits the word of its base, which is not its own."""

    ready = Ready(create)
    ready.kv.set_optimizer(Half(learning_rate=1.0))
    words = ("Half does not say that its update can be captured", "set an SGD")
    with refused(ready.kv, NotSupported, *words), ready.kv.capture():
        ready.pushpull()
    same(pulled(ready.kv, 3), total(ready.kv))


@misuse
def another_number_of_the_optimizer(create: Stores) -> None:
    ready = Ready(create)
    made = optimizer.SGD(learning_rate=1.0)
    ready.kv.set_optimizer(made)
    ready.pushpull()
    step = ready.step()
    words = ("the optimizer has changed since this step was captured", "capture the step again")
    made.wd, made.lr_mult = 0.5, {3: 2.0}
    said = ("wd is 0.5 and was 0.0", "lr_mult is {3: 2.0} and was {}")
    with refused(ready.kv, UsageError, *words, *said):
        step.replay()
    made.wd, made.lr_mult = 0.0, {}
    step.replay()
    same(ready.outs[0], -total(ready.kv))  # pulled once as the sum, then two steps of it


@misuse
def another_updater(create: Stores) -> None:
    ready = Ready(create)
    plain = ready.step()
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    words = ("updater is SGD and was none, another, when this step was captured; capture it again",)
    with refused(ready.kv, UsageError, *words):
        plain.replay()
    ready.pushpull()
    step = ready.step()
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    with refused(ready.kv, UsageError, "updater is SGD and was SGD, another"):
        step.replay()
    same(pulled(ready.kv, 3), 0)


@misuse
def an_optimizer_that_changes_inside(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    made = optimizer.SGD(learning_rate=1.0)
    ready.kv.set_optimizer(made)
    ready.pushpull()
    words = ("the optimizer was changed between two pushes of the step", "or between replays")
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.kv.push(3, ready.gradients[0])
        made.learning_rate = 0.5
        ready.kv.push(5, ready.gradients[1])
    same(pulled(ready.kv, 3), 0)
    same(pulled(ready.kv, 5), 0)


# Exceptions and ranks


@misuse
def an_exception_in_the_block(create: Stores) -> None:
    ready = Ready(create)

    def fail() -> None:
        ready.pushpull()
        ready.kv.push(3, ready.gradients[0])
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"), ready.kv.capture() as step:
        fail()
    with refused(ready.kv, UsageError, "left by an exception while it was captured"):
        step.replay()
    ready.intact()


@misuse
def an_exception_leaves_nothing_in_flight(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    view = ready.kv.grad_view(3)

    def fail() -> None:
        ready.kv.push(3, view)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError), ready.kv.capture():
        fail()
    here().write(view, 7)
    ready.kv.push(3, view)
    same(pulled(ready.kv, 3), 7 * ready.kv.num_workers)


@misuse
def a_block_that_is_broken_off(create: Stores) -> None:
    ready = Ready(create)

    def interrupt() -> None:
        ready.pushpull()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ready.kv.capture():
        interrupt()
    if ready.kv.num_workers == 1:
        ready.intact()
        return
    words = f"rank {ready.kv.rank} of {ready.kv.num_workers}: capture was broken off by Keyboard"
    with pytest.raises(CommAborted, match=words):
        ready.pushpull()


@misuse
def one_rank_cannot(create: Stores) -> None:
    ready = Ready(create)
    kv = ready.kv
    if kv.num_workers == 1:
        return
    last = kv.num_workers - 1
    words = "the ranks disagree at capture", f"rank {last} fails with UsageError", "NumPy array"
    with pytest.raises(SpecMismatch) as caught, kv.capture() as step:
        kv.push(3, full(1) if kv.rank == last else ready.gradients[0])
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(SpecMismatch):
        step.replay()


@misuse
def ranks_capture_different_calls(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    kv = ready.kv
    if kv.num_workers == 1:
        return
    key = 3 if kv.rank == 0 else 5
    with pytest.raises(SpecMismatch) as caught, kv.capture():
        kv.push(key, ready.gradients[0])
    words = "at capture: rank 0 says a reduction of 256 bytes", "(key 3); rank 1", "(key 5)"
    assert all(word in str(caught.value) for word in words), caught.value


@misuse
def after_the_end(create: Stores) -> None:
    ready = Ready(create)
    step, other = ready.step(), ready.step()
    assert "captured step: collectives=" in repr(step)
    step.close()
    step.close()
    with refused(ready.kv, UsageError, "replay: there is no graph of this step, which was closed"):
        step.replay()
    assert repr(step) == "<ncclkv captured step: not there>"
    ready.intact()
    ready.kv.close()
    with refused(ready.kv, UsageError, "replay: the store 'nccl' is closed; create a new one"):
        other.replay()
