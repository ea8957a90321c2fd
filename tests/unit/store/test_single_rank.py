"""Work of one rank, in which the other ranks assist."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.errors import CheckpointError
from ncclkv.store.single_rank import request_assistance, run_on_one_rank
from ncclkv.testing import run_ranks

LEADER = 1


def test_all_ranks_take_part_when_the_leader_requests_it() -> None:
    def body() -> None:
        comm = threads.world()

        def gather(argument: str) -> list[str]:
            return comm.control.allgather(f"{argument}{comm.rank}")

        def work() -> Generator[None, None, list[list[str]]]:
            found = []
            for name in "ab":
                request_assistance(comm, LEADER, "save", name)
                found.append(gather(name))
                yield
            return found

        made = run_on_one_rank(comm, LEADER, "save", work(), assist=gather)
        assert made == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
        comm.close()

    run_ranks(3, body, timeout=20)


def test_a_failure_after_assistance_is_raised_on_all_ranks() -> None:
    def failing(comm: Communicator) -> Generator[None, None, None]:
        request_assistance(comm, LEADER, "save", 1)
        comm.control.barrier()
        raise OSError("the disk is full")
        yield

    def body() -> None:
        comm = threads.world()
        with pytest.raises(CheckpointError, match="the disk is full"):
            run_on_one_rank(
                comm, LEADER, "save", failing(comm), assist=lambda _: comm.control.barrier()
            )
        comm.close()

    run_ranks(2, body, timeout=20)
