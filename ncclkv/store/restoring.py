"""Restoring: makes a store what a checkpoint holds, once all ranks have checked it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.checkpoint.manifest import Manifest, state_name, updater_name, value_name
from ncclkv.checkpoint.tensors import Tensor
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.restore import check_config, from_config, set_config
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.context import Context
from ncclkv.store.registration import Registration
from ncclkv.store.updaters import Updaters
from ncclkv.table.registry import Key, KeySpec

_PART_BYTES = 64 * 1024 * 1024
"""Size of a part that is broadcast at a time; a larger array is a part by itself."""

_SHOWN = 3


class Restoring:
    """Checks a checkpoint against the store, and installs it on all ranks.

    Parameters
    ----------
    context : Context
    registration : Registration
    updaters : Updaters
    leader : int
        The rank that reads checkpoints.
    """

    def __init__(
        self, context: Context, registration: Registration, updaters: Updaters, leader: int
    ) -> None:
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._memory_check = context.memory_check
        self._registration = registration
        self._updaters = updaters
        self._leader = leader

    # Checks before anything is changed

    def check(self, head: Manifest, *, values: bool) -> None:
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
        """Return a new optimizer if the store has no updater; check the optimizer it has."""
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
                optimizer = rule.source
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

    # Installation

    def install(
        self, verb: str, head: Manifest, arrays: Mapping[str, Array], *, values: bool
    ) -> None:
        """Make the store what a checkpoint holds; collective.

        `arrays` are its tensors, on the leader alone.
        """
        known = len(self._engine.layout.registry)
        new = [] if known else list(head.specs)

        def make() -> tuple[Optimizer | None, list[str]]:
            for spec in new:
                self._comm.check(spec.op, spec.dtype, f"{verb} of key {spec.key!r}: ")
            return self._optimizer_of(head), []

        optimizer, notes = propose(self._comm, verb, make, note=self._engine.layout.sealed)
        self._memory_check.check(verb, new)
        if values:
            self._broadcast_updater(verb, head, arrays)
        if known:
            self._registration.seal_alike(verb, notes)
        self._install_optimizer(head, optimizer, notes)
        if values:
            self._broadcast_values(head, arrays, new=bool(new))
        if head.optimizer is not None:
            self._broadcast_states(head, arrays)

    def _install_optimizer(
        self, head: Manifest, new: Optimizer | None, sealed: Sequence[bool]
    ) -> None:
        """Set a new optimizer, or give the store's optimizer the saved hyperparameters."""
        rule, saved = self._engine.rule, head.optimizer
        if new is not None:
            self._updaters.install(FusedRule(new, self._engine.kernels), sealed)
        elif isinstance(rule, FusedRule) and saved is not None and saved.config is not None:
            set_config(rule.source, saved.config)

    def _broadcast_values(self, head: Manifest, arrays: Mapping[str, Array], *, new: bool) -> None:
        """Broadcast the values to all ranks."""
        for specs in _parts(head.specs):
            wanted = [(value_name(spec.index), Tensor(spec.shape, spec.dtype)) for spec in specs]
            given = from_rank(self._comm, _given(wanted, arrays), self._leader)
            if new:
                self._engine.layout.add(specs, given)
                continue
            keys = [spec.key for spec in specs]
            self._engine.replace(dict(zip(keys, given, strict=True)))
            self._comm.keep_alive(*given)

    def _broadcast_states(self, head: Manifest, arrays: Mapping[str, Array]) -> None:
        """Broadcast the optimizer's state of each key to the ranks that update."""
        layout, rule = self._engine.layout, self._engine.rule
        layout.seal()
        for specs in _parts(head.specs):
            wanted = [
                (state_name(spec.index, name), Tensor(spec.shape, dtype))
                for spec in specs
                for name, dtype in head.states[spec.index].items()
            ]
            given: list[Array] = _given(wanted, arrays)
            if self._engine.placement.replicated and given:
                given = from_rank(self._comm, given, self._leader)
            for spec in specs:
                rule.reset(layout[spec.key])
                rule.set_count(layout[spec.key], head.updates[spec.index])
            if not self._engine.placement.updates:
                continue
            targets = [
                rule.states(layout[spec.key])[name]
                for spec in specs
                for name in head.states[spec.index]
            ]
            for target, array in zip(targets, given, strict=True):
                self._engine.kernels.pack(array, target)
            self._comm.keep_alive(*given)

    def _copied(self, given: Array) -> Array:
        """Return a copy of an array in the store's kind of memory."""
        made = self._engine.kernels.empty(given.shape, given.dtype)
        self._engine.kernels.pack(given, made.reshape(-1))
        return made

    def _broadcast_updater(self, verb: str, head: Manifest, arrays: Mapping[str, Array]) -> None:
        """Broadcast the updater's state, and call its ``load_state_dict`` wherever it runs."""
        if head.updater is None:
            return
        state: dict[Key, Any] = {}
        for index, (key, item) in enumerate(head.updater):
            mine = item[0] if isinstance(item, list) else arrays.get(updater_name(index))
            given = self._comm.control.broadcast(mine, self._leader, f"{verb}: the updater's state")
            state[key] = self._copied(given) if isinstance(item, Tensor) else given
        failure: Exception | None = None
        if self._engine.placement.updates:
            source: Any = self._engine.rule.source
            try:
                with self._session.updating():
                    source.load_state_dict(state)
            except Exception as error:
                failure = error
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        failures = self._comm.control.allgather(text, f"{verb}: the updater's state")
        for rank, found in enumerate(failures):
            if found is not None:
                raise CheckpointError(
                    f"{verb} on rank {rank} of {self._comm.size}: load_state_dict of the updater "
                    f"{self._engine.rule.name} raised {found}; the store's values are as they were"
                ) from failure


def _check_keys(saved: Sequence[KeySpec], known: Sequence[KeySpec]) -> None:
    """Refuse other keys than the store's; their order may differ."""
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
    """Refuse states that an optimizer of this kind does not have."""
    for spec, dtypes in zip(head.specs, head.states, strict=True):
        expected = {state.name: state.dtype_for(spec.dtype) for state in optimizer.states}
        # A key that had no place has no states in the checkpoint: they start anew.
        if dtypes and dtypes != expected:
            raise CheckpointError(
                f"the states of key {spec.key!r} in the checkpoint are {_in_words(dtypes)}, and "
                f"{optimizer!r} has {_in_words(expected)}"
            )


def _in_words(dtypes: Mapping[str, np.dtype[Any]]) -> str:
    """Return the names and dtypes of states."""
    return ", ".join(f"{name} ({dtype_name(dtype)})" for name, dtype in dtypes.items()) or "none"


def _given(wanted: Sequence[tuple[str, Tensor]], arrays: Mapping[str, Array]) -> list[Array]:
    """Return the named arrays; on other ranks than the leader, zeros of their form."""
    return [
        arrays[name] if name in arrays else np.broadcast_to(np.zeros((), dtype), shape)
        for name, (shape, dtype) in wanted
    ]


def _parts(specs: Sequence[KeySpec]) -> Iterator[list[KeySpec]]:
    """Yield the keys in parts of about `_PART_BYTES`."""
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
