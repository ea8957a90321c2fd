"""The warning on stderr about a long wait: its time, its rank and its text."""

from __future__ import annotations

import re
import sys
import time

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.diagnosis import stall
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched


@pytest.mark.parametrize(("limit", "first"), [(300.0, 30.0), (4000.0, 30.0), (20.0, 2.0)])
def test_warnings_are_printed_at_growing_intervals(limit: float, first: float) -> None:
    for lines in range(4):
        assert not stall.is_due(first * 2**lines - 0.01, limit, lines)
        assert stall.is_due(first * 2**lines, limit, lines)
        assert stall.lines_after(first * 2**lines, limit) == lines + 1


def test_a_jump_of_the_clock_is_followed_by_no_burst_of_warnings() -> None:
    lines, found = 0, []
    for waited in (10.0, 250.0, 251.0, 479.0, 480.0):
        if stall.is_due(waited, 4000.0, lines):
            found.append(waited)
            lines = stall.lines_after(waited, 4000.0)
    assert found == [250.0, 480.0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_lowest_waiting_rank_of_a_node_reports(
    nodes: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if nodes == 2:
        monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", "3")
    limit = stretched(6.0)

    def body() -> None:
        with ncclkv.create("threads", timeout=limit) as kv:
            kv.init("w", np.zeros(2))
            if kv.rank == 0:
                time.sleep(limit / 10 + 0.4)
            kv.push("w", np.ones(2))
            assert (kv.pull("w") == 4).all()

    run_ranks(4, body)
    lines = sorted(capsys.readouterr().err.splitlines())
    speakers = [1, 3] if nodes == 2 else [1]
    assert sorted(int(line.split()[2]) for line in lines) == speakers, lines
    for line in lines:
        assert re.match(
            rf"ncclkv: rank \d of 4 on \S+ \(pid \d+\) has waited \d+\.\d s "
            rf"\(timeout {limit:g} s\): .* \(key 'w'\) waits for rank [01]",
            line,
        ), line
    assert re.search(r"; rank 0 on \S+ \(pid \d+\) last called init\(\) at ", lines[0]), lines


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    stall.write_line(0, 2, "a sum waits for rank 1", 1.0, 10.0, "")
