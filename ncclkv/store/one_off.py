"""One-off collectives: arrays that have no key, reduced over the ranks or gathered from them.

These calls use neither buckets nor flushes: pushes that wait stay where they are.  One collective
in place reduces all arrays of a dtype, and the result is copied to a new array or to `out`.
Arrays pass through memory of the communicator: it copies an array of other memory in chunks.  An
allgather without `out` receives straight into the new array.

The code of a call is a hash of its dtypes, shapes and op.  So ranks that give other arrays find the
difference by their digests, and no exchange precedes the collective.

Both verbs are refused inside ``group``, ``uneven``, ``capture`` and updaters.  In an uneven block
other ranks may have left, a capture allocates no memory, and an updater may run on the root alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ncclkv.arguments import check_known
from ncclkv.arrays.dtypes import DType
from ncclkv.arrays.memory import is_on_host
from ncclkv.arrays.number import is_number
from ncclkv.arrays.observed_writes import before_write, observed
from ncclkv.comm.base import Collective
from ncclkv.comm.types import OPS, Work
from ncclkv.engine.storage import Array
from ncclkv.errors import UsageError
from ncclkv.other_names import OTHER_OPS
from ncclkv.store import check
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import is_list
from ncclkv.store.one_off_memory import Kind, OneOffMemory, OneOffMemoryCache


class OneOff(Component):
    """Collectives of arrays without keys, through memory that the store keeps.

    A collective in memory of the communicator copies less than a collective of any other array.
    So arrays are packed into such memory, all arrays of a dtype side by side.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._cache = OneOffMemoryCache(context.comm)
        self._reducing = context.session.verb("allreduce")
        self._gathering = context.session.verb("allgather")

    # Verbs

    def reduce_over_ranks(self, x: Any, op: Any, out: Any) -> Any:
        """Return the reductions of arrays over all ranks, or write them to `out`; collective."""
        with self._reducing:
            with self._session.checks:
                if not isinstance(op, str):
                    raise UsageError(
                        f"allreduce: op is a {type(op).__name__}, and not a str, one of "
                        f"{', '.join(OPS)}; name the array for the result: out=..."
                    )
                check_known("allreduce: op", op, OPS, OTHER_OPS)
                given = self._given("allreduce", x, op)
                memory = self._cache.find(Kind("allreduce", op, given.forms))
                results = self._results("allreduce", given, (), out)
            self._record("allreduce", memory, given)
            reductions = zip(memory.collectives, memory.sizes, strict=True)
            _wait(self._reduce(memory, *reduction) for reduction in reductions)
            if out is not None:
                self._write(memory.slots, results, out)
                return None
            self._engine.kernels.unpack_all(memory.slots, results)
            return given.returned(map(self._as_given, given.items, results))

    def gather_from_ranks(self, x: Any, out: Any) -> Any:
        """Return all ranks' arrays, stacked in rank order, or write them to `out`; collective."""
        with self._gathering:
            with self._session.checks:
                given = self._given("allgather", x)
                results = self._results("allgather", given, (self._comm.size,), out)
                gathered = results if out is None else self._new(given, (self._comm.size,))
                memory = self._cache.find(Kind("allgather", "", given.forms))
            self._record("allgather", memory, given)
            flat = [array.reshape(-1) for array in gathered]
            _wait(map(partial(self._gather, memory), memory.slots, flat))
            if out is not None:
                self._write(flat, results, out)
                return None
            return given.returned(results)

    # Arguments

    def _given(self, verb: str, x: Any, op: str = "") -> Given:
        """Return the arrays to read; a Python scalar becomes an array of shape ().

        The average of Python ints is a float, as in Python's own division.
        """
        items = list(x) if is_list(x) else [x]
        if op == "avg":
            items = [float(item) if type(item) is int else item for item in items]
        if not items:
            raise UsageError(f"{verb} was given an empty list; give at least one array")
        kernels = self._engine.kernels
        views = [
            check.first_value(_named(verb, x, index), item, kernels)
            for index, item in enumerate(items)
        ]
        return Given(items, views, several=is_list(x))

    def _results(self, verb: str, given: Given, stacked: tuple[int, ...], out: Any) -> list[Array]:
        """Return the arrays for the results: new arrays, or those of `out`."""
        if out is None:
            return self._new(given, stacked)
        if is_list(out) != given.several or (given.several and len(out) != len(given.items)):
            raise UsageError(
                f"{verb}: out must have the form of the input, "
                f"{f'a list of {len(given.items)} arrays' if given.several else 'one array'}"
            )
        outs = []
        for index, array in enumerate(out if given.several else [out]):
            what, view = _named(verb, out, index), given.views[index]
            outs.append(check.result_out(what, array, view.dtype, self._engine.kernels))
            check.check_shape(what, "the result", (*stacked, *view.shape), outs[-1])
            if self._engine.layout.bucket_of(outs[-1]) is not None:
                raise UsageError(
                    f"{what}: out is a view of a value or a gradient in the store; pass another "
                    f"array"
                )
        check.check_apart(verb, outs)
        return outs

    def _new(self, given: Given, stacked: tuple[int, ...]) -> list[Array]:
        """Return new arrays for the results."""
        empty = self._engine.kernels.empty
        return [empty((*stacked, *view.shape), view.dtype) for view in given.views]

    # The call

    def _record(self, verb: str, memory: OneOffMemory, given: Given) -> None:
        """Record the call, then copy its arrays to its memory."""
        self._calls.record(
            verb, logged=memory.logged, arguments=memory.arguments, items=memory.items
        )
        memory.table = self._engine.kernels.pack_all(given.views, memory.slots, memory.table)

    def _reduce(self, memory: OneOffMemory, collective: Collective, nbytes: int) -> Work:
        """Launch the reduction of all arrays of one dtype, in place."""
        return self._engine.events.launch(
            collective.launch, "allreduce", memory.label, nbytes, collective.wire_bytes
        )

    def _gather(self, memory: OneOffMemory, send: Array, receive: Array) -> Work:
        """Launch the gathering of one array of each rank."""
        start = partial(self._comm.allgather, send, receive)
        wire = receive.nbytes - send.nbytes
        return self._engine.events.launch(start, "allgather", memory.label, receive.nbytes, wire)

    def _write(self, sources: Sequence[Array], outs: Sequence[Array], out: Any) -> None:
        """Copy results to the arrays that the program gave."""
        before_write(observed(out))
        if not self._comm.blocks and any(map(is_on_host, outs)):
            # A copy to the host would wait for the device without a deadline: wait here first.
            self._comm.synchronize()
        self._engine.kernels.unpack_all(sources, outs)

    def _as_given(self, item: Any, result: Array) -> Any:
        """Return the result for an item: Python's or NumPy's scalar for a scalar, else an array.

        Arrays of shape () cannot be rounded, or formatted as f"{x:.3f}".
        """
        if is_number(item):
            return self._comm.to_host(result.reshape(1)).item()
        return self._comm.to_host(result.reshape(1))[0] if isinstance(item, np.generic) else result


class Given(NamedTuple):
    """The arrays of a call.

    Attributes
    ----------
    items : list
        Arrays and scalars, as the program gave them.
    views : list of ndarray
        The items as arrays to read.
    several : bool
        Whether the program gave a list.
    """

    items: list[Any]
    views: list[Array]
    several: bool

    @property
    def forms(self) -> tuple[tuple[DType, tuple[int, ...]], ...]:
        """The dtype and shape of each array, the same on all ranks."""
        return tuple((view.dtype, view.shape) for view in self.views)

    def returned(self, results: Any) -> Any:
        """Return the results in the form of the items: a list of them, or the only one."""
        return [*results] if self.several else next(iter(results))


def _named(verb: str, given: Any, index: int) -> str:
    """Return the begin of a message about an item of a call."""
    return f"{verb}: item {index} of the list" if is_list(given) else verb


def _wait(launches: Iterable[Work]) -> None:
    """Wait for collectives, after the launch of the last."""
    for work in [*launches]:
        work.wait()
