"""`NormUpdates`: updates in two passes, for optimizers that need norms of whole keys.

The first pass measures: it adds squares in float64, range by range as the sums of gradients arrive.
At a flush the ranks add their measurements, and the second pass updates.  Between both passes the
gradients stay in the bucket.  The norm of all gradients is measured at the flush: the sums of
several buckets arrive in any order, and no bit depends on this order.

A rank measures the elements that it updates.  If all ranks update all elements, each rank measures
whole ranges after the reduction, in one order, and needs no other rank.  So all ranks have the same
bits in either case.  Where squares and sums are exact in float64, they are the same at every
placement and count of ranks.  Otherwise they differ in the last bits of float64.

LARS and LAMB adapt the learning rate of a key to norms of all its elements; ``clip_global_norm``
scales all gradients by their common norm.  The program's header has the terms to be squared
beside its step (`ncclkv.kernels.programs`), and LAMB updates its states in the first pass.  All
additions are in one order (`ncclkv.kernels.host.measure`), so NumPy, C and CUDA make the same bits.

If each rank updates a part of a bucket, one small allreduce adds the sums of the ranks.  On several
nodes that share weights each node has measured all elements, and the node of rank 0 counts.  In the
second pass the kernels read the sums beside the rows of scalars, and derive rate and scale in
float64.  A GPU reads both from its memory, so the host does not wait.  If ranks share weights, a
barrier follows: no rank reads before all have written.  A captured step contains both passes, and a
replay begins and ends with sums of 0.

Small integers have exact squares and sums.  Other sums differ in their last bits; a rate in float32
nearly always rounds this difference away.  Weights in float64 then differ by a relative 1e-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Apply
from ncclkv.engine.reduction import Span
from ncclkv.engine.storage import Array, StoredBucket
from ncclkv.kernels.base import Kernels, Measured, Segments
from ncclkv.kernels.programs import PROGRAMS
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.scalar_rows import ScalarRows
from ncclkv.table.bucket import Range

_FLOAT64 = np.dtype(np.float64)

_MAX_SEGMENTS = 4096

_CLIPPED = "squares"
"""Program that measures all gradients of a flush."""

_ROW = np.array([[0.0, 1.0, -1.0]])
"""Row of scalars of that program."""


@dataclass(eq=False)
class NormLaunch:
    """A launched reduction whose update waits for norms.

    Attributes
    ----------
    state : StoredBucket
    spans : sequence of Span
        The ranges that are reduced.
    first : int
        The element of the bucket from which `ranges` and `rows` count.
    arrays : tuple
        Weights, gradients and states, as `Kernels.update` takes them.
    rows : ScalarRows
        A row of scalars for each key.
    kernels : Kernels
    skip, master : ndarray or None
        As `Kernels.update` takes them.
    ranges : list of (int, int)
        Elements that this rank updates, as far as their sums have arrived.
    """

    state: StoredBucket
    spans: Sequence[Span]
    first: int
    arrays: tuple[Array, Array, Sequence[Array]]
    rows: ScalarRows
    kernels: Kernels
    skip: Array | None
    master: Array | None
    ranges: list[Range] = field(default_factory=list)

    @property
    def divided(self) -> bool:
        """Return whether this rank updates and measures only a part of the elements."""
        return self.state.node_shared or self.state.to.divided

    def merged(self) -> list[Range]:
        """Return the ranges in order; adjacent ranges are joined."""
        found: list[Range] = []
        for lo, hi in sorted(self.ranges):
            if found and found[-1][1] == lo:
                lo = found.pop()[0]
            found.append((lo, hi))
        return found


class NormUpdates:
    """The updates of one optimizer that wait for norms.

    Parameters
    ----------
    optimizer : Optimizer
    kernels : Kernels
        Kernels of the store, which allocate.
    """

    def __init__(self, optimizer: Optimizer, kernels: Kernels) -> None:
        self.clips = optimizer.clip_global_norm is not None
        self._program = PROGRAMS[optimizer.program]
        self._kernels = kernels
        # The sum of all squares of a flush, and the bound of its root.  All sums are 0 between two
        # flushes: a captured step begins and ends so, too.
        self._total = kernels.zeros(2, _FLOAT64)
        self._row = kernels.zeros(_ROW.size, _FLOAT64).reshape(_ROW.shape)
        kernels.pack(_ROW, self._row.reshape(-1))
        self._sums: dict[int, Array] = {}
        self._scratch: dict[int, Array] = {}
        self._segments: dict[Range, Segments] = {}

    # The first pass

    def target(self, launch: NormLaunch) -> list[tuple[Array, Apply | None]]:
        """Return what `Rule.target` returns, for a launch whose update `finish` makes."""
        state = launch.state
        if state.bucket.index not in self._sums:
            self._allocate(state)
        state.defer(launch)
        if not launch.divided:
            launch.ranges = [
                (span.lo - launch.first, span.hi - launch.first) for span in launch.spans
            ]
            return [(span.gradients, None) for span in launch.spans]
        return [(span.gradients, self._measuring(launch, span)) for span in launch.spans]

    def _allocate(self, state: StoredBucket) -> None:
        """Allocate the sums of a bucket's keys."""
        bucket, norms = state.bucket, self._program.norms
        count, keys = 2 * bucket.count, len(bucket.entries)  # a complex element is two real ones
        columns = 0 if norms is None else norms.sums
        self._sums[bucket.index] = self._kernels.zeros(keys * columns, _FLOAT64).reshape(
            keys, columns
        )
        self._scratch[bucket.index] = self._kernels.measure_scratch(count, keys)

    def _measuring(self, launch: NormLaunch, span: Span) -> Apply:
        """Return a function that measures the ranges of a span when their sums arrive."""
        start = span.lo - launch.first

        def apply(lo: int, hi: int) -> None:
            launch.ranges.append((start + lo, start + hi))
            # The sums of several buckets arrive in any order, so their total waits for all.
            if not self.clips:
                self._measure(launch, start + lo, start + hi)

        return apply

    def _measure_gradients(self, launch: NormLaunch, lo: int, hi: int) -> None:
        """Add the squares of a range's gradients to the total."""
        bucket = launch.state.bucket
        width = 2 if bucket.dtype.kind == "c" else 1
        bounds = lo * width, hi * width
        segments = self._segments.get(bounds)
        if segments is None:
            if len(self._segments) == _MAX_SEGMENTS:
                self._segments.clear()
            segments = self._segments[bounds] = Segments(np.array(bounds))
        weights, gradients, _ = launch.arrays
        arrays = weights, gradients, (), self._row, segments, self._total[:1].reshape(1, 1)
        scratch = self._scratch[bucket.index]
        launch.kernels.measure(_CLIPPED, *arrays, scratch, launch.skip)

    def _measure(self, launch: NormLaunch, lo: int, hi: int) -> None:
        """Add the squares of a range's keys to the sums of its bucket."""
        index = launch.state.bucket.index
        segments, first, last = launch.rows.layout.cut(lo, hi)
        _, scalars = launch.rows.cut(launch.kernels, lo, hi)
        arrays = *launch.arrays, scalars, segments, self._sums[index][first:last]
        total = Measured(total=self._total) if self.clips else None
        scratch = self._scratch[index]
        launch.kernels.measure(
            self._program.name, *arrays, scratch, launch.skip, launch.master, total
        )

    # The second pass

    def finish(self, comm: Communicator, states: Sequence[StoredBucket]) -> None:
        """Update the keys of buckets whose reductions are complete; collective.

        With clipping by the global norm, `states` are all buckets of a flush.
        """
        waiting = [each for state in states for each in state.deferred]
        launches = [each for each in waiting if isinstance(each, NormLaunch)]
        if launches:
            # The stream of the first pass, too: rows that one stream allocates, it also frees.
            with comm.on_comm_stream():
                self._finish(comm, launches)
        for state in states:
            state.end_deferred()

    def _finish(self, comm: Communicator, launches: Sequence[NormLaunch]) -> None:
        """Complete the norms of launches, and update."""
        divided = [launch for launch in launches if launch.divided]
        if self.clips:
            self._complete_total(comm, launches, divided)
        if self._program.norms is not None:
            self._complete_sums(comm, launches, divided)
        for launch in launches:
            self._update(launch)
        self._clear_sums(launches)
        if not all(launch.state.to.divided for launch in divided):
            # The ranks of a node share the weights: no rank may read before all have written.
            work = comm.barrier()
            work.label = "the end of an update by norms"
            work.wait()

    def _complete_total(
        self, comm: Communicator, launches: Sequence[NormLaunch], divided: Sequence[NormLaunch]
    ) -> None:
        """Complete the sum of squares of all gradients, equal on all ranks."""
        kernels, total = launches[0].kernels, self._total[:1]
        for launch in launches:
            first = not _repeats(launch, comm) if launch.divided else comm.rank == 0 or not divided
            for lo, hi in launch.merged() if first else ():
                self._measure_gradients(launch, lo, hi)
        if divided and comm.size > 1:
            work = comm.allreduce(total, total)
            work.label = "the norm of all gradients"
            work.wait()
        if kernels is self._kernels:
            self.write(launches[-1].state.step)

    def write(self, step: Optimizer) -> None:
        """Write the bound of a step to the memory that updates read."""
        if self.clips:
            self._kernels.fill(self._total[1:], step.clip_global_norm or 0.0)

    def _complete_sums(
        self, comm: Communicator, launches: Sequence[NormLaunch], divided: Sequence[NormLaunch]
    ) -> None:
        """Complete the sums of squares of all keys, equal on all ranks."""
        for launch in launches:
            for lo, hi in launch.merged() if self.clips or not launch.divided else ():
                self._measure(launch, lo, hi)
        works = []
        for launch in {each.state.bucket.index: each for each in divided}.values():
            sums = self._sums[launch.state.bucket.index].reshape(-1)
            if _repeats(launch, comm):
                launch.kernels.fill(sums, 0)
            if comm.size > 1:
                work = comm.allreduce(sums, sums)
                work.label = f"the norms of bucket {launch.state.bucket.index}"
                works.append(work)
        for work in works:
            work.wait()

    def _update(self, launch: NormLaunch) -> None:
        """Update the ranges of a launch by the complete norms."""
        index, kernels = launch.state.bucket.index, launch.kernels
        total = self._total if self.clips else None
        for lo, hi in launch.merged():
            segments, first, last = launch.rows.layout.cut(lo, hi)
            _, scalars = launch.rows.cut(kernels, lo, hi)
            sums = None if self._program.norms is None else self._sums[index][first:last]
            arrays = *launch.arrays, scalars, segments, launch.skip, launch.master
            kernels.update(self._program.name, *arrays, Measured(sums, total))

    def _clear_sums(self, launches: Sequence[NormLaunch]) -> None:
        """Clear the sums that updates have read."""
        kernels = launches[0].kernels
        if self.clips:
            kernels.fill(self._total[:1], 0)
        if self._program.norms is not None:
            for index in {launch.state.bucket.index for launch in launches}:
                kernels.fill(self._sums[index], 0)


def _repeats(launch: NormLaunch, comm: Communicator) -> bool:
    """Return whether a rank of another node has measured the same elements."""
    return not comm.first_node and not launch.state.to.divided


def norm_updates(optimizer: Optimizer, kernels: Kernels) -> NormUpdates | None:
    """Return the updates of an optimizer, or None if it needs no norms."""
    if PROGRAMS[optimizer.program].norms is None and optimizer.clip_global_norm is None:
        return None
    return NormUpdates(optimizer, kernels)
