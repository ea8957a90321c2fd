"""Captured steps in the life of a store: pending pushes, changes, and calls between replays."""

from __future__ import annotations

import numpy as np

from tests.conformance.capabilities import current_buffers
from tests.conformance.captures import captured, momentum
from tests.conformance.expect import same
from tests.conformance.store_pair import Side, StorePair
from tests.conformance.stores import Stores


@captured
def pushes_pending_in_a_bucket_stay_pending_in_a_replay(create: Stores) -> None:
    def push_one(side: Side) -> None:
        side.kv.push("a", side.gradients[0])

    pair = StorePair(create, make=momentum)
    for _ in range(2):
        pair.each(push_one)  # the push waits for b, and the replay does not flush it
        pair.steps(1)
        pair.each(push_one)
        pair.compare()


@captured
def values_of_the_root_are_published_before_a_replay(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pull(["a", "b"], out=side.outs[:2])
        side.kv.push("c", side.gradients[2])

    pair = StorePair(create, step, momentum)
    for number in range(3):
        pair.each(lambda side, number=number: side.write(number))
        pair.each(lambda side: side.kv.push(["a", "b"], side.gradients[:2]))
        pair.step(write=False)
        for out, wanted in zip(pair.replayed.outs, pair.plain.outs, strict=True):
            same(out, current_buffers().get(wanted))
        pair.compare()


@captured
def pushes_pending_before_a_capture_are_flushed_before_it(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pushpull("c", side.gradients[2], side.outs[2])

    pair = StorePair(create, step, momentum)
    pair.each(lambda side: side.write(1))
    # One bucket waits for another key; another bucket is launched, and not yet pulled.
    pair.each(
        lambda side: side.kv.push(["a", "d", "e"], [*side.gradients[:1], *side.gradients[3:]])
    )
    with pair.replayed.kv.capture() as again:
        step(pair.replayed)
    pair.compare()
    pair.captured = again
    pair.steps(2)


@captured
def steps_between_replays(create: Stores) -> None:
    pair = StorePair(create, make=momentum)
    for _ in range(2):
        pair.steps(1)
        pair.each(Side.pushpull)
        pair.compare()
        pair.each(lambda side: side.kv.reset("a", np.full(64, 3, np.float32)))
        pair.steps(1)


@captured
def keys_added_after_a_capture(create: Stores) -> None:
    pair = StorePair(create, make=momentum)
    pair.each(lambda side: side.kv.init("z", np.ones(5, np.float32)))
    pair.each(lambda side: side.kv.push("z", np.ones(5, np.float32)))
    pair.steps(2)


@captured
def several_captured_steps(create: Stores) -> None:
    pair = StorePair(create, make=momentum)
    first, second = pair.captured, pair.capture()
    for captured_step in (first, second, first):
        pair.captured = captured_step
        pair.steps(1)
    second.close()
    pair.captured = first
    pair.steps(1)


@captured
def replays_one_after_another(create: Stores) -> None:
    pair = StorePair(create, make=momentum)
    for _ in range(4):  # no wait for the GPU in between
        pair.step(write=False)
    pair.compare()


@captured
def an_empty_step(create: Stores) -> None:
    kv = create()
    kv.init(["a", "none"], [np.ones(3, np.float32), np.ones((0, 2), np.float32)])
    kv.push(["a", "none"], [np.ones(3, np.float32), np.ones((0, 2), np.float32)])
    nothing = current_buffers().put(np.ones((0, 2), np.float32))
    with kv.capture() as step:
        kv.push("none", nothing)
    step.replay()
    with kv.capture() as step:
        pass
    assert repr(step) == "<ncclkv captured step: collectives=0>"
    step.replay()
    same(kv.pull("a"), kv.num_workers)
