"""A job for ``ncclkv run --torch-env``: torch.distributed and a store sum the same arrays."""

from __future__ import annotations

import os

import torch
import torch.distributed

import ncclkv


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    sums = torch.full((3,), rank + 1.0)
    torch.distributed.all_reduce(sums)
    with ncclkv.create("dist_sync") as kv:
        both = kv.allreduce([rank + 1.0, int(os.environ["LOCAL_RANK"])])
        assert kv.rank == rank
    port = os.environ["MASTER_PORT"]
    print(f"{rank}: torch {sums.tolist()}, ncclkv {both}, port {port}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
