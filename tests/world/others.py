"""Steps of a program without keys: waits, arrays and objects, optimizers, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.world import plan as p
from tests.world.actions import runs
from tests.world.arrays import reduced, vector
from tests.world.player import Player, Store


@runs(p.Wait)
def wait(player: Player, store: Store, step: p.Wait) -> None:
    keys = [key.key for key in store.model.known(step.keys)]
    if keys or not step.keys:
        store.kv.wait(keys or None)
        store.model.pending.difference_update(keys or list(store.model.keys))


@runs(p.Barrier)
def barrier(player: Player, store: Store, step: p.Barrier) -> None:
    store.kv.barrier()
    store.model.pending.clear()


@runs(p.AllReduce)
def allreduce(player: Player, store: Store, step: p.AllReduce) -> None:
    kind, step_index = (step.size, step.dtype, step.op), player.step_index
    given = [vector(rank, step_index, *kind) for rank in range(player.size)]
    value = player.placed([given[player.rank]], step.layout, "value")[0]
    found = store.kv.allreduce(value, step.op, out=value if step.out else None)
    found = value if step.out else found
    player.same(store, "allreduce", found, reduced(given, step.op, player.size))


@runs(p.AllGather)
def allgather(player: Player, store: Store, step: p.AllGather) -> None:
    given = [vector(rank, player.step_index, step.size) for rank in range(player.size)]
    found = store.kv.allgather(player.given(given[player.rank].copy()))
    player.same(store, "allgather", found, np.stack(given))


@runs(p.BroadcastObject)
def broadcast_object(player: Player, store: Store, step: p.BroadcastObject) -> None:
    root = step.root % player.size
    found = store.kv.broadcast_object([player.step_index, player.rank], root)
    player.same(store, "broadcast_object", found, np.array([player.step_index, root]))


@runs(p.AllGatherObject)
def allgather_object(player: Player, store: Store, step: p.AllGatherObject) -> None:
    found = store.kv.allgather_object((player.step_index, player.rank))
    wanted = np.array([(player.step_index, rank) for rank in range(player.size)])
    player.same(store, "allgather_object", found, wanted)


@runs(p.SetOptimizer)
def set_optimizer(player: Player, store: Store, step: p.SetOptimizer) -> None:
    if store.model.sgd is not None:
        store.use(step.optimizer)  # flushes earlier pushes by the optimizer before
        store.model.pending.clear()
        store.model.use(step.optimizer)
        store.saved = None


@runs(p.LearningRate)
def learning_rate(player: Player, store: Store, step: p.LearningRate) -> None:
    store.flush()
    store.model.rate = store.change(step.rate)


@runs(p.Save)
def save(player: Player, store: Store, step: p.Save) -> None:
    path = player.directory(store)
    store.kv.save(path, step=player.step_index)
    store.model.pending.clear()
    state = store.model.state()
    store.saved = None if state is None else (path, state)


@runs(p.Load)
def load(player: Player, store: Store, step: p.Load) -> None:
    if store.saved is not None:
        store.flush()
        path, state = store.saved
        store.kv.load(path)
        store.model.restore(state)


@runs(p.Move)
def move(player: Player, store: Store, step: p.Move) -> None:
    before = store.model
    state = before.state()
    if state is None:
        return
    path = player.directory(store)
    store.kv.save(path)
    store.kv.close()
    keys = list(before.keys.values())
    plan = replace(
        before.plan,
        keys=tuple(keys if step.empty else keys[::-1]),
        # A load changes the learning rate, and no other hyperparameter.
        optimizer=before.sgd and replace(before.sgd, learning_rate=0.75),
        update_on=step.update_on,
        bucket_bytes=step.bucket_bytes,
    )
    new = player.create(player.number_of(store), plan, empty=step.empty)
    new.spoilt = store.spoilt
    new.kv.load(path)
    new.model.sgd = before.sgd
    new.model.restore(state)
