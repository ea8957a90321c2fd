"""Plan of a flush: the ranges to reduce, their order and labels, and the layout as a table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set

from ncclkv.table.bucket import Bucket, Range
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key


def spans(bucket: Bucket, keys: Set[Key]) -> list[Range]:
    """Return the ranges of a bucket that hold `keys` and no other key: one collective each."""
    if len(keys) == len(bucket.entries):
        return [(0, bucket.count)] if bucket.count else []
    return bucket.runs(keys)


def launch_order(priorities: Mapping[int, int]) -> list[int]:
    """Return bucket indices by priority, the highest first; ties in registry order."""
    return sorted(priorities, key=lambda index: (-priorities[index], index))


def label(bucket: Bucket, span: Range) -> str:
    """Return a text that names the keys of a range."""
    lows = bucket.lows
    first, last = bisect_left(lows, span[0]), bisect_left(lows, span[1]) - 1
    # An empty key begins where the next key does, which may be the end of the span.
    last = max(first, last)
    names = [repr(bucket.entries[number].key) for number in (first, last)]
    if first == last:
        return f"key {names[0]}"
    return f"keys {names[0]} to {names[1]} of bucket {bucket.index}"


def explain(
    buckets: Sequence[Bucket],
    waiting: Iterable[Key],
    owner: str,
    sizing: Sizing,
    measured: Sequence[float | None],
) -> str:
    """Return the layout as a text: a table with one line for each bucket, in launch order.

    Parameters
    ----------
    buckets : sequence of Bucket
    waiting : iterable of keys
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
    if names := ", ".join(map(repr, waiting)):
        lines.append(f"no bucket until the first push, grad_view or value: {names}")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    """Return seconds in milliseconds, or a dash for None."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f} ms"
