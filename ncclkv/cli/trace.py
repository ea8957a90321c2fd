"""Merge the traces of all ranks to one file for Perfetto or Chrome.

The ranks have written the files to the directory that NCCLKV_TRACE or kv.trace named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.errors import LaunchError

_SHOWN = 8
"""Count of ranks that are listed."""

if TYPE_CHECKING:
    from ncclkv.observe.clocks import ClockOffset
    from ncclkv.observe.timeline import RankFile


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", help="the directory that has the ranks' files")
    parser.add_argument(
        "-o", dest="output", metavar="FILE", help="the merged file (DIRECTORY/job.json)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Write the merged file, and print what it has."""
    # Imported here, because they need NumPy: other commands start without it.
    import json
    from pathlib import Path

    from ncclkv.observe.timeline import find_offsets, read_files, timeline

    directory = Path(arguments.directory)
    files = read_files(directory)
    clocks = find_offsets(files)
    merged = timeline(files, clocks)
    output = Path(arguments.output or directory / "job.json")
    try:
        output.write_text(json.dumps(merged))
    except OSError as error:
        raise LaunchError(
            f"trace: {output} cannot be written: {error.strerror}; name another file by -o"
        ) from error
    ranks = {file.header["rank"] for file in files}
    sys.stdout.write(
        f"{output}: {len(merged['traceEvents']):,} events of {format_ranks(ranks, _SHOWN)}, from "
        f"{len(files)} file{'s' * (len(files) > 1)}; open it at https://ui.perfetto.dev or in "
        f"chrome://tracing\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in _describe_clocks(files, clocks))
    return 0


def _describe_clocks(files: Sequence[RankFile], clocks: Mapping[str, ClockOffset]) -> Iterator[str]:
    """Yield a line for each machine whose clock differs from that of the first."""
    hosts = {file.header["clock"]: file.header["host"] for file in files}
    first, *others = hosts
    for clock in others:
        offset = clocks[clock]
        if offset.error == float("inf"):
            yield (
                f"clock of {hosts[clock]}: set by the wall clock alone, because no collective in "
                f"these files joins it with {hosts[first]}; its times may be off by any amount"
            )
        else:
            drift = offset.end[1] - offset.begin[1]
            yield (
                f"clock of {hosts[clock]}: {offset.begin[1]:+.6f} s from that of {hosts[first]}, "
                f"right to {1e6 * offset.error:.0f} us; drift {1e6 * drift:+.0f} us"
            )
