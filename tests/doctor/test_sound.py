"""A sound set-up: nothing blocks, and one table fits the terminal, however ranks are started."""

from __future__ import annotations

import json
import os
import resource

import jsonschema
import pytest

from tests.doctor.conftest import DOCTOR, MPIRUN, SCHEMA, doctor, run
from tests.harness.slow import stretched

pytestmark = pytest.mark.limit(60)

SECONDS = 15.0
"""Limit of the processors' time of a call, which takes no longer on two quiet cores."""

THINGS = (
    *("ranks", "mpirun", "Python", "ncclkv", "NumPy", "mpi4py", "C kernels", "launcher"),
    *("NCCLKV_*", "other settings", "MPI library", "/dev/shm", "open files", "host name"),
    *("clock source", "GPUs", "MPI start", "node memory", "clocks", "store dist", "sums"),
    "allreduce",
)


def processors_seconds() -> float:
    """Return the time that ended children of this process have used on all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_table_of_four_ranks() -> None:
    before = processors_seconds()
    told = run(*DOCTOR, "-n", "4")
    seconds = processors_seconds() - before
    lines = told.out.splitlines()
    assert told.code == 0, told.out + told.err
    assert told.err == ""
    assert seconds < stretched(SECONDS)
    assert max(map(len, lines)) < 80
    assert lines[0].startswith("ncclkv ")
    assert f"doctor: 4 ranks on {os.uname().nodename}" in lines[0]
    assert lines[-1].startswith("nothing blocks; ")
    assert not [line for line in lines if line.startswith("BLOCKS")]
    assert [line for line in lines if line.startswith("ok     MPI start      4 ranks joined ")]


def test_each_thing_has_a_row_that_all_ranks_share() -> None:
    told = doctor("-n", "2")
    assert told.code == 0, told.out + told.err
    rows = told.table["rows"]
    assert [row["thing"] for row in rows if row["thing"] in THINGS] == [*THINGS]
    assert not [row for row in rows if row["ranks"]]
    assert told.table["ranks"] == 2
    assert told.row("sums")["found"] == "exact"
    assert told.row("node memory")["found"] == "files"
    assert "GB/s" in told.row("allreduce")["found"]
    assert "GB/s a copy" in told.row("allreduce")["used"]


def test_one_process_needs_no_launcher() -> None:
    told = doctor()
    assert told.code == 0, told.out + told.err
    assert told.row("launcher")["found"] == "none"
    assert told.row("MPI start")["found"] == "1 rank joined"
    assert told.row("sums")["found"] == "exact"


def test_the_test_is_left_out() -> None:
    told = doctor("-n", "2", "--no-test")
    assert told.code == 0, told.out + told.err
    assert told.row("node memory")["found"] == "files"
    assert not told.rows("sums")


def test_ranks_of_mpirun_make_one_table() -> None:
    told = run(MPIRUN, "-n", "3", *DOCTOR, "--json")
    assert told.code == 0, told.out + told.err
    assert told.out.count('"rows"') == 1
    assert told.table["ranks"] == 3
    assert told.row("ranks")["used"].startswith("ranks 0, 1, 2 on ")
    assert not [row for row in told.table["rows"] if row["ranks"]]
    assert told.row("MPI start")["found"] == "3 ranks joined"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": []},
        {"format": 2},
        {"rows": [{"thing": "x", "found": "y"}]},
        {"more": 1},
    ],
)
def test_the_schema_refuses_other_objects(wrong: dict[str, object]) -> None:
    row = {"thing": "a", "found": "b", "used": "", "why": "", "mend": "", "level": "ok"}
    sound = {"format": 1, "ncclkv": "1", "about": "1 rank", "ranks": 1, "blocks": False}
    sound["rows"] = [{**row, "ranks": [0]}]
    jsonschema.validate(sound, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(json.dumps({**sound, **wrong})), SCHEMA)
