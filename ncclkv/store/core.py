"""What a store is made of, and its life from creation to close."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, TypeVar

from ncclkv.arguments import check_length
from ncclkv.comm.base import Communicator
from ncclkv.engine.autotune import sizing
from ncclkv.engine.engine import Engine
from ncclkv.engine.group import Group
from ncclkv.engine.verify import Verify
from ncclkv.errors import KeyTypeMismatch, UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.store.agreement import propose
from ncclkv.store.call_cache import CallCache
from ncclkv.store.call_log import CallLog
from ncclkv.store.keys import one_key
from ncclkv.store.memory_check import MemoryCheck
from ncclkv.store.options import Options
from ncclkv.store.plugin import KVStoreBase
from ncclkv.store.session import BLOCKS, Session
from ncclkv.table.registry import Key, KeySpec
from ncclkv.typing import KeyLike

Self = TypeVar("Self", bound="Core")


class Core(KVStoreBase):
    """A store without its verbs: identity, life, and what can be asked locally."""

    def __init__(self, name: str, comm: Communicator, options: Options) -> None:
        chosen, _ = propose(
            comm, "create", lambda: (options.placement(comm), [f"name={name}", *options.items()])
        )
        self._name = name
        self._comm = comm
        if options.reproducible:
            comm.reproducible = True
        buckets = sizing(comm, chosen.root, options.bucket_bytes)
        self._engine = Engine(
            comm,
            comm.kernels,
            chosen,
            buckets,
            zeros=options.missing == "zeros",
            nonfinite=options.nonfinite,
        )
        self._session = Session(name, comm)
        self._headroom = MemoryCheck(comm, self._engine.layout, self._session.checks)
        # Made once, because these may be called once for every key.
        self._pushing = self._session.verb("push", allowed_inside=BLOCKS)
        self._pulling = self._session.verb("pull", allowed_inside=BLOCKS)
        self._operations = CallLog(comm, self._engine.presence, self._engine.layout.registry)
        self._group: Group | None = None
        self._recent = CallCache(self._engine.layout.registry)
        self._verify: Verify | None = None
        if options.verify_every and comm.size > 1:
            self._verify = Verify(
                self._engine,
                comm,
                int(options.verify_every),
                int(options.root),
                repair=bool(options.repair),
            )

    @property
    def _kernels(self) -> Kernels:
        """The arithmetic of the memory that values are in."""
        return self._engine.kernels

    # Identity

    @property
    def type(self) -> str:
        """The name the store was created by, in lower case."""
        return self._name

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._comm.rank

    @property
    def num_workers(self) -> int:
        """How many ranks the store has."""
        return self._comm.size

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its node, from 0."""
        return self._comm.local_rank

    @property
    def repaired(self) -> int:
        """How many values ``repair=True`` has given anew so far, the same on all ranks."""
        return 0 if self._verify is None else self._verify.repaired

    @property
    def skipped(self) -> int:
        """How many flushes came to nothing because of NaN or infinity, on all ranks alike."""
        return self._engine.presence.skipped

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store can do what `capability` names, in any case.

        Raises
        ------
        UsageError
            For anything but ``"optimizer"``, the one capability there is.
        """
        if isinstance(capability, str) and capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        check_length("a capability", capability)
        raise UsageError(
            f"unknown capability {capability!r}; the one there is is {KVStoreBase.OPTIMIZER!r}"
        )

    def __repr__(self) -> str:
        state = "closed" if self._session.closed else f"over {self._comm.name}"
        engine = self._engine
        return (
            f"<ncclkv store {self._name!r}: rank {self.rank} of {self.num_workers} {state}, "
            f"{len(engine.layout.registry)} keys in {len(engine.layout.states)} buckets, "
            f"bucket_bytes {engine.layout.sizing.bucket_bytes}, "
            f"update on {engine.placement.owner}, updater {engine.rule.name}>"
        )

    # What is known of keys; local

    def keys(self) -> list[Key]:
        """All keys, in the order of their initialisation."""
        return [spec.key for spec in self._engine.layout.registry]

    def __contains__(self, key: object) -> bool:
        try:
            return one_key(key) in self._engine.layout.registry
        except KeyTypeMismatch:
            return False

    def spec(self, key: KeyLike) -> KeySpec:
        """What all ranks know of a key: shape, dtype, op, and place in the order.

        Raises
        ------
        KeyNotInitialized
            When there is no such key.
        """
        with self._session.named():
            return self._engine.layout.registry[one_key(key)]

    def explain_plan(self) -> str:
        """The buckets as a table, in the order of launching unless priorities change it.

        Its columns are dtype, op, bytes (padding included), keys, who updates them, two times of
        the bucket's reduction in milliseconds, and the first and last key.  ``predicted`` is what
        was measured for ``bucket_bytes="auto"``, by the model of latency and bandwidth that the
        last lines show; an optimizer's update is not in it.  ``measured`` is the median of the last
        nine times that the whole bucket was reduced, from launch to the wait that found it done.
        On hosts a collective goes on while the store is called, so what this rank did elsewhere
        meanwhile is in it, and so is the optimizer's update.  ``-`` stands for what is not known:
        no prediction without ``"auto"`` or with one rank; nothing measured before a first time,
        where the ranks copy without a collective, and on a GPU, where no host waits.

        Local: no other rank is asked, and each shows times of its own.
        """
        return self._engine.layout.explain(self._engine.placement.owner)

    def _seal_alike(self, verb: str, sealed: Sequence[bool]) -> None:
        """Give all keys their places, if some rank has: those of later keys depend on it."""
        if any(sealed) and not all(sealed):
            self._engine.layout.seal()
            # Ranks have memory in common: no first value may come after what is written next.
            self._comm.control.barrier(verb)

    def _raise_late(self) -> None:
        """Raise what an updater raised, after the verb's end: it says nothing of this store."""
        error = self._engine.pop_error()
        if error is not None:
            raise error

    # Life

    def close(self) -> None:
        """Flush what waits, wait for all ranks, and free what the store holds; collective.

        A second call does nothing.  A store that a failure broke is left without waiting.
        """
        if self._session.closed:
            return
        with self._session.named():
            self._session.check("close")
            if self._session.inside:
                raise UsageError(f"close was called inside {self._session.inside}; end that first")
        failure = self._session.failure
        if failure is not None:
            self._leave(f"{type(failure).__name__}: {failure}")
            self._raise_late()
            return
        with self._session.verb("close"):
            self._operations.note("close")
            self._engine.flush()
            self._comm.synchronize()
            self._engine.report()
            self._comm.close()
        self._session.closed = True
        self._engine.dispose()
        self._raise_late()

    def _leave(self, reason: str) -> None:
        """Close without the other ranks, telling them why."""
        self._session.closed = True
        self._comm.abort(reason)
        self._engine.dispose()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._session.closed:
            # The exception counts, not what goes wrong in leaving.
            with suppress(Exception):
                self._leave(f"{type(error).__name__}: {error}")

    def __reduce__(self) -> NoReturn:
        self._session.refuse_pickling()
