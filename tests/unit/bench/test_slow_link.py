"""Steps on slow links: the table of a layout, and machines that cannot make hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import slow_link
from bench.cases import wire
from bench.slow_link import HostLayout


def record() -> dict[str, Any]:
    """Return the record of a job with two dtypes, and a library that counts no bytes."""
    times = {"float32": [1.0, 2.0], "float16": [0.5, 1.6], "Gloo": [2.0, 1.0]}
    rows = [{"name": n, "median": sum(x) / 2, "seconds": x} for n, x in times.items()]
    sent = [{"name": "float32", "counted": 8e6}, {"name": "float16", "counted": 4e6}]
    return {"tables": [{"title": "a step", "against": "float32", "results": rows}], "wire": sent}


def test_ratios_are_those_of_the_medians_and_of_the_worst_turn() -> None:
    title, _, plain, narrow, gloo, end = slow_link.lines(HostLayout(4, 1), record())
    assert title == "# 4 hosts x 1, 1 Gbit/s: a step"
    assert plain.split() == ["float32", "1500.0", "1.00", "1.00", "8.00"]
    assert narrow.split() == ["float16", "1050.0", "1.43", "1.25", "4.00"]
    assert gloo.split() == ["Gloo", "1500.0", "1.00", "0.50", "-"]
    assert end == ""


def test_names_of_layouts() -> None:
    assert [*map(str, slow_link.LAYOUTS[2:])] == [
        "2 hosts x 2, 1 Gbit/s", "2 hosts x 1, unshaped links", "1 host x 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lacking", "tool", "reason"),
    [
        ("only root can make network namespaces", "/sbin/tc", "only root can"),
        ("", None, "no tc on PATH"),
    ],
)
def test_a_machine_without_root_or_tc_measures_nothing(
    lacking: str,
    tool: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(slow_link, "missing", lambda: lacking)
    monkeypatch.setattr(slow_link.shutil, "which", lambda _: tool)
    assert slow_link.main([]) == 0
    assert capsys.readouterr().out.startswith(f"# slow-link is left out: {reason}")


def test_loopback_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = "9 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0"
    rows = [
        f"    lo: {counts.format(7)}",
        f"  eth0: {counts.format(40)}",
        f"eth1:{counts.format(2)}",
    ]
    (tmp_path / "dev").write_text("\n".join(["Inter-| Receive", " face |bytes", *rows, ""]))
    monkeypatch.setattr(wire, "_INTERFACES", tmp_path / "dev")
    assert wire.interface_bytes() == 42
