"""Restoring: gives a store the content of a checkpoint, once all ranks have checked it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.checkpoint.manifest import Manifest, SavedKey, state_name, value_name
from ncclkv.checkpoint.read import LoadedCheckpoint, read_residuals
from ncclkv.checkpoint.tensors import Tensor, batches
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.storage import Array
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.restore import check_config, from_config, set_config
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.check import reducible
from ncclkv.store.context import Component, Context
from ncclkv.store.residual_states import ResidualStates
from ncclkv.store.updater_states import UpdaterStates
from ncclkv.table.registry import DENSE, KeySpec

_BATCH_BYTES = 64 * 1024 * 1024
"""Size of the keys that are broadcast at a time; a larger key is broadcast by itself."""

_SHOWN = 3
"""Count of wrong keys that a message shows; it counts the rest."""


class Restoring(Component):
    """Checks a checkpoint against the store, and installs it on all ranks."""

    def __init__(
        self, context: Context, updater_states: UpdaterStates, residual_states: ResidualStates
    ) -> None:
        super().__init__(context)
        self._updater_states = updater_states
        self._residual_states = residual_states

    # Checks before anything is changed

    def check(self, manifest: Manifest, *, values: bool) -> None:
        """Refuse a checkpoint without the wanted content, or with other keys or another updater."""
        if values and not manifest.values:
            raise CheckpointError(
                "the checkpoint holds the states of an optimizer, and no values; call "
                "load_optimizer_states"
            )
        if not values and manifest.optimizer is None:
            raise CheckpointError("the checkpoint holds no optimizer; call load for its values")
        registry = self._engine.layout.registry
        if len(registry) or not values:
            _check_keys([key.spec for key in manifest.keys], list(registry))
        self._optimizer_of(manifest)
        if values:
            self._updater_states.check(manifest)

    def _optimizer_of(self, manifest: Manifest) -> Optimizer | None:
        """Return a new optimizer if the store has no updater; check the optimizer it has."""
        saved, rule = manifest.optimizer, self._engine.rule
        if saved is None:
            return None
        if isinstance(rule, FunctionRule):
            raise CheckpointError(
                f"the checkpoint is of a store with the optimizer {saved.kind}, and this store has "
                f"the updater {rule.name}; load it into a store without an updater"
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
                f"the checkpoint is of a store with the optimizer {saved.kind}, and this store has "
                f"{optimizer!r}; first call set_optimizer with an optimizer of the saved class"
            )
        _check_states(manifest, optimizer)
        return new

    # Installation

    def install(
        self, verb: str, manifest: Manifest, loaded: LoadedCheckpoint | None, *, values: bool
    ) -> None:
        """Give the store the content of a checkpoint; collective.

        `loaded` is the checkpoint with its tensors, on the leader alone.
        """
        arrays: Mapping[str, Array] = {} if loaded is None else loaded.arrays
        registered = len(self._engine.layout.registry)
        new = [] if registered else [key.spec for key in manifest.keys]

        def make() -> tuple[Optimizer | None, list[str]]:
            for spec in new:
                reducible(self._comm, spec.op, spec.dtype, f"{verb} of key {spec.key!r}")
            return self._optimizer_of(manifest), []

        optimizer, notes = propose(self._comm, verb, make, note=self._engine.layout.sealed)
        self._context.memory_check.check(verb, new)
        if values:
            self._updater_states.install(verb, manifest, arrays)
        if registered:
            self._engine.layout.seal_on_all(verb, notes)
        self._install_optimizer(manifest, optimizer, notes)
        if values:
            self._broadcast_values(manifest, arrays, new=bool(new))
        if manifest.optimizer is not None:
            self._broadcast_states(manifest, arrays)
        if values:
            self._residual_states.install_bases(manifest, arrays)
            files = () if loaded is None else read_residuals(loaded)
            self._residual_states.install(verb, manifest, files)

    def _install_optimizer(
        self, manifest: Manifest, new: Optimizer | None, sealed: Sequence[bool]
    ) -> None:
        """Set a new optimizer, or give the store's optimizer the saved hyperparameters."""
        rule, saved = self._engine.rule, manifest.optimizer
        if new is not None:
            self._engine.set_rule(FusedRule(new, self._engine.kernels), sealed)
        elif isinstance(rule, FusedRule) and saved is not None and saved.config is not None:
            set_config(rule.source, saved.config)

    def _broadcast_values(
        self, manifest: Manifest, arrays: Mapping[str, Array], *, new: bool
    ) -> None:
        """Broadcast the values to all ranks."""
        for batch in _batches(manifest):
            specs = [spec for spec, _, _ in batch]
            wanted = [(value_name(spec.index), Tensor(spec.shape, spec.dtype)) for spec in specs]
            given = from_rank(
                self._comm, _arrays_or_zeros(wanted, arrays), self._engine.placement.leader
            )
            if new:
                self._engine.layout.add(specs, given)
                continue
            keys = [spec.key for spec in specs]
            self._engine.replace(dict(zip(keys, given, strict=True)))
            self._comm.keep_alive(*given)

    def _broadcast_states(self, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        """Broadcast the optimizer's state of each key to the ranks that update."""
        layout, placement = self._engine.layout, self._engine.placement
        layout.seal()
        for batch in _batches(manifest):
            wanted = [
                (state_name(spec.index, name), Tensor(spec.shape, dtype))
                for spec, states, _ in batch
                for name, dtype in states.items()
            ]
            given: list[Array] = _arrays_or_zeros(wanted, arrays)
            if (placement.replicated or placement.divides) and given:
                given = from_rank(self._comm, given, placement.leader)
            for spec, _, updates in batch:
                slot = layout[spec.key]
                rule = self._engine.rule_of(slot)
                rule.reset(slot)
                rule.set_count(slot, updates)
            if not placement.updates:
                continue
            slots = [layout[spec.key] for spec, states, _ in batch for _ in states]
            names = [name for _, states, _ in batch for name in states]
            for slot, name, array in zip(slots, names, given, strict=True):
                rule = self._engine.rule_of(slot)
                lo, hi = rule.part(slot)
                self._engine.kernels.pack(array.reshape(-1)[lo:hi], rule.states(slot)[name])
            self._comm.keep_alive(*given)
        self._engine.rule.counts_set()


def _check_keys(saved: Sequence[KeySpec], registered: Sequence[KeySpec]) -> None:
    """Refuse keys that differ from the store's; their order may differ."""
    # A checkpoint has flat values, which every storage takes.
    in_store = {spec.key: str(replace(spec, storage=DENSE)) for spec in registered}
    in_file = {spec.key: str(spec) for spec in saved}
    wrong = []
    for key in {**in_store, **in_file}:
        mine, other = (specs.get(key, "nothing") for specs in (in_store, in_file))
        if mine != other:
            wrong.append(f"the store has {mine}, the checkpoint {other}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more keys" if len(wrong) > _SHOWN else ""
        raise CheckpointError(
            f"its keys are not the store's: {'; '.join(wrong[:_SHOWN])}{more}. Load it into a "
            f"store with its keys, or into a store without keys"
        )


def _check_states(manifest: Manifest, optimizer: Optimizer) -> None:
    """Refuse states that the optimizer does not have."""
    for spec, dtypes, _ in manifest.keys:
        states = optimizer.states_for(spec.dtype)
        expected = {state.name: state.dtype_for(spec.dtype) for state in states}
        # A key without a slot at the save has no states in the checkpoint: its states start anew.
        # So does a master copy that the checkpoint lacks: it starts from the weights.
        own = {state.name: expected[state.name] for state in optimizer.states}
        if dtypes and dtypes not in (expected, own):
            raise CheckpointError(
                f"the states of key {spec.key!r} in the checkpoint are {_describe(dtypes)}, and "
                f"{optimizer!r} has {_describe(expected)}"
            )


def _describe(dtypes: Mapping[str, np.dtype[Any]]) -> str:
    """Return the names and dtypes of states."""
    return ", ".join(f"{name} ({dtype_name(dtype)})" for name, dtype in dtypes.items()) or "none"


def _arrays_or_zeros(
    wanted: Sequence[tuple[str, Tensor]], arrays: Mapping[str, Array]
) -> list[Array]:
    """Return the named arrays; on ranks other than the leader, zeros of their form."""
    return [
        arrays[name] if name in arrays else np.broadcast_to(np.zeros((), dtype), shape)
        for name, (shape, dtype) in wanted
    ]


def _batches(manifest: Manifest) -> Iterator[list[SavedKey]]:
    """Return the keys in batches of about `_BATCH_BYTES`."""
    return batches(manifest.keys, lambda key: key.spec.nbytes, _BATCH_BYTES)
