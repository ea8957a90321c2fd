"""Rows, their merge over ranks, and the table."""

from __future__ import annotations

import json

import pytest

from ncclkv.doctor import report_table
from ncclkv.doctor.merged_rows import Merged, merge
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, RankRows, Row, from_json, refused, to_json
from ncclkv.errors import LaunchError

SAME = Row("NumPy", "2.4.6", "/lib/numpy")
OTHER = Row("NumPy", "2.3.0", "/lib/numpy")


@pytest.mark.parametrize(
    ("error", "why", "mend"),
    [
        ("A=1 is wrong; set 2, or unset it", "A=1 is wrong", "set 2, or unset it"),
        ("no join; type: ncclkv run -n 2", "no join", "ncclkv run -n 2"),
        ("no x; there is y. Load your site's MPI", "no x; there is y", "Load your site's MPI"),
        ("no driver; with one, pip install x", "no driver", "with one, pip install x"),
        ("a failure; it has no advice", "a failure; it has no advice", ""),
    ],
)  # fmt: skip
def test_the_advice_of_an_error_is_its_mend(error: str, why: str, mend: str) -> None:
    row = refused("thing", LaunchError(error))
    assert (row.why, row.mend, row.level) == (why, mend, BLOCKS)


def test_a_report_passes_through_json() -> None:
    report = RankRows(3, "node1", [SAME, refused("a", "b; set c", WARNS)])
    assert from_json(json.loads(json.dumps(to_json(report)))) == report


def test_equal_rows_are_one_and_others_name_their_ranks() -> None:
    rows = [RankRows(rank, "h", [Row("a", "x"), Row("b", str(rank // 2))]) for rank in range(4)]
    assert merge(rows) == [
        Merged(Row("a", "x")),
        Merged(Row("b", "0"), (0, 1)),
        Merged(Row("b", "1"), (2, 3)),
    ]


def test_a_row_that_some_ranks_lack_names_its_ranks() -> None:
    rows = [RankRows(0, "h", [Row("a", "x")]), RankRows(1, "h", [Row("a", "x"), Row("b", "y")])]
    assert merge(rows) == [Merged(Row("a", "x")), Merged(Row("b", "y"), (1,))]
    assert merge(rows[:1], of=2) == [Merged(Row("a", "x"), (0,))]


def test_free_space_that_changes_between_two_looks_is_one_row_a_host() -> None:
    def seen(rank: int, free: str, level: str = OK) -> RankRows:
        return RankRows(rank, f"node{rank // 2}", [Row("/dev/shm", free, level=level)])

    [whole] = merge([seen(0, "5"), seen(1, "4")])
    assert whole == Merged(Row("/dev/shm", "5"))
    found = merge([seen(0, "5"), seen(1, "4"), seen(2, "7"), seen(3, "0", WARNS)])
    assert [(row.found, ranks) for row, ranks in found] == [("5", (0, 1)), ("7", (2,)), ("0", (3,))]


def test_the_fewer_ranks_have_the_other_version() -> None:
    merged = merge([RankRows(0, "h", [OTHER]), *(RankRows(r, "h", [SAME]) for r in (1, 2))])
    assert merged[1] == Merged(SAME, (1, 2))
    row, ranks = merged[0]
    assert ranks == (0,)
    assert row.level == WARNS
    assert row.why == "versions differ: 2.3.0 on rank 0, 2.4.6 on ranks 1, 2"
    assert row.mend == "install the same NumPy on every host"


def test_another_path_of_one_version_is_fine() -> None:
    merged = merge([RankRows(0, "h", [SAME]), RankRows(1, "i", [SAME._replace(used="/opt")])])
    assert [each.row.level for each in merged] == [OK, OK]


def test_another_ncclkv_blocks() -> None:
    reports = [RankRows(rank, "h", [Row("ncclkv", f"0.{rank}")]) for rank in range(2)]
    assert report_table.blocks(merge(reports))


LONG = Row(
    "NCCLKV_NODE_MEMORY",
    "a/path/without/blanks/that/is/much/longer/than/its/column/of/the/table",
    "and_a_name_without_blanks_that_is_longer_than_the_column",
    "words " * 40,
    "python -m pip install --force-reinstall --no-deps ncclkv and-more-words-with-hyphens " * 2,
    BLOCKS,
)


def test_lines_are_shorter_than_a_terminal() -> None:
    text = report_table.text([Merged(LONG, (0, 1, 2)), Merged(SAME)], "3 ranks on h")
    assert max(map(len, text.splitlines())) < 80
    assert "".join(text.split()).count("".join(LONG.mend.split())) == 1, "no word is lost"


def test_the_last_line_counts() -> None:
    warns = SAME._replace(level=WARNS)
    assert report_table.text([Merged(SAME)], "x").endswith("\n\nnothing blocks; 0 warnings.\n")
    assert report_table.text([Merged(warns)], "x").endswith("\n\nnothing blocks; 1 warning.\n")
    text = report_table.text([Merged(LONG), Merged(LONG), Merged(warns), Merged(warns)], "x")
    assert text.endswith("\n\n2 rows must be mended first; 2 warnings.\n")
