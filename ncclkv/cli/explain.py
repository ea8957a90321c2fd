"""Explain a job that failed, by the files that its ranks wrote to NCCLKV_DUMP.

The calls of all ranks are lined up by number.  Files may be missing or torn: these are named.
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
"""Errors that follow from what another rank did: a rank's reason begins with one of these."""


@dataclass(frozen=True)
class Call:
    """A call of a store; `alike` is what ranks must have in common, `seconds` when it was made."""

    text: str
    alike: tuple[int, ...]
    seconds: float


@dataclass
class Rank:
    """Facts about a rank, from its own file or from those of others.

    Attributes
    ----------
    who : str
        Rank, host and process.
    calls : dict of int to Call
        By number.
    waits : list of int
        The ranks that it waited for.
    elsewhere : str
        What it waited in, if not in this store.
    state : str
        Of its process, as neighbours saw it.
    left : str
        The reason with which it left.
    error : (str, float) or None
        What it raised, and when; None without a file of its own.
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
        """Its last call, in words."""
        if not self.calls:
            return "no call of it is known"
        number = max(self.calls)
        call = self.calls[number]
        inside = f"; it waited in {self.elsewhere}" if self.elsewhere else ""
        return f"its last call was number {number}, {call.text}, at {call.seconds:.3f} s{inside}"


@dataclass
class Store:
    """A store that broke: its name, when its first file was written, and what is known of ranks."""

    name: str
    time: float
    ranks: dict[int, Rank]


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, help="the directory that NCCLKV_DUMP named")


def main(arguments: argparse.Namespace) -> int:
    """Print what happened to each store that broke, in the order of time."""
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
        Of the whole ones.
    unread : list of str
        The names of the others, each with the reason.

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
    """Put together what the ranks' files hold; each rank's own words come before others'."""
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
    """Add what a file tells of a rank."""
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
    """Describe what happened to a store, in lines."""
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
    """Describe what may have been the cause, the likeliest first."""
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
    """Describe the first call that is not the same on all ranks, as far as it is known."""
    numbers = sorted({number for known in ranks.values() for number in known.calls})
    for number in numbers:
        made: dict[tuple[int, ...], list[int]] = {}
        for rank, known in ranks.items():
            if number in known.calls:
                made.setdefault(known.calls[number].alike, []).append(rank)
        if len(made) > 1:
            # The camps, the largest first: the last is the odd one.
            camps = sorted(made.values(), key=len, reverse=True)
            texts = [f"{format_ranks(camp)} called {_texts(ranks, camp, number)}" for camp in camps]
            yield f"the ranks differ in call {number}: {', but '.join(texts)}"
            return


def _texts(ranks: Mapping[int, Rank], camp: Sequence[int], number: int) -> str:
    """Describe the same call of some ranks, which may come from several lines."""
    return " or ".join(dict.fromkeys(ranks[rank].calls[number].text for rank in camp))


def _missing(ranks: Mapping[int, Rank]) -> Iterator[str]:
    """Describe ranks that others waited for and that waited for nobody themselves."""
    waited_for = {each for known in ranks.values() for each in known.waits}
    for rank in sorted(waited_for & {*ranks}):
        if not ranks[rank].waits:
            waiting = [each for each, known in ranks.items() if rank in known.waits]
            yield f"{format_ranks(waiting)} waited for {ranks[rank].who}; {ranks[rank].last}"
