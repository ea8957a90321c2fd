"""Ranks of `run_ranks` that a signal to their process stops: ``python stopped_ranks.py KIND``."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
import time
from typing import NoReturn

import numpy as np

import ncclkv
from ncclkv.testing import run_ranks

KIND = sys.argv[1]
RANKS = 3


def count() -> NoReturn:
    step = 0
    while True:
        step += 1


def wait_for_others(kv: ncclkv.KVStore) -> None:
    if kv.rank == 0:
        count()
    kv.barrier()


def train(kv: ncclkv.KVStore) -> NoReturn:
    while True:
        kv.push("w", np.ones(3))
        kv.pull("w")


def train_whatever_is_raised(kv: ncclkv.KVStore) -> NoReturn:
    while True:
        with contextlib.suppress(Exception):
            kv.push("w", np.ones(3))
            kv.pull("w")


def make_stores(kv: ncclkv.KVStore) -> NoReturn:
    while True:
        ncclkv.create("dist").close()


def run_others(kv: ncclkv.KVStore) -> None:
    run_ranks(2, lambda: [time.sleep(0.01) for _ in iter(int, 1)])


def fail_on_one(kv: ncclkv.KVStore) -> None:
    if kv.rank == 1:
        raise ZeroDivisionError("mine")
    count()


def import_a_module(kv: ncclkv.KVStore) -> NoReturn:
    importlib.import_module("slow_module")
    train(kv)


KINDS = {
    "waits": wait_for_others,
    "computes": lambda kv: count(),
    "trains": train,
    "suppresses": train_whatever_is_raised,
    "makes stores": make_stores,
    "runs others": run_others,
    "fails on one": fail_on_one,
    "imports": import_a_module,
    "sleeps": lambda kv: time.sleep(60),
}


def body() -> None:
    kv = ncclkv.create("dist")
    kv.init("w", np.zeros(3))
    kv.barrier()
    sys.stdout.write(f"rank {kv.rank} begins\n")
    sys.stdout.flush()
    try:
        KINDS[KIND](kv)
    finally:
        sys.stdout.write(f"rank {kv.rank} ends\n")


def on_alarm(signum: int, frame: object) -> None:
    raise TimeoutError("the program's own")


signal.signal(signal.SIGALRM, on_alarm)
# A shell that runs the tests in its background lets them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_ranks(RANKS, body)
finally:
    running = sorted(thread.name for thread in threading.enumerate())
    sys.stdout.write(f"back; threads: {running}\n")
    if KIND == "imports":
        importlib.import_module("slow_module")
