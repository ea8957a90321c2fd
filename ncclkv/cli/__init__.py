"""The command ``ncclkv`` and the table of its subcommands.

**Supervisors.**  Launchers end all ranks at once when one dies, blame the wrong rank, and do not
notice an exit before MPI's start.  So mpirun starts a supervisor a rank, which starts the command
(`ncclkv.cli.supervisor`).  Each supervisor connects to the runner (`ncclkv.cli.link`,
`ncclkv.cli.connections`).  On one machine the connection is an abstract Unix socket; otherwise it
is TCP, to all of the runner's addresses at once.  Frames carry output, stops, events and the exit
code (`ncclkv.cli.protocol`).  The secret of the proofs is in the environment, and is never sent.

**Events.**  A rank reports a failure, the beginning of its exit and MPI's start to its supervisor
by a pipe (`ncclkv.notify`).  Text on stderr decides nothing.

**End of a start** (`ncclkv.cli.job`).  A supervisor exits two seconds after a command that failed.
After a command that ended with 0 it waits up to ten seconds for the others, because MPICH kills the
other ranks at either exit.  The runner waits for the other ranks, at most three seconds after a
failure and five after a signal.  After a failure it does not wait for ranks that are all in MPI's
start.  Then the supervisors kill their ranks by SIGKILL.  The launcher gets SIGTERM, and two
seconds later SIGKILL.  A job has succeeded when every rank has reported 0.

**Lost connections.**  When the runner ends, each supervisor kills its rank, so nothing is left.
When the network fails, the rank continues: its output passes through mpirun, and the launcher's
exit code decides.

**Signals.**  SIGUSR1 and SIGUSR2 are the program's.  Supervisors ignore both, because launchers
send them to all processes of a rank.  The runner passes them on by frames, so each command gets
them once.

**Descendants.**  Runner and supervisors are subreapers (`ncclkv.cli.descendants`): they adopt
processes that a command leaves behind, and kill them at its end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from ncclkv import __version__
from ncclkv.cli import doctor, explain, run, status, trace
from ncclkv.cli.parser import Parser
from ncclkv.errors import LaunchError

WRONG = 2
"""Exit code of a command that cannot start, as in `argparse`."""

COMMANDS: dict[str, ModuleType] = {
    "run": run,
    "status": status,
    "explain": explain,
    "trace": trace,
    "doctor": doctor,
}
"""Each has ``describe(parser)``, and ``main(arguments)``, which returns an exit code."""


def make_parsers() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of the whole command line, and the parsers of the subcommands by name."""
    parser = Parser(prog="ncclkv", description="Jobs of several ranks.")
    parser.add_argument("--version", action="version", version=f"ncclkv {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parsers = {}
    for name, module in COMMANDS.items():
        about = str(module.__doc__).splitlines()[0]
        parsers[name] = commands.add_parser(name, help=about, description=about)
        module.describe(parsers[name])
        parsers[name].set_defaults(main=module.main)
    return parser, parsers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand of the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.

    Returns
    -------
    int
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser, parsers = make_parsers()
    if not given:
        parser.print_help()
        return 0
    # A command's own parser, so that its errors name the command.
    own = parsers.get(given[0])
    try:
        if own is None and not given[0].startswith("-"):
            raise LaunchError(
                f"there is no command {given[0]!r}; there are {', '.join(COMMANDS)}. Programs "
                f"are started by: ncclkv run -n 4 -- python train.py"
            )
        chosen = parser.parse_args(given) if own is None else own.parse_args(given[1:])
        act: Callable[[argparse.Namespace], int] = chosen.main
        return act(chosen)
    except LaunchError as error:
        sys.stderr.write(f"ncclkv: {error}\n")
        return WRONG
