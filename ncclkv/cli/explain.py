"""Explain a failed job by the files that its ranks wrote to NCCLKV_DUMP.

The calls of all ranks are compared by number.  Missing and torn files are named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclkv.comm.diagnosis.dump import FORMAT
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.errors import LaunchError

_FOLLOWS = ("RankLost", "RankDied", "CommAborted", "CommTimeout", "OrderMismatch", "SpecMismatch")
"""Errors that another rank caused: the reason of such a rank begins with one of these names."""


@dataclass(frozen=True)
class Call:
    """A call of a store: its text, its codes, which must be alike on all ranks, and its time."""

    text: str
    alike: tuple[int, ...]
    seconds: float


@dataclass
class Rank:
    """Facts about a rank, from its own file or from the files of others.

    Attributes
    ----------
    who : str
        Rank, host and process.
    calls : dict of int to Call
        Its calls by number.
    waits : list of int
        The ranks that it waited for.
    elsewhere : str
        Its wait outside this store.
    state : str
        The state of its process, as reported by neighbours.
    left : str
        The reason in its farewell.
    error : (str, float) or None
        Its error and the error's time; None without a file of its own.
    """

    who: str
    calls: dict[int, Call] = field(default_factory=dict)
    waits: list[int] = field(default_factory=list)
    elsewhere: str = ""
    state: str = ""
    left: str = ""
    error: tuple[str, float] | None = None

    @property
    def last(self) -> str:
        """Describe its last call."""
        if not self.calls:
            return "no call of it is known"
        number = max(self.calls)
        call = self.calls[number]
        inside = f"; it waited in {self.elsewhere}" if self.elsewhere else ""
        return f"its last call was number {number}, {call.text}, at {call.seconds:.3f} s{inside}"


@dataclass
class Store:
    """A broken store: its name, the time of its first file, and the facts about its ranks."""

    name: str
    time: float
    ranks: dict[int, Rank]


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, help="the directory that NCCLKV_DUMP named")


def main(arguments: argparse.Namespace) -> int:
    """Print the causes for each broken store, in the order of time."""
    contents, unread = read(arguments.directory)
    stores: dict[str, list[dict[str, Any]]] = {}
    for content in contents:
        stores.setdefault(content["store"], []).append(content)
    found = sorted((merged(each) for each in stores.values()), key=lambda store: store.time)
    lines = [f"not read: {each}" for each in unread]
    for store in found:
        lines += ["", *explained(store)] if lines else explained(store)
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
            merged([content])
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


def merged(contents: Sequence[Mapping[str, Any]]) -> Store:
    """Merge the files of a store's ranks; a rank's own file wins over the files of others."""
    for content in contents:
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, and {FORMAT} is expected")
    size = max(int(content["size"]) for content in contents)
    ranks = {rank: Rank(f"rank {rank}") for rank in range(size)}
    for content in contents:
        for number, member in enumerate(content.get("ranks", ())):
            ranks[number].who = f"rank {number} on {member['host']} (pid {int(member['pid'])})"
        for number, told in content.get("others", {}).items():
            _add(ranks[int(number)], told)
    for content in contents:
        own = ranks[int(content["rank"])]
        own.who = f"rank {content['rank']} on {content['host']} (pid {int(content['pid'])})"
        error = content["error"]
        own.error = f"{error['type']}: {error['text']}", float(content["seconds"])
        own.calls, own.waits, own.state = {}, [], ""
        _add(own, content)
    return Store(str(content["store"]), min(float(content["time"]) for content in contents), ranks)


def _add(rank: Rank, told: Mapping[str, Any]) -> None:
    """Add the facts of a file about a rank."""
    for call in told.get("calls", ()):
        alike = tuple(map(int, call["alike"]))
        made = Call(str(call["call"]), alike, float(call["seconds"]))
        rank.calls.setdefault(int(call["number"]), made)
    if told.get("wait"):
        rank.waits = [int(each) for each in told["wait"]["ranks"]]
    rank.elsewhere = rank.elsewhere or str(told.get("elsewhere", ""))
    rank.state = rank.state or str(told.get("state", ""))
    rank.left = rank.left or str(told.get("left", ""))


# Finding out


def explained(store: Store) -> list[str]:
    """Describe the causes, the errors and the last calls of a store, in lines."""
    ranks = store.ranks
    files = [rank for rank, known in ranks.items() if known.error is not None]
    without = [rank for rank in ranks if rank not in files]
    missing = f"; none of {format_ranks(without)}" if without else ""
    found = [*_causes(ranks)] or ["no cause is in these files: the errors below are all there is"]
    raised = sorted((known.error[1], rank) for rank, known in ranks.items() if known.error)
    return [
        f"store {store.name}, {len(ranks)} ranks: files of {format_ranks(files)}{missing}",
        f"what happened first: {found[0]}",
        *(f"then, or besides: {each}" for each in found[1:]),
        "what the ranks raised, in seconds since the store was made:",
        *(f"  {seconds:9.3f}  {_raised(ranks[rank])}" for seconds, rank in raised),
        "what they called last:",
        *(f"  {known.who}: {known.last}" for known in ranks.values()),
    ]


def _raised(rank: Rank) -> str:
    text = "" if rank.error is None else rank.error[0]
    return f"{rank.who}: {text}"


def _causes(ranks: Mapping[int, Rank]) -> Iterator[str]:
    """Describe possible causes, the most likely first."""
    yield from _difference(ranks)
    for rank in ranks.values():
        if rank.left and not rank.left.startswith(_FOLLOWS):
            yield f"{rank.who} left; it said: {rank.left}; {rank.last}"
    for rank in ranks.values():
        if rank.error is None and "ended" in rank.state:
            yield f"{rank.who} {rank.state}; {rank.last}"
    for rank in ranks.values():
        if rank.error is None and "stopped" in rank.state:
            yield f"{rank.who} {rank.state}; {rank.last}"
    yield from _missing(ranks)


def _difference(ranks: Mapping[int, Rank]) -> Iterator[str]:
    """Describe the first call in which the ranks differ, if the files show a difference."""
    numbers = sorted({number for known in ranks.values() for number in known.calls})
    for number in numbers:
        made: dict[tuple[int, ...], list[int]] = {}
        for rank, known in ranks.items():
            if number in known.calls:
                made.setdefault(known.calls[number].alike, []).append(rank)
        if len(made) > 1:
            # The largest group first: the last group is the outlier.
            groups = sorted(made.values(), key=len, reverse=True)
            texts = [
                f"{format_ranks(each)} called {_texts(ranks, each, number)}" for each in groups
            ]
            yield f"the ranks differ in call {number}: {', but '.join(texts)}"
            return


def _texts(ranks: Mapping[int, Rank], group: Sequence[int], number: int) -> str:
    """Describe a call that ranks made alike, perhaps from several lines of the program."""
    return " or ".join(dict.fromkeys(ranks[rank].calls[number].text for rank in group))


def _missing(ranks: Mapping[int, Rank]) -> Iterator[str]:
    """Describe ranks that others waited for and that waited for no rank themselves."""
    waited_for = {each for known in ranks.values() for each in known.waits}
    for rank in sorted(waited_for & {*ranks}):
        if not ranks[rank].waits:
            waiting = [each for each, known in ranks.items() if rank in known.waits]
            yield f"{format_ranks(waiting)} waited for {ranks[rank].who}; {ranks[rank].last}"
