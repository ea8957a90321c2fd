"""Kill a process during its saves, again and again, and load the remaining checkpoint.

``calls before after`` kills it before every system call, one after another, and in the middle of
writes; then after every call.
``parallel`` kills it after every call while two ranks write, which are threads of the process.
``moments N`` kills it N times at random times. The program prints the counts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ncclkv
from ncclkv.checkpoint import directory as generations
from ncclkv.checkpoint import write
from ncclkv.testing import run_ranks
from tests.unit.checkpoint import small_checkpoints

CALLS = ["mkdir", "open", "fsync", "rename", "unlink", "rmdir", "scandir", "listdir", "close"]
ROOM = (300, 7)

ACKNOWLEDGEMENT = 4
"""Bytes that a child writes for each saved step."""


def store(name: str = "local") -> Any:
    """Create a store of one key, whose value and momentum show the step."""
    kv = ncclkv.create(name, update_on="sharded")
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0, momentum=1.0))
    kv.init("w", np.zeros(ROOM))
    return kv


def go_on(kv: Any) -> None:
    """Make a step: the momentum is -step, the value minus the sum of all steps."""
    kv.push("w", np.full(ROOM, 1 / kv.num_workers))


def check(directory: str, least: int) -> int:
    """Load the checkpoint, and return its step, which must be whole and at least `least`."""
    for other in generations.generations(directory) if Path(directory).exists() else ():
        assert small_checkpoints.loaded(Path(other.path)) is not None, (
            "a checkpoint under its final name is whole"
        )
    with store() as kv:
        loaded = kv.load(directory, required=False)
        step = 0 if loaded is None else loaded.step
        assert step >= least, f"step {least} was saved, and {step} is there"
        assert loaded is None or loaded.extra == {"step": step}
        go_on(kv)
        assert (kv.pull("w") == -sum(range(step + 2))).all(), f"not what step {step} had"
    return step


class Countdown:
    """A count of calls that kills the process at its end, before the last call or after it."""

    def __init__(self, count: int, moment: str) -> None:
        self.count = count
        self.moment = moment

    def __call__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.count -= 1
        last = self.count == 0
        if last and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call(*arguments, **named)
        finally:
            if last:
                os.kill(os.getpid(), signal.SIGKILL)


class Torn:
    """A file whose write may stop in the middle."""

    def __init__(self, file: Any, countdown: Countdown) -> None:
        self.file, self.countdown = file, countdown

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, blob: bytes) -> None:
        def half(blob: bytes) -> None:
            self.file.write(blob[: len(blob) // 2])
            self.file.flush()

        self.countdown(half, blob)
        self.file.seek(0)
        self.countdown(self.file.write, blob)


def kill_at(countdown: Countdown) -> None:
    """Count all calls of this process that read or change the disk."""
    for name in CALLS:
        original = getattr(os, name)

        def counted(*arguments: Any, original: Any = original, **named: Any) -> Any:
            return countdown(original, *arguments, **named)

        setattr(os, name, counted)
    module: Any = write
    module.open = lambda path, mode: Torn(open(path, mode), countdown)  # noqa: SIM115


def in_child(body: Callable[[], object]) -> int:
    """Run a function in a fork, and return its exit: 0, or minus a signal."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def save_steps_on(ranks: int, directory: str, first: int, last: int, keep: int) -> None:
    """Save some steps on one rank, or on several that write side by side."""
    if ranks == 1:
        save_steps(directory, first, last, keep)
    else:
        run_ranks(ranks, save_steps, directory, first, last, keep, None, "threads")


def save_steps(
    directory: str, first: int, last: int, keep: int, said: int | None = None, name: str = "local"
) -> None:
    """Save some steps, and write an acknowledgement of each."""
    with store(name) as kv:
        for _ in range(first - 1):
            go_on(kv)
        for step in range(first, last + 1):
            go_on(kv)
            kv.save(directory, step=step, extra={"step": step}, keep=keep)
            if said is not None:
                os.write(said, step.to_bytes(ACKNOWLEDGEMENT, "little"))


def at_every_call(moment: str, keep: int, before: int, ranks: int = 1) -> int:
    """Kill a save at its first call, its second, and so on, until one ends; return the kills."""
    kills = 0
    seen = set()
    while True:
        with tempfile.TemporaryDirectory() as directory:
            directory += "/new/one"
            if before:
                save_steps_on(ranks, directory, 1, before, 9)
                left = Path(directory, ".saving-step-000000009-save-000009")
                left.mkdir()
                (left / "tensors-0000.safetensors").write_text("left by another")

            def body(directory: str = directory, count: int = kills + 1) -> None:
                kill_at(Countdown(count, moment))
                save_steps_on(ranks, directory, before + 1, before + 1, keep)

            ended = in_child(body)
            assert ended in (0, -signal.SIGKILL), ended
            seen.add(check(directory, before))
            save_steps_on(ranks, directory, before + 2, before + 2, keep)
            assert check(directory, before + 2) == before + 2
            found = os.listdir(directory)
            assert len(found) <= keep, found
            assert all(name.startswith("step-") for name in found), found
        if ended == 0:
            assert seen == {before, before + 1}, f"both were to be seen, not {seen}"
            return kills
        kills += 1


def at_any_moment(count: int) -> int:
    """Kill a process that saves all the time; return how often a save was under way.

    The delay before a kill starts at the child's first acknowledged save, however slow its start.
    """
    rng = random.Random(5)
    directory = tempfile.mkdtemp()
    step = under_way = 0
    for _ in range(count):
        read, said = os.pipe()
        child = os.fork()
        if child == 0:
            save_steps(directory, step + 1, step + 1000, 2, said)
            os._exit(0)
        os.close(said)
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read(ACKNOWLEDGEMENT)
            assert len(told) == ACKNOWLEDGEMENT, f"the child ended before its first save: {child}"
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told += pipe.read()
        acknowledged = max(
            [step, *(int.from_bytes(told[i : i + 4], "little") for i in range(0, len(told) - 3, 4))]
        )
        under_way += any(name.startswith(".") for name in os.listdir(directory))
        step = check(directory, acknowledged)
        assert step <= acknowledged + 1
    assert generations.generations(directory)[0].step == step
    shutil.rmtree(directory)
    return under_way


if __name__ == "__main__":
    if sys.argv[1] == "calls":
        for moment in sys.argv[2:]:
            for keep, before in ((2, 0), (1, 1), (2, 3)):
                print(at_every_call(moment, keep, before), "kills")
    elif sys.argv[1] == "parallel":
        print(at_every_call("after", 1, 1, ranks=2), "kills")
    else:
        print(at_any_moment(int(sys.argv[2])), "under way")
