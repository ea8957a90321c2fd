"""Timeline: the trace files of all ranks as one Chrome trace, which Perfetto opens, too.

A rank is a process of the timeline, and its verbs, collectives and waits are threads of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclkv.errors import LaunchError
from ncclkv.observe.clocks import ClockOffset, Visit, offsets
from ncclkv.observe.json_lines import read
from ncclkv.observe.tracer import FORMAT, HEADER, PING

Event = dict[str, Any]

_VERBS, _WAITS, _DEVICE, _OTHER_THREADS, _COLLECTIVES = 1, 2, 3, 10, 100
"""Indices of a rank's threads in the timeline; the last two are the first of several."""

_NAMES = {_VERBS: "verbs", _WAITS: "waits for ranks", _DEVICE: "collectives on the GPU"}


@dataclass
class RankFile:
    """The file of one store on one rank."""

    path: Path
    header: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def launches(self) -> dict[int, dict[str, Any]]:
        """The launches by index."""
        return {each["seq"]: each for each in self.records if each["event"] == "launched"}


def read_files(folder: Path) -> list[RankFile]:
    """Read the files of a directory, in the order of ranks.

    Raises
    ------
    LaunchError
        When there is none.
    """
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        records = [each for each in read(path) if "event" in each]
        if records and records[0]["event"] == HEADER and records[0].get("format") == FORMAT:
            found.append(RankFile(path, records[0], records[1:]))
    if not found:
        raise LaunchError(
            f"trace: {folder} has no trace of a store; start the job with NCCLKV_TRACE={folder} "
            f"in the environment of all ranks, or call kv.trace({str(folder)!r})"
        )
    return sorted(found, key=lambda file: (file.header["rank"], file.header["at"]))


def find_offsets(files: Sequence[RankFile]) -> dict[str, ClockOffset]:
    """Return the difference of each machine's clock to that of the first file."""
    walls = {file.header["clock"]: file.header["wall"] - file.header["at"] for file in files}
    exchanges: dict[tuple[str, str, int, int], list[Visit]] = {}
    # Stores of one rank have no group: their collectives join no machines.
    several = [file for file in files if file.header["size"] > 1 and len(walls) > 1]
    for file in several:
        for name, visit in _visits(file):
            exchanges.setdefault((file.header["group"], *name), []).append(visit)
    return offsets(exchanges.values(), files[0].header["clock"], walls)


def _visits(file: RankFile) -> Iterator[tuple[tuple[str, int, int], Visit]]:
    """Yield a rank's parts in exchanges, each with the exchange's name in the store."""
    clock, rank, launches = file.header["clock"], file.header["rank"], file.launches
    completed = {each["seq"]: each for each in file.records if each["event"] == "completed"}
    turns: dict[int, int] = {}
    for record in file.records:
        if record["event"] == PING:
            index = record["index"]
            turns[index] = turns.get(index, -1) + 1
            enter, leave = record["at"], record["at"] + record["seconds"]
            yield (PING, index, turns[index]), Visit(clock, enter, leave)
    for seq, launch in launches.items():
        enter = launch["at"]
        done = completed.get(seq)
        leave = None if done is None else done["at"] + done["seconds"]
        at_root = launch["root"] in (None, rank)
        if launch["kind"] == "broadcast":
            yield (("seq", seq, 0), Visit(clock, enter if at_root else None, leave))
        elif launch["kind"] == "reduce":
            yield (("seq", seq, 0), Visit(clock, enter, leave if at_root else None))
        elif launch["kind"] in ("allreduce", "allgather"):
            yield (("seq", seq, 0), Visit(clock, enter, leave))


def timeline(files: Sequence[RankFile], clocks: dict[str, ClockOffset]) -> dict[str, Any]:
    """Return the object of a Chrome trace, whose times are microseconds since the first record."""
    start = min(
        each.header["at"] - clocks[each.header["clock"]].at(each.header["at"]) for each in files
    )
    events: list[Event] = []
    pids: dict[tuple[Any, ...], int] = {}
    for file in files:
        header = file.header
        process = header["host"], header["pid"], header["rank"]
        pid = pids.setdefault(process, len(pids))
        events += _process(file, pid, clocks[header["clock"]], start)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"format": "ncclkv"}}


def _process(file: RankFile, pid: int, offset: ClockOffset, start: float) -> Iterator[Event]:
    """Yield the events of one file."""
    header = file.header
    restart = f", restart {header['start']}" if header["start"] else ""
    name = f"rank {header['rank']} ({header['host']}, pid {header['pid']}{restart})"
    yield _meta("process_name", pid, 0, name=name)
    yield _meta("process_sort_index", pid, 0, sort_index=header["rank"])
    threads: dict[int, list[Event]] = {}
    others: dict[str, int] = {}
    for thread, event in _spans(file, others):
        event["pid"], begin = pid, event["ts"]
        event["ts"] = 1e6 * (begin - offset.at(begin) - start)
        threads.setdefault(thread, []).append(event)
    names = {**_NAMES, **{each: f"verbs of thread {name}" for name, each in others.items()}}
    lanes = _lanes(threads.pop(_COLLECTIVES, []))
    for lane, events in enumerate(lanes):
        threads[_COLLECTIVES + lane] = events
        names[_COLLECTIVES + lane] = f"collectives {lane + 1}" if lane else "collectives"
    for thread, events in sorted(threads.items()):
        yield _meta("thread_name", pid, thread, name=f"{names[thread]} of {header['store']}")
        yield _meta("thread_sort_index", pid, thread, sort_index=thread)
        for event in _nested(events):
            yield {**event, "tid": thread}


def _meta(what: str, process: int, thread: int, **arguments: Any) -> Event:
    """Return an event that names or orders a process or a thread."""
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _span(name: str, record: dict[str, Any], *arguments: str, **more: Any) -> Event:
    """Return a span of time, with fields of the record as arguments."""
    args = {**{each: record[each] for each in arguments if each in record}, **more}
    return {
        "ph": "X",
        "cat": "ncclkv",
        "name": name,
        "ts": record["at"],
        "dur": 1e6 * record["seconds"],
        "args": args,
    }


def _spans(file: RankFile, others: dict[str, int]) -> Iterator[tuple[int, Event]]:
    """Yield the spans of a file, each with its thread; times are still those of the clock."""
    launches = file.launches
    late = {each["seq"]: each for each in file.records if each["event"] == "late"}
    done: set[int] = set()
    for record in file.records:
        event = record["event"]
        thread = _VERBS
        if name := record.get("thread"):
            thread = others.setdefault(name, _OTHER_THREADS + len(others))
        if event == "verb":
            yield thread, _span(record["name"], record)
        elif event in ("packed", "unpacked"):
            yield thread, _span(event, record, "bucket", "count", "nbytes")
        elif event == "updated":
            yield thread, _span("updated", record, "label")
        elif event == "blocked":
            ranks = ", ".join(map(str, record["ranks"]))
            named = f"wait for rank{'s' * (len(record['ranks']) > 1)} {ranks}"
            yield _WAITS, _span(named, record, "what", "ranks")
        elif event in ("completed", "device") and record["seq"] in launches:
            done.add(record["seq"])
            yield _collective(record, launches[record["seq"]], late.get(record["seq"]))
        elif event in ("waiting", "failed"):
            yield _WAITS, {**_span(event, record, "what", "ranks", "error"), "ph": "i", "s": "t"}
    for seq, launch in launches.items():
        if seq not in done:  # on a GPU, or not complete when the file ends
            shown = {**_collective(launch, launch, None)[1], "ph": "i", "s": "t"}
            yield _COLLECTIVES, shown


def _collective(
    record: dict[str, Any], launch: dict[str, Any], late: dict[str, Any] | None
) -> tuple[int, Event]:
    """Return a collective as a span, from launch to completion or as the GPU timed it."""
    facts = ("seq", "label", "nbytes", "wire", "bucket", "root", "keys")
    last = {} if late is None else {"last rank": late["rank"], "last by seconds": late["by"]}
    event = _span(launch["kind"], record, **{each: launch.get(each) for each in facts}, **last)
    return _DEVICE if record["event"] == "device" else _COLLECTIVES, event


def _lanes(events: Iterable[Event]) -> list[list[Event]]:
    """Divide spans that overlap between threads; spans of a thread may only enclose each other."""
    lanes: list[list[Event]] = []
    for event in sorted(events, key=lambda each: each["ts"]):
        for lane in lanes:
            if lane[-1]["ts"] + lane[-1]["dur"] <= event["ts"]:
                lane.append(event)
                break
        else:
            lanes.append([event])
    return lanes


def _nested(events: Iterable[Event]) -> Iterator[Event]:
    """Yield spans in order; one that ends some microseconds after its enclosing span is cut."""
    ends: list[float] = []
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            end = ends[-1]
        ends.append(end)
        yield {**event, "dur": end - begin}
