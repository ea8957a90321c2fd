"""Memory of collectives without keys: kept for the next call of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ncclkv.arrays.dtypes import DType, dtype_name
from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.diagnosis import item_lists
from ncclkv.comm.diagnosis.call_ring import LoggedKeys
from ncclkv.engine.storage import Array
from ncclkv.store import check
from ncclkv.table import contract

BYTES = 64 * 1024 * 1024
"""Limit of the memory that a store keeps for such calls; a longer call takes memory of its own."""

_CALL_BYTES = 4096
"""Estimate of the memory of a kept call, besides its arrays."""

_MAX_SHOWN = 3


class Kind(NamedTuple):
    """The arguments of a call, which must be the same on all ranks.

    Attributes
    ----------
    verb : str
    op : str
        "" without a reduction.
    forms : tuple of (dtype, shape)
        One for each array.
    """

    verb: str
    op: str
    forms: tuple[tuple[DType, tuple[int, ...]], ...]

    def describe(self, shown: int) -> str:
        """Return a text of the arguments, with the first `shown` arrays and the bytes of all.

        Examples
        --------
        >>> import numpy as np
        >>> Kind("allreduce", "max", ((np.dtype("f4"), (2, 3)),) * 2).describe(1)
        "float32 (2, 3), ... 2 arrays, 48 bytes, op='max'"
        """
        arrays = [_described(form) for form in self.forms[:shown]]
        more = []
        if len(self.forms) > shown:
            # Calls that differ in an array that is not shown get different texts.
            nbytes = sum(dtype.itemsize * prod(shape) for dtype, shape in self.forms)
            more = [f"... {len(self.forms)} arrays, {nbytes} bytes"]
        op = [f"op={self.op!r}"] if self.op else []
        return ", ".join([*arrays, *more, *op])


def _described(form: tuple[DType, tuple[int, ...]]) -> str:
    """Return dtype and shape of an array."""
    dtype, shape = form
    return f"{dtype_name(dtype)} {shape}"


class OneOffMemory:
    """Memory of the communicator for the calls of one kind.

    Attributes
    ----------
    slots : list of ndarray
        A flat array for each array of a call, in their order.  Slots of one dtype lie side by side.
    collectives : list of Collective
        The reductions of all slots, one for each dtype, in place; empty without a reduction.
    sizes : list of int
        The bytes of each dtype.
    arguments : str
        A short text of the arguments.
    items : str
        The dtypes and shapes of all arrays, as `ncclkv.comm.diagnosis.item_lists` writes them.
    label : str
        Name of the collectives, for errors.
    logged : LoggedKeys
        The arguments as the log of calls has them.
    table : Any
        Result of the last packing, for the next.
    """

    def __init__(self, comm: Communicator, kind: Kind) -> None:
        self.collectives: list[Collective] = []
        self.sizes: list[int] = []
        self.arguments = kind.describe(_MAX_SHOWN)
        self.items = item_lists.write(map(_described, kind.forms))
        self.label = f"{kind.verb}({self.arguments})"
        slots: dict[int, Array] = {}
        for dtype in dict.fromkeys(dtype for dtype, _ in kind.forms):
            if kind.op:
                check.reducible(comm, kind.op, dtype, kind.verb)
            sizes = {n: prod(shape) for n, (own, shape) in enumerate(kind.forms) if own == dtype}
            memory = comm.allocate(sum(sizes.values()) * dtype.itemsize).view(dtype)
            stop = 0
            for index, size in sizes.items():
                start, stop = stop, stop + size
                slots[index] = memory[start:stop]
            self.sizes.append(memory.nbytes)
            if kind.op:
                self.collectives.append(comm.reduction(memory, memory, kind.op))
                self.collectives[-1].label = self.label
        self.slots: Sequence[Array] = [slots[index] for index in range(len(slots))]
        # The code has all arrays, the text of a long list the first ones.
        self.logged = LoggedKeys(contract.text_code(kind.describe(len(kind.forms))))
        self.table: Any = None

    @property
    def nbytes(self) -> int:
        """The bytes that a cache counts for this object."""
        return sum(self.sizes) + _CALL_BYTES


class OneOffMemoryCache:
    """The memory of the last kinds of calls, at most `BYTES`."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kept: dict[Kind, OneOffMemory] = {}
        self._bytes = 0

    def find(self, kind: Kind) -> OneOffMemory:
        """Return the memory of an earlier call of this kind, or new memory."""
        found = self._kept.pop(kind, None)
        if found is None:
            found = OneOffMemory(self._comm, kind)
            if found.nbytes > BYTES:
                return found
            self._bytes += found.nbytes
        self._kept[kind] = found  # at the end: the first is the oldest
        while self._bytes > BYTES and len(self._kept) > 1:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.nbytes
        return found
