"""Tests that break the communicator for GPUs: shared functions; recording stand-in, not NCCL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.errors import KVStoreError
from tests.nccl.standin import Worker

SLACK = 1.0


class HostWithFarewells:
    """A host communicator with scripted farewells, which records its own notices."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.gone: dict[int, str] = {}
        self.said: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def left_ranks(self) -> dict[int, str]:
        return self.gone

    def abort(self, reason: str) -> None:
        self.said.append(reason)
        self._host.abort(reason)


def communicator(worker: Worker) -> NcclCommunicator:
    return NcclCommunicator(
        HostWithFarewells(worker.peers), worker.binding, worker.streams, worker.kernels
    )


def ones(worker: Worker, count: int = 4) -> Any:
    return worker.streams.put(np.ones(count, np.float32))


def aborted(worker: Worker) -> bool:
    return any(line.startswith("abort ") for line in worker.log.lines)


@contextmanager
def raises(kind: type[KVStoreError], *words: str) -> Iterator[None]:
    """Expect an error of exactly this kind, with each of `words`, in time."""
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        yield
    assert caught.type is kind
    assert time.monotonic() - begin < SLACK
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"lacks {missing} in its text: {caught.value}"


def leave_broken(worker: Worker, comm: NcclCommunicator) -> None:
    """Close a communicator that a test has broken, on all ranks."""
    worker.peers.control.barrier("the test is over")
    comm.abort("the test is over")
