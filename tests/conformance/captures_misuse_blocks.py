"""Captures whose block does not reach its end on every rank, and steps that are closed."""

from __future__ import annotations

import math

import pytest

from ncclkv.errors import CommAborted, SpecMismatch, UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.captures_misuse import Ready, misuse
from tests.conformance.expect import full, pulled, refused, same
from tests.conformance.stores import Stores


@misuse
def an_exception_in_the_block(create: Stores) -> None:
    ready = Ready(create)

    def fail() -> None:
        ready.pushpull()
        ready.kv.push(3, ready.gradients[0])
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"), ready.kv.capture() as step:
        fail()
    with refused(ready.kv, UsageError, "it was closed, or an exception left its block"):
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
    current_buffers().write(view, 7)
    ready.kv.push(3, view)
    same(pulled(ready.kv, 3), 7 * ready.kv.num_workers)


@misuse
def an_interrupted_block(create: Stores) -> None:
    ready = Ready(create)

    def interrupt() -> None:
        ready.pushpull()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ready.kv.capture():
        interrupt()
    if ready.kv.num_workers == 1:
        ready.intact()
        return
    words = f"rank {ready.kv.rank} of {ready.kv.num_workers}: capture was interrupted by Keyboard"
    with pytest.raises(CommAborted, match=words):
        ready.pushpull()


@misuse
def a_capture_that_one_rank_refuses(create: Stores) -> None:
    ready = Ready(create)
    kv = ready.kv
    if kv.num_workers == 1:
        return
    last = kv.num_workers - 1
    words = "the ranks disagree at capture", f"rank {last} raises UsageError", "NumPy array"
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
    call = "a reduction of 256 bytes"
    if create.update_on == "sharded":  # of 64 numbers a bucket, and of 16 a rank
        call = f"a reduce_scatter of {4 * math.lcm(64, 16 * kv.num_workers)} bytes"
    words = f"at capture: rank 0 has {call}", "(key 3); rank 1", "(key 5)"
    assert all(word in str(caught.value) for word in words), caught.value


@misuse
def after_the_end(create: Stores) -> None:
    ready = Ready(create)
    step, other = ready.step(), ready.step()
    assert "captured step: collectives=" in repr(step)
    step.close()
    step.close()
    with refused(ready.kv, UsageError, "replay: this step has no graph: it was closed"):
        step.replay()
    assert repr(step) == "<ncclkv captured step: no graph>"
    ready.intact()
    ready.kv.close()
    with refused(ready.kv, UsageError, "replay: the store 'nccl' is closed; create a new one"):
        other.replay()
