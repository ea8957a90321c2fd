"""Rows that ``ncclkv doctor`` puts together, and what hides no other row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclkv.cli import WRONG, examined, main
from ncclkv.doctor import gpus, variables
from ncclkv.doctor.rows import WARNS, Row


def test_a_probe_that_fails_is_a_row_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Iterator[Row]:
        yield Row("launcher", "seen before")
        raise OSError("no more")

    monkeypatch.setattr(variables, "rows", fails)
    monkeypatch.setattr(gpus, "rows", lambda: iter([Row("GPUs", "seen")]))
    rows = {row.thing: row for row in examined.examine(1)}
    assert rows["launcher"].found == "seen before"
    assert rows["GPUs"].found == "seen"
    assert rows["variables"].level == WARNS
    assert rows["variables"].why == "the look at it failed: OSError: no more"


def test_an_empty_variable_has_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_TIMOUT", "")
    rows = {row.thing: row for row in variables.rows()}
    assert rows["NCCLKV_TIMOUT"].found == "empty"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0"], "-n 0 is no number of ranks; give 1 or more"),
        (["-n", "x"], "-n x is no number of ranks; give 1 or more"),
        (["--jsn"], "ncclkv doctor has no option --jsn (did you mean --json?)"),
        (["--hosts", "node[1-2]"], "scontrol show hostnames"),
    ],
)
def test_arguments_that_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["doctor", *arguments]) == WRONG
    assert said in capsys.readouterr().err


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 80
    assert "--as-rank" not in text
