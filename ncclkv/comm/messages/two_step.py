"""Two-step reductions: exchange parts, fold each share in one fixed order, and send the sums on.

Every rank owns a share of the elements: the owner receives its peers' parts of it, folds them in
the order given, and sends the result to the ranks that receive.  Each rank sends and receives twice
the array less one share, the least that an allreduce can do.  One rank alone folds an element, so
all ranks get the same bits.  A short array saves the second trip: every receiver folds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.types import Apply, Buffer

SHORT_BYTES = 16 * 1024
"""Up to here a second trip costs more than the bytes that it saves."""

Range = tuple[int, int]


def slices(count: int, size: int) -> list[Range]:
    """Return element ranges that cut ``[0, count)`` into `size` parts as equal as can be."""
    bounds = [count * rank // size for rank in range(size + 1)]
    return list(pairwise(bounds))


def reduce(
    channel: Channel,
    parts: Sequence[Buffer],
    order: Sequence[Sequence[int]],
    total: Buffer,
    op: str,
    apply: Apply | None = None,
    root: int | None = None,
) -> Steps:
    """Reduce the parts of all ranks of a channel onto one root, or onto all when it is None.

    Parameters
    ----------
    channel : Channel
    parts : sequence of ndarray, shape (n,)
        This rank's; `total` may be one of them.
    order : sequence of sequence of int
        For each rank, the positions of its parts in the fold.
    total : ndarray, shape (n,)
    op : str
    apply : callable, optional
        Called on the ranges of `total` as they arrive, at ranks that receive.
    root : int, optional
    """
    receives = root in (None, channel.rank)
    if total.nbytes <= SHORT_BYTES:
        whole = (0, total.size)
        ranks = range(channel.size)
        shares = [whole if root in (None, rank) else None for rank in ranks]
        yield from fold(channel, parts, order, shares, total, op)
        if receives and apply is not None:
            apply(*whole)
        return
    bounds = slices(total.size, channel.size)
    lo, hi = bounds[channel.rank]
    own = total[lo:hi]
    # A peer's share of `total` may be the memory that is being sent to it: the sums are received
    # only after all messages of the fold have left.
    yield from fold(channel, parts, order, bounds, own, op)
    if not receives:
        yield [channel.send(own, root)] if root is not None else []
        return
    arriving = [
        (peer, channel.receive(total[slice(*bounds[peer])], peer)) for peer in channel.peers
    ]
    leaving = [channel.send(own, peer) for peer in channel.peers] if root is None else []
    if apply is not None:
        apply(lo, hi)
    for peer, message in arriving:
        yield [message]
        if apply is not None:
            apply(*bounds[peer])
    yield leaving


def fold(
    channel: Channel,
    parts: Sequence[Buffer],
    order: Sequence[Sequence[int]],
    shares: Sequence[Range | None],
    out: Buffer,
    op: str,
) -> Steps:
    """Send each rank the parts of its share, and fold the parts of this rank's share into `out`.

    Parameters
    ----------
    shares : sequence of (int, int) or None
        The elements that each rank folds; None for a rank that folds nothing.
    """
    share = shares[channel.rank]
    rank, dtype = channel.rank, parts[0].dtype
    placed: dict[int, Buffer] = {}
    pending = []
    if share is not None:
        lo, hi = share
        placed.update(zip(order[rank], (part[lo:hi] for part in parts), strict=True))
        counts = [len(order[peer]) * (hi - lo) for peer in channel.peers]
        space = channel.scratch(sum(counts) * dtype.itemsize).view(dtype)
        stop = 0
        for peer, count in zip(channel.peers, counts, strict=True):
            start, stop = stop, stop + count
            rows = space[start:stop]
            pending.append(channel.receive(rows, peer))
            rows = rows.reshape(len(order[peer]), hi - lo)
            placed.update(zip(order[peer], rows, strict=True))
    for peer in channel.peers:
        wanted = shares[peer]
        if wanted is not None:
            pending.append(channel.send(_joined(parts, *wanted), peer))
    yield pending
    if share is not None:
        channel.kernels.reduce([placed[position] for position in sorted(placed)], out, op)


def _joined(parts: Sequence[Buffer], lo: int, hi: int) -> Buffer:
    """Return elements ``[lo, hi)`` of all parts in one array; without a copy of a single part."""
    if len(parts) == 1:
        return parts[0][lo:hi]
    return np.concatenate([part[lo:hi] for part in parts])
