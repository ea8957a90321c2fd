"""The command ``ncclkv``: a table of what it can do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from ncclkv.cli import explain, run
from ncclkv.errors import LaunchError

WRONG = 2
"""The exit code of a command that cannot be begun; `argparse` has the same."""

COMMANDS: dict[str, ModuleType] = {"run": run, "explain": explain}
"""Each has ``describe(parser)``, and ``main(arguments)``, which returns an exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; by default those of this process.

    Returns
    -------
    int
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="ncclkv", description="Jobs of several ranks.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        about = str(module.__doc__).splitlines()[0]
        each = commands.add_parser(name, help=about, description=about)
        module.describe(each)
        each.set_defaults(main=module.main)
    chosen = parser.parse_args(arguments)
    act: Callable[[argparse.Namespace], int] = chosen.main
    try:
        return act(chosen)
    except LaunchError as error:
        sys.stderr.write(f"ncclkv: {error}\n")
        return WRONG
