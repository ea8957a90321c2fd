"""Captured steps in the life of a store: pending pushes, changes, and calls between replays."""

from __future__ import annotations

import numpy as np

from tests.conformance.capabilities import here
from tests.conformance.captures import captured, momentum
from tests.conformance.expect import same
from tests.conformance.stores import Stores
from tests.conformance.twins import Side, Twins


@captured
def what_waits_in_a_bucket_goes_first(create: Stores) -> None:
    def push_one(side: Side) -> None:
        side.kv.push("a", side.gradients[0])

    twins = Twins(create, make=momentum)
    for _ in range(2):
        twins.each(push_one)  # the push waits for b, and the replay does not flush it
        twins.steps(1)
        twins.each(push_one)
        twins.compare()


@captured
def what_the_root_alone_has_is_given_to_all_first(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pull(["a", "b"], out=side.outs[:2])
        side.kv.push("c", side.gradients[2])

    twins = Twins(create, step, momentum)
    for number in range(3):
        twins.each(lambda side, number=number: side.write(number))
        twins.each(lambda side: side.kv.push(["a", "b"], side.gradients[:2]))
        twins.step(write=False)
        for out, wanted in zip(twins.replayed.outs, twins.plain.outs, strict=True):
            same(out, here().get(wanted))
        twins.compare()


@captured
def what_waits_before_a_capture_is_done_before_it(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pushpull("c", side.gradients[2], side.outs[2])

    twins = Twins(create, step, momentum)
    twins.each(lambda side: side.write(1))
    # One bucket waits for another key; another bucket is launched, and not yet pulled.
    twins.each(
        lambda side: side.kv.push(["a", "d", "e"], [*side.gradients[:1], *side.gradients[3:]])
    )
    with twins.replayed.kv.capture() as again:
        step(twins.replayed)
    twins.compare()
    twins.captured = again
    twins.steps(2)


@captured
def steps_between_replays(create: Stores) -> None:
    twins = Twins(create, make=momentum)
    for _ in range(2):
        twins.steps(1)
        twins.each(Side.pushpull)
        twins.compare()
        twins.each(lambda side: side.kv.reset("a", np.full(64, 3, np.float32)))
        twins.steps(1)


@captured
def keys_that_come_later(create: Stores) -> None:
    twins = Twins(create, make=momentum)
    twins.each(lambda side: side.kv.init("z", np.ones(5, np.float32)))
    twins.each(lambda side: side.kv.push("z", np.ones(5, np.float32)))
    twins.steps(2)


@captured
def several_captured_steps(create: Stores) -> None:
    twins = Twins(create, make=momentum)
    first, second = twins.captured, twins.capture()
    for captured_step in (first, second, first):
        twins.captured = captured_step
        twins.steps(1)
    second.close()
    twins.captured = first
    twins.steps(1)


@captured
def replays_one_after_another(create: Stores) -> None:
    twins = Twins(create, make=momentum)
    for _ in range(4):  # no wait for the GPU in between
        twins.step(write=False)
    twins.compare()


@captured
def a_step_of_nothing(create: Stores) -> None:
    kv = create()
    kv.init(["a", "none"], [np.ones(3, np.float32), np.ones((0, 2), np.float32)])
    kv.push(["a", "none"], [np.ones(3, np.float32), np.ones((0, 2), np.float32)])
    nothing = here().put(np.ones((0, 2), np.float32))
    with kv.capture() as step:
        kv.push("none", nothing)
    step.replay()
    with kv.capture() as step:
        pass
    assert repr(step) == "<ncclkv captured step: collectives=0>"
    step.replay()
    same(kv.pull("a"), kv.num_workers)
