"""The sequence table: the phase of every rank of a node in each collective.

Only the owner of a row writes it.  A rank first writes the data that others read, then its phase: a
rank that reads the phase also sees the data.  The order holds on x86, whose processors keep stores
and loads in order; other processors need fences, which Python does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ncclkv import concurrency
from ncclkv.arrays.memory import address
from ncclkv.comm.control import CallDigest
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch

RING = 1024
"""Count of collectives of a node that may be in flight at once."""

HEADER_WORDS = 10
"""Words of the header of a collective: the digest, the arguments, and the time of arrival."""

_ARRIVAL = HEADER_WORDS - 1

NBYTES = RING * 8 * (1 + HEADER_WORDS)

_PHASES = 1 << 24

ENTERED = 1
"""First phase of every collective: the data of this rank can be read."""

DONE = _PHASES - 1
"""Last phase of every collective: this rank has finished its reads of the peers' data."""

FAILED = -1
"""Flag value of a failed collective."""


Flags = Sequence[tuple[int, memoryview]]
"""Ranks, each with its flags."""


class PeerFlags(Request):
    """The flags of some ranks, awaited until all of them reach a value: one request for all."""

    __slots__ = ("_flags", "_index", "_rank", "_value")

    def __init__(self, rank: int, flags: Flags, index: int, value: int) -> None:
        self._rank = rank
        self._flags = flags
        self._index = index
        self._value = value

    @concurrency.shared_step("flags: done")
    def done(self) -> bool:
        index, value, done = self._index, self._value, True
        for peer, flags in self._flags:
            if flags[index] < value:
                done = False
                if flags[index] == FAILED:
                    raise OrderMismatch(
                        f"rank {self._rank}: rank {peer} found that ranks made different calls",
                        ranks=[peer],
                    )
        return done

    @concurrency.shared_step("flags: poll")
    def poll(self) -> bool:
        index, value, reached = self._index, self._value, True
        for _, flags in self._flags:
            if flags[index] < value:
                reached = False
                if flags[index] == FAILED:
                    return True
        return reached

    def of(self, rank: int) -> PeerFlags:
        """Return a request that awaits only one of the ranks."""
        only = [each for each in self._flags if each[0] == rank]
        return PeerFlags(self._rank, only, self._index, self._value)

    @concurrency.shared_step("flags: awaited")
    def awaited(self) -> list[int]:
        return [peer for peer, flags in self._flags if flags[self._index] < self._value]


class SequenceTable:
    """The flags and headers of all ranks of a node.

    Parameters
    ----------
    pages : sequence of ndarray, shape (NBYTES,)
        The memory of each rank, zero at first.
    ranks : sequence of int
        The ranks of the node.
    index : int
        The index of this rank in `ranks`.
    notify : callable
        Called after a flag was written, to wake ranks that sleep.

    Attributes
    ----------
    ranks : sequence of int
    rank : int
    flags, headers : list of memoryview
        The flags and headers of every rank.
    local_flags, local_headers : memoryview
        Those of this rank.
    peers : list of (int, memoryview)
        The other ranks, each with its flags.
    notify : callable
    addresses : list of (int, int)
        The addresses of every rank's flags and headers.
    digest : CallDigest
        The digest that the next slots publish.
    """

    def __init__(
        self, pages: Sequence[Buffer], ranks: Sequence[int], index: int, notify: Callable[[], None]
    ) -> None:
        self.ranks = ranks
        self.rank = ranks[index]
        self.flags = [page[: RING * 8].view(np.int64).data for page in pages]
        self.headers = [page[RING * 8 : NBYTES].view(np.int64).data for page in pages]
        self.local_flags, self.local_headers = self.flags[index], self.headers[index]
        self.peers = [
            (peer, flags)
            for peer, flags in zip(ranks, self.flags, strict=True)
            if peer != self.rank
        ]
        self.notify = notify
        self.addresses = [(address(page), address(page) + RING * 8) for page in pages]
        self.digest = CallDigest()
        self._count = 0

    def next_slot(self) -> CollectiveSlot:
        """Return the slot of the next collective; all ranks take slots in one order."""
        self._count += 1
        return CollectiveSlot(self, self._count)


class CollectiveSlot:
    """One collective in the sequence table, as one rank sees it.

    A phase is an integer from 1 to `DONE` that only grows.

    Attributes
    ----------
    index : int
        The index of the collective on this node, from 1.
    digest : int
        The first word of this rank's header.
    """

    __slots__ = ("_base", "_position", "_table", "digest", "index")

    def __init__(self, table: SequenceTable, index: int) -> None:
        self._table = table
        self.index = index
        self.digest = table.digest.value
        self._base = index * _PHASES
        self._position = index % RING

    # This rank

    @concurrency.shared_step("slot: write header", writes=True)
    def write_header(self, words: Sequence[int]) -> None:
        """Write the digest, `words` and the time for the peers to read, before the first phase."""
        headers, lo = self._table.local_headers, self._position * HEADER_WORDS
        headers[lo] = self.digest
        headers[lo + _ARRIVAL] = concurrency.monotonic_ns()
        for position, word in enumerate(words, lo + 1):
            headers[position] = word

    @concurrency.shared_step("slot: write words", writes=True)
    def write_words(self, position: int, words: Sequence[int]) -> None:
        """Write words of the header that no peer reads any more, before the next phase."""
        headers = self._table.local_headers
        for place, word in enumerate(words, self._position * HEADER_WORDS + position):
            headers[place] = word

    @concurrency.shared_step("slot: publish", writes=True)
    def publish(self, phase: int) -> None:
        """Publish that this rank has reached a phase."""
        self._table.local_flags[self._position] = self._base + phase
        self._table.notify()

    @concurrency.shared_step("slot: fail", writes=True)
    def fail(self) -> None:
        """Publish that ranks have made different calls."""
        self._table.local_flags[self._position] = FAILED
        self._table.notify()

    # The peers

    @concurrency.shared_step("slot: read headers")
    def headers(self) -> list[list[int]]:
        """Return the headers of all ranks but for times; all must have reached the first phase."""
        lo = self._position * HEADER_WORDS
        return [words[lo : lo + _ARRIVAL].tolist() for words in self._table.headers]

    @concurrency.shared_step("slot: read arrivals")
    def arrivals(self) -> dict[int, float]:
        """Return the times of arrival, as `Work.arrivals`."""
        table, position = self._table, self._position * HEADER_WORDS + _ARRIVAL
        times = {
            rank: words[position] / 1e9
            for rank, words in zip(table.ranks, table.headers, strict=True)
        }
        concurrency.point("slot: arrivals before flags")
        # Flags last: a flag of a later collective shows that the slot's words may be of that one.
        reached = [flags[self._position] - self._base for flags in table.flags]
        return times if all(ENTERED <= phase <= DONE for phase in reached) else {}

    @concurrency.shared_step("slot: compare headers")
    def headers_match(self, expected: Sequence[Sequence[int]]) -> bool:
        """Return whether each rank's header has this rank's digest and the words expected of it."""
        lo, digest = self._position * HEADER_WORDS, self.digest
        for words, wanted in zip(self._table.headers, expected, strict=True):
            if words[lo] != digest or words[lo + 1 : lo + 1 + len(wanted)].tolist() != wanted:
                return False
        return True

    @concurrency.shared_step("slot: poll flags")
    def all_reached(self, phase: int) -> bool:
        """Return whether all other ranks have reached a phase."""
        position, value = self._position, self._base + phase
        for _, flags in self._table.peers:  # noqa: SIM110  # a loop takes half as long as all()
            if flags[position] < value:
                return False
        return True

    def stragglers(self, phase: int) -> list[PeerFlags]:
        """Return a request that all other ranks reach a phase."""
        table = self._table
        return [PeerFlags(table.rank, table.peers, self._position, self._base + phase)]

    def waiting_for(self, rank: int, phase: int) -> list[PeerFlags]:
        """Return a request that one rank reaches a phase."""
        return [request.of(rank) for request in self.stragglers(phase)]

    @concurrency.shared_step("slot: is complete")
    def is_complete(self) -> bool:
        """Return whether all ranks are done, this rank included."""
        done = self._base + DONE
        return self._table.local_flags[self._position] >= done and self.all_reached(DONE)

    def unfinished(self) -> list[PeerFlags]:
        """Return a request that all ranks are done, this rank included."""
        return self._of_all(DONE)

    def _of_all(self, phase: int) -> list[PeerFlags]:
        """Return a request that all ranks, this one included, reach a phase."""
        table = self._table
        everyone = [(table.rank, table.local_flags), *table.peers]
        return [PeerFlags(table.rank, everyone, self._position, self._base + phase)]

    # The collective that had this slot before

    @concurrency.shared_step("slot: is free")
    def is_free(self) -> bool:
        """Return whether all ranks are done with the collective that had this slot.

        This rank, too: its flag of a later collective tells the others that it is done before.
        """
        if self.index <= RING:
            return True
        done = DONE - RING * _PHASES
        return self._table.local_flags[self._position] >= self._base + done and self.all_reached(
            done
        )

    def until_free(self) -> list[PeerFlags]:
        """Return a request that all ranks are done with the collective that had this slot."""
        return [] if self.index <= RING else self._of_all(DONE - RING * _PHASES)
