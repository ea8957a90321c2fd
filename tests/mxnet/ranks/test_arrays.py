"""NDArrays on several ranks."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import ncclkv

nd = pytest.importorskip("mxnet", reason="MXNet is not installed").nd


def test_sums_over_ranks() -> None:
    comm = MPI.COMM_WORLD
    with ncclkv.create("dist_sync", timeout=30) as kv:
        kv.init("w", nd.full((3,), comm.rank + 1.0))
        out = nd.zeros((3,))
        kv.pull("w", out=out)
        assert out.asnumpy().tolist() == [1, 1, 1]
        for step in range(3):
            kv.pushpull("w", [nd.full((3,), comm.rank + step)] * 2, out=out)
            total = comm.size * (comm.size - 1) + 2 * step * comm.size
            assert out.asnumpy().tolist() == [total] * 3
        assert kv.allreduce(nd.ones((2,))).tolist() == [comm.size] * 2
