"""Merge: keys that were added one by one move from buckets of their own into common buckets.

All ranks merge the same buckets, before the same push: the push of all keys that follows the
initialisation of new keys.  Such a push finds every key in a bucket, and the same buckets on every
rank.

A bucket of 64 KiB or more stays in place.  So a key moves until its bucket has that size, and later
additions copy little.  Values, optimizer states and counts move with their keys.  Nothing is pushed
or in flight meanwhile, because the store settles before.

All buckets stay in place on GPUs, with a function as updater, and with norms.  They also stay with
an optimizer under ``update_on="sharded"``, and where every flush reduces all buckets
(``nonfinite=``, ``missing="zeros"``, uneven blocks).  A bucket stays whose keys are encoded with
nodes as senders: its place decides which rank has a residual.  Calls inside a block merge nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.base import Communicator
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from ncclkv.engine.engine import Engine
from ncclkv.engine.layout import Layout
from ncclkv.engine.rules_in_force import RulesInForce
from ncclkv.engine.storage import StoredBucket, StoredKey
from ncclkv.table.bucket import Bucket


def merge_buckets(comm: Communicator, engine: Engine) -> bool:
    """Merge small buckets before a push of all keys, if the rule allows it; collective.

    Every key has a bucket.  A bucket stays in place if the program has a view of its memory on any
    rank.

    Returns
    -------
    bool
        Whether keys have moved: earlier plans of calls are out of date.
    """
    layout, updates = engine.layout, engine.updates
    layout.unplanned = 0
    small = [
        state
        for state in layout.states
        if state.bucket.nbytes < SHARED_FROM_BYTES and not state.sent_by_nodes
    ]
    if not (layout.has_values and _can_merge(comm, updates) and _plan(layout, small)[0]):
        return False
    engine.settle()
    mine = [state.bucket.index for state in small if state.viewed]
    of_ranks = comm.control.allgather(mine, "views of buckets")
    viewed = {index for indices in of_ranks for index in indices}
    old, buckets = _plan(layout, [each for each in small if each.bucket.index not in viewed])
    if not old:
        return False
    before = {entry.key: layout[entry.key] for state in old for entry in state.bucket.entries}
    after = layout.replace_buckets(old, buckets)
    for key, slot in after.items():
        _move(before[key], slot, updates)
    updates.rule.replace_buckets([state.bucket for state in old], buckets)
    return True


def _can_merge(comm: Communicator, updates: RulesInForce) -> bool:
    """Return whether buckets may be merged under the rule in force; equal on all ranks.

    Device memory stays in place because a graph may hold its addresses.  A rank that has only its
    part of an optimizer's states has not the states of a new part.  A key keeps its rank if a
    function of the program updates it there.
    """
    rule = updates.rule
    in_place = rule.by_key or rule.norms is not None
    return comm.blocks and not in_place and (rule.replaces or not updates.placement.divides)


def _plan(
    layout: Layout, states: Sequence[StoredBucket]
) -> tuple[list[StoredBucket], list[Bucket]]:
    """Return the buckets to merge, and the buckets that their keys would share."""
    specs = [entry.spec for state in states for entry in state.bucket.entries]
    planned = layout.buckets_of(sorted(specs, key=lambda spec: spec.index))
    had, wanted = (
        {tuple(each.entry_indices) for each in several}
        for several in ((state.bucket for state in states), planned)
    )
    # A bucket that is planned as it is stays in place.
    old = [state for state in states if tuple(state.bucket.entry_indices) not in wanted]
    new = layout.buckets_of(
        entry.spec
        for bucket in planned
        if tuple(bucket.entry_indices) not in had
        for entry in bucket.entries
    )
    return (old, new) if len(new) < len(old) else ([], [])


def _move(before: StoredKey, after: StoredKey, updates: RulesInForce) -> None:
    """Copy the optimizer's states of a key to its new bucket; the value is there already."""
    found = updates.rule.states(before)
    for name, state in updates.rule.states(after).items():
        state[...] = found[name]
