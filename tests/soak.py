"""Many steps of several stores in one job, with known results and constant memory.

``launch/local.sh -n 4 -m tests.soak --steps 20000``: each step makes one or several calls of one of
the stores. The stores differ in placement, updater and buckets. From time to time an additional
store is made, used and closed. All elements are small integers, so sums in float32 are exact.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ncclkv

GROWTH = 0.02
"""Maximum growth of memory, relative to the memory after the first steps."""

WARM_UP = 300
"""Steps before the first that counts."""

EVERY = 20
"""Steps between two additional stores."""

LARGEST = 1 << 16
"""Values are reset before they exceed this: 24 bits are exact in float32."""

SIZES: dict[str, tuple[int, ...]] = {
    **{f"small{index}": (index + 1,) for index in range(12)},
    "matrix": (30, 40),
    "scalar": (),
    "long": (100_000,),
}
CHOICES = [random.Random(count).sample(list(SIZES), count) for count in range(1, len(SIZES) + 1)]
"""Keys that are pushed together; few, as in a program that trains."""

DTYPES = (np.float64, np.float32, np.int64)


class Bench:
    """A store, and its expected values.

    Parameters
    ----------
    updater : {"none", "sgd", "function"}
    **options
        Options of `ncclkv.create`.
    """

    def __init__(self, updater: str, **options: Any) -> None:
        self.kv = kv = ncclkv.create("dist_sync", **options)
        self._updater = updater
        self._patterns = {
            name: (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape).astype(dtype)
            for place, (name, shape) in enumerate(SIZES.items())
            for dtype in [np.float64 if updater == "sgd" else DTYPES[place % len(DTYPES)]]
        }
        self._values = {name: pattern * 0 for name, pattern in self._patterns.items()}
        self._outs = {name: np.zeros_like(pattern) for name, pattern in self._patterns.items()}
        kv.init(list(self._values), list(self._values.values()))
        if updater == "sgd":
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        elif updater == "function":
            kv.set_updater(_add)

    def gradients(self, keys: Sequence[str], step: int) -> list[Any]:
        """Return this rank's gradients in a step."""
        here = step % 5 + self.kv.rank
        return [(self._patterns[key] + here).astype(self._patterns[key].dtype) for key in keys]

    def expect(self, keys: Sequence[str], step: int) -> None:
        """Update the expected values by the gradients of all ranks in a step."""
        size = self.kv.num_workers
        for key in keys:
            total = size * (self._patterns[key] + step % 5) + size * (size - 1) // 2
            sign = {"none": 0, "sgd": -1, "function": 1}[self._updater]
            self._values[key] = total if sign == 0 else self._values[key] + sign * total

    def check(self, keys: Sequence[str], step: int) -> None:
        """Check the pulled values."""
        for key in keys:
            if not np.array_equal(self._outs[key], self._values[key]):
                raise ValueError(f"step {step}, key {key!r}: {self._outs[key].ravel()[:5]}...")

    def outs(self, keys: Sequence[str]) -> list[Any]:
        return [self._outs[key] for key in keys]

    # Forms of a step

    def lists(self, keys: list[str], step: int) -> None:
        self.kv.push(keys, self.gradients(keys, step))
        self.kv.pull(keys, out=self.outs(keys))

    def together(self, keys: list[str], step: int) -> None:
        self.kv.pushpull(keys, self.gradients(keys, step), out=self.outs(keys), priority=step % 5)

    def key_by_key(self, keys: list[str], step: int) -> None:
        for key, gradient in zip(keys, self.gradients(keys, step), strict=True):
            self.kv.push(key, gradient)
        self.kv.wait(keys)
        for key in keys:
            self.kv.pull(key, out=self._outs[key])

    def group(self, keys: list[str], step: int) -> None:
        with self.kv.group():
            for place, gradient in enumerate(self.gradients(keys, step)):
                self.kv.push(keys[place], gradient, priority=-place)
                self.kv.pull(keys[place], out=self._outs[keys[place]])

    def views(self, keys: list[str], step: int) -> None:
        """Write gradients into the store's own memory, and push them."""
        for key, gradient in zip(keys, self.gradients(keys, step), strict=True):
            view = self.kv.grad_view(key)
            view[...] = gradient
            self.kv.push(key, view)
        self.kv.barrier()
        for key in keys:
            self._outs[key][...] = self.kv.value(key) if self._updater != "none" else 0
        self.kv.pull(keys, out=self.outs(keys))

    def step(self, step: int, draw: random.Random) -> None:
        """Make a step in one of these forms, with some of the keys."""
        keys = draw.choice(CHOICES)
        way = draw.choice([self.lists, self.together, self.key_by_key, self.group, self.views])
        way(keys, step)
        self.expect(keys, step)
        self.check(keys, step)
        grown = [key for key in keys if abs(self._values[key]).max() > LARGEST]
        if grown:
            self.reset(grown, step, draw)

    def reset(self, keys: list[str], step: int, draw: random.Random) -> None:
        """Reset some keys, by either verb."""
        for key in keys:
            self._values[key] = self._patterns[key] * 2
        values = [self._values[key] for key in keys]
        if draw.random() < 0.5:
            self.kv.reset(keys, values)
            self.kv.pull(keys, out=self.outs(keys))
        else:
            self.kv.broadcast(keys, values, self.outs(keys))
        self.check(keys, step)


def _add(key: Any, total: Any, stored: Any) -> None:
    stored += total


KINDS: list[Callable[[], Bench]] = [
    lambda: Bench("sgd"),
    lambda: Bench("none", update_on="root"),
    lambda: Bench("function", bucket_bytes=0),
    lambda: Bench("function", update_on="root", bucket_bytes=4096),
    lambda: Bench("sgd", bucket_bytes=4096, verify_every=50),
]


def memory() -> dict[str, int]:
    """Return this process's memory in KiB, private and shared, as Linux counts it."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssShmem")))
    return {name: int(text.split()[0]) for name, text in found.items()}


def soak(steps: int, seed: int) -> list[dict[str, int]]:
    """Make so many steps; return this rank's memory at a hundred times on the way."""
    draw = random.Random(seed)  # equal on every rank
    gc.freeze()  # what was imported stays: each measurement would search it for garbage
    stores, found = [kind() for kind in KINDS], []
    for step in range(-WARM_UP, steps):
        draw.choice(stores).step(step, draw)
        if step % EVERY == 0:
            more = KINDS[step // EVERY % len(KINDS)]()
            more.step(step, draw)
            more.kv.close()
        if step >= 0 and step % max(1, steps // 100) == 0:
            found.append(memory())
    for store in stores:
        store.kv.close()
    return found


def report(
    options: argparse.Namespace, seconds: float, found: Sequence[Sequence[dict[str, int]]]
) -> bool:
    """Print the figures of all ranks in one line; return whether memory has stayed constant."""
    words, stayed = [], True
    for name, text in (("VmRSS", "memory"), ("RssShmem", "shared")):
        ranks = [[each[name] / 1024 for each in rank] for rank in found]
        pairs = [(_middle(rank, 0.0, 0.2), _middle(rank, 0.8, 1.0)) for rank in ranks]
        first, last = max(pairs, key=lambda pair: pair[1] / pair[0])
        stayed = stayed and last <= first * (1 + options.growth)
        words.append(f"{text} {first:.1f} to {last:.1f} MiB a rank ({last / first - 1:+.1%})")
    rate = f"{options.steps} steps on {len(found)} ranks, {options.steps / seconds:.0f} a second"
    print(f"soak: {rate}; {'; '.join(words)}")
    return stayed


def _middle(figures: Sequence[float], begin: float, end: float) -> float:
    """Return the median of a range of some figures."""
    count = len(figures)
    return statistics.median(figures[int(begin * count) : int(end * count)])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=float, default=GROWTH, help="what memory may grow by")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    mine = soak(options.steps, options.seed)
    seconds = time.monotonic() - begin
    comm = ncclkv.comm.world()
    found = comm.control.allgather(mine)
    stayed = report(options, seconds, found) if comm.rank == 0 else True
    comm.close()
    return 0 if stayed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
