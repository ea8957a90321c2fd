"""A program on one rank, and on all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from ncclkv import concurrency
from ncclkv.errors import annotate
from ncclkv.store.deputy import deputized
from tests.world import others, plan
from tests.world.actions import ACTIONS, compare, in_thread
from tests.world.player import Ended, Player
from tests.world.twin import Twin

# Importing these is what fills the table of actions.
MODULES = (others,)


def play(program: plan.Program, make: Callable[..., Player] = Player) -> None:
    """Run a program on this rank, inside `run_ranks`; compare every result with the model.

    Parameters
    ----------
    program : Program
    make : callable
        Returns the player: a `Player`, or one of another kind of store.

    Raises
    ------
    WrongValue
        When a result is not the model's.
    """
    with ExitStack() as files, ExitStack() as stack:
        player = make(program, stack, files)
        try:
            _run(player)
        except Ended:
            stack.pop_all()  # leaves the stores open
            player.leave()


def _run(player: Player) -> None:
    """Create the stores in use, make all steps, and pull every key."""
    used = _stores_of(player.program.steps)
    for index, each in enumerate(player.program.stores):
        if index in used:
            player.create(index, each)
    for index, step in enumerate(player.program.steps):
        try:
            with player.step(index):
                _make(player, step)
        except Exception as error:
            annotate(error, f"in step {index}, {step!r}")
            raise
    for store in player.stores.values():
        keys = list(store.model.keys.values())
        compare(player, store, keys, store.kv.pull([key.key for key in keys]))
    if not player.program.closes:
        raise Ended
    for store in player.stores.values():
        store.kv.close()


def _stores_of(steps: tuple[plan.Step, ...]) -> set[int]:
    """Return the indices of the stores that steps use, if `Create` does not make them first."""
    found, created = set(), set()
    for step in steps:
        call = step.step if isinstance(step, plan.Only) else step
        call = call.call if isinstance(call, plan.ByThread) else call
        if isinstance(call, plan.Create):
            created.add(call.store)
        elif isinstance(call, plan.Call) and call.store not in created:
            found.add(call.store)
    return found


def _make(player: Player, step: plan.Step) -> None:
    """Make a step on this rank."""
    if isinstance(step, plan.Call):
        _call(player, step)
    elif isinstance(step, plan.ByThread):
        _call_by_thread(player, step)
    elif isinstance(step, plan.Busy):
        if step.rank == player.rank:
            concurrency.sleep(step.seconds)
    elif isinstance(step, plan.Only):
        if isinstance(step.step, plan.Call) and step.step.store in player.stores:
            player.stores[step.step.store].spoilt = True
        if player.rank in step.ranks:
            _make(player, step.step)
    elif isinstance(step, plan.Raise):
        player.fail((player.rank,))
    elif isinstance(step, plan.Return):
        raise Ended


def _call_by_thread(player: Player, step: plan.ByThread) -> None:
    """Make a call, on some ranks in a new thread that the rank waits for."""
    store = player.stores.get(step.call.store)
    # The store of one rank inside a `Twin` takes no call of another thread.
    is_own = player.rank not in step.ranks or not player.has_deputies
    if store is None or is_own or isinstance(store.model, Twin):
        _call(player, step.call)
        return

    def call() -> None:
        with deputized(store.kv):
            _call(player, step.call)

    in_thread(call)


def _call(player: Player, step: plan.Call) -> None:
    """Make a call of a store, if the program has the store."""
    if isinstance(step, plan.Create):
        if step.store in player.stores:
            player.stores[step.store].kv.close()
        player.create(step.store, step.plan or player.program.stores[step.store])
    elif step.store in player.stores:
        ACTIONS[type(step)](player, player.stores[step.store], step)
