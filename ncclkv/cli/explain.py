"""Explain a failed job by the files that its ranks wrote to NCCLKV_DUMP.

The calls of all ranks are compared by index.  Missing and torn files are named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.errors import LaunchError

_FOLLOWS = ("RankLost", "RankDied", "CommAborted", "CommTimeout", "OrderMismatch", "SpecMismatch")
"""Names of errors that another rank caused."""


class Call(NamedTuple):
    """A call of a store: its text, its codes, which must be equal on all ranks, and its time."""

    text: str
    codes: tuple[int, ...]
    seconds: float


@dataclass
class RankFacts:
    """Facts about a rank, from its own file or from the files of others.

    Attributes
    ----------
    name : str
        Rank, host and process.
    calls : dict of int to Call
        Its calls by index.
    waits : list of int
        The ranks that it waited for.
    other_wait : str
        Its wait outside this store.
    state : str
        The state of its process, as reported by neighbours.
    left : str
        The reason in its farewell.
    error : (str, float) or None
        Its error and the error's time; None without a file of its own.
    """

    name: str
    calls: dict[int, Call] = field(default_factory=dict)
    waits: list[int] = field(default_factory=list)
    other_wait: str = ""
    state: str = ""
    left: str = ""
    error: tuple[str, float] | None = None

    @property
    def last(self) -> str:
        """Describe its last call."""
        if not self.calls:
            return "no call of it is known"
        index = max(self.calls)
        call = self.calls[index]
        inside = f"; it waited in {self.other_wait}" if self.other_wait else ""
        return f"its last call was number {index}, {call.text}, at {call.seconds:.3f} s{inside}"


class Store(NamedTuple):
    """A broken store: its name, the time of its first file, and the facts about its ranks."""

    name: str
    time: float
    ranks: dict[int, RankFacts]


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, help="the directory that NCCLKV_DUMP named")


def main(arguments: argparse.Namespace) -> int:
    """Print the causes for each broken store, in the order of time."""
    contents, unread = read(arguments.directory)
    stores: dict[str, list[dict[str, Any]]] = {}
    for content in contents:
        stores.setdefault(content["store"], []).append(content)
    lines = [f"not read: {each}" for each in unread]
    for store in sorted(map(merge, stores.values()), key=lambda store: store.time):
        lines += ["", *explain(store)] if lines else explain(store)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


# Reading


def read(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read all files of a directory.

    Returns
    -------
    contents : list of dict
        Contents of the complete files.
    unread : list of str
        Names of the other files, each with the reason.

    Raises
    ------
    LaunchError
        When no file can be read.
    """
    contents, unread = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            merge([content])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            unread.append(f"{path.name} ({_reason(error)})")
        else:
            contents.append(content)
    if not contents:
        reasons = f": {', '.join(unread)}" if unread else ""
        raise LaunchError(
            f"explain: {folder} has no file of a store that broke{reasons}; start the job with "
            f"NCCLKV_DUMP={folder} in the environment of all ranks"
        )
    return contents, unread


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "torn, or no JSON"
    return f"not a file of this version: {error}"


def merge(contents: Sequence[Mapping[str, Any]]) -> Store:
    """Merge the files of a store's ranks; a rank's own file wins over the files of others."""
    from ncclkv.comm.diagnosis.dump import FORMAT  # other commands need no NumPy

    for content in contents:
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, and {FORMAT} is expected")
    size = max(int(content["size"]) for content in contents)
    ranks = {rank: RankFacts(f"rank {rank}") for rank in range(size)}
    for content in contents:
        for index, member in enumerate(content.get("ranks", ())):
            ranks[index].name = f"rank {index} on {member['host']} (pid {int(member['pid'])})"
        for index, report in content.get("others", {}).items():
            _add(ranks[int(index)], report)
    for content in contents:
        own = ranks[int(content["rank"])]
        own.name = f"rank {content['rank']} on {content['host']} (pid {int(content['pid'])})"
        error = content["error"]
        own.error = f"{error['type']}: {error['text']}", float(content["seconds"])
        own.calls, own.waits, own.state = {}, [], ""
        _add(own, content)
    return Store(str(content["store"]), min(float(content["time"]) for content in contents), ranks)


def _add(rank: RankFacts, report: Mapping[str, Any]) -> None:
    """Add a report about a rank to the facts about it."""
    for row in report.get("calls", ()):
        codes = tuple(map(int, row["alike"]))
        call = Call(str(row["call"]), codes, float(row["seconds"]))
        rank.calls.setdefault(int(row["number"]), call)
    if report.get("wait"):
        rank.waits = [int(each) for each in report["wait"]["ranks"]]
    rank.other_wait = rank.other_wait or str(report.get("elsewhere", ""))
    rank.state = rank.state or str(report.get("state", ""))
    rank.left = rank.left or str(report.get("left", ""))


# Explaining


def explain(store: Store) -> list[str]:
    """Describe the causes, the errors and the last calls of a store, in lines."""
    ranks = store.ranks
    files = [index for index, rank in ranks.items() if rank.error is not None]
    without = [index for index in ranks if index not in files]
    missing = f"; none of {format_ranks(without)}" if without else ""
    first, *others = [*_causes(ranks)] or ["no cause is in these files; the errors are below"]
    raised = [(*rank.error, rank.name) for rank in ranks.values() if rank.error]
    raised.sort(key=lambda row: row[1])
    return [
        f"store {store.name}, {len(ranks)} ranks: files of {format_ranks(files)}{missing}",
        f"what happened first: {first}",
        *(f"then, or besides: {each}" for each in others),
        "errors that the ranks raised, in seconds since the creation of the store:",
        *(f"  {seconds:9.3f}  {name}: {text}" for text, seconds, name in raised),
        "last calls of the ranks:",
        *(f"  {rank.name}: {rank.last}" for rank in ranks.values()),
    ]


def _causes(ranks: Mapping[int, RankFacts]) -> Iterator[str]:
    """Describe possible causes, the most likely first."""
    yield from _difference(ranks)
    for rank in ranks.values():
        if rank.left and not rank.left.startswith(_FOLLOWS):
            yield f"{rank.name} left; farewell: {rank.left}; {rank.last}"
    for state in ("ended", "stopped"):
        for rank in ranks.values():
            if rank.error is None and state in rank.state:
                yield f"{rank.name} {rank.state}; {rank.last}"
    yield from _missing(ranks)


def _difference(ranks: Mapping[int, RankFacts]) -> Iterator[str]:
    """Describe the first call in which the ranks differ, if the files show a difference."""
    for index in sorted({index for rank in ranks.values() for index in rank.calls}):
        groups: dict[tuple[int, ...], list[int]] = {}
        for each, rank in ranks.items():
            if index in rank.calls:
                groups.setdefault(rank.calls[index].codes, []).append(each)
        if len(groups) > 1:
            # The largest group first: the last group is the outlier.
            largest_first = sorted(groups.values(), key=len, reverse=True)
            texts = [_describe(ranks, group, index) for group in largest_first]
            yield f"the ranks differ in call {index}: {', but '.join(texts)}"
            return


def _describe(ranks: Mapping[int, RankFacts], group: Sequence[int], index: int) -> str:
    """Describe equal calls of ranks, perhaps from several lines of the program."""
    texts = dict.fromkeys(ranks[rank].calls[index].text for rank in group)
    return f"{format_ranks(group)} called {' or '.join(texts)}"


def _missing(ranks: Mapping[int, RankFacts]) -> Iterator[str]:
    """Describe ranks that others waited for and that waited for no rank themselves."""
    awaited = {each for rank in ranks.values() for each in rank.waits}
    for index in sorted(awaited & {*ranks}):
        if not ranks[index].waits:
            waiting = [each for each, rank in ranks.items() if index in rank.waits]
            missing = ranks[index]
            yield f"{format_ranks(waiting)} waited for {missing.name}; {missing.last}"
