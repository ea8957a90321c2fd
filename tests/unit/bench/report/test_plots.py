"""Pictures of a run: what they say, and the space around what they show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.report import names, plots

LIBRARIES = {"MPI": "Open MPI v5.0.11, ident", "Gloo": "torch 2"}


@pytest.fixture
def record() -> dict[str, Any]:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, so there is no plot")
    phases = {"push": [0.001, 0.002, 0.003], "pull": [0.002] * 3, "rest": [0.0] * 3}
    seconds = [0.003, 0.004, 0.009]
    results = [
        {"name": name, "phases": phases, "seconds": seconds}
        for name in ("store, lists", "MPI, copies in and out")
    ]
    return {
        "ranks": 2,
        "commit": "abc1234",
        "date": "2026-11-28",
        "machine": {"cores": 2, "processor": "Some CPU", "nodes": 1},
        "options": {"gpu": False},
        "libraries": LIBRARIES,
        "sizes": [
            {
                "bytes": nbytes,
                "median": {"ncclkv": 2e-6, "MPI": 3e-6, "copy": 1e-6},
                "least": {"ncclkv": 1e-6, "MPI": 2e-6, "copy": 1e-6},
                "most": {"ncclkv": 4e-6, "MPI": 8e-6, "copy": 1e-6},
            }
            for nbytes in (8, 4096, 1 << 20)
        ],
        "tables": [{"title": "a step", "results": results}],
        "memory": [
            {"name": name, "ranks": ranks, "rank": 1 << 20, "total": ranks << 20}
            for name in ("every_rank", "sharded")
            for ranks in (1, 2)
        ],
    }


@pytest.fixture
def figures(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the figures of the record, by name."""
    from matplotlib.figure import Figure

    found: dict[str, Any] = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda self, name, **_: found.update({Path(name).stem: self})
    )
    written = plots.draw(Path("run"), record)
    assert [Path(name).stem for name in written] == list(found)
    return found


def test_each_picture_says_where_it_was_measured(figures: dict[str, Any]) -> None:
    assert list(figures) == ["run-bandwidth", "run-steps", "run-memory"]
    where = "2 ranks on 2 cores of Some CPU; commit abc1234; 2026-11-28"
    assert [each.get_supxlabel() for each in figures.values()] == [where] * 3


def test_sizes_have_units_and_medians_a_band(figures: dict[str, Any]) -> None:
    (axes,) = figures["run-bandwidth"].axes
    assert [each.get_text() for each in axes.get_xticklabels()] == ["8 B", "4 KiB", "1 MiB"]
    assert [each.get_label() for each in axes.lines] == ["ncclkv", "Open MPI"]
    # On two ranks 2 (n - 1) / n is 1.
    assert list(axes.lines[0].get_ydata()) == pytest.approx([4e-3, 2.048, 524.288])
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(2e-3)
    assert band[:, 1].max() == pytest.approx(1048.576)


def test_bars_keep_away_from_the_frame(figures: dict[str, Any]) -> None:
    (axes,) = figures["run-steps"].axes
    right = max(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert right == pytest.approx(4.0)
    # The caps of the line from least to most.
    assert [line.get_xdata()[0] for line in axes.lines[:2]] == pytest.approx([3.0, 9.0])
    assert axes.get_xlim()[1] > 9.0
    bottom, top = axes.get_ylim()
    for bar in axes.patches:
        assert top < bar.get_y() < bar.get_y() + bar.get_height() < bottom


def test_a_colour_is_a_library_in_all_pictures(figures: dict[str, Any]) -> None:
    from matplotlib.colors import to_hex

    (lines,), (bars,) = figures["run-bandwidth"].axes, figures["run-steps"].axes
    of_lines = [to_hex(each.get_color()) for each in lines.lines]
    of_bars = [to_hex(each.get_facecolor()) for each in bars.patches[::3]]
    assert of_lines == of_bars == [names.COLORS["ncclkv"], names.COLORS["Open MPI"]]
    of_memory = {to_hex(line.get_color()) for line in figures["run-memory"].axes[0].lines}
    assert not of_memory & {*names.COLORS.values()}


def test_no_colour_of_a_host_stands_twice() -> None:
    host = ["ncclkv", "bucket", "one result", "MPICH", "Open MPI", "Intel MPI", "MPI", "Gloo"]
    colors = [*(names.COLORS[name] for name in host), *names.PLACEMENTS, names.COLORS["copy"]]
    assert len({*colors, names.UNKNOWN}) == len(colors) + 1


def test_pictures_are_files(record: dict[str, Any], tmp_path: Path) -> None:
    written = plots.draw(tmp_path / "run", record)
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in written)
    assert len(written) == 3


def test_without_matplotlib_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plots.draw(Path("run"), {}) == [
        "no plots: matplotlib is not installed (pip install 'ncclkv[plot]')"
    ]
