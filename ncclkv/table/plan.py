"""Plan of a flush: the ranges to reduce, their order and labels, and the layout as a table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate

from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.cost import Sizing
from ncclkv.table.key_names import listed
from ncclkv.table.registry import Key


def ranges(bucket: Bucket, keys: Set[Key]) -> list[Range]:
    """Return the ranges of a bucket that hold `keys` and no other key: one collective each."""
    if len(keys) == len(bucket.entries):
        return [(0, bucket.count)] if bucket.count else []
    return bucket.ranges(keys)


def divide(buckets: Iterable[Bucket], loads: list[int]) -> list[list[int]]:
    """Divide the keys of buckets between ranks, so that all ranks have about as many bytes.

    The keys of a rank are neighbours in each bucket.  The bounds of a bucket depend on the buckets
    before it alone, so a key keeps its rank when others are added.

    Parameters
    ----------
    buckets : iterable of Bucket
    loads : list of int
        The bytes of each rank's keys in earlier buckets; those of these buckets are added.

    Returns
    -------
    list of list of int
        For each bucket the bounds of the ranks' elements: rank r has elements ``[bounds[r],
        bounds[r + 1])``.
    """
    return [_bounds(bucket, loads) for bucket in buckets]


def _bounds(bucket: Bucket, loads: list[int]) -> list[int]:
    """Return the bounds of the ranks' keys, and add the bytes of the keys to the ranks' `loads`."""
    sizes = [entry.spec.nbytes for entry in bucket.entries]
    ends = [*accumulate(_rooms(loads, sum(sizes)))]
    owners: list[int] = []
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        # A key goes to the rank in whose room its middle lies; alone, to the rank with most room.
        owner = min(bisect_right(ends, end - size + size // 2), len(loads) - 1)
        if len(sizes) == 1:
            owner = loads.index(min(loads))
        loads[owner] += size
        owners.append(owner)
    lows = [*bucket.lows, bucket.count]
    firsts = [lows[bisect_left(owners, rank)] for rank in range(1, len(loads))]
    return [0, *firsts, bucket.count]


def _rooms(loads: Sequence[int], nbytes: int) -> list[int]:
    """Return the bytes that each rank may add, so that `nbytes` more level the loads."""
    level = held = 0
    for index, load in enumerate(sorted(loads)):
        if index and load >= level:
            break
        held += load
        level = -(-(nbytes + held) // (index + 1))
    return [max(0, level - load) for load in loads]


def launch_order(priorities: Mapping[int, int]) -> list[int]:
    """Return bucket indices by priority, the highest first; ties in registry order."""
    return sorted(priorities, key=lambda index: (-priorities[index], index))


def label(bucket: Bucket, span: Range) -> str:
    """Return a text that names the keys of a range."""
    lows = bucket.lows
    first, last = bisect_left(lows, span[0]), bisect_left(lows, span[1]) - 1
    # An empty key begins where the next key does, which may be the end of the span.
    last = max(first, last)
    names = [repr(bucket.entries[index].key) for index in (first, last)]
    if first == last:
        return f"key {names[0]}"
    return f"keys {names[0]} to {names[1]} of bucket {bucket.index}"


def entries_in(bucket: Bucket, within: Iterable[Range]) -> list[Entry]:
    """Return the entries whose elements lie in the ranges of a bucket."""
    lows, entries = bucket.lows, bucket.entries
    bounds = [(bisect_left(lows, lo), bisect_left(lows, hi)) for lo, hi in within]
    return [entry for first, end in bounds for entry in entries[first:end]]


def explain(
    buckets: Sequence[Bucket],
    waiting: Sequence[Key],
    owner: str,
    sizing: Sizing,
    measured: Sequence[float | None],
) -> str:
    """Return the layout as a text: a table with one line for each bucket, in launch order.

    Parameters
    ----------
    buckets : sequence of Bucket
    waiting : sequence of keys
        Keys that have no bucket yet.
    owner : str
        The ranks that update.
    sizing : Sizing
    measured : sequence of float or None
        Seconds of each bucket's collectives; None for a bucket that was never timed.
    """
    lines = [
        "bucket  dtype       op         bytes  keys  owner          predicted      measured  holds"
    ]
    for bucket, seconds in zip(buckets, measured, strict=True):
        keys = [repr(entry.key) for entry in bucket.entries]
        holds = keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
        predicted = None if sizing.cost is None else sizing.cost.seconds(bucket.nbytes)
        lines.append(
            f"{bucket.index:6}  {bucket.dtype!s:10}  {bucket.op:3}  {bucket.nbytes:11}  "
            f"{len(keys):4}  {owner:10}  {_ms(predicted):>12}  {_ms(seconds):>12}  {holds}"
        )
    lines.append(str(sizing))
    if waiting:
        lines.append(f"no bucket until the first push, grad_view or value: {listed(waiting)}")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    """Return seconds in milliseconds, or a dash for None."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f} ms"
