"""`UpdaterStates`: saves the state of an updater object, and gives the object a saved state.

The state of each rank is saved with its rank, and the manifest has the rank that updates each key.
If these ranks are the same at the load, each rank gets its own state.  Otherwise the updater's
``merge_state_dicts(states)`` makes one state, which every rank gets.  Without this method the load
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays import cupy, device
from ncclkv.arrays.dtypes import check_dtype
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import Manifest, OwnedStates, UpdaterState, updater_name
from ncclkv.checkpoint.tensors import Array, Tensor
from ncclkv.comm.destinations import To
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.store.context import Component
from ncclkv.store.keys import one_key
from ncclkv.table.bucket import Bucket
from ncclkv.table.registry import Key

Items = dict[Key, Any]


class UpdaterStates(Component):
    """Reads the state of an updater object by ``state_dict``, and sets it by ``load_state_dict``.

    With ``update_on="sharded"`` each rank updates other keys, so its object has another state.
    """

    def _method(self, name: str) -> Callable[[Any], Any] | None:
        """Return a method of the updater object, if it has the method."""
        rule = self._engine.rule
        method = getattr(rule.source, name, None)
        return method if isinstance(rule, FunctionRule) and callable(method) else None

    # Saving

    def own(self) -> Items | None:
        """Return this rank's state: arrays in host memory, and JSON values; None without state."""
        rule, state_dict = self._engine.rule, self._method("state_dict")
        if state_dict is None:
            return None
        # Not in `updating`: other ranks wait in this verb, and would join no call of another store.
        try:
            given: Any = state_dict()  # type: ignore[call-arg]
        except UsageError as error:
            # A new error: all ranks raise it, so a refused verb leaves no rank a call behind.
            raise UsageError(f"state_dict of the updater {rule.name}: {error}") from error
        if not isinstance(given, dict):
            raise UsageError(
                f"state_dict of the updater {rule.name} returned a {type(given).__name__}; return "
                f"a dict of arrays and JSON values by name"
            )
        return {one_key(key): self._item(key, value) for key, value in given.items()}

    def _item(self, key: Any, value: Any) -> Any:
        """Return an item of an updater's state: an array in host memory, or a JSON value."""
        what = f"state_dict()[{key!r}] of the updater"
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            return np.asarray(array, check_dtype(array.dtype, what), order="C")
        if not (cupy.is_own(value) or device.recognises(value)):
            strict_json.check(value, what)
            return value
        view = self._engine.kernels.value(value, what)
        out = np.empty(view.shape, check_dtype(view.dtype, what))
        self._engine.kernels.unpack(self._engine.kernels.copy(view).reshape(-1), out)
        return out

    def owners(self) -> tuple[int | None, ...]:
        """Return the rank that updates each key, in their order; None for a key without bucket."""
        layout = self._engine.layout
        found = _owners([state.bucket for state in layout.states], [s.to for s in layout.states])
        return tuple(found.get(spec.key) for spec in layout.registry)

    # Loading

    def check(self, manifest: Manifest) -> None:
        """Refuse a state that the updater object of this store cannot take.

        Raises
        ------
        CheckpointError
        """
        if manifest.updater is None and manifest.owned is None:
            return
        name = self._engine.rule.name
        if self._method("load_state_dict") is None:
            raise CheckpointError(
                f"the checkpoint holds the state of an updater, and the store's updater "
                f"({name}) has no load_state_dict; first call set_updater with "
                f"an object that has this method"
            )
        if manifest.owned is None or self._method("merge_state_dicts") is not None:
            return
        problem = self._problem(manifest, manifest.owned)
        if problem is not None:
            raise CheckpointError(
                f"the checkpoint holds the states of an updater on {len(manifest.owned.states)} "
                f"ranks, each for the keys that this rank updated, and {problem}. Load it with the "
                f"ranks, update_on, bucket_bytes and order of keys that it was saved with; or give "
                f"the updater {name} a method merge_state_dicts(states), which makes one state "
                f"of the states of all ranks"
            )

    def _problem(self, manifest: Manifest, owned: OwnedStates) -> str | None:
        """Return the reason for which the ranks cannot each take the state of the same rank."""
        size, placement = self._comm.size, self._engine.placement
        if size != len(owned.states):
            return f"this store has {size} rank{'s' if size > 1 else ''}"
        if not placement.divides:
            return f"this store updates on {placement.owner}"
        registered = self._engine.layout.registry
        new = [] if len(registered) else [key.spec for key in manifest.keys]
        buckets = self._engine.layout.buckets_with(new)
        now = _owners(buckets, self._engine.updates.plan(buckets, [0] * size))
        for (spec, _, _), owner in zip(manifest.keys, owned.owners, strict=True):
            if owner is not None and owner != now[spec.key]:
                return f"here rank {now[spec.key]} updates key {spec.key!r}, and rank {owner} did"
        return None

    def install(self, verb: str, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        """Send the saved state to all ranks, and load it on those that update; collective.

        These ranks call ``load_state_dict``.  `arrays` are the checkpoint's tensors, on the leader
        alone.

        Raises
        ------
        CheckpointError
            On every rank, when the object of a rank raises an exception.
        """
        merges, states = False, []
        if manifest.owned is not None:
            merges = self._problem(manifest, manifest.owned) is not None
            for rank, form in enumerate(manifest.owned.states):
                state = self._received(verb, form, arrays, rank)
                if merges or rank == self._comm.rank:
                    states.append(state)
        elif manifest.updater is not None:
            states.append(self._received(verb, manifest.updater, arrays))
        if states:
            self._load(verb, states, merges=merges)

    def _received(
        self, verb: str, form: UpdaterState, arrays: Mapping[str, Array], rank: int | None = None
    ) -> Items:
        """Return the leader's state, in the store's kind of memory; collective."""
        state: Items = {}
        for index, (key, item) in enumerate(form.items()):
            mine = item[0] if isinstance(item, list) else arrays.get(updater_name(index, rank))
            given = self._comm.control.broadcast(
                mine, self._engine.placement.leader, f"{verb}: the updater's state"
            )
            state[key] = self._copy(given) if isinstance(item, Tensor) else given
        return state

    def _copy(self, given: Array) -> Array:
        """Return a copy of an array in the store's kind of memory."""
        made = self._engine.kernels.empty(given.shape, given.dtype)
        self._engine.kernels.pack(given, made.reshape(-1))
        return made

    def _load(self, verb: str, states: Sequence[Items], *, merges: bool) -> None:
        """Give the updater object its state, and exchange the failures; collective."""
        failure: Exception | None = None
        called, source = "load_state_dict", self._engine.rule.source
        if self._engine.placement.updates:
            updater: Any = source
            try:
                state = states[0]
                if merges:
                    called = "merge_state_dicts"
                    state = updater.merge_state_dicts([*states])
                    called = "load_state_dict"
                updater.load_state_dict(state)
            except Exception as error:
                failure = error
        text = None if failure is None else f"{called} of the updater {self._engine.rule.name} "
        if text is not None:
            text += f"raised {type(failure).__name__}: {failure}"
        failures = self._comm.control.allgather(text, f"{verb}: the updater's state")
        for rank, found in enumerate(failures):
            if found is not None:
                raise CheckpointError(
                    f"{verb} on rank {rank} of {self._comm.size}: {found}; the store's values are "
                    f"unchanged"
                ) from failure


def forms(items: Items | None) -> UpdaterState | None:
    """Return a state as the manifest has it."""
    if items is None:
        return None
    return {
        key: Tensor(item.shape, item.dtype) if isinstance(item, np.ndarray) else [item]
        for key, item in items.items()
    }


def tensors(items: Items, rank: int | None = None) -> list[tuple[str, Array]]:
    """Return the arrays of a state by their names in the checkpoint."""
    return [
        (updater_name(index, rank), item)
        for index, item in enumerate(items.values())
        if isinstance(item, np.ndarray)
    ]


def _owners(buckets: Sequence[Bucket], plan: Sequence[To]) -> dict[Key, int]:
    """Return the rank that updates each key of some buckets."""
    return {
        entry.key: to.owner(entry.lo) or 0
        for bucket, to in zip(buckets, plan, strict=True)
        for entry in bucket.entries
    }
