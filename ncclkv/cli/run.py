"""Run a program on several ranks: with MPI, its output by rank, and again after a failure."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ncclkv import env
from ncclkv.checkpoint.directory import generations
from ncclkv.cli import hosts, mpi, waits
from ncclkv.cli.job import Job, Start
from ncclkv.cli.outcome import Outcome
from ncclkv.cli.output import create_files
from ncclkv.cli.report import describe_not_begun, report
from ncclkv.errors import LaunchError

WRONG_ARGUMENTS = 2
"""Exit code of a program that refuses its arguments: a restart would fail again."""

CRASH_SECONDS = 5.0
"""Two failures in a row within so many seconds prevent a third start."""


_OPTIONS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "-n": (int, "RANKS", "number of ranks (1, or as many as the hosts take)"),
    "--hosts": (
        str,
        "A:4,B:4",
        "hosts with their numbers of ranks (those of Slurm or PBS, or this)",
    ),
    "--hostfile": (Path, "FILE", "hosts from a file, each on a line NAME slots=RANKS"),
    "--port": (int, "P", "TCP port at which ranks of other hosts reach this command (any)"),
    "--output-dir": (Path, "DIR", "also write output to DIR/rank-N.out and DIR/rank-N.err"),
    "--max-restarts": (int, "K", "start again after a failure, at most K times (0)"),
    "--checkpoint": (Path, "DIR", "directory of checkpoints, given to ranks in NCCLKV_CHECKPOINT"),
    "--timeout": (float, "S", "seconds that a rank waits for the others (NCCLKV_TIMEOUT)"),
}
"""Type, name and description of each option's value; defaults in parentheses."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "ncclkv run -n RANKS [options] -- COMMAND ..."
    parser.epilog = (
        "Example: ncclkv run -n 4 --max-restarts 3 --checkpoint saved -- python train.py"
    )
    hosts_options = parser.add_mutually_exclusive_group()
    for name, (kind, metavar, about) in _OPTIONS.items():
        group = hosts_options if name.startswith("--host") else parser
        group.add_argument(name, type=kind, metavar=metavar, help=about)
    parser.set_defaults(max_restarts=0)
    about = "print the command line and the variables that would be set, and start nothing"
    parser.add_argument("--dry-run", action="store_true", help=about)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: the command of a rank")


def main(options: argparse.Namespace) -> int:
    """Run a job, with at most ``--max-restarts`` restarts; return its exit code."""
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
        if options.max_restarts and waits.is_wait(outcome, start.port is not None):
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
    if waited > waits.MOST:
        warn(f"ncclkv run: no restart: {who} in {waited} starts in a row\n")
        return False
    seconds = waits.seconds_after(waited)
    warn(f"ncclkv run: {who}: the same start again in {seconds:g} s, which uses up no restart\n")
    return waits.pause(seconds)


def prepare(options: argparse.Namespace, command: Sequence[str]) -> Start:
    """Return the job to start, without the variables that differ between its starts."""
    ranks = options.n or 1
    slots: dict[str, int] = {}
    if options.hosts is not None or options.hostfile is not None:
        named = options.hosts is not None
        given = hosts.parse(options.hosts) if named else hosts.read(options.hostfile)
        ranks, slots = hosts.place_ranks(given, options.n)
    launcher = hosts.MpiLauncher([])
    if ranks > 1 or slots:
        check_for_launcher(command)
        launcher = hosts.launcher(mpi.find_mpirun(command), ranks, slots)
    settings = {**launcher.settings, "NCCLKV_RESTART": "0"}
    if options.checkpoint is not None:
        settings["NCCLKV_CHECKPOINT"] = str(options.checkpoint.absolute())
    if options.timeout is not None:
        settings["NCCLKV_TIMEOUT"] = f"{options.timeout:g}"
    # Ranks that each start a thread for every core are slower than ranks of one thread.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if ranks > 1 else ()
    unless_set = {**dict.fromkeys(names, "1"), **launcher.unless_set}
    environment = env.for_ranks(settings, unless_set)
    several = bool(launcher.line and (slots or hosts.host_variable()))
    port = options.port if options.port is not None else 0 if several else None
    line = launcher.with_environment(environment)
    places = [name for name, count in slots.items() for _ in range(count)]
    timeout = options.timeout or env.timeout()
    return Start(ranks, line, command, environment, port, options.output_dir, places, timeout)


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
    return job.run()


def shell_line(start: Start) -> str:
    """Format the variables and the command line of a start for a shell."""
    here = env.for_ranks({}, {})
    changed = sorted(each for each in start.environment.items() if here.get(each[0]) != each[1])
    variables = [f"{name}={shlex.quote(value)}" for name, value in changed]
    return " ".join([*variables, shlex.join([*start.launcher, *start.command])])


def check(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse options and commands that cannot be run, before any process starts."""
    if options.n is not None and options.n < 1:
        raise LaunchError(f"-n {options.n} is no number of ranks; give 1 or more")
    if options.max_restarts < 0:
        raise LaunchError(f"--max-restarts {options.max_restarts} is below 0; give 0 or more")
    if options.timeout is not None and not 0 < options.timeout <= env.LONGEST:
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
    """Refuse arguments that mpirun would not pass to the command."""
    if ":" in command:
        quoted = shlex.quote(shlex.join(command))
        raise LaunchError(
            f"the command has an argument ':', behind which mpirun would start another program; "
            f"pass it inside one argument: sh -c {quoted}"
        )


def script_of(command: Sequence[str]) -> str | None:
    """Return the script of a Python command; None for another command, or if it is unclear.

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
