"""Save a checkpoint on SIGUSR1; save one and end on SIGTERM.

::

    mpirun -n 4 python docs/examples/signals.py checkpoints
    kill -USR1 PID_OF_A_RANK

A handler may run in the middle of a verb, so it only sets a flag.  A signal may reach some of the
ranks, each at another moment.  So the ranks take the maximum of their flags in each step, and all
ranks save after the same step.  A job that was ended continues from its checkpoint when it is
started again.  Needs the extra ``checkpoint``.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import numpy as np

import ncclkv

STEPS = 10_000


def main(directory: str) -> None:
    """Count steps in a store until they are all made, or a signal ends the job."""
    asked, agreed = np.zeros(2, np.int32), np.zeros(2, np.int32)  # to save, to end
    signal.signal(signal.SIGUSR1, lambda *_: asked.put(0, 1))
    signal.signal(signal.SIGTERM, lambda *_: asked.put([0, 1], 1))

    with ncclkv.create("dist") as kv, ncclkv.create("dist_sync") as flags:
        flags.init("asked", asked, op="max")
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        kv.init("w", np.zeros(4))
        loaded = kv.load(directory, required=False)
        step = start = loaded.step if loaded else 0
        print(f"rank {kv.rank}, process {os.getpid()}, begins at step {start}", flush=True)
        for step in range(start + 1, STEPS + 1):
            kv.push("w", np.full(4, -1.0 / kv.num_workers))
            flags.pushpull("asked", asked, out=agreed)
            if agreed[0]:
                asked[0] = 0
                kv.save(directory, step=step)
                if kv.rank == 0:
                    print(f"saved step {step}", flush=True)
            if agreed[1]:
                break
            time.sleep(0.01)
        right = kv.pull("w").tolist() == [float(step)] * 4
        if kv.rank == 0:
            print(f"ended at step {step}; check:", "each step counts once" if right else "FAILED")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", default="checkpoints", help="of the checkpoints")
    main(parser.parse_args().directory)
