"""Values that must be the same on all ranks: compared now and then, and mended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.engine import votes
from ncclkv.engine.batch import Pull
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.engine import Engine
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.engine.votes import Checksums, Difference
from ncclkv.errors import Divergence
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")


class Verify:
    """Compares what ranks hold, and have pulled, after every so many calls that flush and read.

    Sums of bits are compared, key by key.  A value that all ranks have in common, as on one node,
    has no other to be compared with; what each has pulled of it has.

    Parameters
    ----------
    engine : Engine
    comm : Communicator
    every : int
        How many calls are one comparison.
    root : int
        Whose values are given to all, and which of two camps of ranks is right.
    repair : bool
        Whether they are, instead of raising `Divergence`.

    Attributes
    ----------
    repaired : int
        Values given anew so far.
    """

    def __init__(
        self, engine: Engine, comm: Communicator, every: int, root: int, *, repair: bool
    ) -> None:
        self._engine = engine
        self._comm = comm
        self._every = every
        self._root = root
        self._repair = repair
        self._calls = 0
        self.repaired = 0

    def pulled(self, pull: Pull, row: Sequence[Array]) -> None:
        """Count a pull into the arrays of a row, and compare its keys when it is time.

        Parameters
        ----------
        pull : Pull
        row : sequence of ndarray
            Written already.

        Raises
        ------
        Divergence
            On every rank, when ranks differ and nothing is to be repaired.  Its cause is what an
            updater raised just before on this rank, if one did.
        """
        if pull.keys and self._due():
            keys = list(dict.fromkeys(pull.keys))
            found = self._compare(keys, self._outs(pull, row))
            if found:
                self._engine.read(pull, row)

    def settled(self, keys: Sequence[Key] | None = None) -> None:
        """Count a call that has settled keys, or all; compare them as `pulled` does."""
        if self._due():
            known = [spec.key for spec in self._engine.layout.registry]
            self._compare(known if keys is None else list(dict.fromkeys(keys)), [])

    def _due(self) -> bool:
        """Whether the call that is made is one to compare after."""
        self._calls += 1
        return self._calls % self._every == 0

    def _outs(self, pull: Pull, row: Sequence[Array]) -> list[tuple[Key, Array]]:
        """The arrays that a pull has written, with their keys: of one given twice, the last's."""
        return [(pull.keys[number], row[number]) for part in pull.parts for number in part.indices]

    def _compare(self, keys: Sequence[Key], outs: Sequence[tuple[Key, Array]]) -> list[Difference]:
        """The differences between ranks, which are mended when this returns."""
        mine = self._vote(keys, outs)
        said = self._comm.control.allgather(mine, "checksums of values")
        found = votes.differences(said, keys, self._root)
        if not found:
            return found
        text = f"{self._where()}values differ: {votes.in_words(found, self._comm.size)}; "
        if not self._repair:
            raise Divergence(
                f"{text}look for a rank that writes to its values, or whose updater does other "
                f"than the others', or let create(..., repair=True) give all ranks rank "
                f"{self._root}'s"
            ) from self._engine.pop_error()
        self._mend([each.key for each in found if each.held])
        self.repaired += len(found)
        if self._comm.rank == 0:
            _log.warning("%sall ranks now have rank %d's%s", text, self._root, self._except())
        return found

    def _where(self) -> str:
        """The begin of a message."""
        flushes = "1 flush" if self._calls == 1 else f"{self._calls} flushes"
        return f"rank {self._comm.rank} of {self._comm.size}: after {flushes} "

    def _except(self) -> str:
        """What is not mended, in words."""
        if isinstance(self._engine.rule, FunctionRule):
            return f", but for what the updater {self._engine.rule.name} remembers"
        return ""

    def _vote(self, keys: Sequence[Key], outs: Sequence[tuple[Key, Array]]) -> Checksums:
        """What this rank has to say of some keys."""
        vote = votes.blank(len(keys))
        own = [number for number, key in enumerate(keys) if not self._in_common(key)]
        held = [self._engine.current(keys[number]) for number in own]
        sums = self._sums([*held, *(out for _, out in outs)])
        vote.sums[votes.HELD, own] = sums[: len(own)]
        vote.counts[votes.HELD, own] = True
        if not outs:
            return vote
        place = {key: number for number, key in enumerate(keys)}
        registry = self._engine.layout.registry
        numbers = [place[key] for key, _ in outs]
        cast = [place[key] for key, out in outs if out.dtype != registry[key].dtype]
        vote.sums[votes.LEAST] = np.iinfo(np.uint64).max
        np.minimum.at(vote.sums[votes.LEAST], numbers, sums[len(own) :])
        np.maximum.at(vote.sums[votes.GREATEST], numbers, sums[len(own) :])
        vote.counts[votes.PULLED, numbers] = True
        vote.counts[votes.PULLED, cast] = False
        return vote

    def _in_common(self, key: Key) -> bool:
        """Whether all ranks have one copy of a value."""
        layout = self._engine.layout
        one_node = self._comm.local_size == self._comm.size
        return one_node and key in layout and layout[key].state.node_shared

    def _sums(self, arrays: Sequence[Array]) -> Array:
        """The checksums of arrays, on the host."""
        kernels = self._engine.kernels
        sums = kernels.checksums(arrays)
        on_host = np.empty(len(arrays), np.uint64)
        # Where the host waits for a GPU there are the deadline and NCCL's errors looked at.
        self._comm.synchronize()
        kernels.unpack(sums, on_host)
        return on_host

    def _mend(self, keys: Sequence[Key]) -> None:
        """Give all ranks the root's values of keys, and what an optimizer remembers of them."""
        works = []
        for key in keys:
            for array in self._replicas(key):
                work = self._comm.broadcast(array, self._root)
                work.label = f"the value of key {key!r}, to be alike on all ranks"
                works.append(work)
        for work in works:
            work.wait()

    def _replicas(self, key: Key) -> list[Array]:
        """All that each rank has of a key, flat."""
        layout = self._engine.layout
        if key not in layout:
            return [layout.pending(key).reshape(-1)]
        slot = layout[key]
        if self._engine.placement.root is not None:
            return [slot.weight]
        return [slot.weight, *self._engine.rule.states(slot).values()]
