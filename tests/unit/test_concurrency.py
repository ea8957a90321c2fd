"""Concurrency: in an ordinary run its names are Python's own, and steps are called as they are."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
import time

import pytest

from ncclkv import concurrency
from ncclkv.comm.diagnosis.call_log import CallRing
from ncclkv.comm.diagnosis.flight_recorder import FlightRecorder
from ncclkv.comm.shm.sequence import CollectiveSlot, PeerFlags

READS_OR_WRITES = re.compile(r"(flags|headers)\[|\b_own\b|pack_into|unpack_from")
OF_THE_IDENTITY = {"__init__", "process", "show_stacks"}
"""Methods of a page that touch words which never change after the creation of the store."""


@pytest.mark.parametrize("name", concurrency.__all__)
def test_names_of_the_standard_library_are_its_own(name: str) -> None:
    renamed = {"threads": threading.enumerate, "wall_time": time.time}
    sources = (renamed, vars(threading), vars(time), {"sched_yield": os.sched_yield})
    own = [source[name] for source in sources if name in source]
    if own and name != "local":
        assert getattr(concurrency, name) is own[0]


def test_a_shared_step_is_the_function_itself() -> None:
    def step() -> None:
        """Do nothing."""

    try:
        assert concurrency.shared_step("a step", writes=True)(step) is step
        assert concurrency.shared_steps[-1] == (step, "a step", True)
    finally:
        concurrency.shared_steps.pop()


def test_shared_steps_are_methods_that_a_world_can_wrap() -> None:
    for step in concurrency.shared_steps:
        kind, _, method = step.function.__qualname__.rpartition(".")
        owner = getattr(sys.modules[step.function.__module__], kind)
        assert vars(owner)[method] is step.function


@pytest.mark.parametrize("kind", [PeerFlags, CollectiveSlot, FlightRecorder, CallRing])
def test_every_method_that_touches_memory_of_ranks_is_a_shared_step(kind: type) -> None:
    marked = {step.function for step in concurrency.shared_steps}
    bare = {
        name
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and READS_OR_WRITES.search(inspect.getsource(method))
        if method not in marked
    }
    assert bare <= OF_THE_IDENTITY


def test_attributes_of_a_thread_are_its_own() -> None:
    kept = concurrency.local()
    try:
        assert concurrency.locals_[-1] is kept
        kept.name = "this thread"
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(hasattr(kept, "name")))
        thread.start()
        thread.join()
        assert found == [False]
    finally:
        concurrency.locals_.remove(kept)
