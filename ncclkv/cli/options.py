"""Options of ``ncclkv run``, and the checks of their values and of the command."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ncclkv import env
from ncclkv.cli import foreign
from ncclkv.errors import LaunchError


class _Option(NamedTuple):
    """An option with a value: its type, its place-holder, its text and its other names."""

    kind: Callable[[str], object]
    metavar: str
    about: str
    others: tuple[str, ...] = ()


class _Append(argparse.Action):
    """Adds to the value of an option that is repeated, as Open MPI does with hosts."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the value, or append the new value behind a comma."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def _number(name: str, kind: Callable[[str], object], form: str) -> Callable[[str], object]:
    """Return the conversion of an option's text; its error names the option and `form`."""

    def convert(text: str) -> object:
        try:
            return kind(text)
        except ValueError as error:
            raise LaunchError(f"{name} {text} is {form}") from error

    return convert


_RANKS = "no number of ranks; give 1 or more"
_RESTARTS = "no number of restarts; give 0 or more"
_SECONDS = "not a number of seconds; give one above 0"
_PORT = "no TCP port; give 0 to 65535"

_OPTIONS = {
    "-n": _Option(
        _number("-n", int, _RANKS),
        "RANKS",
        "number of ranks (that of the allocation, or as many as the hosts take)",
        ("-np", "--np"),
    ),
    "--hosts": _Option(
        str,
        "A:4,B:4",
        "hosts with their numbers of ranks (those of the allocation, or this)",
        ("-H", "--host", "-host", "-hosts"),
    ),
    "--hostfile": _Option(
        Path,
        "FILE",
        "hosts from a file, each on a line NAME slots=RANKS",
        ("-f", "-hostfile", "-machinefile", "--machinefile"),
    ),
    "--port": _Option(
        _number("--port", int, _PORT),
        "P",
        "TCP port at which ranks of other hosts reach this command (any)",
    ),
    "--output-dir": _Option(Path, "DIR", "also write output to DIR/rank-N.out and DIR/rank-N.err"),
    "--max-restarts": _Option(
        _number("--max-restarts", int, _RESTARTS),
        "K",
        "start again after a failure, at most K times (0)",
    ),
    "--checkpoint": _Option(
        Path, "DIR", "directory of checkpoints, given to ranks in NCCLKV_CHECKPOINT"
    ),
    "--timeout": _Option(
        _number("--timeout", float, _SECONDS),
        "S",
        "seconds that a rank waits for the others (NCCLKV_TIMEOUT)",
    ),
}
"""Options with values; defaults stand in parentheses.  Names of other launchers are not in the
help."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "ncclkv run -n RANKS [options] -- COMMAND ..."
    parser.epilog = (
        "Example: ncclkv run -n 4 --max-restarts 3 --checkpoint saved -- python train.py"
    )
    declare(parser, _OPTIONS)
    parser.set_defaults(max_restarts=0)
    about = "print the command line and the variables set for all ranks alike, and start nothing"
    parser.add_argument("--dry-run", action="store_true", help=about)
    about = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torch.distributed reads"
    parser.add_argument("--torch-env", action="store_true", help=about)
    foreign.declare(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: the command of a rank")


def declare(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Declare options with values, and their other names."""
    hosts_options = parser.add_mutually_exclusive_group()
    for name in names:
        kind, metavar, about, others = _OPTIONS[name]
        group = hosts_options if name.startswith("--host") else parser
        action = _Append if name == "--hosts" else "store"
        first = group.add_argument(name, type=kind, action=action, metavar=metavar, help=about)
        for each in others:
            hidden = group.add_argument(each, type=kind, action=action, dest=first.dest)
            hidden.help = argparse.SUPPRESS


def check(options: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse options and commands that cannot be run, before any process starts."""
    foreign.refuse(options, command)
    if options.n is not None and options.n < 1:
        raise LaunchError(f"-n {options.n} is {_RANKS}")
    if options.max_restarts < 0:
        raise LaunchError(f"--max-restarts {options.max_restarts} is below 0; give 0 or more")
    if options.timeout is not None and not 0 < options.timeout <= env.LONGEST:
        raise LaunchError(f"--timeout {options.timeout:g} is {_SECONDS}")
    if options.port is not None and not 0 <= options.port < 65536:
        raise LaunchError(f"--port {options.port} is {_PORT}")
    if not command:
        ranks = options.n or 4
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
