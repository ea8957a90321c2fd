"""Pushes of two threads in an overlap block; ``python default_streams.py STREAMS``.

STREAMS is ``own`` if each thread makes a stream of its own, or ``default``.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from threading import Thread
from typing import Any

import cupy
import numpy as np

import ncclkv

KEYS = ("a", "b")
ADDITIONS = 40


def stream(kind: str) -> Any:
    return cupy.cuda.Stream(non_blocking=True) if kind == "own" else nullcontext()


def main(kind: str) -> None:
    texts: list[str] = []
    # The store's device is current before its streams are made.
    with ncclkv.create("nccl", timeout=60) as kv, stream(kind):

        def push(key: str) -> None:
            cupy.cuda.Device(device).use()
            with stream(kind):
                gradient = cupy.zeros(2**16, np.float32)
                for _ in range(ADDITIONS if key == "a" else 1):
                    gradient += 1
                try:
                    kv.push(key, gradient)
                except ncclkv.errors.UsageError as error:
                    texts.append(str(error))

        device = cupy.cuda.runtime.getDevice()
        kv.init(KEYS, [np.zeros(2**16, np.float32)] * 2)
        with kv.overlap(missing="zeros"):
            for key in KEYS:
                thread = Thread(target=push, args=(key,), name=key)
                thread.start()
                thread.join()
        sums = [sorted(set(kv.pull(key).get().tolist())) for key in KEYS]
        print(f"rank {kv.rank} | {sums} | {texts}", flush=True)
        # The owner goes on.
        kv.push("a", cupy.ones(2**16, np.float32))
        assert (kv.pull("a") == kv.num_workers).all()


main(sys.argv[1])
