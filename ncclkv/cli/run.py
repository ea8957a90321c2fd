"""Run a program on several ranks: with MPI, its output by rank, and again after a failure."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ncclkv import env, values
from ncclkv.checkpoint.directory import generations
from ncclkv.cli import hosts, mpi
from ncclkv.cli.job import Job, Start
from ncclkv.cli.outcome import Outcome
from ncclkv.cli.output import begin_files
from ncclkv.cli.report import report
from ncclkv.errors import LaunchError

WRONG_ARGUMENTS = 2
"""Exit code of a program that refuses its arguments: a restart would fail again."""

CRASH_SECONDS = 5.0
"""Two failures in a row within so many seconds prevent a third start."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "ncclkv run -n RANKS [options] -- COMMAND ..."
    parser.epilog = (
        "Example: ncclkv run -n 4 --max-restarts 3 --checkpoint saved -- python train.py"
    )
    parser.add_argument(
        "-n", type=int, metavar="RANKS", help="how many ranks (1, or as many as the hosts take)"
    )
    _describe_hosts(parser)
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="keep what each rank writes in DIR/rank-N.out and DIR/rank-N.err as well",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command line and the variables that would be set, and start nothing",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start again after a failure, at most so often (0)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="where the program keeps checkpoints; it finds this in NCCLKV_CHECKPOINT",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds that a rank waits for the others (NCCLKV_TIMEOUT)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: what each rank runs")


def _describe_hosts(parser: argparse.ArgumentParser) -> None:
    """Declare the options about hosts."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hosts",
        metavar="A:4,B:4",
        help="hosts, each with how many ranks it takes; by default those of a Slurm or PBS "
        "allocation, or this one",
    )
    where.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same from a file with a line NAME slots=RANKS for each",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="P",
        help="TCP port at which ranks of other hosts reach this command (any free one)",
    )


def main(options: argparse.Namespace) -> int:
    """Run a job, with the restarts that the options allow; return its exit code."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    check(options, command)
    begin = prepare(options, command)
    if options.dry_run:
        print(in_words(begin))
        return 0
    if options.output_dir is not None:
        try:
            begin_files(options.output_dir, begin.ranks)
        except OSError as error:
            raise LaunchError(f"--output-dir {options.output_dir}: {error}") from error
    early = 0
    for restart in range(options.max_restarts + 1):
        before = newest(options.checkpoint)
        outcome = started(begin, restart)
        if outcome.code == 0 or outcome.asked is not None:
            break
        say(report(outcome, f"start {restart + 1} of at most {options.max_restarts + 1}"))
        after = newest(options.checkpoint)
        early = early + 1 if outcome.seconds < CRASH_SECONDS and after == before else 0
        reason = why_not_again(outcome, early, options.max_restarts - restart)
        if reason is not None:
            say(reason)
            break
        say(f"ncclkv run: restart {restart + 1} of {options.max_restarts}, {begin_at(options)}\n")
    return outcome.code


def prepare(options: argparse.Namespace, command: Sequence[str]) -> Start:
    """Return the job to start, without the variables that differ between its starts."""
    ranks = options.n or 1
    slots: dict[str, int] = {}
    if options.hosts is not None or options.hostfile is not None:
        named = options.hosts is not None
        given = hosts.parse(options.hosts) if named else hosts.read(options.hostfile)
        ranks, slots = hosts.placed(given, options.n)
    launcher = hosts.MpiLauncher([])
    if ranks > 1 or slots:
        check_for_launcher(command)
        launcher = hosts.launcher(mpi.find(command), ranks, slots)
    settings = {**launcher.settings, "NCCLKV_RESTART": "0"}
    if options.checkpoint is not None:
        settings["NCCLKV_CHECKPOINT"] = str(options.checkpoint.absolute())
    if options.timeout is not None:
        settings["NCCLKV_TIMEOUT"] = f"{options.timeout:g}"
    # Ranks that each start a thread for every core are slower than ranks of one thread.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if ranks > 1 else ()
    unless_set = {**dict.fromkeys(names, "1"), **launcher.unless_set}
    environment = env.for_ranks(settings, unless_set)
    elsewhere = bool(launcher.line and (slots or hosts.given()))
    port = options.port if options.port is not None else 0 if elsewhere else None
    line = launcher.with_environment(environment)
    return Start(ranks, line, command, environment, port, options.output_dir)


def started(begin: Start, restart: int) -> Outcome:
    """Start the job as its `restart`-th restart, and wait for its end."""
    environment = {**begin.environment, "NCCLKV_RESTART": str(restart)}
    try:
        job = Job(replace(begin, environment=environment))
    except OSError as error:
        what = "the job cannot be started"
        if begin.port is not None:
            what = f"--port {begin.port} cannot be listened on"
        raise LaunchError(f"{what}: {error}") from error
    return job.run()


def in_words(begin: Start) -> str:
    """Format the variables and the command line of a start for a shell."""
    here = env.for_ranks({}, {})
    changed = sorted(each for each in begin.environment.items() if here.get(each[0]) != each[1])
    variables = [f"{name}={shlex.quote(value)}" for name, value in changed]
    return " ".join([*variables, shlex.join([*begin.launcher, *begin.command])])


def check(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse options and commands that cannot be run, before any process starts."""
    if options.n is not None and options.n < 1:
        raise LaunchError(f"-n {options.n} is no number of ranks; give 1 or more")
    if options.max_restarts < 0:
        raise LaunchError(f"--max-restarts {options.max_restarts} is below 0; give 0 or more")
    if options.timeout is not None and not 0 < options.timeout <= values.LONGEST:
        raise LaunchError(
            f"--timeout {options.timeout:g} is not a number of seconds; give one above 0"
        )
    if options.port is not None and not 0 <= options.port < 65536:
        raise LaunchError(f"--port {options.port} is no TCP port; give 0 to 65535")
    if not command:
        ranks = options.n or 1
        raise LaunchError(
            f"there is no command; give it after --: ncclkv run -n {ranks} -- python train.py"
        )
    if shutil.which(command[0]) is None:
        advice = f"python {command[0]}" if command[0].endswith(".py") else "a path, or install it"
        raise LaunchError(f"there is no program {command[0]!r} that can be run; give {advice}")
    script = script_of(command)
    if script is not None and not Path(script).is_file():
        raise LaunchError(
            f"there is no file {script!r} in {Path.cwd()}; give the script's path from there"
        )


def check_for_launcher(command: Sequence[str]) -> None:
    """Refuse arguments that mpirun would not forward."""
    if ":" in command:
        quoted = shlex.quote(shlex.join(command))
        raise LaunchError(
            f"the command has an argument ':', behind which mpirun would start another program; "
            f"pass it inside one argument: sh -c {quoted}"
        )


def script_of(command: Sequence[str]) -> str | None:
    """Return the script that a command gives to Python; None without one, or where unclear.

    Examples
    --------
    >>> script_of(["python3", "-u", "train.py", "--epochs", "3"])
    'train.py'
    >>> script_of(["python", "-m", "train"]) is None
    True
    """
    if not Path(command[0]).name.startswith("python"):
        return None
    for word in command[1:]:
        if not word.startswith("-"):
            return word if word.endswith(".py") else None
        if word in ("-c", "-m", "-"):
            return None
    return None


def newest(folder: Path | None) -> str | None:
    """Return the name of the newest complete checkpoint in a directory; None without one."""
    if folder is None or not folder.is_dir():
        return None
    found = [each for each in generations(str(folder)) if each.values]
    return Path(found[0].path).name if found else None


def begin_at(options: argparse.Namespace) -> str:
    """Describe the checkpoint from which the next start continues."""
    if options.checkpoint is None:
        return "from the beginning: there is no --checkpoint"
    name = newest(options.checkpoint)
    if name is None:
        return f"from the beginning: there is no complete checkpoint in {options.checkpoint}"
    return f"from {options.checkpoint / name}"


def why_not_again(outcome: Outcome, early: int, left: int) -> str | None:
    """Return the line for a failed job that is not restarted; empty after the last restart.

    Parameters
    ----------
    outcome : Outcome
    early : int
        Number of early failures in a row without a new checkpoint, this failure included.
    left : int
        Number of restarts left.

    Returns
    -------
    str or None
        None when the job is to be restarted.
    """
    if left == 0:
        return ""
    if outcome.code == WRONG_ARGUMENTS:
        return "ncclkv run: no restart: exit code 2 says that the program refuses its arguments\n"
    if early >= 2:
        return (
            f"ncclkv run: no restart: it failed {early} times in a row within {CRASH_SECONDS:g} s "
            f"and without a new checkpoint\n"
        )
    return None


def say(text: str) -> None:
    """Write to stderr and flush it."""
    sys.stderr.write(text)
    sys.stderr.flush()
