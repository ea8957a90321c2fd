"""Context: the parts of one store that all its verbs use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from ncclkv.comm.base import Communicator
from ncclkv.engine.autotune import sizing
from ncclkv.engine.engine import Engine
from ncclkv.engine.update_rule import NO_STEPS
from ncclkv.engine.verify import Verify
from ncclkv.store.agreement import propose
from ncclkv.store.backends import ALONE
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
        Keys, their values, and pushes that are not flushed.
    session : Session
        Permission to call a verb, and the failure that broke the store.
    calls : CallLog
        The log in which every collective call is recorded before it has any effect.
    memory_check : MemoryCheck
        Checked before keys are added.
    verify : Verify or None
        The comparison of values between ranks; None if the store never compares them.
    """

    comm: Communicator
    engine: Engine
    session: Session
    calls: CallLog
    memory_check: MemoryCheck
    verify: Verify | None

    @property
    def repaired(self) -> int:
        """The count of values that ``repair=True`` has replaced."""
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


class Component:
    """Verbs of one kind, over the parts of the store's context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls


def open_context(name: str, comm: Communicator, options: Options) -> Context:
    """Make the parts of a store, once all ranks agree on its name and options; collective."""
    placement, _ = propose(
        comm, "create", lambda: (options.placement(comm), [f"name={name}", *options.items()])
    )
    if options.reproducible:
        comm.reproducible = True
    missing_zeros = options.missing == "zeros"
    engine = Engine(
        comm,
        placement,
        sizing(comm, placement, options.bucket_bytes),
        missing_zeros=missing_zeros,
        nonfinite=options.nonfinite,
        each_array_sends=name in ALONE,
    )
    session = Session(name, comm, engine.events, engine.updates)

    def check() -> None:
        with session.checks:
            engine.rule.step()

    # With `update_on="root"` only the root's hyperparameters count: a schedule may run there alone.
    compares_hyperparameters = placement.replicated or placement.divides
    # Each push asks for them: by a getter in C, because a function of Python costs more.
    hyperparameters = partial(attrgetter("rule.steps.config"), engine.updates)
    if not compares_hyperparameters:
        hyperparameters = partial(attrgetter("config"), NO_STEPS)
    calls = CallLog(
        comm, engine.layout.registry, check, hyperparameters, missing_zeros=missing_zeros
    )
    memory_check = MemoryCheck(comm, engine.layout, session.checks)
    verify = None
    if options.verify_every and comm.size > 1:
        every, root = int(options.verify_every), int(options.root)
        verify = Verify(engine, comm, every, root, repair=bool(options.repair))
    return Context(comm, engine, session, calls, memory_check, verify)
