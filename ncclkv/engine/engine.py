"""`Engine`: the values of one store on one rank, from pushed arrays to values that can be read.

A push packs its arrays into the gradients of their buckets.  The flush policy launches each bucket,
at once or later, and the update rule folds the sums into the weights.  A pull launches the rest,
waits, and copies the weights out.  Nothing here depends on time or on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ncclkv.arrays.observed_writes import before_write
from ncclkv.comm.base import Communicator
from ncclkv.engine.batch import Pull, Push, plan_pull, plan_push
from ncclkv.engine.bucket_push import select
from ncclkv.engine.capture import Recorder
from ncclkv.engine.codec_rules import CodecRule
from ncclkv.engine.events import Events
from ncclkv.engine.flush import EagerFlush, FlushPolicy
from ncclkv.engine.flush_agreement import AgreedFlush
from ncclkv.engine.layout import Layout
from ncclkv.engine.nonfinite import DeviceCheckedFlush, NonfiniteReport
from ncclkv.engine.norm_flush import NormFlush
from ncclkv.engine.placement import Placement
from ncclkv.engine.reducer import Reducer
from ncclkv.engine.reductions import Reductions
from ncclkv.engine.rules_in_force import RulesInForce
from ncclkv.engine.storage import Array, StoredBucket, StoredKey, StoredPush
from ncclkv.engine.storage_table import rules_of
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import UsageError
from ncclkv.kernels.base import Kernels
from ncclkv.table import plan
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import Key


class Engine:
    """The values of one store on one rank.

    Parameters
    ----------
    comm : Communicator
    placement : Placement
    sizing : Sizing
        Size of the buckets.
    missing_zeros : bool
        Whether ranks may push different keys: a missing key counts as zeros.
    nonfinite : {"ignore", "raise", "skip_step"}
    each_array_sends : bool
        As for `Reductions`.

    Attributes
    ----------
    missing_zeros : bool
        As given.
    layout : Layout
        The keys and their memory.
    reductions : Reductions
        The codecs in force, and what keys have not sent yet.
    kernels : Kernels
        The arithmetic of the memory that holds the values.
    policy : FlushPolicy
        The policy in force; an update rule and an uneven block may each bring another policy.
    placement : Placement
    events : Events
        The instruments that listen to this rank.
    updates : RulesInForce
        The update rule in force, and the pending exception of an updater.
    uneven : bool
        Whether an uneven block is open.
    recorder : Recorder or None
        Records the calls of a capture, which are not executed.
    epoch : object
        The recorder, or the update rule in force.  Calls checked in another epoch are checked anew.
    """

    def __init__(
        self,
        comm: Communicator,
        placement: Placement,
        sizing: Sizing,
        *,
        missing_zeros: bool = False,
        nonfinite: str = "ignore",
        each_array_sends: bool = False,
    ) -> None:
        self.kernels = comm.kernels
        self.placement = placement
        self.events = Events()
        self.updates = RulesInForce(comm, placement)
        self.reductions = Reductions(comm, each_array_sends=each_array_sends)
        self.layout = Layout(
            comm,
            sizing,
            self.updates.plan,
            self.updates.allocate,
            self.reductions,
            share_weights=placement.shares_weights,
            multiple=placement.multiple,
        )
        self._reducer = Reducer(comm, self.layout, self.updates, self.events)
        self.missing_zeros = missing_zeros
        self._nonfinite = NonfiniteReport(comm, self.layout.registry, nonfinite)
        self._device_checked: DeviceCheckedFlush | None = None
        if self._nonfinite.enabled and not comm.blocks:
            self._device_checked = DeviceCheckedFlush(self._reducer, self._nonfinite)
        self.policy = self._own_policy()
        self.uneven = False
        self.recorder: Recorder | None = None
        self.epoch: object = self.updates.rule
        self._comm = comm
        self._alone = comm.size == 1

    @property
    def rule(self) -> Rule:
        """The update rule in force."""
        return self.updates.rule

    def rule_of(self, slot: StoredKey) -> Rule:
        """Return the update rule of a key, which its storage chooses."""
        return self.updates.of(slot.state)

    @property
    def skipped(self) -> int:
        """Count of flushes skipped because of NaN or infinity."""
        return self._nonfinite.skipped

    # Flush policy

    def _own_policy(self) -> FlushPolicy:
        """Return the policy outside uneven blocks, for the update rule in force."""
        checked = self._device_checked
        if not (self.missing_zeros or self._nonfinite.enabled):
            return (NormFlush if self.rule.norms else EagerFlush)(self._reducer)
        if checked is None or self.missing_zeros or not self.rule.can_skip:
            return self._agreed_policy(uneven=False)
        return checked

    def _agreed_policy(self, *, uneven: bool) -> AgreedFlush:
        """Return a policy of flushes that begin with an exchange, in or outside an uneven block."""
        return AgreedFlush(
            self._reducer, self._nonfinite, missing_zeros=self.missing_zeros, uneven=uneven
        )

    def begin_uneven(self) -> AgreedFlush:
        """Flush, then let ranks push at different times; collective.

        The `drain` of the policy returned ends the block.
        """
        self.policy.flush()
        self.uneven = True
        self.policy = policy = self._agreed_policy(uneven=True)
        return policy

    def end_uneven(self) -> None:
        """Return to the store's own policy."""
        self.uneven = False
        self.policy = self._own_policy()

    # Keys

    def gradient(self, key: Key) -> Array:
        """Wait for sums in flight; return a view of a key's gradient, for the user to write to."""
        slot = self.layout[key]
        if slot.state.needs(key):
            raise UsageError(
                f"grad_view of key {key!r}: the key was pushed and not flushed, so the store still "
                f"needs its gradient; pull it, or call wait({key!r}), first",
                key=key,
            )
        self._claim(slot.state)
        # A new view each time: the caller may change its shape.
        return slot.lend_gradient()

    def current(self, key: Key) -> Array:
        """Wait for sums in flight; return a key's value as of the last flush, for reading alone."""
        if key not in self.layout:
            return self.layout.pending[key]
        slot = self.layout[key]
        self._claim(slot.state)
        return slot.weight_view

    def replace(self, values: Mapping[Key, Array], *, reset_states: bool = True) -> None:
        """Set values of keys, equal on every rank, and reset their optimizer states; collective.

        Without `reset_states` only the states that follow the values are set.
        """
        if states := self.layout.buckets(values):
            self.settle(states)
        for key, value in values.items():
            if key in self.layout:
                slot = self.layout[key]
                self.kernels.pack(value, slot.weight)
                rule = self.rule_of(slot)
                (rule.reset if reset_states else rule.follow)(slot)
            else:
                self.layout.pending[key] = value
            if reset_states:
                self.reductions.reset(key)
        self.rule.counts_set()

    def _claim(self, state: StoredBucket) -> None:
        """Wait for the collectives of a bucket that a call is about to write or read."""
        if self.recorder is not None:
            self.recorder.include(state)
        if state.works:
            state.complete()

    # Update rule

    def set_rule(self, rule: Rule, sealed: Sequence[bool]) -> None:
        """Flush under the old rule, then put another rule in force; collective.

        After a `MemoryError` the old rule stays in force.

        Parameters
        ----------
        rule : Rule
        sealed : sequence of bool
            Whether all keys have slots, on each rank: slots on any rank are assigned here, too.
        """
        if any(sealed):
            self.layout.seal()
        # Other ranks may update an element under the new rule: its value must be on all ranks.
        self.settle()
        updates, before = self.updates, self.updates.rule
        if rule.by_key:
            # A function may write to the weights at any time, also outside a reduction.
            self.layout.unshare_weights()
        states, loads, rules = self.layout.states, [0] * self._comm.size, rules_of(rule)
        plan = updates.plan([state.bucket for state in states], loads, rule)
        for state, to in zip(states, plan, strict=True):
            updates.allocate(state, rules, to)
        updates.put(rules)
        self.epoch = rule
        self.layout.loads = loads
        self.policy = self._own_policy()
        for state, to in zip(states, plan, strict=True):
            state.begin_rule(to)
        if rule.source is not before.source:
            updates.dispose(before)

    def add_codec_rule(self, rule: CodecRule) -> None:
        """Flush under the old codecs, then put a rule in force; collective."""
        self.settle()
        self.reductions.add(rule)
        for state in self.layout.states:
            state.choose_reductions()
        for key in self.layout.pending:  # a load may have given residuals to keys without a bucket
            self.reductions.follow(self.layout.registry[key])
        self.epoch = rule

    # Push

    def plan_push(self, values: Mapping[Key, Sequence[Array]]) -> tuple[Push, list[Array]]:
        """Sort this rank's arrays of each key by bucket, as `batch.plan_push`."""
        return plan_push(values, self.layout, self.kernels)

    def ready(self, push: Push) -> Any:
        """Refuse a push that cannot be made now; else return the optimizer's step for it.

        Raises
        ------
        UsageError
        """
        if push.in_place or self.missing_zeros:
            push.check_free(missing_zeros=self.missing_zeros)
        if self.policy.allows_missing:
            # Ranks may push different keys: the flush counts the updates, equally on all ranks.
            return self.updates.rule.step()
        return self.updates.rule.step(map(StoredPush.pushed, push.by_bucket))

    def pack_and_launch(self, push: Push, arrays: Sequence[Array], step: Any) -> None:
        """Pack a push, and launch the buckets that the policy selects; collective.

        Parameters
        ----------
        push : Push
        arrays : sequence of ndarray
            The arrays that `push` refers to.
        step : Any
            Result of `ready` for this push.
        """
        policy = self.policy
        direct = self._alone and push.whole and self.recorder is None and self.updates.rule.replaces
        if direct and not (policy.flushes_everything or self.reductions.rules):
            self._assign(push, arrays)
            return
        # Where keys may be missing, other ranks may not have pushed under the old step: a flush
        # here would wait for ranks that make none.
        compares = not policy.allows_missing
        if compares and self.updates.rule.norms is not None:
            policy.end_norm(step)
        for stored in push.by_bucket:
            state = stored.state
            # Seldom does any key wait, and `conflicts` is a call more.
            occupied = state.waiting or state.deferred
            if occupied and state.conflicts(stored.keys, step if compares else state.step):
                policy.make_room(state)
        # Each bucket is launched before the next is packed: the collective overlaps the packing.
        for stored in push.by_bucket:
            lent = stored.lend(arrays) if stored.state.coded and self._encodes_at_once else None
            if lent is not None:
                self._encode(stored, arrays, lent, step)
                continue
            self._pack(stored, arrays, step)
            self.updates.applying = True
            if self.recorder is not None:
                self.recorder.check_launch(stored.state)
            policy.packed(stored.state)
        if self.updates.rule.by_key:
            policy.update_by_key(push.indices)
        self.updates.applying = False

    @property
    def _encodes_at_once(self) -> bool:
        """Return whether a push that fills a bucket launches it at once, and is not recorded."""
        return self.policy.launches_full and self.recorder is None

    def _assign(self, push: Push, arrays: Sequence[Array]) -> None:
        """Copy whole buckets straight into the weights: the sum over one rank is its own array."""
        for stored in push.by_bucket:
            state = stored.state
            self._reducer.launch(state)
            state.complete()
            stored.copy_in(arrays, self.kernels, self.events, to_weights=True)
            state.end_assignment()

    def pack(self, push: Push, arrays: Sequence[Array]) -> None:
        """Write this rank's sum of each key's arrays to the key's gradient; launch nothing."""
        for stored in push.by_bucket:
            self._pack(stored, arrays, stored.state.step)

    def stage(self, push: Push, arrays: Sequence[Array]) -> None:
        """Pack a push of a block, which launches it later; an error leaves nothing of it."""
        try:
            self.pack(push, arrays)
        except BaseException:
            self.drop(push.indices)
            raise

    def _pack(self, stored: StoredPush, arrays: Sequence[Array], step: Any) -> None:
        """Write the sums of one bucket's keys to their gradients, under an optimizer's step."""
        state = stored.state
        if self.recorder is not None:
            self.recorder.include(state)
        if state.works:
            state.complete()
        stored.copy_in(arrays, self.kernels, self.events)
        state.push(stored.keys, step)

    def _encode(
        self,
        stored: StoredPush,
        arrays: Sequence[Array],
        lent: AbstractContextManager[None],
        step: Any,
    ) -> None:
        """Launch a push whose arrays are encoded where they are, without a copy of them."""
        state = stored.state
        state.complete()
        state.push(stored.keys, step)
        self.updates.applying = True
        try:
            with lent:
                self.policy.packed(state)
        except BaseException:
            if state.waiting:  # for another launch, which finds their gradients in the bucket
                stored.copy_in(arrays, self.kernels, self.events)
            raise

    def step_of(self, keys: Iterable[Key], *, packed: bool) -> Any:
        """Return the optimizer's step of one update of each key; the keys have slots.

        `packed` means that pushes in the buckets are these, and none waits for an earlier update.
        """
        if self.policy.allows_missing:
            return self.updates.rule.step()
        slots = (self.layout[key] for key in keys)
        return self.updates.rule.step(
            (
                slot.state.bucket,
                {slot.entry.key},
                set() if packed else {slot.entry.key} & slot.state.waiting,
            )
            for slot in slots
        )

    def launch_full(self, priorities: Mapping[int, int], keys: Collection[Key], step: Any) -> None:
        """Launch packed buckets that the policy selects, by their priorities; collective.

        Parameters
        ----------
        priorities : mapping of int to int
            Priorities of the buckets, by their indices.
        keys : collection of keys
            The keys packed.
        step : Any
            The optimizer's step of these pushes.
        """
        for index in plan.launch_order(priorities):
            self.launch_packed(self.layout.bucket_at(index), step)
        if self.updates.rule.by_key:
            self.policy.update_by_key(keys)

    def launch_packed(self, state: StoredBucket, step: Any, *, last: bool = False) -> None:
        """Launch a bucket, packed under a step, if the policy selects it; collective.

        `last` means that the bucket gets no further push before it is launched.
        """
        state.set_step(step)
        if self.recorder is not None:
            self.recorder.check_launch(state)
        self.policy.packed(state, last=last)

    def drop(self, keys: Iterable[Key]) -> None:
        """Drop packed pushes of `keys` that are not launched."""
        for key in keys:
            if key in self.layout:
                self.layout[key].state.drop([key])

    # Flush and read

    def flush(self) -> None:
        """Reduce all pushed keys, and wait for the sums; collective."""
        self.policy.flush()

    def settle(self, states: Sequence[StoredBucket] | None = None) -> None:
        """Bring the values of some buckets, or of all, up to date on every rank; collective."""
        states = self.layout.states if states is None else states
        self.policy.prepare_read(states)
        self._reducer.complete(states)

    def wait(self, states: Sequence[StoredBucket] | None = None) -> None:
        """Settle buckets, and block the host until their work is done; collective.

        Raises
        ------
        NonFinite
            When the device has skipped flushes, with ``nonfinite="raise"``.
        """
        self.settle(states)
        if self.updates.unshared:
            self.policy.share_failure()
        if not self._comm.blocks:
            self._comm.synchronize()
        if self._device_checked is not None:
            self._device_checked.report_skipped()

    def close(self) -> None:
        """Flush all keys, and block the host until their work is done; collective."""
        self.policy.flush()
        self._comm.synchronize()
        if self._device_checked is not None:
            self._device_checked.report_skipped()

    def plan_pull(self, reads: Sequence[tuple[Key, Array]]) -> tuple[Pull, list[Array]]:
        """Sort the arrays of a pull by bucket, as `batch.plan_pull`."""
        if self.policy.allows_missing:
            # The flush may reduce keys that only other ranks have pushed: all keys need slots.
            self.layout.seal()
        return plan_pull(reads, self.layout)

    def read_values(self, pull: Pull, outs: Sequence[Array], *, flush: bool = False) -> None:
        """Wait for each bucket, and copy its values into `outs`; collective with `flush`.

        Parameters
        ----------
        pull : Pull
        outs : sequence of ndarray
            The arrays that `pull` refers to.
        flush : bool
            Whether to flush the buckets first, on all ranks; else the values are those of the last
            flush.
        """
        if flush:
            self.policy.prepare_read(pull.states)
            if self.updates.unshared:
                self.policy.share_failure()
        if self.recorder is not None:
            for state in pull.states:
                self.recorder.include(state)
        if pull.observed:
            before_write(pull.observed)
        if pull.to_host and not self._comm.blocks:
            # A copy to the host would wait for the device without a deadline: wait here first.
            self._reducer.complete(pull.states)
            self._comm.synchronize()
        for state in pull.before:
            if state.works:
                state.complete()
        for pulled in pull.by_bucket:
            if pulled.state is not None and pulled.state.works:
                pulled.state.complete()
            selected = outs if len(pulled.indices) == len(outs) else select(outs, pulled.indices)
            if self.events.listeners:
                pulled.copy_observed(selected, self.kernels, self.events)
            else:
                pulled.table = self.kernels.unpack_all(pulled.sources, selected, pulled.table)
            if pulled.state is None:  # first values, which this pull's flush may have dropped
                self._comm.keep_alive(*pulled.sources)

    def keep(self, arrays: Sequence[Array]) -> None:
        """Keep arrays alive until the stream has finished reading them."""
        self._comm.keep_alive(*arrays)

    # Capture

    @contextmanager
    def recording_with(self, recorder: Recorder) -> Iterator[None]:
        """Record the calls of a ``with`` block as a captured step; none of them is executed."""
        rule = self.updates.rule
        rule.recording = recorder.updates
        self._use(recorder.kernels, recorder)
        try:
            yield
        finally:
            rule.recording = None
            self._use(self._comm.kernels, None)
            for state in self.layout.states:
                state.forget()

    def _use(self, kernels: Kernels, recorder: Recorder | None) -> None:
        """Run all later copies on `kernels`."""
        self.recorder = recorder
        self.kernels = kernels
        self.epoch = recorder or self.updates.rule
