"""`OwnParts`: the parts of values and optimizer states that this rank writes to a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from ncclkv.checkpoint import write
from ncclkv.checkpoint.files import Piece
from ncclkv.checkpoint.manifest import state_name, value_name
from ncclkv.checkpoint.tensors import Array
from ncclkv.comm.base import Communicator
from ncclkv.store.context import Component
from ncclkv.table.registry import KeySpec


class OwnParts(Component):
    """Makes the arrays that this rank writes, if every rank updates a part of each bucket.

    A rank writes the elements that it updates, of the values and of the states.  The leader also
    writes the arrays without elements, and the keys without a bucket, which all ranks have.
    """

    def arrays(self, *, values: bool) -> Iterator[tuple[str | Piece, Array]]:
        """Yield this rank's tensors and pieces, in host memory, each made when it is needed.

        Parameters
        ----------
        values : bool
            Whether the keys' values are written, beside the states.
        """
        layout = self._engine.layout
        leads = self._comm.rank == self._engine.placement.leader
        for spec in layout.registry:
            if spec.key not in layout:
                if leads and values:
                    value = self._engine.current(spec.key)
                    yield value_name(spec.index), self._comm.to_host(value).reshape(spec.shape)
                continue
            slot = layout[spec.key]
            first, end = slot.state.part(slot.state.to)
            lo = min(max(first - slot.entry.lo, 0), spec.size)
            hi = min(max(end - slot.entry.lo, 0), spec.size)
            if lo == hi and not (leads and spec.size == 0):
                continue
            if values:
                tensor = value_name(spec.index)
                yield from pieces(self._comm, spec, tensor, slot.weight[lo:hi], lo)
            for name, state in self._engine.rule_of(slot).states(slot).items():
                tensor = state_name(spec.index, name)
                yield from pieces(self._comm, spec, tensor, state, lo)


def pieces(
    comm: Communicator, spec: KeySpec, tensor: str, own: Array, lo: int = 0
) -> Iterator[tuple[str | Piece, Array]]:
    """Yield elements of a key's tensor from `lo` on: all of them, or pieces of a file's size."""
    if own.size == spec.size and own.nbytes <= write.FILE_BYTES:
        yield tensor, comm.to_host(own).reshape(spec.shape)
        return
    count = max(1, write.FILE_BYTES // own.dtype.itemsize)
    for start in range(0, own.size, count):
        piece = comm.to_host(own[start : start + count])
        yield Piece(tensor, lo + start, lo + start + piece.size), piece
