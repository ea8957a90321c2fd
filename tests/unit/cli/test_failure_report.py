"""Reports of failed jobs, from made-up exits of ranks."""

from __future__ import annotations

import pytest

from ncclkv import notify
from ncclkv.cli import protocol
from ncclkv.cli.failure_report import report
from ncclkv.cli.outcome import Outcome, Rank


def outcome(*ranks: Rank, launcher: int = 9, words: tuple[str, ...] = ()) -> Outcome:
    return Outcome({rank.index: rank for rank in ranks}, 12.34, launcher, list(words))


def rank(number: int, code: int | None = None, ended: float = 0.0) -> Rank:
    return Rank(number, "node1", 100 + number, code, ended)


FAILED = "ncclkv: rank {} of 3 on node1 (pid 1) failed, ending the job: {}"


def lost(number: int) -> Rank:
    """Return the event of a rank that lost another rank after 10.5 s, and was then killed."""
    each = rank(number, -9, 13.0)
    fails(each, "RankLost: rank 1 is gone", 10.5)
    return each


def fails(each: Rank, reason: str, seconds: float) -> None:
    """Let a rank report its failure, and print the reason."""
    each.take(protocol.EVENT, f"{notify.PREFIX}{notify.FAILED} {reason}", seconds)
    each.keep_line(FAILED.format(each.index, reason))


def test_the_first_failure_is_the_reason():
    killed = rank(1, -9, 10.0)
    killed.keep_line("step 7")
    ended = outcome(lost(0), killed, lost(2))
    assert report(ended, "start 1 of at most 3").splitlines() == [
        "ncclkv run: the job failed after 12.3 s (start 1 of at most 3): rank 1 on node1 (pid 101) "
        "was killed by SIGKILL (often the kernel's out-of-memory killer: see dmesg), 10.0 s "
        "after the start",
        "its last lines of stderr:",
        "  [1] step 7",
        "errors of the other ranks:",
        "  ranks 0, 2: failed, ending the job: RankLost: rank 1 is gone",
        "ncclkv run: rank 1 on node1 (pid 101) was killed by SIGKILL (often the kernel's "
        "out-of-memory killer: see dmesg), 10.0 s after the start",
    ]
    assert ended.code == 137


def test_lines_that_are_no_errors_are_not_in_the_report():
    failed, other = rank(1, -15, 10.0), rank(0, -9, 9.9)
    fails(failed, "ValueError: x", 9.8)
    other.keep_line("ncclkv: dist over 2 ranks in host memory, not on GPUs")
    other.keep_line("ncclkv: rank 0 of 2 on node1 (pid 100) has waited 5 s for rank 1")
    said = report(outcome(other, failed), "start 1 of at most 1")
    assert "errors of the other ranks" not in said
    assert "host memory" not in said


def test_a_rank_that_reports_its_failure():
    failed = rank(1, -15, 10.0)
    fails(failed, "ValueError: x", 9.8)
    ended = outcome(rank(0, -9, 9.9), failed)
    first = report(ended, "start 1 of at most 1").splitlines()[0]
    assert first.endswith("rank 1 on node1 (pid 101) failed: ValueError: x")
    assert ended.code == 1, "the signal was its way to end the job"


def test_an_error_of_mpi_is_never_the_first_reason():
    broken = rank(0, 1, 9.0)
    fails(broken, "Exception: Other MPI error, error stack:", 9.0)
    ended = outcome(broken, rank(1, 7, 10.0))
    first = report(ended, "").splitlines()[0]
    assert first.endswith(
        "rank 1 on node1 (pid 101) ended with exit code 7, 10.0 s after the start"
    )


def test_a_ranks_exit_code_comes_before_the_launchers():
    ended = outcome(rank(0, 0, 5.0), rank(1, 7, 6.0), launcher=9)
    assert ended.code == 7
    assert "rank 1 on node1 (pid 101) ended with exit code 7" in report(ended, "")
    assert "rank 0 on node1 (pid 100) had ended with exit code 0, 5.0 s after" in report(ended, "")


def test_a_stopped_rank_is_named():
    stopped = rank(1)
    stopped.stopped = (19, 2.0)
    said = report(outcome(lost(0), stopped), "")
    assert "rank 1 on node1 (pid 101) was stopped by SIGSTOP 2.0 s after the start" in said


def test_only_the_last_lines_are_repeated():
    failed = rank(0, 1, 1.0)
    for number in range(100):
        failed.keep_line(f"line {number}")
    said = report(outcome(failed), "").splitlines()
    *lines, last = said
    assert lines[-1] == "  [0] line 99"
    assert len(lines) == 2 + 12
    assert last == f"ncclkv run: {lines[0].partition(': ')[2].partition(': ')[2]}"


def test_a_launcher_that_starts_nothing():
    ended = outcome(Rank(0), Rank(1), launcher=1, words=("not enough slots",))
    said = report(ended, "start 1 of at most 1").splitlines()
    assert said[0].endswith(
        ": its launcher ended with exit code 1, before any rank began; its output:"
    )
    assert said[1:] == ["not enough slots"]
    assert ended.code == 1


def test_a_signal_to_the_runner_is_no_failure_of_a_rank():
    ended = outcome(rank(0, -9, 1.0))._replace(interrupted_by=2)
    assert ended.code == 130


def test_no_report_after_success():
    assert outcome(rank(0, 0, 1.0), rank(1, 0, 1.0), launcher=0).code == 0


def test_printed_text_is_not_taken_for_a_failure():
    printing = rank(0, 0, 5.0)
    printing.keep_line(FAILED.format(0, "ValueError: of another job"))
    assert outcome(printing, rank(1, 0, 5.0), launcher=0).code == 0


def test_a_rank_that_left_while_the_others_ran():
    """Check a rank that left: its peers fail after it, or are killed without a message."""
    left, killed = rank(1, 0, 2.0), rank(2)
    killed.take(b"", "", 12.0)
    for others in ((lost(0), killed), (rank(0), killed)):
        ended = outcome(others[0], left, others[1], launcher=0)
        assert ended.code == 1
        first = report(ended, "start 1 of at most 1").splitlines()[0]
        assert first.endswith(
            "rank 1 on node1 (pid 101) ended with exit code 0, 2.0 s after the start, while ranks "
            "0, 2 had not ended"
        )


def test_a_failure_comes_before_an_early_exit():
    assert outcome(rank(0, 5, 9.0), rank(1, 0, 2.0), launcher=0).code == 5


def test_ranks_that_never_report_an_end():
    ended = outcome(rank(0), rank(1), launcher=0)
    assert ended.code == 1
    first = report(ended, "").splitlines()[0]
    assert first.endswith("exit code 0; ranks 0, 1 did not report an end, without output")


def test_unconnected_ranks_are_judged_by_the_launchers_exit_code():
    assert outcome(Rank(0), rank(1, 0, 1.0), launcher=0).code == 0
    assert outcome(Rank(0), Rank(1), launcher=7).code == 7


def test_a_rank_that_ends_before_the_start_of_mpi():
    waiting = [rank(0, -6, 9.0), rank(2, None)]
    for each in waiting:
        each.take(protocol.EVENT, notify.PREFIX + notify.MPI_BEGINS, 1.0)
    ended = outcome(waiting[0], rank(1), waiting[1])
    first = report(ended, "").splitlines()[0]
    assert first.endswith(
        "rank 1 on node1 (pid 101) did not reach MPI's start, where ranks 0, 2 waited for it"
    )


@pytest.mark.parametrize("ended_by", [-9, -15])
def test_ranks_that_the_runner_killed_have_not_failed(ended_by):
    waits = [rank(0, ended_by, 3.7), rank(2, -9, 3.7)]
    for each in waits:
        each.mpi, each.killed = notify.MPI_BEGINS, True
    ended = outcome(*waits, rank(1, 0, 0.6))
    assert ended.first is None
    assert ended.code == 1
    assert (
        "rank 1 on node1 (pid 101) did not reach MPI's start" in report(ended, "").splitlines()[0]
    )
    # The rank's own exit code arrives after the runner has stopped the others.
    waits[1].code = 3
    assert outcome(*waits, rank(1, 0, 0.6)).code == 3


def test_the_watchdogs_text_is_the_reason():
    """Check the report of a watchdog, which can only print text and raise SIGABRT."""
    aborted = rank(1, -6, 9.0)
    aborted.keep_line(FAILED.format(0, "of another job"))
    aborted.keep_line(FAILED.format(1, "a sum took more than 3 s"))
    ended = outcome(rank(0), aborted)
    assert report(ended, "").splitlines()[0].endswith("failed: a sum took more than 3 s")
    assert ended.code == 1


def exits(each: Rank, code: str, seconds: float) -> Rank:
    """Let a rank report the beginning of its exit."""
    assert each.take(protocol.EVENT, f"{notify.PREFIX}{notify.EXITS} {code}", seconds)
    return each


def survives(each: Rank, seconds: float) -> Rank:
    """Let a rank catch the failure of rank 1, and report the beginning of its exit."""
    broken = f"{notify.PREFIX}{notify.BROKEN} RankLost: rank 1 left"
    assert each.take(protocol.EVENT, broken, seconds)
    return exits(each, "5", seconds)


@pytest.mark.parametrize("announced", ["17", "?"])
def test_a_rank_that_exits_and_waits_for_the_others(announced):
    """Check the order of the exits, which the ends of the processes do not keep."""
    survivor = survives(rank(0, 5, 6.0), 5.0)
    ended = outcome(survivor, exits(rank(1, 17, 9.0), announced, 5.5), rank(2, 5, 6.5))
    assert ended.first.index == 1, "rank 0's event may arrive earlier, but names another"
    assert ended.code == 17


@pytest.mark.parametrize("code", [0, None, -9, -15])
def test_a_rank_that_exits_with_0_while_others_exit_by_themselves(code):
    lasting = exits(rank(1, code, 9.0), "0", 5.0)
    lasting.killed = code == -9
    if code is None:
        lasting.take(b"", "", 9.0)
    ended = outcome(survives(rank(0, 5, 6.0), 5.5), lasting)
    assert ended.left is lasting
    assert ended.code == 1
    assert " with exit code 0, " in report(ended, "")


def test_a_rank_that_has_overcome_a_failure_fails_on_its_own():
    each = survives(rank(0, 5, 6.0), 5.0)
    assert each.follows
    assert each.take(protocol.EVENT, f"{notify.PREFIX}{notify.BROKEN} ", 5.5)
    assert not each.follows


@pytest.mark.parametrize(
    "text",
    [
        "exits abc",
        "failed x",
        "",
        "\0",
        "ncclkv-event exits x",
        "ncclkv-event exits 256",
        "ncclkv-event exits",
        "ncclkv-event exits \xb2",
        "ncclkv-event exits 5 more",
        "ncclkv-event other 3",
    ],
)
def test_a_line_that_is_no_event(text):
    fine = rank(0, 0, 1.0)
    assert not fine.take(protocol.EVENT, text, 0.5)
    assert outcome(fine, launcher=0).code == 0


def test_a_hang_of_four_ranks_has_a_short_report():
    """Check that lines of waiting ranks are not repeated, and that equal errors are one line."""
    ranks = [rank(number) for number in range(4)]
    for each in (ranks[0], *ranks[2:]):
        who = f"rank {each.index} of 4"
        for line in range(20):
            each.keep_line(f"ncclkv: {who} on node1 (pid 1) has waited {line} s: a sum (key 'w')")
        reason = f"CommTimeout: {who}: a sum waited 6.{each.index} s for rank 1; t.py:4"
        fails(each, reason, 6.0 + each.index)
    said = report(outcome(*ranks), "").splitlines()
    assert len(said) <= 25
    where = said.index("errors of the other ranks:")
    same = "failed, ending the job: CommTimeout: a sum waited 6.2 s for rank 1; t.py:4"
    assert said[where + 1] == f"  ranks 2, 3: {same}"
    assert said[where + 2].startswith("ncclkv run: rank 0 on node1 (pid 100) failed: CommTimeout")


def test_calls_that_differ_are_told_once():
    ranks = [rank(number) for number in range(4)]
    for each in ranks:
        called = f"rank 1 called push('v'), but rank {each.index} called push('w')"
        fails(each, f"OrderMismatch: rank {each.index} of 4: {called}", 1.0 + each.index)
    said = report(outcome(*ranks), "")
    assert "  ranks 2, 3: failed, ending the job: OrderMismatch: rank 1 called push('v'), " in said
    assert "but this rank called push('w')" in said
    assert "  [1] ncclkv: rank 1 of 3 on node1" in said


def test_many_errors_of_other_ranks_are_counted():
    ranks = [rank(number) for number in range(40)]
    for each in ranks:
        fails(each, f"ValueError: {'x' * each.index}", 1.0 + each.index)
    said = report(outcome(*ranks), "").splitlines()
    assert "  and 31 more lines" in said
    assert len(said) <= 25


@pytest.mark.parametrize(("launcher", "end"), [(9, None), (1, -15)])
def test_a_supervisor_that_is_killed(launcher, end):
    """Check MPICH, whose supervisors are all lost, and Open MPI, which ends the other ranks."""
    others = [rank(0, end, 2.2), rank(2, end, 2.3)]
    torn = rank(1)
    for number, each in enumerate([torn, *others]):
        if each.code is None:
            each.take(b"", "", 2.0 + number / 100)
    ended = outcome(others[0], torn, others[1], launcher=launcher)
    assert ended.code == 137
    said = report(ended, "").splitlines()[0]
    assert said.endswith(
        "rank 1 on node1 (pid 101) has lost its supervisor, 2.0 s after the start: it was killed, "
        "or its connection broke"
    )
    assert " or rank " not in said


def test_lost_supervisors_are_not_blamed_for_the_launchers_failure():
    lost_ranks = [rank(0), rank(1)]
    for each in lost_ranks:
        each.take(b"", "", 2.0)
    assert outcome(*lost_ranks, launcher=255).torn == []
    assert outcome(*lost_ranks, launcher=-9).torn == []
    assert outcome(*lost_ranks, rank(2, 7, 1.0), launcher=9).torn == []
    assert outcome(*lost_ranks, rank(2, 0, 1.0), launcher=9).torn == [], "MPICH ends the others"
    for each in lost_ranks:
        each.killed = True
    assert outcome(*lost_ranks, launcher=9).torn == []


def test_supervisors_whose_ends_are_read_at_once_are_all_named():
    ranks = [rank(number) for number in range(3)]
    for each, seconds in zip(ranks, (2.0005, 2.0, 2.1), strict=True):
        each.take(b"", "", seconds)
    ended = outcome(*ranks)
    said = "rank 0 on node1 (pid 100) or rank 1 on node1 (pid 101) has lost its supervisor, 2.0 s"
    assert said in report(ended, "")
    assert ended.code == 137
