"""Push another key on rank 2 than on the other ranks, which no store may accept.

::

    mpirun -n 4 python docs/examples/order_mismatch.py

Every rank raises an `OrderMismatch` with the two calls and their lines.
"""

from __future__ import annotations

import numpy as np

import ncclkv


def main() -> None:
    """Make the wrong call, on rank 2 alone."""
    with ncclkv.create("dist") as kv:
        kv.init(["fc.weight", "fc.bias"], [np.zeros(4), np.zeros(1)])
        if kv.rank == 2:
            kv.push("fc.bias", np.ones(1))
        else:
            kv.push("fc.weight", np.ones(4))
        kv.pull("fc.weight")


if __name__ == "__main__":
    main()
