"""Counter: the metrics of one rank's store, counted from the events of its instruments."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ncclkv import concurrency
from ncclkv.engine.instrument import Instrument, Launch

_MOST_TIMES = 1000
"""Times of which a median is taken: the last ones."""

_BUS_FACTORS = {"allreduce": 2.0, "reduce_scatter": 1.0, "allgather": 1.0}
"""Bus bandwidth by bandwidth, times (n - 1) / n of n ranks, as NCCL's tests have it; else 1."""


def _times() -> deque[float]:
    return deque(maxlen=_MOST_TIMES)


@dataclass
class _Verb:
    calls: int = 0
    seconds: float = 0.0


@dataclass
class _Bucket:
    """Collectives of a bucket; bytes and seconds are those of complete collectives."""

    launches: int = 0
    completed: int = 0
    nbytes: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    bus_bytes: float = 0.0
    times: deque[float] = field(default_factory=_times)
    skews: deque[float] = field(default_factory=_times)


@dataclass
class _Late:
    """Sums that a rank has entered last, or waits for it."""

    count: int = 0
    seconds: float = 0.0
    times: deque[float] = field(default_factory=_times)


class Counter(Instrument):
    """Counts from its addition on; `metrics` returns the counts as plain values."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self._size = rank, size
        self._since = concurrency.perf_counter()
        self._verbs: dict[str, _Verb] = {}
        self._buckets: dict[int | None, _Bucket] = {}
        self._in_flight: dict[int, Launch] = {}
        self._completed: tuple[int, _Bucket] = (0, _Bucket())
        self._late: dict[int, _Late] = {}
        self._sums = 0
        self._blocked: dict[int, _Late] = {}
        self._packed_bytes = self._unpacked_bytes = 0
        self._update_seconds = self._blocked_seconds = 0.0

    # Events

    def verb(self, name: str, seconds: float) -> None:
        verb = self._verbs.setdefault(name, _Verb())
        verb.calls += 1
        verb.seconds += seconds

    def packed(self, bucket: int, keys: Collection[Any], nbytes: int, seconds: float) -> None:
        self._packed_bytes += nbytes

    def unpacked(self, bucket: int | None, nbytes: int, seconds: float) -> None:
        self._unpacked_bytes += nbytes

    def updated(self, label: str, seconds: float) -> None:
        self._update_seconds += seconds

    def launched(self, launch: Launch) -> None:
        bucket = self._buckets.setdefault(launch.bucket, _Bucket())
        bucket.launches += 1
        bucket.wire_bytes += launch.wire
        self._in_flight[launch.seq] = launch
        if len(self._in_flight) > _MOST_TIMES:  # of captured steps, which complete no collective
            del self._in_flight[next(iter(self._in_flight))]

    def waited(self, seq: int, seconds: float) -> None:
        launch = self._in_flight.get(seq)
        if launch is not None:
            self._buckets[launch.bucket].waited_seconds += seconds

    def completed(self, seq: int, seconds: float) -> None:
        launch = self._in_flight.pop(seq, None)
        if launch is None:
            return
        bucket = self._buckets[launch.bucket]
        self._completed = seq, bucket
        bucket.completed += 1
        bucket.nbytes += launch.nbytes
        bucket.seconds += seconds
        bucket.times.append(seconds)
        factor = _BUS_FACTORS.get(launch.kind)
        others = 1.0 if factor is None else factor * (self._size - 1) / self._size
        bucket.bus_bytes += launch.nbytes * others

    def device(self, seq: int, begin: float, seconds: float) -> None:
        self.completed(seq, seconds)

    def late(self, seq: int, rank: int, seconds: float) -> None:
        self._sums += 1
        _add(self._late, rank, seconds)
        completed, bucket = self._completed
        if completed == seq:  # emitted just before
            bucket.skews.append(seconds)

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        self._blocked_seconds += seconds
        for rank in ranks:
            _add(self._blocked, rank, seconds)

    # Results

    def metrics(self) -> dict[str, Any]:
        """Return the counts; see `KVStore.metrics`."""
        # A copy of each table: another thread may read while the store's thread counts.
        buckets = sorted(self._buckets.copy().items(), key=_index)
        late, blocked = self._late.copy(), self._blocked.copy()
        return {
            "rank": self.rank,
            "ranks": self._size,
            "seconds": concurrency.perf_counter() - self._since,
            "verbs": {
                name: {"calls": each.calls, "seconds": each.seconds}
                for name, each in self._verbs.copy().items()
            },
            "pushed_bytes": self._packed_bytes,
            "pulled_bytes": self._unpacked_bytes,
            "update_seconds": self._update_seconds,
            "waited_seconds": self._blocked_seconds,
            "buckets": {
                "one-off" if bucket is None else str(bucket): _of_bucket(each)
                for bucket, each in buckets
            },
            "last": {
                "sums": self._sums,
                "ranks": {str(rank): _of_rank(late[rank]) for rank in sorted(late)},
            },
            "awaited": {str(rank): _of_rank(blocked[rank]) for rank in sorted(blocked)},
            "summary": _summary(late, self._sums),
        }


def _index(item: tuple[int | None, Any]) -> int:
    """Return an index to sort buckets by, arrays without keys first."""
    return -1 if item[0] is None else item[0]


def _summary(late: dict[int, _Late], sums: int) -> list[str]:
    """Return sentences about the ranks that were last, most often first."""
    return [
        f"rank {rank} was last to {100 * each.count / sums:.0f} % of {sums} sums, "
        f"median {1e3 * median(each.times.copy()):.3g} ms after the rank before"
        for rank, each in sorted(late.items(), key=lambda item: -item[1].count)
    ]


def _add(ranks: dict[int, _Late], rank: int, seconds: float) -> None:
    """Count a sum or a wait for a rank."""
    late = ranks.get(rank) or _Late()
    late.count += 1
    late.seconds += seconds
    late.times.append(seconds)
    ranks[rank] = late  # last: another thread reads no entry without a time


def _of_rank(late: _Late) -> dict[str, Any]:
    times = late.times.copy()
    return {
        "count": late.count,
        "seconds": late.seconds,
        "median_seconds": median(times),
        "most_seconds": max(times),
    }


def _of_bucket(bucket: _Bucket) -> dict[str, Any]:
    """Return the measurements of a bucket; the bandwidth includes the wait for late ranks."""
    busy = bucket.seconds
    return {
        "launches": bucket.launches,
        "completed": bucket.completed,
        "nbytes": bucket.nbytes,
        "wire_bytes": bucket.wire_bytes,
        "seconds": busy,
        "waited_seconds": bucket.waited_seconds,
        "median_seconds": median(bucket.times.copy()) if bucket.times else None,
        "median_skew_seconds": median(bucket.skews.copy()) if bucket.skews else None,
        "busbw_bytes_per_second": bucket.bus_bytes / busy if busy else None,
    }
