"""Estimate pi by random points, in a long run that continues after any failure.

::

    ncclkv run -n 4 --max-restarts 3 --checkpoint saved -- python docs/examples/long_run.py

The runner starts the job again when a rank fails.  The ranks then continue from the newest
checkpoint, each with its own random numbers, and the result is that of a run without a failure.
Needs the extra ``checkpoint``.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
from numpy.typing import NDArray

import ncclkv

POINTS = 200_000  # of a rank in a step
EVERY = 10  # steps from one checkpoint to the next


def generator(rank: int) -> np.random.Generator:
    """Return the random numbers of a rank."""
    return np.random.default_rng([31, rank])


def inside(random: np.random.Generator) -> int:
    """Return the number of new points that are inside the quarter of a circle."""
    x, y = random.random((2, POINTS))
    return int(np.count_nonzero(x * x + y * y <= 1))


def add(key: str, input: NDArray[np.int64], stored: NDArray[np.int64]) -> None:
    """Add the sum over all ranks to the value: the updater of the store."""
    stored += input


def main() -> None:
    """Count points, save a checkpoint now and then, and check the count at the end."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps

    with ncclkv.create("dist") as kv:
        random, start = generator(kv.rank), 0
        kv.init("inside", 0)
        kv.set_updater(add)
        if loaded := kv.load(required=False):  # from the directory of --checkpoint
            start = loaded.step
            random.bit_generator.state = loaded.extra[kv.rank]
        print(f"rank {kv.rank}, process {os.getpid()}, begins at step {start}", flush=True)

        for step in range(start + 1, steps + 1):
            kv.push("inside", inside(random))
            if step % EVERY == 0:
                states = kv.allgather_object(random.bit_generator.state)
                kv.save(step=step, extra=states)

        counted, ranks = int(kv.pull("inside")), kv.num_workers
        if kv.rank == 0:
            print(f"pi is about {4 * counted / (steps * POINTS * ranks):.5f}")
            expected = 0
            for random in map(generator, range(ranks)):
                expected += sum(inside(random) for _ in range(steps))
            print("check:", "every point counts once" if counted == expected else "FAILED")


if __name__ == "__main__":
    main()
