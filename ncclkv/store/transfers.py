"""Transfers: pushes into the store, and pulls out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ncclkv.arguments import check_flag
from ncclkv.arrays.memory import addresses, lie_apart
from ncclkv.arrays.observed_writes import observed
from ncclkv.engine.batch import Pull, Push
from ncclkv.engine.bucket_merge import merge_buckets
from ncclkv.engine.group import Group
from ncclkv.engine.ordered_launch import OrderedLaunch
from ncclkv.engine.storage import Array
from ncclkv.errors import OutOfMemory, UsageError
from ncclkv.store import check
from ncclkv.store.call_cache import CallCache, Counts
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import is_list, key_list, one_key, single
from ncclkv.store.registration import Assignment, Registration
from ncclkv.store.session import BLOCKS, IN_CAPTURE, IN_GROUP, IN_OVERLAP, IN_UNEVEN, Verb
from ncclkv.store.shared_verb import SharedVerb
from ncclkv.table.registry import Key


class Transfers(Component):
    """Checks arrays, records the call, and passes the arrays to the engine or to the open block.

    Owns the open group or overlap block, and the cache of calls that were checked before.
    """

    def __init__(self, context: Context, registration: Registration) -> None:
        super().__init__(context)
        self._registration = registration
        self._block: Group | OrderedLaunch | None = None
        self._cache = CallCache(context.engine.layout.registry)
        # Made once, because a program may call these verbs for every key.
        verb = partial(context.session.verb, allowed_inside=BLOCKS, raises=True)
        self._pulling, self._pushpulling = map(verb, ("pull", "pushpull"))
        # The verbs of other threads replace these two in an overlap block.
        self._pushing: Verb | SharedVerb = verb("push")
        self._viewing: Verb | SharedVerb = context.session.verb("grad_view", allowed_inside=BLOCKS)

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The calls of each verb, counted."""
        return self._cache.counts

    # Verbs

    def push_arrays(self, key: Any, value: Any, priority: Any) -> None:
        """Reduce arrays over all ranks, into the values of their keys; collective."""
        with self._pushing:
            if type(priority) is not int or priority:
                priority = check.priority("push", priority)
            if self._engine.layout.unplanned and isinstance(key, (list, tuple)):
                self._merge_buckets("push", key)
            epoch = self._engine.epoch
            push, row = self._cache.find_call("push", key, value, epoch) or self._new_push(
                "push", key, value
            )
            if self._block is not None:
                self._block.add_push(push, row, priority)
            else:
                self._record_and_push("push", key, push, row, priority)

    def push_in_place(self, push: Push, row: Sequence[Array]) -> None:
        """Reduce gradients that lie in their places, checked by an earlier plan; collective."""
        with self._pushing:
            if self._block is not None:
                self._block.add_push(push, row, 0)
            else:
                self._record_and_push("push", [*push.indices], push, row, 0)

    def pull_arrays(
        self, key: Any, out: Any, priority: Any, *, local: Any
    ) -> Array | list[Array] | None:
        """Copy values into `out`, or into new arrays to return; collective, unless `local`."""
        with self._pulling:
            if type(priority) is not int or priority:
                check.priority("pull", priority)
            local = local if type(local) is bool else check_flag("pull: local", local)
            made = self._new_outs(key, local=local) if out is None else None
            epoch, out = self._engine.epoch, made if out is None else out
            pull, row = self._cache.find_call("pull", key, out, epoch) or self._new_pull(
                "pull", key, out, local=local
            )
            if local:
                if pull.written:  # nothing is flushed: their gradients may be in use
                    with self._session.checks:
                        reads = list(zip(pull.keys, row, strict=True))
                        self._engine.layout.check_outs(reads, flushed=False)
                self._engine.read_values(pull, row)
            elif isinstance(self._block, Group):
                self._block.add_pull(pull, row)
            else:
                self._calls.record("pull", (), pull.keys, pull.logged)
                self._flush_and_read(pull, row)
        return made

    def push_and_pull(self, key: Any, value: Any, out: Any, priority: Any) -> None:
        """Push all keys, then pull all keys; collective."""
        with self._pushpulling:
            priority = check.priority("pushpull", priority)
            out = value if out is None else out
            if self._engine.layout.unplanned and isinstance(key, (list, tuple)):
                self._merge_buckets("pushpull", key)
            epoch = self._engine.epoch
            # The push is planned first, because it gives keys their slots.
            push, values = self._cache.find_call("push", key, value, epoch) or self._new_push(
                "pushpull", key, value
            )
            pull, outs = self._cache.find_call("pull", key, out, epoch) or self._new_pull(
                "pushpull", key, out
            )
            if isinstance(self._block, Group):
                self._block.add_push(push, values, priority)
                self._block.add_pull(pull, outs)
                return
            self._record_and_push("pushpull", key, push, values, priority, pull)
            self._end_push(pull, outs)

    def assign_and_pull(self, key: Any, value: Any, out: Any, priority: Any) -> None:
        """Give all ranks rank 0's values of new or old keys, then pull them; collective."""
        with self._session.verb("broadcast", raises=True):
            check.priority("broadcast", priority)
            layout = self._engine.layout
            reads: list[tuple[Key, Array]] = []

            def propose() -> Assignment:
                given = single("broadcast", key, value)
                new = [pair for pair in given if pair[0] not in layout.registry]
                old = [pair for pair in given if pair[0] in layout.registry]
                assignment = self._registration.check_values("broadcast", new, old)
                keys = layout.registry.with_keys(assignment.specs)
                reads.extend(check.outs("broadcast", key, out, keys, self._engine.kernels))
                layout.check_outs(reads, flushed=True)
                return assignment

            self._registration.assign("broadcast", propose)
            pull, row = self._engine.plan_pull(reads)
            pull.observed = observed(out)
            self._flush_and_read(pull, row)

    def lend_gradient(self, key: Any) -> Array:
        """Wait for sums in flight; return a key's gradient for the program to write."""
        with self._viewing:
            name = one_key(key)
            if self._block is not None:
                self._block.check_view(name)
            self._registration.assign_slot(name)
            return self._engine.gradient(name)

    @contextmanager
    def group_calls(self) -> Iterator[None]:
        """Collect the pushes and pulls of a block, and execute them at its end; collective."""
        with self._session.verb("group", allowed_inside=(IN_CAPTURE, IN_UNEVEN)):
            self._calls.record("group")
            group = Group(self._engine)
        try:
            with self._session.enclosing(IN_GROUP):
                self._block = group
                try:
                    yield
                finally:
                    self._block = None
            with self._session.verb("group", allowed_inside=(IN_CAPTURE, IN_UNEVEN)):
                self._end_group(group)
        except BaseException:
            group.cancel()
            raise
        self._session.raise_updater_error()

    @contextmanager
    def lent(self, block: OrderedLaunch) -> Iterator[None]:
        """Pass pushes to a block, from any thread, until the end of a ``with`` block."""
        session, lock = self._session, self._comm.lock
        own = self._pushing, self._viewing
        pushing, viewing = SharedVerb(session, "push"), SharedVerb(session, "grad_view")
        with session.enclosing(IN_OVERLAP), self._comm.lend():
            self._block, self._pushing, self._viewing = block, pushing, viewing
            try:
                yield
            except BaseException:
                # Ctrl-C between two instructions of a push leaves the lock taken: other threads
                # would wait for it forever.
                with suppress(RuntimeError):
                    while True:
                        lock.release()
                raise
            finally:
                with lock:  # after the pushes under way; later pushes of other threads are refused
                    pushing.closed = viewing.closed = True
                    self._block = None
                    self._pushing, self._viewing = own

    # Pushes

    def _new_push(self, verb: str, key: Any, value: Any) -> tuple[Push, Sequence[Array]]:
        """Return a push of arrays that have been checked, and the arrays."""
        registry, rule = self._engine.layout.registry, self._engine.rule
        with self._session.checks:
            found = self._cache.find_alike("push", key, value, self._lie_outside)
            if found is not None:
                return found
            values = check.values(verb, key, value, registry, self._engine.kernels)
            for name in values:
                rule.check(registry[name])
        with self._sealing(verb, key):
            push, row = self._engine.plan_push(values)
        self._cache.keep_call("push", key, value, row, push, serves_others=not push.in_place)
        return push, row

    @contextmanager
    def _sealing(self, verb: str, key: Any) -> Iterator[None]:
        """Name the call whose memory is lacking: the first push of keys makes their buckets."""
        try:
            yield
        except MemoryError as error:
            problem = out_of_memory(verb, key, error)
            self._session.checks.raised = problem  # nothing has been recorded
            raise problem from error

    def _merge_buckets(self, verb: str, key: Any) -> None:
        """Merge small buckets before a push of all keys of the store, outside blocks.

        The keys of a call are equal on all ranks, unlike the caches: so all ranks merge or none.
        """
        engine, layout = self._engine, self._engine.layout
        # If ranks may push different keys, a push of all keys is none on other ranks.
        if engine.policy.flushes_everything or self._block is not None:
            return
        try:
            names = set(key)
        except TypeError:  # an item is not a key: the checks refuse it
            return
        if len(names) != layout.unplanned or not all(name in layout.registry for name in names):
            return
        with self._sealing(verb, key):
            layout.seal()
        try:
            if merge_buckets(self._comm, engine):
                self._cache.clear()
        except MemoryError as error:
            self._session.mark_interrupted(verb, error)
            raise out_of_memory(verb, key, error) from error

    def _lie_outside(self, arrays: Sequence[Array]) -> bool:
        """Return whether arrays to read lie in no bucket; may be False needlessly."""
        begins = addresses(arrays)
        return begins is not None and self._engine.layout.lie_outside(begins)

    def _record_and_push(
        self,
        verb: str,
        key: Any,
        push: Push,
        row: Sequence[Array],
        priority: int,
        pull: Pull | None = None,
    ) -> None:
        """Record a push, with the pull of the same call, and pack it into its buckets."""
        try:
            step = self._engine.ready(push)
        except BaseException as error:
            self._session.checks.raised = error
            raise
        self._calls.record_push(verb, push, pull, priority)
        try:
            self._engine.pack_and_launch(push, row, step)
        except MemoryError as error:
            self._session.mark_interrupted(verb, error)
            raise out_of_memory(verb, key, error) from error

    # Pulls

    def _new_pull(
        self, verb: str, key: Any, out: Any, *, local: bool = False
    ) -> tuple[Pull, Sequence[Array]]:
        """Return a pull into arrays that have been checked, and the arrays."""
        layout = self._engine.layout
        with self._session.checks:
            found = self._cache.find_alike("pull", key, out, self._lie_apart)
            if found is not None:
                return _with_observed(found[0], out), found[1]
            reads = check.outs(verb, key, out, layout.registry, self._engine.kernels)
            if local or self._block is None:  # the end of a group checks where they lie
                layout.check_outs(reads, flushed=not local)
        pull, row = self._engine.plan_pull(reads)
        self._keep_pull("pull", key, out, row, pull)
        return _with_observed(pull, out), row

    def _lie_apart(self, arrays: Sequence[Array]) -> bool:
        """Return whether arrays to write lie in no bucket and share no memory; as above."""
        begins = addresses(arrays)
        if begins is None or not lie_apart(arrays, begins):
            return False
        return self._engine.layout.lie_outside(begins)

    def _keep_pull(self, verb: str, key: Any, out: Any, row: Sequence[Array], pull: Pull) -> None:
        """Keep a pull for the next call with these arrays.

        A pull may write the gradients of buckets that it flushes itself.  Others are checked at
        each call, because they may be in use.
        """
        if not self._engine.layout.sealed:
            self._cache.note(verb, "a key has no bucket before the first push")
        elif not all(state in pull.states for state in pull.written):
            self._cache.note(verb, "an array lies in a bucket")
        else:
            self._cache.keep_call(verb, key, out, row, pull, serves_others=not pull.written)

    def _new_outs(self, key: Any, *, local: bool) -> Array | list[Array]:
        """Return new arrays to pull a key, or a list of keys, into."""
        if self._block is not None and not local:
            raise UsageError(
                "pull inside a group needs out, because the group's end writes the value; give the "
                "array to write"
            )
        with self._session.checks:
            specs = [self._engine.layout.registry[name] for name in key_list(key)]
            arrays = [self._engine.kernels.empty(spec.shape, spec.dtype) for spec in specs]
        return arrays if is_list(key) else arrays[0]

    def _flush_and_read(self, pull: Pull, row: Sequence[Array]) -> None:
        """Write present values to the arrays of a pull; compare them between ranks when due."""
        self._engine.read_values(pull, row, flush=True)
        if self._context.verify is not None:
            self._context.verify.pulled(pull, row)

    def _end_push(self, pull: Pull, row: Sequence[Array]) -> None:
        """Make the pull of a call that has pushed; its failure must not lead to a second push."""
        self._engine.updates.applying = True
        self._flush_and_read(pull, row)
        self._engine.updates.applying = False

    def _end_group(self, group: Group) -> None:
        """Execute the calls of a group: one push, then one pull."""
        names = "group", group.keys, group.outs
        cached = self._cache.find_call(*names, self._engine.epoch) or self._cache.find_alike(
            *names, self._lie_apart
        )
        reads = [] if cached is not None else group.reads()
        check.check_disjoint("group", reads)
        group.prepare(reads)
        # Before the record: a MemoryError here must leave nothing to flush.
        pull, row = cached or self._engine.plan_pull(reads)
        if cached is None:
            self._keep_pull("group", group.keys, group.outs, row, pull)
        pull.observed = group.observed
        self._calls.record("end of a group", group.pushed, group.keys)
        self._engine.updates.applying = True
        group.commit()
        self._end_push(pull, row)


def _with_observed(pull: Pull, out: Any) -> Pull:
    """Return a pull that names observed arrays: a copy, since a kept pull keeps none alive."""
    arrays = observed(out)
    return replace(pull, observed=arrays) if arrays else pull


def out_of_memory(verb: str, key: Any, error: MemoryError) -> OutOfMemory:
    """Return the error of a push for which no memory is left."""
    keys = key_list(key)
    names = f"key {keys[0]!r}" if len(keys) == 1 else f"{len(keys)} keys, {keys[0]!r} the first"
    return OutOfMemory(f"{verb} of {names}: {str(error) or 'no memory is left'}")
