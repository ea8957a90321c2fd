"""README's figure: drawn from the tables of performance.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.front_page import LIBRARIES, PAGE, RANKS, STEP, Panel, draw, read

SUMS_TABLE = """Commit b2 on 2027-01-01 (2 ranks on a host, idle; MPICH 5):

| 2 ranks | ncclkv | MPICH | Open MPI | Intel MPI | Gloo | copy |
|---|---|---|---|---|---|---|
| 8 B | 1 µs | 4 | 4 | 4 | 4 | 1 µs |
| 1 MiB | 434 (338) µs | 1.25 | 0.5 | 2.00 | 0.10 | 1 µs |
"""
STEPS_TABLE = """
| a step of ResNet-50 | ncclkv | MPICH | Open MPI | Intel MPI | Gloo |
|---|---|---|---|---|---|
| lists, 2 ranks | 4.5 ms | 0.5 | 0.25 | 1 | 0.1 |
| lists, 4 ranks | 5 ms | 0.4, 0.5 | 0.5, 0.25 | 1 | 0.2 |
"""


def test_the_page_has_the_tables() -> None:
    panels = read(PAGE.read_text())
    assert len(panels) == len(RANKS) + 1
    for panel in panels:
        assert panel.times["ncclkv"] == 1.0
        assert " ranks on " in panel.where
        assert "commit " in panel.where
        assert set(panel.times) == {"ncclkv", *LIBRARIES}


def test_tables_are_read() -> None:
    four, two, sums = read(f"{SUMS_TABLE}\n{STEPS_TABLE}")
    times = {"ncclkv": 1.0, "MPICH": 2.0, "Open MPI": 2.0, "Intel MPI": 1.0, "Gloo": 5.0}
    assert four == Panel(
        STEP.format("4 ranks"), "4 ranks on a host, idle; commit b2; 2027-01-01", times
    )
    assert two.times == {**times, "Open MPI": 4.0, "Gloo": 10.0}
    assert sums.where == "2 ranks on a host, idle; commit b2; 2027-01-01"
    assert sums.times == {
        "ncclkv": 1.0, "MPICH": 0.8, "Open MPI": 2.0, "Intel MPI": 0.5, "Gloo": 10.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("Nothing.", "lacks the table"),
        (f"{SUMS_TABLE}\n{STEPS_TABLE}".replace("lists, 4", "lists, 5"), "no row lists, 4"),
        (f"{SUMS_TABLE}\n{STEPS_TABLE}".replace("| 1 MiB |", "| 2 MiB |"), "no row 1 MiB"),
    ],
)
def test_a_page_without_a_row_is_refused(page: str, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        read(page)


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is absent; the extra `plot` installs it")
    name = tmp_path / "figure.png"
    draw(read(PAGE.read_text()), str(name))
    assert name.read_bytes().startswith(b"\x89PNG")
