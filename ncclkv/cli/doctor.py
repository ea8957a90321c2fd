"""Examine installation, MPI, GPUs and hosts; print a table with the command that mends each row."""

from __future__ import annotations

import argparse
import json
import sys

from ncclkv import env
from ncclkv.cli import allocation
from ncclkv.cli.options import declare
from ncclkv.cli.run import place
from ncclkv.errors import LaunchError

__all__ = ["describe", "main"]


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "ncclkv doctor [-n RANKS] [--hosts A:4,B:4] [--json] [--no-test]"
    parser.epilog = (
        "Also: mpirun -n 4 ncclkv doctor. Exit code 1: a row must be mended before jobs run."
    )
    declare(parser, ("-n", "--hosts", "--hostfile", "--port"))
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    about = "leave out sums and speeds, which take some seconds"
    parser.add_argument("--no-test", action="store_true", help=about)
    # The command of each rank.
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)


def main(options: argparse.Namespace) -> int:
    """Print a table of this process, of the launcher's ranks, or of ranks that are started here."""
    # Other commands need none of these modules.
    from ncclkv.cli import examined
    from ncclkv.doctor import report_table

    def text(found: examined.Examined) -> str:
        if not options.json:
            return report_table.text(found.merged, found.about)
        read = report_table.json_object(found.merged, found.about, found.size)
        return json.dumps(read, indent=2) + "\n"

    if options.n is not None and options.n < 1:
        raise LaunchError(f"-n {options.n} is no number of ranks; give 1 or more")
    test = not options.no_test
    if options.as_rank:
        examined.tell_parent(test=test)
        return 0
    launched = (env.launched_size() or 1) > 1 or env.launched_without_size()
    given = options.n or options.hosts or options.hostfile
    if given or (not launched and allocation.allocated()):
        command = examined.command_of_rank(test=test)
        ranks, slots = place(options, command)
        found = examined.started(options, command, ranks, [*slots])
        sys.stdout.write(text(found))
    elif launched and ((env.launched_rank() or 0) > 0 or env.other_rank()):
        return examined.later_rank(test=test)
    elif not launched and (other := env.launched_otherwise()) is not None and other.rank:
        return 0  # its rank 0 prints the table
    else:
        found = examined.rank_0(env.launched_size() or 1, test=test, text=text)
    return int(report_table.blocks(found.merged))
