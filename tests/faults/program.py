"""A small job of exact sums that one fault strikes; ``python program.py FAULT``, as JSON.

A rank that the fault strikes first touches the file that MARK names.  Every rank compares all that
it pulls with a model in NumPy, and writes one line: that it ends well, that a sum is wrong, or what
it raised, which it raises again a moment later.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

import ncclkv
from ncclkv.errors import KVStoreError, UsageError
from tests.faults.fault import STEPS, Fault

FAULT = Fault.loads(sys.argv[1])
CHOICES = random.Random(FAULT.seed)
SIZES = {f"k{index}": CHOICES.choice((1, 7, 1000, 40_000, 300_000)) for index in range(5)}
LAST_WORDS = 1.2
"""Seconds for the other ranks to raise too, before the first of them ends the job."""


def add(key: Any, total: np.ndarray, stored: np.ndarray) -> None:
    stored += total


class Model:
    """A store and the values that it must hold, by the arithmetic of its updater."""

    def __init__(self) -> None:
        options = {"update_on": FAULT.update_on, "bucket_bytes": FAULT.bucket_bytes}
        self.kv = kv = ncclkv.create("dist_sync", **options)
        self.values = {key: np.zeros(size) for key, size in SIZES.items()}
        kv.init(list(SIZES), list(self.values.values()))
        if FAULT.updater == "sgd":
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        elif FAULT.updater == "function":
            kv.set_updater(add)

    def step(self, step: int) -> None:
        """Push and pull some keys, in one of the ways that a program does."""
        keys = CHOICES.sample(list(SIZES), CHOICES.randrange(1, len(SIZES) + 1))
        way = CHOICES.choice(("list", "group", "keys"))
        if step == FAULT.step and self.struck("before", keys):
            return
        gradients = [np.full(SIZES[key], float(self.kv.rank + step + 1)) for key in keys]
        self.push(way, keys, gradients)
        if step == FAULT.step:
            self.struck("between", keys)
        outs = self.kv.pull(keys)
        self.expect(keys, step)
        for key, out in zip(keys, outs, strict=True):
            if not np.array_equal(out, self.values[key]):
                write(f"has WRONG sums of {key!r} in step {step}: {out[:3]}")

    def push(self, way: str, keys: list[str], gradients: list[Any]) -> None:
        if way == "list":
            self.kv.push(keys, gradients)
            return
        with self.kv.group() if way == "group" else nullcontext():
            for key, gradient in zip(keys, gradients, strict=True):
                self.kv.push(key, gradient)

    def expect(self, keys: list[str], step: int) -> None:
        size = self.kv.num_workers
        total = float(size * (step + 1) + size * (size - 1) // 2)
        for key in keys:
            if FAULT.updater == "none":
                self.values[key][:] = total
            else:
                self.values[key] += total if FAULT.updater == "function" else -total

    def struck(self, moment: str, keys: list[str]) -> bool:
        """Cause the fault if it is of this rank and moment; return "skip the step"."""
        if FAULT.moment != moment or self.kv.rank != FAULT.victim:
            return False
        Path(os.environ["MARK"]).touch()
        if FAULT.kind == "missing-step":
            return True
        strike(self.kv, keys)
        return False


def strike(kv: Any, keys: list[str]) -> None:
    """Cause the fault on this rank."""
    if FAULT.kind in WAYS:
        WAYS[FAULT.kind]()
    else:
        CALLS[FAULT.kind](kv, keys)


def fail() -> None:
    raise ValueError("struck by a fault")


def hang() -> None:
    time.sleep(600)


def stop_and_continue() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(FAULT.delay)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, 0)


def fork() -> None:
    child = os.fork()
    if child == 0:
        CHOICES.choice((fail, sys.exit, lambda: os._exit(4), lambda: kill(signal.SIGKILL)))()
    os.waitpid(child, 0)


def signals() -> None:
    """Interrupt this rank by a harmless handler, a thousand times a second."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)


def kill(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(5)


def busy() -> None:
    def spin() -> None:
        end = time.monotonic() + FAULT.delay
        while time.monotonic() < end:
            pass

    threading.Thread(target=spin, daemon=True).start()


def wrong_call(kv: Any, keys: list[str]) -> None:
    for wrong in (lambda: kv.push(keys[0], np.zeros((3, 3, 3))), lambda: kv.push("no key", 1)):
        with suppress(UsageError):
            wrong()


WAYS: dict[str, Callable[[], Any]] = {
    "raise": fail,
    "exit": lambda: sys.exit(3),
    "os-exit": lambda: os._exit(3),
    "kill": lambda: kill(signal.SIGKILL),
    "terminate": lambda: kill(signal.SIGTERM),
    "os-exit-0": lambda: os._exit(0),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "stop": lambda: kill(signal.SIGSTOP),
    "hang": hang,
    "slow": lambda: time.sleep(FAULT.delay),
    "stop-and-continue": stop_and_continue,
    "fork": fork,
    "signals": signals,
    "thread": busy,
    "collect": gc.collect,
}
CALLS: dict[str, Callable[[Any, list[str]], Any]] = {
    "extra-push": lambda kv, keys: kv.push(keys[0], np.zeros(SIZES[keys[0]])),
    "extra-pull": lambda kv, keys: kv.pull(keys[0]),
    "extra-barrier": lambda kv, keys: kv.barrier(),
    "extra-init": lambda kv, keys: kv.init("new", np.zeros(3)),
    "wrong-call": wrong_call,
}


def late(rank: int) -> None:
    """Cause the fault from a thread, while the main thread is anywhere in its steps."""
    if FAULT.moment == "during" and rank == FAULT.victim:

        def body() -> None:
            time.sleep(FAULT.delay)
            Path(os.environ["MARK"]).touch()
            WAYS[FAULT.kind]()

        threading.Thread(target=body, daemon=True).start()


def write(text: str) -> None:
    rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    # One write, because the lines of two ranks may be mixed.
    sys.stdout.write(f"rank {rank} {text}\n")
    sys.stdout.flush()


def main() -> None:
    try:
        model = Model()
        late(model.kv.rank)
        for step in range(STEPS) if FAULT.moment != "during" else itertools.count():
            model.step(step)
        model.kv.close()
        # At the interpreter's end the handler is removed before the timer.
        signal.setitimer(signal.ITIMER_REAL, 0)
        write("ends well")
    except KVStoreError as error:
        first = str(error).splitlines()[0]
        write(f"raises {type(error).__name__}: {first}")
        time.sleep(LAST_WORDS)
        raise


if __name__ == "__main__":
    main()
