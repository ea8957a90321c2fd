"""`JsonLines`: a file of JSON lines, to which a process appends blocks of whole lines.

Each block is one ``write`` to a file that is opened for appending.  So the file is valid after
SIGKILL, but for a last line that a full disk may have cut.  The reader skips such a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ncclkv import concurrency
from ncclkv.system.this_process import this_process

Record = Mapping[str, Any]

_MOST_RECORDS = 1000
_SECONDS = 1.0
"""Count of records, and seconds, after which a block is written."""


class JsonLines:
    """A new file of JSON lines.

    Parameters
    ----------
    path : Path
        Must not exist.

    Raises
    ------
    OSError
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = this_process.pid
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file: int | None = os.open(path, flags, 0o666)
        self._records: list[Record] = []
        self._written = concurrency.perf_counter()

    def add(self, record: Record, now: float) -> None:
        """Add a record, and write all records if the block is large or old.

        Parameters
        ----------
        record : mapping
            Values that JSON can hold; not changed by the caller any more.
        now : float
            The present ``concurrency.perf_counter``, which the caller has read already.
        """
        self._records.append(record)
        if len(self._records) >= _MOST_RECORDS or now - self._written > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the records to the file.

        Raises
        ------
        OSError
            The records are dropped.
        """
        records, self._records = self._records, []
        self._written = concurrency.perf_counter()
        # A fork of the process has a copy of the records, which only the process itself writes.
        if self._file is None or not records or this_process.pid != self._pid:
            return
        left = memoryview("".join(map(_line, records)).encode())
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Write the records, and close the file; a second call does nothing."""
        try:
            self.flush()
        finally:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


def _line(record: Record) -> str:
    """Return a record as a line; names of keys may be strings of any characters."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; a line that is cut, or is no JSON object, is left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
