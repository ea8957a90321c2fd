"""How a store becomes what a checkpoint holds: checked by all ranks, then given to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.checkpoint.manifest import Manifest, state_name, updater_name, value_name
from ncclkv.checkpoint.tensors import Tensor
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.update_rule import FunctionRule, FusedRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.fused import FusedUpdater, state_dtype
from ncclkv.optimizer.restore import check_config, from_config, set_config
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.saving import Saving
from ncclkv.store.updaters import UpdateVerbs
from ncclkv.table.registry import Key, KeySpec

_PART_BYTES = 64 * 1024 * 1024
"""Ranks are given so much at a time, or one array."""

_SHOWN = 3


class Restoring(Saving, UpdateVerbs):
    """Holds a checkpoint against the store, and puts it in."""

    # What must be right before anything is changed

    def _check_head(self, head: Manifest, *, values: bool) -> None:
        """Refuse a checkpoint of another kind, of other keys, or of another updater."""
        if values and not head.values:
            raise CheckpointError(
                "the checkpoint holds what an optimizer remembers, and no values; call "
                "load_optimizer_states"
            )
        if not values and head.optimizer is None:
            raise CheckpointError("the checkpoint holds no optimizer; load takes its values")
        registry = self._engine.layout.registry
        if len(registry) or not values:
            _check_keys(head.specs, list(registry))
        self._optimizer_of(head)
        loads = getattr(self._engine.rule.source, "load_state_dict", None)
        takes = isinstance(self._engine.rule, FunctionRule) and callable(loads)
        if values and head.updater is not None and not takes:
            raise CheckpointError(
                f"the checkpoint holds the state of an updater, and the store's updater "
                f"({self._engine.rule.name}) has no load_state_dict; call set_updater with an "
                f"object that has, first"
            )

    def _optimizer_of(self, head: Manifest) -> Optimizer | None:
        """A new optimizer, where the store has none; one that it has must fit."""
        saved, rule = head.optimizer, self._engine.rule
        if saved is None:
            return None
        if isinstance(rule, FunctionRule):
            raise CheckpointError(
                f"the checkpoint is of a store with the optimizer {saved.kind}, and this store has "
                f"the updater {rule.name}; load it into a store without one"
            )
        new = None
        try:
            if isinstance(rule, FusedRule):
                optimizer = rule.updater.optimizer
                if saved.config is not None and type(optimizer).__name__ == saved.kind:
                    check_config(optimizer, saved.config)
            else:
                new = optimizer = from_config(saved.config or {})
        except UsageError as error:
            raise CheckpointError(
                f"the optimizer {saved.kind} of the checkpoint: {error}"
            ) from error
        if type(optimizer).__name__ != saved.kind:
            raise CheckpointError(
                f"the checkpoint is of a store with the optimizer {saved.kind}, and the one here "
                f"is {optimizer!r}; call set_optimizer with one of that class first"
            )
        _check_states(head, optimizer)
        return new

    # Putting it in

    def _restore(
        self, verb: str, head: Manifest, arrays: Mapping[str, Array], *, values: bool
    ) -> None:
        """Make the store what the checkpoint holds; `arrays` are the leader's."""
        known = len(self._engine.layout.registry)
        new = [] if known else list(head.specs)

        def make() -> tuple[Optimizer | None, list[str]]:
            for spec in new:
                self._comm.check(spec.op, spec.dtype, f"{verb} of key {spec.key!r}: ")
            return self._optimizer_of(head), []

        optimizer, notes = propose(self._comm, verb, make, note=self._engine.layout.sealed)
        self._headroom.check(verb, new)
        if values:
            self._give_updater(verb, head, arrays)
        if known:
            self._seal_alike(verb, notes)
        self._put_optimizer(head, optimizer, notes)
        if values:
            self._put_values(head, arrays, new=bool(new))
        if head.optimizer is not None:
            self._put_states(head, arrays)

    def _put_optimizer(self, head: Manifest, new: Optimizer | None, sealed: Sequence[bool]) -> None:
        """Set a new optimizer, or give the store's the numbers that were saved."""
        rule, saved = self._engine.rule, head.optimizer
        if new is not None:
            fused = FusedUpdater(new, self._kernels)
            self._install(FusedRule(fused, type(new).__name__), sealed)
        elif isinstance(rule, FusedRule) and saved is not None and saved.config is not None:
            set_config(rule.updater.optimizer, saved.config)

    def _put_values(self, head: Manifest, arrays: Mapping[str, Array], *, new: bool) -> None:
        """Give all ranks the values."""
        for specs in _parts(head.specs):
            wanted = [(value_name(spec.index), Tensor(spec.shape, spec.dtype)) for spec in specs]
            given = from_rank(self._comm, _given(wanted, arrays), self._leader)
            if new:
                self._engine.layout.add(specs, given)
                continue
            for spec, value in zip(specs, given, strict=True):
                self._engine.replace(spec.key, value)
            self._comm.keep_alive(*given)

    def _put_states(self, head: Manifest, arrays: Mapping[str, Array]) -> None:
        """Give the ranks that update what the optimizer remembers of each key."""
        places, rule = self._engine.layout, self._engine.rule
        places.seal()
        for specs in _parts(head.specs):
            wanted = [
                (state_name(spec.index, number), Tensor(spec.shape, dtype))
                for spec in specs
                for number, dtype in enumerate(head.states[spec.index])
            ]
            given: list[Array] = _given(wanted, arrays)
            if self._engine.placement.root is None and given:
                given = from_rank(self._comm, given, self._leader)
            for spec in specs:
                rule.reset(places[spec.key])
            if not self._engine.placement.updates:
                continue
            slots = [places[s.key] for s in specs for _ in head.states[s.index]]
            numbers = [n for s in specs for n in range(len(head.states[s.index]))]
            for slot, number, array in zip(slots, numbers, given, strict=True):
                self._kernels.pack(array, rule.states(slot)[number])
            self._comm.keep_alive(*given)

    def _own(self, given: Array) -> Array:
        """A copy of an array in the memory that the store's values are in."""
        made = self._kernels.empty(given.shape, given.dtype)
        self._kernels.pack(given, made.reshape(-1))
        return made

    def _give_updater(self, verb: str, head: Manifest, arrays: Mapping[str, Array]) -> None:
        """Call ``load_state_dict`` of the updater wherever it runs."""
        if head.updater is None:
            return
        state: dict[Key, Any] = {}
        for index, (key, item) in enumerate(head.updater):
            mine = item[0] if isinstance(item, list) else arrays.get(updater_name(index))
            given = self._comm.control.broadcast(mine, self._leader, f"{verb}: the updater's state")
            state[key] = self._own(given) if isinstance(item, Tensor) else given
        failure: Exception | None = None
        if self._engine.placement.updates:
            source: Any = self._engine.rule.source
            try:
                with self._session.updating():
                    source.load_state_dict(state)
            except Exception as error:
                failure = error
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        votes = self._comm.control.allgather(text, f"{verb}: the updater's state")
        for rank, vote in enumerate(votes):
            if vote is not None:
                raise CheckpointError(
                    f"{verb} on rank {rank} of {self._comm.size}: load_state_dict of the updater "
                    f"{self._engine.rule.name} raised {vote}; the store's values are as they were"
                ) from failure


def _check_keys(saved: Sequence[KeySpec], known: Sequence[KeySpec]) -> None:
    """Refuse other keys than the store's; the order may be another."""
    here, there = ({spec.key: spec for spec in specs} for specs in (known, saved))
    wrong = []
    for key in [*here, *(key for key in there if key not in here)]:
        mine, other = (str(specs.get(key, "is not there")) for specs in (here, there))
        if mine != other:
            wrong.append(f"in the store {mine}, in the checkpoint {other}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more keys" if len(wrong) > _SHOWN else ""
        raise CheckpointError(
            f"its keys are not the store's: {'; '.join(wrong[:_SHOWN])}{more}. Load it into a "
            f"store with these keys, or into one without any"
        )


def _check_states(head: Manifest, optimizer: Optimizer) -> None:
    """Refuse what an optimizer like this does not remember."""
    for spec, dtypes in zip(head.specs, head.states, strict=True):
        # A key that had no place yet has none, which are zeros.
        expected = (state_dtype(spec.dtype),) * optimizer.state_count
        if dtypes and dtypes != expected:
            raise CheckpointError(
                f"of key {spec.key!r} the checkpoint has {len(dtypes)} arrays ({dtypes[0]} and so "
                f"on) of what {optimizer!r} remembers, which are {len(expected)}"
            )


def _given(wanted: Sequence[tuple[str, Tensor]], arrays: Mapping[str, Array]) -> list[Array]:
    """The arrays of these names; on other ranks than the leader something of their form."""
    return [
        arrays[name] if name in arrays else np.broadcast_to(np.zeros((), dtype), shape)
        for name, (shape, dtype) in wanted
    ]


def _parts(specs: Sequence[KeySpec]) -> Iterator[list[KeySpec]]:
    """The keys, some at a time."""
    part: list[KeySpec] = []
    held = 0
    for spec in specs:
        part.append(spec)
        held += spec.nbytes
        if held >= _PART_BYTES:
            yield part
            part, held = [], 0
    if part:
        yield part
