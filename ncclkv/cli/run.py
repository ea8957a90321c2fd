"""Run a program on several ranks: with MPI, its output by rank, and again after a failure."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ncclkv import env
from ncclkv.checkpoint.directory import generations
from ncclkv.cli import allocation, host_lists, host_waits, hosts, mpirun_search, unreached
from ncclkv.cli.failure_report import describe_not_begun, report
from ncclkv.cli.job import Job, Start
from ncclkv.cli.options import check, check_for_launcher, describe
from ncclkv.cli.outcome import Outcome
from ncclkv.cli.output import create_files, open_missing_streams
from ncclkv.cli.torch_env import LOCAL_RANK
from ncclkv.errors import LaunchError

__all__ = ["describe", "main"]

WRONG_ARGUMENTS = 2
"""Exit code of a program that refuses its arguments: a restart would fail again."""

CRASH_SECONDS = 5.0
"""Two failures in a row within so many seconds prevent a third start."""


def main(options: argparse.Namespace) -> int:
    """Run a job, with at most ``--max-restarts`` restarts; return its exit code."""
    open_missing_streams()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    check(options, command)
    start = prepare(options, command)
    if options.dry_run:
        print(shell_line(start))
        return 0
    if options.output_dir is not None:
        try:
            create_files(options.output_dir, start.ranks)
        except OSError as error:
            raise LaunchError(
                f"--output-dir {options.output_dir} cannot be written: {error}; give another folder"
            ) from error
    return run_with_restarts(start, options)


def run_with_restarts(start: Start, options: argparse.Namespace) -> int:
    """Run a job until it succeeds or no restart is left; return its exit code."""
    early = restart = waited = 0
    while True:
        before = newest_checkpoint(options.checkpoint)
        outcome = run_once(start, restart)
        if outcome.code == 0 or outcome.interrupted_by is not None:
            return outcome.code
        warn(report(outcome, f"start {restart + 1} of at most {options.max_restarts + 1}"))
        if options.max_restarts and host_waits.is_wait(outcome, start.port is not None):
            waited += 1
            if not wait_for_ranks(outcome, waited):
                return outcome.code
            continue
        waited = 0
        after = newest_checkpoint(options.checkpoint)
        early = early + 1 if outcome.seconds < CRASH_SECONDS and after == before else 0
        reason = reason_to_stop(outcome, early, options.max_restarts - restart)
        if reason is not None:
            warn(reason)
            return outcome.code
        restart += 1
        where = describe_checkpoint(options)
        warn(f"ncclkv run: restart {restart} of {options.max_restarts}, {where}\n")


def wait_for_ranks(outcome: Outcome, waited: int) -> bool:
    """Pause after the `waited`-th start in a row that lacked ranks; return whether to go on."""
    who = describe_not_begun(outcome.not_begun)
    if waited > host_waits.MOST:
        warn(f"ncclkv run: no restart: {who} in {waited} starts in a row\n")
        return False
    seconds = host_waits.seconds_after(waited)
    warn(f"ncclkv run: {who}: the same start again in {seconds:g} s, which uses up no restart\n")
    return host_waits.pause(seconds)


def prepare(options: argparse.Namespace, command: Sequence[str]) -> Start:
    """Return the job to start, without the variables that differ between its starts."""
    ranks, slots = place(options, command)
    launcher = hosts.MpiLauncher([])
    if ranks > 1 or slots:
        check_for_launcher(command)
        launcher = hosts.launcher(mpirun_search.find_mpirun(command), ranks, slots)
    settings = {**launcher.settings, "NCCLKV_RESTART": "0"}
    if options.checkpoint is not None:
        settings["NCCLKV_CHECKPOINT"] = str(options.checkpoint.absolute())
    if options.timeout is not None:
        settings["NCCLKV_TIMEOUT"] = f"{options.timeout:g}"
    # Ranks that each start a thread for every core are slower than ranks of one thread.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if ranks > 1 else ()
    unless_set = {**dict.fromkeys(names, "1"), **launcher.unless_set}
    environment = env.for_ranks(settings, unless_set)
    if ranks > 1 and not options.torch_env and (set_here := environment.get(LOCAL_RANK)):
        warn(f"ncclkv run: all ranks get {LOCAL_RANK}={set_here}, which is set here; unset it\n")
    several = bool(launcher.line and (slots or allocation.host_variable()))
    port = options.port if options.port is not None else 0 if several else None
    line = launcher.with_environment(environment)
    places = [name for name, count in slots.items() for _ in range(count)]
    timeout = options.timeout or env.timeout()
    return Start(
        *(ranks, line, command, environment, port, options.output_dir, places, timeout),
        torch_env=options.torch_env,
    )


def place(options: argparse.Namespace, command: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return the count of ranks, and the maximum count on each host that the user has named.

    A count that is not on the command line is printed with its source.
    """
    slots: dict[str, int] = {}
    if options.hosts is not None or options.hostfile is not None:
        named = options.hosts is not None
        source = f"--hosts {options.hosts}" if named else f"--hostfile {options.hostfile}"
        given = host_lists.parse(options.hosts) if named else host_lists.read(options.hostfile)
        ranks, slots = host_lists.place_ranks(given, options.n)
        if named and None not in given.values():
            return ranks, slots
    elif options.n is not None:
        return options.n, slots
    else:
        found = allocation.allocated()
        if found is None:
            where = allocation.host_variable()
            none = f"nor by the allocation of {where}" if where else "and there is no allocation"
            line = shlex.join(command)
            raise LaunchError(
                f"the number of ranks is not given, {none}; give it: ncclkv run -n 4 -- {line}"
            )
        ranks, source = found
    if options.n is None:
        warn(f"ncclkv run: {ranks} rank{'s' * (ranks > 1)}, from {source}\n")
    return ranks, slots


def run_once(start: Start, restart: int) -> Outcome:
    """Run the job as its `restart`-th restart."""
    environment = {**start.environment, "NCCLKV_RESTART": str(restart)}
    try:
        job = Job(start._replace(environment=environment))
    except OSError as error:
        if start.port is None:
            raise LaunchError(f"the job cannot be started: {error}") from error
        raise LaunchError(
            f"--port {start.port} cannot be listened on: {error}; give a free port, or 0 for any"
        ) from error
    outcome = job.run()
    for reason in unreached.ask_ssh(outcome, environment):
        warn(f"{reason}\n")
        outcome.launcher_lines.append(reason)
    return outcome


def shell_line(start: Start) -> str:
    """Format the variables and the command line of a start for a shell."""
    here = env.for_ranks({}, {})
    changed = sorted(each for each in start.environment.items() if here.get(each[0]) != each[1])
    variables = [f"{name}={shlex.quote(value)}" for name, value in changed]
    return " ".join([*variables, shlex.join([*start.launcher, *start.command])])


def newest_checkpoint(folder: Path | None) -> str | None:
    """Return the name of the newest complete checkpoint in a directory, or None."""
    if folder is None or not folder.is_dir():
        return None
    found = [each for each in generations(str(folder)) if each.values]
    return Path(found[0].path).name if found else None


def describe_checkpoint(options: argparse.Namespace) -> str:
    """Describe the checkpoint from which the next start continues."""
    if options.checkpoint is None:
        return "from the beginning: there is no --checkpoint"
    name = newest_checkpoint(options.checkpoint)
    if name is None:
        return f"from the beginning: there is no complete checkpoint in {options.checkpoint}"
    return f"from {options.checkpoint / name}"


def reason_to_stop(outcome: Outcome, early: int, left: int) -> str | None:
    """Return the line for a failed job that is not restarted; empty after the last restart.

    Parameters
    ----------
    outcome : Outcome
    early : int
        Count of early failures in a row without a new checkpoint, this failure included.
    left : int
        Count of restarts left.

    Returns
    -------
    str or None
        None when the job is to be restarted.
    """
    if left == 0:
        return ""
    if outcome.code == WRONG_ARGUMENTS:
        return "ncclkv run: no restart: exit code 2 means that the program refuses its arguments\n"
    if early >= 2:
        return (
            f"ncclkv run: no restart: it failed {early} times in a row within {CRASH_SECONDS:g} s "
            f"and without a new checkpoint\n"
        )
    return None


def warn(text: str) -> None:
    """Write to stderr and flush it."""
    sys.stderr.write(text)
    sys.stderr.flush()
