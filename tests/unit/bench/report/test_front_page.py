"""README's figure: drawn from the tables of performance.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.front_page import LIBRARIES, PAGE, STEPS, Panel, draw, read

STEPS_TABLE = """Commit a1 on a host (2026, idle) has:

| | ours | beside | ratio |
|---|---|---|---|
| 2 | 4.5 ms | Gloo 9 | 0.5 |
| 4 | 5 ms, by views 1 | Gloo 20, 2 | 0.25 |
"""
SUMS_TABLE = """Commit b2 on 2027-01-01 (2 ranks on a host, idle; MPICH 5):

| 2 ranks | ncclkv | MPICH | Open MPI | Intel MPI | Gloo | copy |
|---|---|---|---|---|---|---|
| 8 B | 1 µs | 4 | 4 | 4 | 4 | 1 µs |
| 1 MiB | 434 (338) µs | 1.25 | 0.5 | 2.00 | 0.10 | 1 µs |
"""


def test_the_page_has_the_tables() -> None:
    *steps, sums = read(PAGE.read_text())
    assert len(steps) == len(STEPS)
    for panel in (*steps, sums):
        assert panel.times["ncclkv"] == 1.0
        assert " ranks" in panel.where
        assert "commit " in panel.where
    assert set(sums.times) == {"ncclkv", *LIBRARIES}


def test_tables_are_read() -> None:
    first, second, sums = read(f"{SUMS_TABLE}\n{STEPS_TABLE}")
    assert first == Panel(
        STEPS["2"], "4 ranks; 2026, idle; commit a1", {"ncclkv": 1.0, "Gloo": 2.0}
    )
    assert second.times == {"ncclkv": 1.0, "Gloo": 4.0}
    assert sums.where == "2 ranks on a host, idle; commit b2; 2027-01-01"
    assert sums.times == {
        "ncclkv": 1.0, "MPICH": 0.8, "Open MPI": 2.0, "Intel MPI": 0.5, "Gloo": 10.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("Nothing.", "lacks the table"),
        (f"{SUMS_TABLE}\n{STEPS_TABLE}".replace("| 4 |", "| 5 |"), "no step 4"),
        (f"{SUMS_TABLE}\n{STEPS_TABLE}".replace("| 1 MiB |", "| 2 MiB |"), "no sum of 1 MiB"),
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
