"""Metrics file: the metrics of a store as JSON lines, at an interval and at its end."""

from __future__ import annotations

from pathlib import Path

from ncclkv import concurrency, env
from ncclkv.engine.instrument import Instrument
from ncclkv.observe.counter import Counter
from ncclkv.observe.json_lines import JsonLines

SECONDS = 10.0
"""Seconds between two lines, at least; a line is written at the end of a verb."""


class MetricsFile(Instrument):
    """Appends metrics to a file of this rank and process.

    Parameters
    ----------
    path : str
        The file of rank 0; other ranks and stores add a suffix.
    store : str
        Name of the store.
    counter : Counter

    Raises
    ------
    OSError
    """

    def __init__(self, path: str, store: str, counter: Counter) -> None:
        self._store = store
        self._counter = counter
        self._lines = _new(Path(path), counter.rank)
        self._due = concurrency.perf_counter() + SECONDS

    def verb(self, name: str, seconds: float) -> None:
        now = concurrency.perf_counter()
        if now >= self._due:
            self._due = now + SECONDS
            self._write(now)

    def failed(self, error: str) -> None:
        self._write(concurrency.perf_counter())

    def closed(self) -> None:
        self._write(concurrency.perf_counter())
        self._lines.close()

    def _write(self, now: float) -> None:
        """Append the present metrics."""
        row = {"time": concurrency.wall_time(), "store": self._store, "start": env.restarts()}
        self._lines.add({**row, **self._counter.metrics()}, now)
        self._lines.flush()


def _new(path: Path, rank: int) -> JsonLines:
    """Return a new file: the path itself for rank 0's first store, else one with a suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    attempt = 1
    while True:
        name = stem if attempt == 1 else stem.with_name(f"{stem.stem}.{attempt}{stem.suffix}")
        try:
            return JsonLines(name)
        except FileExistsError:
            attempt += 1
