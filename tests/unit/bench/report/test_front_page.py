"""README's figure: drawn from the table of performance.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.front_page import PAGE, TITLES, draw, read


def test_the_page_has_the_rows() -> None:
    about, rows = read(PAGE.read_text())
    assert about.startswith("commit ")
    for number in TITLES:
        ours, *others = rows[number].values()
        assert others
        assert 0 < ours < min(others)


def test_a_table_is_read() -> None:
    table = "| | ours | beside | ratio |\n|---|---|---|---|\n| 2 | 4.5 ms | Gloo 9 | 0.5 |"
    assert read(f"Commit a1 on a host (2026, idle) has:\n\n{table}") == (
        "commit a1, 2026, idle",
        {"2": {"ncclkv": 4.5, "Gloo": 9.0}},
    )


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table"):
        read("Nothing.")


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is absent; the extra `plot` installs it")
    name = tmp_path / "figure.png"
    draw(*read(PAGE.read_text()), str(name))
    assert name.read_bytes().startswith(b"\x89PNG")
