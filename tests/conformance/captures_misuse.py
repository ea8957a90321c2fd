"""Captures that are refused for their calls or arrays, and leave the store unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import (
    KeyNotInitialized,
    NotSupported,
    ShapeMismatch,
    UsageError,
)
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, intact, probed, refused, same, total
from tests.conformance.stores import Stores

MISUSES: dict[str, Callable[[Stores], None]] = {}
"""Cases by name; each takes the opener of stores."""


def misuse(body: Callable[[Stores], None]) -> Callable[[Stores], None]:
    """List a case."""
    MISUSES[body.__name__] = body
    return body


class Ready:
    """A store that has run a step once, with arrays for the next step."""

    def __init__(self, create: Stores, **options: Any) -> None:
        self.kv = probed(create, **options)
        self.keys = [3, 5]
        self.gradients = [current_buffers().put(full(n * (self.kv.rank + 1))) for n in (1, 10)]
        self.outs = [current_buffers().put(full(-1)) for _ in self.keys]
        self.pushpull()

    def pushpull(self) -> None:
        self.kv.pushpull(self.keys, self.gradients, self.outs)

    def step(self) -> Any:
        """Capture the step."""
        with self.kv.capture() as step:
            self.pushpull()
        return step

    def intact(self) -> None:
        """Fail unless the store has the values of the first step, and can still be captured."""
        intact(self.kv, total(self.kv), 10 * total(self.kv))
        for out in self.outs:
            current_buffers().write(out, -1)
        step = self.step()
        for out in self.outs:
            same(out, -1)
        step.replay()
        same(self.outs[1], 10 * total(self.kv))

    @contextmanager
    def refused(self, error: type[Exception], *words: str) -> Iterator[Any]:
        """Expect that a capture is refused and changes nothing; the block is the captured one."""
        with refused(self.kv, error, *words), self.kv.capture() as step:
            yield step
        with refused(self.kv, UsageError, "replay: this step has no graph", "again"):
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
        "allreduce": lambda: kv.allreduce(value),
        "allgather": lambda: kv.allgather(1.5),
        "broadcast_object": lambda: kv.broadcast_object("x"),
        "allgather_object": lambda: kv.allgather_object("x"),
        "set_updater": lambda: kv.set_updater(print),
        "set_optimizer": lambda: kv.set_optimizer(optimizer.SGD()),
        "close": kv.close,
        "overlap": lambda: kv.overlap().__enter__(),
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
    current_buffers().write(ready.gradients[0], 5)
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


@misuse
def a_key_of_powersgd(create: Stores) -> None:
    ready = Ready(create)
    kv, matrix = ready.kv, full(1, (20, 30))
    kv.set_gradient_compression({"type": "powersgd", "start_powerSGD_iter": 0}, keys=[7])
    kv.init(7, matrix)
    kv.push(7, matrix)
    kv.wait()
    with pytest.raises(NotSupported) as caught, kv.capture():
        ready.pushpull()
    words = "capture: key 7 is compressed by powersgd", "choose another type"
    check_words(caught.value, *words, f"rank {kv.rank}")
    assert caught.value.key == 7
    kv.set_gradient_compression(None, keys=[7])
    kv.push(7, matrix)
    ready.pushpull()
    ready.step().replay()
    same(ready.outs[1], 10 * total(kv))


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
    """Check a cached call: a push outside of a capture used these arrays."""
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
        "CuPy arrays only",
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
    with (
        ready.refused(UsageError, "copied, and a capture allocates", "once in a group"),
        kv.group(),
    ):
        kv.push(3, mine)
        kv.push(3, mine)
    with ready.refused(UsageError, "shape (2, 3) would have to be copied, and a"), kv.group():
        kv.push(3, [mine, mine])
    with ready.refused(UsageError, "no part of another key's grad_view or value"):
        kv.push(3, kv.grad_view(5))
    wide = current_buffers().put(np.ones((2, 6), np.float32))
    with ready.refused(UsageError, "not in C order (strides (24, 8))", "pass it in C order"):
        kv.push(3, [mine, wide[:, ::2]])


@misuse
def wrong_calls_of_any_kind(create: Stores) -> None:
    ready = Ready(create)
    with ready.refused(KeyNotInitialized, "9"):
        ready.kv.push(9, ready.gradients[0])
    with ready.refused(ShapeMismatch, "(2, 3)"):
        ready.kv.push(3, ready.gradients[0][:1])
