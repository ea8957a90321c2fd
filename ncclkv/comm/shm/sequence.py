"""The sequence table: the phase of every rank of a node in each collective.

Only the owner of a row writes it.  A rank first writes the data that others read, then its phase: a
rank that reads the phase also sees the data.  The order holds on x86, whose processors keep stores
and loads in order; other processors need fences, which Python does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns

import numpy as np

from ncclkv.arrays.memory import address
from ncclkv.comm.control import CallDigest
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch

RING = 1024
"""Collectives of a node that may be under way at once."""

NOTE_WORDS = 10
"""Words of a header: the digest, the arguments, and the time of arrival."""

_ARRIVAL = NOTE_WORDS - 1

NBYTES = RING * 8 * (1 + NOTE_WORDS)

_PHASES = 1 << 24

ENTERED = 1
"""The first phase of every collective: this rank's part can be read."""

DONE = _PHASES - 1
"""The last phase of every collective: this rank needs nothing of the others any more."""

FAILED = -1
"""Flag value of a failed collective."""


class PeerFlag(Request):
    """The flag of a peer, awaited until it reaches a value."""

    __slots__ = ("_flags", "_rank", "_slot", "_value", "peer")

    def __init__(self, rank: int, peer: int, flags: memoryview, slot: int, value: int) -> None:
        self.peer = peer
        self._rank = rank
        self._flags = flags
        self._slot = slot
        self._value = value

    def done(self) -> bool:
        reached: int = self._flags[self._slot]
        if reached == FAILED:
            raise OrderMismatch(
                f"rank {self._rank}: rank {self.peer} found that ranks made different calls"
            )
        return reached >= self._value

    def poll(self) -> bool:
        reached: int = self._flags[self._slot]
        return reached >= self._value or reached == FAILED


class SequenceTable:
    """The memory of the flags of all ranks of a node.

    Parameters
    ----------
    pages : sequence of ndarray, shape (NBYTES,)
        The memory of each rank's, zero at first.
    ranks : sequence of int
        Their ranks.
    index : int
        Which of them is this one.
    notify : callable
        Called after a flag was written, for those who sleep.

    Attributes
    ----------
    rank : int
    numbers, words : list of memoryview
        Every rank's flags, and the words of their notes.
    own, own_words : memoryview
        This rank's.
    others : list of memoryview
        The other ranks' flags.
    ranks : sequence of int
    peers : list of int
        The other ranks.
    notify : callable
    addresses : list of (int, int)
        Of every rank's flags and notes.
    digest : Mark
        As `Flight.digest`; of the turns that are taken next.
    """

    def __init__(
        self,
        pages: Sequence[Buffer],
        ranks: Sequence[int],
        index: int,
        notify: Callable[[], None],
    ) -> None:
        self.ranks = ranks
        self.rank = ranks[index]
        self.numbers = [page[: RING * 8].view(np.int64).data for page in pages]
        self.words = [page[RING * 8 : NBYTES].view(np.int64).data for page in pages]
        self.own, self.own_words = self.numbers[index], self.words[index]
        self.others = [each for each in self.numbers if each is not self.own]
        self.peers = [rank for rank in ranks if rank != self.rank]
        self.notify = notify
        self.addresses = [(address(page), address(page) + RING * 8) for page in pages]
        self.digest = CallDigest()
        self._count = 0

    def next_slot(self) -> CollectiveSlot:
        """Return the slot of the next collective; all ranks take slots in one order."""
        self._count += 1
        return CollectiveSlot(self, self._count)


class CollectiveSlot:
    """One collective, as this rank takes part in it.

    A phase is a number from 1 to `DONE` that only grows.

    Attributes
    ----------
    number : int
        Which collective of the node it is, from 1.
    digest : int
        What begins its note.
    """

    __slots__ = ("_base", "_flags", "_slot", "digest", "number")

    def __init__(self, flags: SequenceTable, number: int) -> None:
        self._flags = flags
        self.number = number
        self.digest = flags.digest.value
        self._base = number * _PHASES
        self._slot = number % RING

    # This rank

    def write_header(self, words: Sequence[int]) -> None:
        """Write the digest, `words` and the time for the others to read, before the first phase."""
        own, lo = self._flags.own_words, self._slot * NOTE_WORDS
        own[lo] = self.digest
        own[lo + _ARRIVAL] = monotonic_ns()
        for place, word in enumerate(words, lo + 1):
            own[place] = word

    def publish(self, phase: int) -> None:
        """Publish that this rank has reached a phase."""
        self._flags.own[self._slot] = self._base + phase
        self._flags.notify()

    def fail(self) -> None:
        """Publish that ranks have made different calls."""
        self._flags.own[self._slot] = FAILED
        self._flags.notify()

    # The others

    def headers(self) -> list[list[int]]:
        """Return the headers of all ranks but for times; all must have reached the first phase."""
        lo = self._slot * NOTE_WORDS
        return [words[lo : lo + _ARRIVAL].tolist() for words in self._flags.words]

    def arrivals(self) -> dict[int, float]:
        """Return the times of arrival, as `Work.arrivals`."""
        flags, place = self._flags, self._slot * NOTE_WORDS + _ARRIVAL
        times = {
            rank: words[place] / 1e9 for rank, words in zip(flags.ranks, flags.words, strict=True)
        }
        # Flags last: a flag of a later collective shows that the slot's words may be of that one.
        reached = [numbers[self._slot] - self._base for numbers in flags.numbers]
        return times if all(ENTERED <= phase <= DONE for phase in reached) else {}

    def headers_match(self, first: int, second: int) -> bool:
        """Return whether all headers begin with this rank's digest and these words."""
        lo, digest = self._slot * NOTE_WORDS, self.digest
        for words in self._flags.words:
            if words[lo] != digest or words[lo + 1] != first or words[lo + 2] != second:
                return False
        return True

    def all_reached(self, phase: int) -> bool:
        """Return whether all other ranks have reached a phase."""
        return self._met(self._base + phase)

    def stragglers(self, phase: int) -> list[Request]:
        """Return the other ranks that have not reached a phase."""
        return self._behind(self._base + phase)

    def waiting_for(self, rank: int, phase: int) -> list[Request]:
        """Return the flag of a rank, unless the rank has reached a phase."""
        return [each for each in self.stragglers(phase) if each.peer == rank]

    def is_over(self) -> bool:
        """Return whether all ranks are done, this one included."""
        value = self._base + DONE
        return self._flags.own[self._slot] >= value and self._met(value)

    def unfinished(self) -> list[Request]:
        """Return the ranks that are not done, this one included."""
        flags, value = self._flags, self._base + DONE
        here = PeerFlag(flags.rank, flags.rank, flags.own, self._slot, value)
        return [*([] if here.done() else [here]), *self._behind(value)]

    def meeting(
        self, before: CollectiveSlot | None
    ) -> tuple[int, int, int, int, int, int, int, int]:
        """The numbers of a first meeting, for `short_sum`.

        Returns
        -------
        place, note, entered, done : int
            Where the flags and the notes of this turn are, and the two that are written.
        free : int
            What the flags there have when the place is free.
        before, over : int
            A place, and what the flags there have when the turn `before` is over.
        digest : int
            What begins the note.
        """
        place, base = self._slot, self._base
        free = base - RING * _PHASES + DONE if self.number > RING else 0
        earlier = (place, 0) if before is None else (before._slot, before._base + DONE)
        meeting = place, place * NOTE_WORDS, base + ENTERED, base + DONE, free
        return *meeting, *earlier, self.digest

    # The collective that had this one's place before

    def is_free(self) -> bool:
        """Return whether all other ranks are done with it."""
        return self.number <= RING or self._met(self._base - RING * _PHASES + DONE)

    def free(self) -> list[Request]:
        """Return the ranks that are not done with it."""
        return [] if self.number <= RING else self._behind(self._base - RING * _PHASES + DONE)

    def _met(self, value: int) -> bool:
        """Return whether all other ranks have written at least `value`."""
        slot = self._slot
        for numbers in self._flags.others:  # noqa: SIM110  # a loop takes half as long as all()
            if numbers[slot] < value:
                return False
        return True

    def _behind(self, value: int) -> list[Request]:
        """Return the other ranks that have written less than `value`."""
        flags, slot = self._flags, self._slot
        return [
            PeerFlag(flags.rank, rank, numbers, slot, value)
            for rank, numbers in zip(flags.peers, flags.others, strict=True)
            if numbers[slot] < value
        ]
