"""Steps of a program that change or read the values of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ncclkv import concurrency
from ncclkv.errors import NonFinite
from tests.world import plan as p
from tests.world.arrays import payload
from tests.world.layouts import CASTS
from tests.world.player import OnPurpose, Player, Store

Action = Callable[[Player, Store, Any], None]

ACTIONS: dict[type[p.Call], Action] = {}


def runs(kind: type[p.Call]) -> Callable[[Action], Action]:
    """Register the function of a kind of step."""

    def note(action: Action) -> Action:
        ACTIONS[kind] = action
        return action

    return note


def names(keys: list[p.KeyPlan]) -> list[p.Key]:
    return [key.key for key in keys]


def arrays(
    player: Player, keys: list[p.KeyPlan], layout: str = "plain", item: int = 0
) -> list[Any]:
    """Return this rank's arrays for keys in the present step."""
    arrays = [payload(key, player.rank, player.step_index, item) for key in keys]
    return player.placed(arrays, layout, f"value {item}")


def to_push(player: Player, store: Store, keys: list[p.KeyPlan], layout: str) -> list[Any]:
    """Return this rank's arrays for keys, or the views of their gradients in the store."""
    if layout != "views":
        return arrays(player, keys, layout)
    views = [store.kv.grad_view(key.key) for key in keys]
    for key, view in zip(keys, views, strict=True):
        player.write(view, payload(key, player.rank, player.step_index))
    return views


def outs(
    player: Player, keys: list[p.KeyPlan], layout: str = "plain", *, cast: bool = False
) -> list[Any]:
    """Return arrays to write, full of a value that no key has."""
    dtypes = [CASTS[key.dtype] if cast else key.dtype for key in keys]
    arrays = [np.full(key.shape, 77, dtype) for key, dtype in zip(keys, dtypes, strict=True)]
    return player.placed(arrays, layout, "out")


def write_again(values: list[Any], layout: str = "plain") -> None:
    """Write to the program's arrays on the host, as a program may once a push has returned."""
    for value in values:
        if layout != "views" and isinstance(value, np.ndarray):
            value[...] = 1


def pushers(key: p.KeyPlan, without: p.Pairs, size: int) -> list[int]:
    """Return the ranks that push a key; rank 0 if no other does."""
    return [rank for rank in range(size) if (rank, key.key) not in without] or [0]


def compare(player: Player, store: Store, keys: list[p.KeyPlan], found: list[Any]) -> None:
    """Compare arrays with the values of keys; one array for several keys has the last one's."""
    order = store.model.order()
    pairs = sorted(zip(keys, found, strict=True), key=lambda pair: order.index(pair[0].key))
    last = {id(each): (key, each) for key, each in pairs}
    for key, each in last.values():
        player.compare(store, key.key, each)


@runs(p.Init)
def init(player: Player, store: Store, step: p.Init) -> None:
    new = tuple(key for key in step.keys if key.key not in store.model.keys)
    if new:
        player.init(store, new)
        store.model.init(new)
        store.saved = None


@runs(p.Push)
def push(player: Player, store: Store, step: p.Push) -> None:
    model, keys = store.model, store.model.known(step.keys)
    zeros = model.plan.missing == "zeros"
    if step.layout == "views":
        store.wait()  # gradients in flight belong to the store
    # A flush of earlier pushes takes the learning rate of its time.
    if zeros and (step.rate is not None or model.pending & set(names(keys))):
        store.flush()
    without = step.without if zeros else ()
    ranks = {key.key: pushers(key, without, player.size) for key in keys}
    mine = [key for key in keys if player.rank in ranks[key.key]]
    pushed, values = _pushed(player, store, mine, step)
    if step.single:
        for key, value in zip(pushed, values, strict=True):
            store.kv.push(key.key, value, priority=step.priority)
    elif mine:
        store.kv.push(names(pushed), values, priority=step.priority)
    for value in values:
        write_again(value if isinstance(value, list) else [value], step.layout)
    rate = store.change(step.rate)
    if zeros:
        model.pending.update(names(keys))
        model.rate = rate
    for key in keys:
        model.push(key, player.step_index, ranks[key.key], arrays=step.arrays)
    model.rate = rate


def _pushed(
    player: Player, store: Store, keys: list[p.KeyPlan], step: p.Push
) -> tuple[list[p.KeyPlan], list[Any]]:
    """Return the keys of a push, and for each its array, or a list of them."""
    if step.arrays == 1:
        return keys, to_push(player, store, keys, step.layout)
    first, second = (arrays(player, keys, step.layout, item) for item in range(2))
    if step.repeated and not step.single:
        return keys + keys, first + second
    return keys, [list(each) for each in zip(first, second, strict=True)]


@runs(p.PushNonFinite)
def push_nonfinite(player: Player, store: Store, step: p.PushNonFinite) -> None:
    policy = store.model.plan.nonfinite
    known = store.model.known(step.keys)
    keys = [key for key in known if np.dtype(key.dtype).kind in "fc" and 0 not in key.shape]
    if not keys or policy == "ignore":
        return
    store.wait()
    values = [payload(key, player.rank, player.step_index).copy() for key in keys]
    if player.rank == step.rank % player.size:
        values[0].flat[-1] = np.nan
    try:
        store.kv.push(names(keys), [player.given(value) for value in values])
        store.kv.wait()
    except NonFinite:
        if policy == "raise":
            return
        raise
    if policy == "raise":
        player.wrong("push of NaN", "no error", "NonFinite")


@runs(p.Pull)
def pull(player: Player, store: Store, step: p.Pull) -> None:
    keys = store.model.known(step.keys)
    if not keys:
        return
    several = keys + keys if step.twice else keys
    if not step.out:
        found = store.kv.pull(names(several))
    else:
        found = outs(player, several, step.layout, cast=step.cast)
        if step.twice == "outs":
            pairs = zip(found[: len(keys)], found[len(keys) :], strict=True)
            store.kv.pull(names(keys), out=[list(pair) for pair in pairs])
        else:
            store.kv.pull(names(several), out=found)
    compare(player, store, several, found)
    store.model.pending.difference_update(names(keys))


@runs(p.Look)
def look(player: Player, store: Store, step: p.Look) -> None:
    keys = store.model.known(step.keys)
    store.wait()
    if player.rank in step.ranks:
        kv = store.kv
        found = [
            kv.pull(name, local=True) if step.pulls else kv.value(name) for name in names(keys)
        ]
        compare(player, store, keys, found)


@runs(p.PushPull)
def push_pull(player: Player, store: Store, step: p.PushPull) -> None:
    keys = store.model.known(step.keys)
    if not keys:
        return
    if store.model.pending & set(names(keys)):
        store.flush()
    values = arrays(player, keys, step.layout)
    found = outs(player, keys, step.layout, cast=step.cast) if step.out else values
    out = found if step.out else None
    store.kv.pushpull(names(keys), values, out=out, priority=step.priority)
    push_all(player, store, keys)
    compare(player, store, keys, found)


def push_all(player: Player, store: Store, keys: list[p.KeyPlan]) -> None:
    """Note that all ranks have pushed keys."""
    for key in keys:
        store.model.push(key, player.step_index, range(player.size))


@runs(p.Group)
def group(player: Player, store: Store, step: p.Group) -> None:
    keys, read = store.model.known(step.pushes), store.model.known(step.pulls)
    store.flush()
    found = outs(player, read)
    try:
        with store.kv.group():
            values = arrays(player, keys, step.layout)
            for key, value in zip(keys, values, strict=True):
                store.kv.push(key.key, value)
            write_again(values)
            for key, out in zip(read, found, strict=True):
                store.kv.pull(key.key, out=out)
            store.model.rate = store.change(step.rate)
            player.fail(step.fails)
    except OnPurpose:
        if step.caught:
            return
        raise
    push_all(player, store, keys)
    compare(player, store, read, found)
    if store.model.plan.missing == "zeros":
        store.model.pending.update(names(keys))


@runs(p.Overlap)
def overlap(player: Player, store: Store, step: p.Overlap) -> None:
    keys = store.model.known(step.keys)
    if not keys:
        return
    store.flush()
    ranks = {key.key: pushers(key, step.without if step.zeros else (), player.size) for key in keys}
    begin = player.rank * step.turn % len(keys)
    mine = [key for key in keys[begin:] + keys[:begin] if player.rank in ranks[key.key]]
    if player.rank in step.forgets:
        mine = []

    def work() -> None:
        values = to_push(player, store, mine, step.layout)
        for key, value in zip(mine, values, strict=True):
            store.kv.push(key.key, value)
        write_again(values, step.layout)

    with store.kv.overlap(names(keys), missing="zeros" if step.zeros else "error"):
        if player.rank in step.threads:
            in_thread(work)
        else:
            work()
        other = None if step.inside is None else player.stores.get(step.inside)
        if other is not None and other is not store:
            total = other.kv.allreduce(float(player.rank))
            player.same(other, "allreduce inside", total, np.float64(sum(range(player.size))))
        rate = store.change(step.rate)
        player.fail(step.fails)
    if store.model.plan.missing == "zeros":
        store.model.pending.update(names(keys))
        store.model.rate = rate  # such a store reduces nothing in the block
    for key in keys:
        store.model.push(key, player.step_index, ranks[key.key])
    store.model.rate = rate


def in_thread(work: Callable[[], None]) -> None:
    """Run a function in another thread of this rank, and raise its error here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # any error of the thread belongs to the rank
            errors.append(error)

    thread = concurrency.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@runs(p.Uneven)
def uneven(player: Player, store: Store, step: p.Uneven) -> None:
    keys = store.model.known(step.keys)
    if not keys:
        return
    store.flush()
    batches = [step.batches[rank % len(step.batches)] for rank in range(player.size)]
    begin = player.step_index
    with store.kv.uneven():
        for batch in range(max(batches)):
            active = [rank for rank in range(player.size) if batches[rank] > batch]
            player.step_index = begin + batch
            found = outs(player, keys)
            if player.rank in active:
                _push_batch(player, store, keys, step, found)
            for key in keys:
                store.model.push(key, player.step_index, active, among=len(active))
            if player.rank in active:
                if step.pulls and step.block == "group":
                    compare(player, store, keys, found)
                elif step.pulls:
                    compare(player, store, keys, store.kv.pull(names(keys)))
                else:
                    store.kv.wait(names(keys))
        player.fail(step.fails)
    player.step_index = begin


def _push_batch(
    player: Player, store: Store, keys: list[p.KeyPlan], step: p.Uneven, found: list[Any]
) -> None:
    """Push a batch of an uneven block, in a block of its own or not."""
    kv, values = store.kv, arrays(player, keys)
    if not step.block:
        kv.push(names(keys), values)
    else:
        with kv.group() if step.block == "group" else kv.overlap(names(keys)):
            for key, value in zip(keys, values, strict=True):
                kv.push(key.key, value)
            if step.block == "group" and step.pulls:
                kv.pull(names(keys), out=found)
    write_again(values)


@runs(p.Reset)
def reset(player: Player, store: Store, step: p.Reset) -> None:
    keys = store.model.known(step.keys)
    if keys:
        store.flush()
        values = arrays(player, keys, step.layout)
        store.kv.reset(names(keys), values)
        write_again(values)
        for key in keys:
            store.model.reset(key, player.step_index)


@runs(p.Broadcast)
def broadcast(player: Player, store: Store, step: p.Broadcast) -> None:
    keys = store.model.known(step.keys)
    if keys:
        store.flush()
        values, found = (make(player, keys, step.layout) for make in (arrays, outs))
        store.kv.broadcast(names(keys), values, out=found)
        for key in keys:
            store.model.reset(key, player.step_index)
        compare(player, store, keys, found)
