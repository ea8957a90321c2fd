"""Lines of several ranks in one output, from pieces as pipes deliver them."""

from __future__ import annotations

import pytest

from ncclkv.cli import lines
from ncclkv.cli.launcher_output import LauncherStream
from ncclkv.cli.lines import Lines


class Screen:
    """A screen that records its text and its whole lines."""

    def __init__(self) -> None:
        self.text = b""
        self.noted: list[tuple[int, str]] = []
        self.lines = Lines(self._write, lambda rank, line: self.noted.append((rank, line)))

    def _write(self, data: bytes) -> None:
        self.text += data


@pytest.fixture
def screen(monkeypatch):
    """Return a screen whose lines do not wait when the test makes them idle."""
    monkeypatch.setattr(lines, "_IDLE_SECONDS", -1.0)
    return Screen()


def test_lines_begin_with_the_number_of_their_rank(screen):
    screen.lines.feed(0, b"a\nb\n")
    screen.lines.feed(12, b"c\n")
    assert screen.text == b"[0] a\n[0] b\n[12] c\n"
    assert screen.noted == [(0, "a"), (0, "b"), (12, "c")]


def test_pieces_of_lines_do_not_mix(screen):
    for rank, piece in ((0, b"he"), (1, b"wor"), (0, b"llo\nne"), (1, b"ld\n"), (0, b"xt\n")):
        screen.lines.feed(rank, piece)
    assert screen.text == b"[0] hello\n[1] world\n[0] next\n"


def test_a_prompt_is_shown_before_its_line_ends(screen):
    screen.lines.feed(0, b"name? ")
    assert screen.text == b""
    screen.lines.idle()
    assert screen.text == b"[0] name? "
    screen.lines.feed(0, b"thanks\n")
    assert screen.text == b"[0] name? thanks\n"
    assert screen.noted == [(0, "name? thanks")]


def test_other_ranks_begin_a_new_line_after_a_prompt(screen):
    screen.lines.feed(0, b"name? ")
    screen.lines.idle()
    screen.lines.feed(1, b"x\n")
    screen.lines.feed(0, b"thanks\n")
    assert screen.text == b"[0] name? \n[1] x\n[0] thanks\n"


def test_lines_without_a_rank_go_between(screen):
    screen.lines.feed(0, b"name? ")
    screen.lines.idle()
    screen.lines.between(b"launcher\n")
    assert screen.text == b"[0] name? \nlauncher\n"


def test_progress_bars_overwrite_themselves(screen):
    screen.lines.feed(0, b"\r10 %")
    screen.lines.feed(0, b"\r20 %")
    screen.lines.feed(0, b"\r30 %\r\n")
    assert screen.text == b"[0] \r[0] 10 %\r[0] 20 %\r[0] 30 %\r\n"


def test_an_end_of_line_in_two_pieces_is_one(screen):
    screen.lines.feed(0, b"a\r")
    screen.lines.feed(0, b"\nb\n")
    assert screen.text == b"[0] a\r\n[0] b\n"


def test_the_end_shows_unfinished_lines(screen):
    screen.lines.feed(0, b"no end")
    screen.lines.end()
    assert screen.text == b"[0] no end\n"
    assert screen.noted == [(0, "no end")]


def test_bytes_that_are_no_text_pass_unchanged(screen):
    screen.lines.feed(0, b"\xff\xfe\n")
    assert screen.text == b"[0] \xff\xfe\n"


LONG = b"x" * 100_000


def test_a_long_line_does_not_wait_for_its_end(screen):
    screen.lines.feed(0, LONG)
    assert screen.text == b"[0] " + LONG


def test_a_long_line_stays_in_one_piece():
    screen = Screen()
    screen.lines.feed(0, LONG)
    screen.lines.feed(1, b"short\n")
    screen.lines.feed(2, LONG)
    screen.lines.idle()
    screen.lines.feed(0, LONG + b"\nnext")
    screen.lines.feed(2, b"\n")
    screen.lines.feed(0, b"\n")
    assert screen.text.splitlines() == [
        b"[0] " + LONG + LONG,
        b"[1] short",
        b"[2] " + LONG,
        b"[0] next",
    ]
    assert (0, "next") in screen.noted


def test_the_queue_behind_a_long_line_is_bounded():
    screen = Screen()
    screen.lines.feed(0, LONG)
    for _ in range(10):
        screen.lines.feed(1, LONG)
    assert not screen.lines.to_pause
    screen.lines.feed(1, LONG)
    assert screen.lines.to_pause == {1}
    screen.lines.feed(0, b"\n")
    assert not screen.lines.to_pause


def test_a_pause_in_a_long_line_lets_other_ranks_write(screen):
    screen.lines.feed(0, LONG)
    screen.lines.feed(1, b"short\n")
    screen.lines.idle()
    screen.lines.feed(0, b"rest\n")
    assert screen.text.splitlines() == [b"[0] " + LONG, b"[1] short", b"[0] rest"]


def test_the_wait_for_a_long_line_is_limited(monkeypatch):
    monkeypatch.setattr(lines, "_PATIENCE_SECONDS", -1.0)
    screen = Screen()
    screen.lines.feed(0, LONG)
    screen.lines.idle()
    assert screen.text == b"[0] " + LONG, "nobody waits"
    screen.lines.feed(1, b"short\n")
    screen.lines.idle()
    assert screen.text.splitlines()[1:] == [b"[1] short"]


def test_the_end_inside_long_lines_shows_all():
    screen = Screen()
    screen.lines.feed(0, LONG)
    screen.lines.feed(1, LONG + b"\nmore")
    screen.lines.end()
    assert screen.text.splitlines() == [b"[0] " + LONG, b"[1] " + LONG, b"[1] more"]


MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 3141 RUNNING AT node1
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
[mpiexec@node1] Sending Ctrl-C to processes as requested
"""

OPEN_MPI = """
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 3141 on node node1 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""


TAGGED = "".join(f"[1,0]<stderr>: {line}\n" for line in OPEN_MPI.splitlines())


@pytest.mark.parametrize("text", [MPICH, OPEN_MPI, TAGGED])
def test_lines_of_mpirun_are_stored_separately(text):
    shown: list[str] = []
    kept: list[str] = []
    LauncherStream(shown.append, kept.append).feed(f"{text}loss 0.5\n".encode())
    assert shown == ["loss 0.5"]
    assert any("3141" in line for line in kept)


def test_a_launcher_s_lines_have_no_nul_bytes_and_no_endless_length():
    taken: list[str] = []
    stream = LauncherStream(taken.append, lambda line: None)
    for piece in (b"one\0\ntw", b"o\n\0", b"y" * 70_000, b"three"):
        stream.feed(piece)
    stream.end()
    assert taken == ["one", "two", "y" * 70_000, "three"]
