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


Flags = Sequence[tuple[int, memoryview]]
"""Ranks, each with its flags."""


class PeerFlags(Request):
    """The flags of some ranks, awaited until all of them reach a value: one request for all."""

    __slots__ = ("_flags", "_rank", "_slot", "_value")

    def __init__(self, rank: int, flags: Flags, slot: int, value: int) -> None:
        self._rank = rank
        self._flags = flags
        self._slot = slot
        self._value = value

    def done(self) -> bool:
        slot, value, done = self._slot, self._value, True
        for peer, flags in self._flags:
            if flags[slot] < value:
                done = False
                if flags[slot] == FAILED:
                    raise OrderMismatch(
                        f"rank {self._rank}: rank {peer} found that ranks made different calls"
                    )
        return done

    def poll(self) -> bool:
        slot, value = self._slot, self._value
        for _, flags in self._flags:  # noqa: SIM110  # a loop takes half as long as all()
            if FAILED < flags[slot] < value:
                return False
        return True

    def of(self, rank: int) -> PeerFlags:
        """Return the request of one of the ranks alone."""
        only = [each for each in self._flags if each[0] == rank]
        return PeerFlags(self._rank, only, self._slot, self._value)

    def awaited(self) -> list[int]:
        return [peer for peer, flags in self._flags if flags[self._slot] < self._value]


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
    others : list of (int, memoryview)
        The other ranks, each with its flags.
    ranks : sequence of int
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
        self.others = [
            (peer, flags)
            for peer, flags in zip(ranks, self.numbers, strict=True)
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

    def headers_match(self, expected: Sequence[Sequence[int]]) -> bool:
        """Return whether each rank's header has this rank's digest and the words expected of it."""
        lo, digest = self._slot * NOTE_WORDS, self.digest
        for words, known in zip(self._flags.words, expected, strict=True):
            if words[lo] != digest or words[lo + 1 : lo + 1 + len(known)].tolist() != known:
                return False
        return True

    def all_reached(self, phase: int) -> bool:
        """Return whether all other ranks have reached a phase."""
        return self._met(self._base + phase)

    def stragglers(self, phase: int) -> list[PeerFlags]:
        """Return a request that all other ranks reach a phase."""
        flags = self._flags
        return [PeerFlags(flags.rank, flags.others, self._slot, self._base + phase)]

    def waiting_for(self, rank: int, phase: int) -> list[PeerFlags]:
        """Return a request that one rank reaches a phase."""
        return [request.of(rank) for request in self.stragglers(phase)]

    def is_over(self) -> bool:
        """Return whether all ranks are done, this one included."""
        value = self._base + DONE
        return self._flags.own[self._slot] >= value and self._met(value)

    def unfinished(self) -> list[PeerFlags]:
        """Return a request that all ranks are done, this one included."""
        flags = self._flags
        everyone = [(flags.rank, flags.own), *flags.others]
        return [PeerFlags(flags.rank, everyone, self._slot, self._base + DONE)]

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

    def free(self) -> list[PeerFlags]:
        """Return a request that all other ranks are done with it."""
        return [] if self.number <= RING else self.stragglers(DONE - RING * _PHASES)

    def _met(self, value: int) -> bool:
        """Return whether all other ranks have written at least `value`."""
        slot = self._slot
        for _, flags in self._flags.others:  # noqa: SIM110  # a loop takes half as long as all()
            if flags[slot] < value:
                return False
        return True
