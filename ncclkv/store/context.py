"""Context: the parts of one store that all its verbs use."""

from __future__ import annotations

from dataclasses import dataclass

from ncclkv.comm.base import Communicator
from ncclkv.engine.autotune import sizing
from ncclkv.engine.engine import Engine, make_engine
from ncclkv.engine.verify import Verify
from ncclkv.store.agreement import propose
from ncclkv.store.call_log import CallLog
from ncclkv.store.memory_check import MemoryCheck
from ncclkv.store.options import Options
from ncclkv.store.session import Session


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one store that all its verbs use.

    Attributes
    ----------
    comm : Communicator
    engine : Engine
        Keys, their values, and what was pushed and not flushed.
    session : Session
        Permission to call a verb, and the failure that broke the store.
    calls : CallLog
        Every collective call is recorded here before anything is done for it.
    memory_check : MemoryCheck
        Asked before keys are added.
    verify : Verify or None
        Compares values between ranks; None when the store never compares them.
    """

    comm: Communicator
    engine: Engine
    session: Session
    calls: CallLog
    memory_check: MemoryCheck
    verify: Verify | None

    def raise_updater_error(self) -> None:
        """Raise the pending exception of an updater, if there is one.

        Called after a verb's end: the exception is the program's, and breaks nothing.
        """
        error = self.engine.pop_error()
        if error is not None:
            raise error

    @property
    def repaired(self) -> int:
        """The number of values that ranks with other values were given."""
        return 0 if self.verify is None else self.verify.repaired

    def describe(self) -> str:
        """Return the store's ranks, keys and updater, for its ``repr``."""
        comm, engine, layout = self.comm, self.engine, self.engine.layout
        state = "closed" if self.session.closed else f"over {comm.name}"
        return (
            f"rank {comm.rank} of {comm.size} {state}, "
            f"{len(layout.registry)} keys in {len(layout.states)} buckets, "
            f"bucket_bytes {layout.sizing.bucket_bytes}, "
            f"update on {engine.placement.owner}, updater {engine.rule.name}"
        )


def open_context(name: str, comm: Communicator, options: Options) -> Context:
    """Make the parts of a store, once all ranks agree on its name and options; collective."""
    placement, _ = propose(
        comm, "create", lambda: (options.placement(comm), [f"name={name}", *options.items()])
    )
    if options.reproducible:
        comm.reproducible = True
    missing_zeros = options.missing == "zeros"
    engine = make_engine(
        comm,
        comm.kernels,
        placement,
        sizing(comm, placement, options.bucket_bytes),
        missing_zeros=missing_zeros,
        nonfinite=options.nonfinite,
    )
    session = Session(name, comm, engine.events, engine.updates)

    def check() -> None:
        with session.checks:
            engine.rule.step()

    calls = CallLog(comm, engine.layout.registry, check, missing_zeros=missing_zeros)
    memory_check = MemoryCheck(comm, engine.layout, session.checks)
    return Context(comm, engine, session, calls, memory_check, _verify(comm, engine, options))


def _verify(comm: Communicator, engine: Engine, options: Options) -> Verify | None:
    """Return what compares values between ranks, if there are several and the options want it."""
    every = int(options.verify_every)
    if not every or comm.size == 1:
        return None
    return Verify(engine, comm, every, int(options.root), repair=bool(options.repair))
