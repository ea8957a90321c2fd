"""Concurrency: in an ordinary run its names are Python's own, and steps are called as they are."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.comm.diagnosis.flight_recorder import FlightRecorder
from ncclkv.comm.shm.sequence import CollectiveSlot, PeerFlags
from ncclkv.kernels.host import compiled
from ncclkv.testing import run_ranks

READS_OR_WRITES = re.compile(r"(flags|headers)\[|\b_own\b|pack_into|unpack_from")
OF_THE_IDENTITY = {"__init__", "identify", "process", "show_stacks", "announce"}
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


@pytest.mark.parametrize("kind", [PeerFlags, CollectiveSlot, FlightRecorder])
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


@pytest.mark.parametrize(
    ("active", "count", "steps"),
    [
        (False, 4, {"slot: poll flags", "slot: compare headers"}),
        (True, 4, {"small sum: in C"}),
        (True, 100_000, {"slot: compare headers", "flags: done", "slot: read headers"}),
    ],
)
def test_ranks_that_share_memory_pass_the_shared_steps(
    monkeypatch: pytest.MonkeyPatch, active: bool, count: int, steps: set[str]
) -> None:
    """Wrap the steps as a world does, and note those of two ranks."""
    if active and not compiled.BUILT:
        pytest.skip("the kernels in C are not built")
    monkeypatch.setattr(compiled, "active", active)
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "files")
    passed: set[str] = set()
    for step in concurrency.shared_steps:
        wrap(monkeypatch, step, passed)

    def body() -> float:
        with ncclkv.create("dist") as kv:
            kv.init("w", np.zeros(count, np.float32))
            kv.push("w", np.ones(count, np.float32))
            return float(kv.pull("w").sum())

    assert run_ranks(2, body) == [2.0 * count] * 2
    assert passed >= {"page: mark closing", *steps}
    assert active or "slot: publish" in passed


def wrap(monkeypatch: pytest.MonkeyPatch, step: concurrency.SharedStep, passed: set[str]) -> None:
    """Add the name of a step to `passed` at each of its calls."""
    kind, _, method = step.function.__qualname__.rpartition(".")
    owner = getattr(sys.modules[step.function.__module__], kind)

    def noted(*args: Any, **kwargs: Any) -> Any:
        passed.add(step.name)
        return step.function(*args, **kwargs)

    monkeypatch.setattr(owner, method, noted)
