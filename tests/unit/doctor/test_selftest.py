"""Rows of a trial, as far as it came."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv.doctor import selftest
from ncclkv.doctor.probe import Ended
from ncclkv.doctor.rows import BLOCKS, OK, WARNS


def told(**values: Any) -> Ended:
    return Ended({name.replace("_", " "): value for name, value in values.items()}, "", "")


@pytest.mark.parametrize(
    ("values", "thing", "found", "level"),
    [
        ({"on_gpus": "", "a_gpu": 2}, "store dist", "GPU memory, by NCCL", OK),
        ({"on_gpus": "no driver; with one, x", "gpus": 0}, "store dist", "host memory", OK),
        ({"on_gpus": "they share; set x", "gpus": 1}, "store dist", "host memory", WARNS),
        ({"sums": ["float32 1000"]}, "sums", "wrong: float32 1000", BLOCKS),
        ({"gpu_sums": []}, "GPU sums", "exact", OK),
        ({"clocks": 0.5}, "clocks", "0.50 s apart", OK),
        ({"clocks": 90.0}, "clocks", "90.00 s apart", WARNS),
        ({"sharing": ["", "are alone", []]}, "node memory", "one rank a host", OK),
        (
            {"sharing": ["messages", "exchange messages", ["files: rank 0 cannot open the memory "
             "file of rank 1: x"]]},
            "node memory", "messages", WARNS,
        ),
        (
            {"speed": {"nbytes": 1 << 26, "allreduce": 2.0, "right": True, "copy": 5.0}},
            "allreduce", "2 GB/s (3 on the bus), 64 MiB", OK,
        ),
        (
            {"speed": {"nbytes": 1 << 26, "allreduce": 2.0, "right": False, "copy": 5.0}},
            "allreduce", "wrong: float32 allreduce", BLOCKS,
        ),
        ({"error": "no join; type: x", "step": "starting MPI"}, "self-test",
         "failed while starting MPI", BLOCKS),
    ],
)  # fmt: skip
def test_rows_of_a_trial(values: dict[str, Any], thing: str, found: str, level: str) -> None:
    ended = told(joined={"size": 4, "library": "MPICH 5"}, **values)
    rows = {row.thing: row for row in selftest.rows(ended)}
    assert (rows[thing].found, rows[thing].level) == (found, level)


@pytest.mark.parametrize(
    ("problem", "last", "mend"),
    [
        ("was killed by SIGBUS (often a full /dev/shm: see df /dev/shm)", "", "make /dev/shm larg"),
        ("was killed by SIGSEGV", "", "start ranks by the mpirun of the MPI that mpi4py loads"),
        (
            "was killed by SIGABRT",
            "ncclkv: rank 0 failed, ending the job: starting MPI took more than 10 s; look",
            "see the other ranks' rows",
        ),
    ],
)
def test_crashes_of_a_trial(problem: str, last: str, mend: str) -> None:
    [row] = selftest.rows(Ended({"step": "starting MPI"}, problem, last))
    assert row.level == BLOCKS
    assert row.mend.startswith(mend)
