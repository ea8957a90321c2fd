"""Tracer: writes the events of one rank's store to a file of JSON lines.

The first record is a header.  All times are those of ``time.perf_counter``, the monotonic clock of
the machine; `ncclkv.observe.clocks` finds the differences between machines.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ncclkv import concurrency, env
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.observe.json_lines import JsonLines
from ncclkv.system.this_process import this_process

FORMAT = 1
"""Version of the files."""

HEADER = "trace"
"""Name of the first record's event."""

PING = "ping"
"""Name of the event of an exchange by which clocks are compared."""

_indices = count(1)


class Tracer(Instrument):
    """Writes events to a new file of a directory, which is made if it is not there.

    Parameters
    ----------
    directory : path
    store : str
        Name of the store.
    group : str
        A name of the store's communicator, equal on its ranks and on no others.
    rank, size : int

    Attributes
    ----------
    path : Path

    Raises
    ------
    OSError
    """

    def __init__(
        self, directory: str | os.PathLike[str], store: str, group: str, rank: int, size: int
    ) -> None:
        folder, host = Path(directory), socket.gethostname()
        folder.mkdir(parents=True, exist_ok=True)
        # The index is one of the process, whose name no other process of the host has.
        name = f"{store}-rank{rank}-{host}-{this_process.pid}-{next(_indices)}.jsonl"
        self._lines = JsonLines(folder / name)
        self.path = self._lines.path
        self._thread = concurrency.get_ident()
        self._buckets: set[tuple[int, int]] = set()
        # A process that ends without the store's close still writes what it has.
        self._end = weakref.finalize(self, _close, self._lines)
        self._lines.add(
            {
                "event": HEADER,
                "format": FORMAT,
                "store": store,
                "group": group,
                "rank": rank,
                "size": size,
                "host": host,
                "pid": this_process.pid,
                "start": env.restarts(),
                "clock": clock_name(),
                "wall": concurrency.wall_time(),
                "at": concurrency.perf_counter(),
            },
            concurrency.perf_counter(),
        )
        self._lines.flush()

    def flush(self) -> None:
        """Write the records to the file now."""
        self._lines.flush()

    def stop(self) -> None:
        """Write the last records, and close the file; a second call does nothing."""
        self._end.detach()
        self._lines.close()

    def _add(self, event: str, seconds: float, **fields: Any) -> None:
        """Add an event that ends now, and took `seconds`."""
        now = concurrency.perf_counter()
        fields["event"], fields["at"], fields["seconds"] = event, now - seconds, seconds
        if concurrency.get_ident() != self._thread:
            fields["thread"] = concurrency.current_thread().name
        self._lines.add(fields, now)

    # Events

    def verb(self, name: str, seconds: float) -> None:
        self._add("verb", seconds, name=name)

    def packed(self, bucket: int, keys: Collection[Any], nbytes: int, seconds: float) -> None:
        self._add("packed", seconds, bucket=bucket, count=len(keys), nbytes=nbytes)

    def launched(self, launch: Launch) -> None:
        # The keys of a bucket are many, and stay the same: the first launch alone has them.
        known = launch.bucket is None or (launch.bucket, len(launch.keys)) in self._buckets
        fields = launch._asdict()
        del fields["keys"]
        if not known:
            self._buckets.add((launch.bucket or 0, len(launch.keys)))
            fields["keys"] = [*launch.keys]
        self._add("launched", 0.0, **fields)

    def updated(self, label: str, seconds: float) -> None:
        self._add("updated", seconds, label=label)

    def waited(self, seq: int, seconds: float) -> None:
        self._add("waited", seconds, seq=seq)

    def completed(self, seq: int, seconds: float) -> None:
        self._add("completed", seconds, seq=seq)

    def late(self, seq: int, rank: int, seconds: float) -> None:
        self._add("late", 0.0, seq=seq, rank=rank, by=seconds)

    def unpacked(self, bucket: int | None, nbytes: int, seconds: float) -> None:
        self._add("unpacked", seconds, bucket=bucket, nbytes=nbytes)

    def waiting(self, what: str, ranks: Collection[int]) -> None:
        self._add("waiting", 0.0, what=what, ranks=sorted(ranks))
        self._lines.flush()  # the wait may never end, and the process be killed

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        self._add("blocked", seconds, what=what, ranks=sorted(ranks))

    def device(self, seq: int, begin: float, seconds: float) -> None:
        fields = {"event": "device", "at": begin, "seconds": seconds, "seq": seq}
        self._lines.add(fields, concurrency.perf_counter())

    def failed(self, error: str) -> None:
        self._add("failed", 0.0, error=error)
        self._lines.flush()

    def closed(self) -> None:
        self.stop()

    def ping(self, index: int, seconds: float) -> None:
        """Add an exchange that no rank left before all ranks had entered it."""
        self._add(PING, seconds, index=index)


def _close(lines: JsonLines) -> None:
    """Write what a file lacks, at the end of the process."""
    with suppress(OSError):
        lines.close()


def clock_name() -> str:
    """Return a name of this process's monotonic clock, which all processes of a machine share."""
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/time"))  # a namespace may shift the clock
    return " ".join(parts) or f"{socket.gethostname()} {this_process.pid}"
