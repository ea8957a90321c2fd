"""Processes that `ncclkv doctor` examines: this one, a launcher's ranks, or ranks of its own job.

A job of its own sends each rank's rows through the output of ``ncclkv run``, so that rows arrive
also where the ranks cannot join.  A launcher's ranks have MPI alone, in their self-tests.
"""

from __future__ import annotations

import argparse
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ncclkv import concurrency, env
from ncclkv.cli import launch_rows
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.doctor import gpus, machine, selftest, variables, versions
from ncclkv.doctor.last_words import written_though_killed
from ncclkv.doctor.merged_rows import Merged, merge
from ncclkv.doctor.probe import tell, told
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, RankRows, Row, from_json, to_json

_SECONDS = 120.0
_END_SECONDS = 15.0
"""Limit of a job that examines its ranks, and of its end after SIGTERM."""

_SECONDS_OF_RANK_0 = 1.0
"""Seconds after which rank 0 has seen the failure of its trial, and has shown the table."""

_FAILED = re.compile(
    r"^ncclkv run: the job failed after .*?\): (.*?)(?:; its output:)?$", re.MULTILINE
)
_LAST_LINE = re.compile(r"^  (\[\d+\] .*)$", re.MULTILINE)
"""Headline of the report of ``ncclkv run``, and a line there of the first failed rank's stderr."""


class Examined(NamedTuple):
    """Rows of all ranks, the count of ranks, and a line about them."""

    merged: list[Merged]
    size: int
    about: str


def examine(ranks: int) -> Iterator[Row]:
    """Yield the rows of this process, in a job of so many ranks."""
    # Where the launcher does not count the ranks of this host, all are here.
    here = env.local_place()[0] or ranks
    probes: dict[str, Callable[[], Iterator[Row]]] = {
        "versions": versions.rows,
        "variables": variables.rows,
        "MPI and /dev/shm": lambda: launch_rows.rows(ranks, here),
        "host": lambda: machine.rows(here, several_hosts=here < ranks),
        "GPUs": gpus.rows,
    }
    for subject, probe in probes.items():
        try:
            yield from probe()
        except Exception as error:  # a fault of a probe must not hide the rows of the others
            why = f"the look at it failed: {type(error).__name__}: {error}"
            yield Row(subject, "not known", "", why, "", WARNS)


def rank_0(ranks: int, *, test: bool, text: Callable[[Examined], str]) -> Examined:
    """Examine this process, rank 0 of a launcher's ranks, or alone; write the rows; collective.

    `text` formats them.  The rows of this process are written if the launcher kills it before.
    """
    own = RankRows(0, socket.gethostname(), [*examine(ranks)])
    why = "the launcher killed all ranks, as it does when one of them crashes in MPI's start"
    killed = Row("self-test", "killed", "", why, "the other rows come first", BLOCKS)
    worst = _put_together([own], ranks, [], [Merged(killed)])
    with written_though_killed(text(worst)) as write:
        ended = selftest.ask_trial(own, test=test)
        reports = [from_json(each) for each in ended.told.get("reports", [])] or [own]
        ranks = max(ranks, len(reports))  # a launcher may give no count
        last = [Merged(row) for row in selftest.rows(ended)]
        found = _put_together(reports, ranks, [], last)
        write(text(found))
    return found


def later_rank(*, test: bool) -> int:
    """Examine this process, a later rank of a launcher; rank 0 receives the rows; collective.

    The rows of a crash are written here, because rank 0 may not see its reason.  After a failure
    this process waits until rank 0 has probably shown the table.

    Returns
    -------
    int
        The exit code.  After a failure the code is 0, too: launchers kill the other ranks for
        another code, before rank 0 has shown the table.  MPICH's mpirun does not, and a rank that
        ends without MPI's end makes it forget the exit codes of the others: there the code is 1.
    """
    rank, ranks = env.launched_rank() or 0, env.launched_size() or 2
    own = RankRows(rank, socket.gethostname(), [*examine(ranks)])
    ended = selftest.ask_trial(own, test=test)
    if not ended.problem and "error" not in ended.told:
        return 0
    for row in (*own.rows, *selftest.rows(ended)) if ended.problem else ():
        if row.level == BLOCKS:
            parts = ": ".join(filter(None, (row.thing, row.why, row.mend)))
            sys.stderr.write(f"ncclkv doctor: rank {rank} on {own.host}: {parts}\n")
    concurrency.sleep(_SECONDS_OF_RANK_0)
    return int(env.launched_by_mpich())


def command_of_rank(*, test: bool) -> list[str]:
    """Return the command that examines a rank of a job that is started here."""
    command = [sys.executable, "-m", "ncclkv", "doctor", "--as-rank"]
    return command if test else [*command, "--no-test"]


def tell_parent(*, test: bool) -> None:
    """Examine this rank; write its rows, then those of its trial, to stdout; collective."""
    ranks = env.launched_size() or 1
    own = RankRows(env.launched_rank() or 0, socket.gethostname(), [*examine(ranks)])
    tell("report", to_json(own))
    ended = selftest.ask_trial(own, test=test)
    trial = own._replace(rows=[*selftest.rows(ended)])
    tell("trial", to_json(trial))


def started(
    options: argparse.Namespace, command: Sequence[str], ranks: int, named: Sequence[str]
) -> Examined:
    """Run ranks by ``ncclkv run`` to their end, and examine each; `named` are the user's hosts."""
    first = [*launch_rows.mpirun(command)] if ranks > 1 or named else []
    first += [machine.names("named hosts", named, needed=True)] if named else []
    if any(row.level == BLOCKS for row in first):
        own = RankRows(0, socket.gethostname(), [*examine(ranks)])
        used = "not started; the rows below are of this host"
        first.insert(0, Row("ranks", str(ranks), used, "see the rows that block"))
        return _put_together([own], ranks, first, [])
    out, failure = _run(options, command, ranks)
    found = [(name, from_json(value)) for name, value in told(out)]
    reports = sorted((each for name, each in found if name == "report"), key=lambda each: each.rank)
    trials = [each for name, each in found if name == "trial"]
    late = {each.rank for each in reports} - {each.rank for each in trials}
    trial_rows = merge(sorted(trials, key=lambda each: each.rank), of=len(reports))
    if late:
        why = f"the job ended before the self-test of {format_ranks(sorted(late))}"
        level = OK if any(each.row.level == BLOCKS for each in trial_rows) else BLOCKS
        mend = "see the row of the ranks"
        trial_rows.append(Merged(Row("self-test", "not finished", "", why, mend, level)))
    if not reports:
        reports = [RankRows(0, socket.gethostname(), [*examine(ranks)])]
        row = launch_rows.ranks(ranks, [], failure)
        first.insert(0, row._replace(used="the rows below are of this host"))
        return _put_together(reports, ranks, first, trial_rows)
    return _put_together(reports, ranks, first, trial_rows, failure)


def _run(options: argparse.Namespace, command: Sequence[str], ranks: int) -> tuple[str, str]:
    """Run the command on all ranks to its end; return its output, and the reason of a failure."""
    line = [sys.executable, "-m", "ncclkv", "run", "-n", str(ranks)]
    for name, value in (("--hosts", options.hosts), ("--hostfile", options.hostfile)):
        line += [name, str(value)] if value is not None else []
    line += ["--port", str(options.port)] if options.port is not None else []
    process = subprocess.Popen(
        [*line, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    late = ""
    try:
        out, err = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        late = f"the job had not ended after {_SECONDS:g} s"
        process.send_signal(signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    except BaseException:  # such as Ctrl-C, which the job gets too
        process.terminate()
        raise
    if not process.returncode:
        return out, late
    failed = _FAILED.search(err)
    said = failed[1] if failed else (err.splitlines() or [""])[-1]
    last = [f": {line}" for line in _LAST_LINE.findall(err)[-1:]]
    return out, late or f"the job failed: {said}{''.join(last)}"


def _put_together(
    reports: Sequence[RankRows],
    ranks: int,
    first: Sequence[Row],
    last: Sequence[Merged],
    failure: str = "",
) -> Examined:
    """Return all rows: about the job, of the ranks, and of their self-test.

    A self-test that fails for the reason of a row above it needs no row.
    """
    own = [row for row in first if row.thing == "ranks"]
    rows = own or [launch_rows.ranks(ranks, reports, failure)]
    rows += [row for row in first if row.thing != "ranks"]
    of_ranks = merge(reports)
    known = {each.row.why for each in of_ranks if each.row.level == BLOCKS and each.row.why}
    tests = [each for each in last if not any(why in each.row.why for why in known)]
    hosts = sorted({report.host for report in reports})
    about = f"{ranks} rank{'s' * (ranks > 1)} on {', '.join(hosts)}"
    return Examined([*map(Merged, rows), *of_ranks, *tests], ranks, about)
