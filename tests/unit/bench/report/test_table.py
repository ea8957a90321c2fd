"""Tables of the bench: nccl-tests' format, floors, and the stored results of a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bench.job import Job
from bench.memory import HostMemory
from bench.options import MIB, Options, parse
from bench.raw.collectives import COLLECTIVES
from bench.raw.measure import iterations, sizes
from bench.report import machine, nccl_tests, table
from bench.report.nccl_tests import Cell, Row
from bench.rounds import Result
from ncclkv.comm.solo import SoloCommunicator

# The lines are those of nccl-tests 2.19, trailing blanks included.
HEADING = [
    "#                                                              out-of-place                 "
    "      in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
    "time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             "
    "(us)  (GB/s)  (GB/s)        ",
]
ROW = (
    "     8388608       2097152     float     sum      -1  17109.8    0.49    0.74       0  "
    "16700.7    0.50    0.75       3"
)
LEFT = "         128            32     float    none       0"


def job(**options) -> Job:
    comm = SoloCommunicator(10.0)
    return Job(comm, HostMemory(comm), Options(**options))


def row(wrong: int = 0) -> Row:
    cells = Cell(17109.8, 0.49, 0.74, 0), Cell(16700.7, 0.50, 0.75, wrong)
    return Row(8 * MIB, 2 * MIB, "sum", -1, *cells, 20)


def test_heading_is_that_of_nccl_tests():
    lines = nccl_tests.preamble("name", "version", [8, 64], 2, 20, ["#  Rank  0"])
    assert lines[-3:] == HEADING
    assert lines[1] == "# Collective test starting: name"
    assert "minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 1 iters: 20" in lines[2]
    assert all(line.startswith("#") for line in lines)


def test_rows_are_those_of_nccl_tests():
    assert nccl_tests.line(row(wrong=3)) == ROW
    only = Row(128, 32, "none", 0, None, Cell(72.49, 0, 0, 0), 20)
    halves = "      N/A     N/A     N/A     N/A", "    72.49    0.00    0.00       0"
    assert nccl_tests.line(only) == LEFT + "".join(halves)


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"),
        (9999.994, 7, "9999.99"),
        (12345.67, 7, "12345.7"),
        (123456.7, 7, " 123457"),
        (1234567.0, 7, "1234567"),
        (12345678.9, 7, "1.2e+07"),
        (1234.5, 6, "1234.5"),
        (1234567.0, 6, " 1e+06"),
    ],
)
def test_numbers_shrink_to_their_width(value, width, text):
    assert nccl_tests.format_number(value, width) == text


def test_footer_has_the_mean_of_both_halves_and_fails_when_wrong():
    lines = nccl_tests.footer("name", [row()])
    assert lines[0] == "# Out of bounds values : 0 OK"
    assert lines[1] == "# Avg bus bandwidth    : 0.745 "
    assert nccl_tests.footer("name", [row(wrong=3)])[0] == "# Out of bounds values : 3 FAILED"


def test_bandwidths_of_a_second():
    found = nccl_tests.cell(2.0, 10**9, 1.5, 0)
    assert (found.time, found.algbw, found.busbw) == (2e6, 0.5, 0.75)


def test_bus_bandwidth_factors():
    factors = {each.name: each.factor(4) for each in COLLECTIVES}
    assert factors == {
        "all_reduce": 1.5, "broadcast": 1.0, "reduce_scatter": 0.75, "all_gather": 0.75
    }  # fmt: skip


def test_parts_are_whole_16_bytes_as_in_nccl_tests():
    parts = {each.name: each for each in COLLECTIVES}["all_gather"]
    assert [parts.count(nbytes, 3) for nbytes in (8, 48, 64, 128)] == [0, 4, 4, 8]
    assert parts.total(8, 3) == 24


def test_sizes_and_calls():
    assert sizes(128 * MIB, 2)[-1] == 128 * MIB
    assert len(sizes(128 * MIB, 2)) == 25
    assert [iterations(nbytes, False) for nbytes in (8, 12 * MIB, 128 * MIB)] == [20, 20, 5]


@pytest.mark.parametrize("shown", [False, True])
def test_floors_are_checked_and_printed_if_asked_for(shown, capsys):
    here = job(floors=shown)
    table.floor(here, "work", 0.5, 0.4)
    table.floor(here, "work", 0.5, 0.4, least=True)
    said = capsys.readouterr().out.splitlines()
    floors = ["  floor: at most 0.4  not met", "  floor: at least 0.4  met"] if shown else ["", ""]
    assert said == [f"     0.500  work{floor}" for floor in floors]
    assert [each["met"] for each in here.record["floors"]] == [False, True]


def test_ratio_is_to_the_best_installed_baseline(capsys):
    results = {
        name: Result(name, [seconds]) for name, seconds in (("us", 1.0), ("a", 4.0), ("b", 2.0))
    }
    here = job(floors=True)
    here.libraries = [SimpleNamespace(name="b")]
    table.ratio(here, "work", results, "us", ["a", "b", "absent"], 0.5)
    table.ratio(job(), "work", results, "us", ["absent"], 0.5)
    table.ratio(job(gpu=True), "work", results, "us", ["a"], 0.5)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "     0.500  work: us / b  floor: at most 0.5  met",
        "         -  work: there is nothing here to compare with",
        "     0.250  work: us / a",
    ]
    found = {"work": "work", "ours": "us", "beside": "b", "library": "b", "value": 0.5}
    assert here.record["ratios"] == [{**found, "seconds": 1.0}]


def test_irrelevant_environment_variables_are_not_stored():
    given = {"NCCL_DEBUG": "INFO", "HOME": "x", "OMP_NUM_THREADS": "1", "NCCL_SECRET_KEY": "x"}
    assert machine.settings(given) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}


def test_options():
    quick = parse(["--quick"], ["raw"], ["kernels"])
    assert (quick.parts, quick.models, quick.rounds) == (("raw",), ("ResNet-50",), 3)
    assert not quick.floors
    assert parse(["--floors"], ["raw"], ["kernels"]).floors
    full = parse(["gpu", "--rounds", "9"], ["raw"], ["kernels"])
    assert (full.gpu, full.parts, full.rounds) == (True, ("kernels",), 9)
    with pytest.raises(SystemExit):
        parse(["--rounds", "1000"], ["raw"], ["kernels"])


def test_free_memory_is_counted_for_one_rank():
    assert job().memory.free_bytes() > 0
    assert not job().fits("the world", 2**60)
    assert np.float32 == job().memory.bucket(3).dtype
