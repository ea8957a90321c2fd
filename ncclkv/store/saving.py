"""Saving: makes the content of a checkpoint, as JSON values and arrays in host memory."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.directory import has_mark, marked
from ncclkv.checkpoint.files import File
from ncclkv.checkpoint.manifest import (
    Manifest,
    OptimizerManifest,
    OwnedStates,
    SavedKey,
    UpdaterState,
    state_name,
    updater_name,
    value_name,
)
from ncclkv.checkpoint.residuals import CompressionManifest, residual_name
from ncclkv.checkpoint.tensors import Array, Tensor
from ncclkv.checkpoint.write import NamedArrays, write_files
from ncclkv.comm.destinations import bounds_of
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.store.all_ranks import run_on_all_ranks
from ncclkv.store.context import Component, Context
from ncclkv.store.keys import one_key
from ncclkv.store.own_parts import OwnParts
from ncclkv.store.residual_states import ResidualStates
from ncclkv.store.single_rank import request_assistance
from ncclkv.store.updater_states import Items, UpdaterStates, forms, tensors
from ncclkv.table.registry import Key, KeySpec

_log = logging.getLogger("ncclkv")


class Saving(Component):
    """Makes the content of a checkpoint.

    If each rank updates a part of each bucket, or has residuals, and all ranks share the directory,
    each rank writes its part to files of its own.  Without such a directory the leader requests the
    parts, one key after another, and writes all files.
    """

    def __init__(
        self, context: Context, updater_states: UpdaterStates, residual_states: ResidualStates
    ) -> None:
        super().__init__(context)
        self._divided = self._engine.placement.divides and self._comm.size > 1
        self._own_parts = OwnParts(context)
        self._updater_states = updater_states
        self._residual_states = residual_states
        self._items: Items = {}

    def manifest(self, step: int, extra: Any, run: str, *, values: bool, config: bool) -> Manifest:
        """Return the manifest of a checkpoint, without the state of an updater object.

        Parameters
        ----------
        step, extra
            As given to ``kv.save``.
        run : str
            The identity of the store that saves.
        values : bool
            Whether the keys' values are saved, with an updater's state and with residuals.
        config : bool
            Whether the optimizer's hyperparameters are saved.
        """
        keys = tuple(self._saved_key(spec) for spec in self._engine.layout.registry)
        optimizer = self._optimizer(config)
        residuals = self._residual_states.form() if values else None
        return Manifest(step, extra, keys, values, optimizer, None, run, compression=residuals)

    # Files

    def fill(
        self, verb: str, manifest: Manifest, folder: str
    ) -> Generator[None, None, tuple[Manifest, list[File]]]:
        """Write the tensors to a folder, alone or with the other ranks; run on the leader.

        The other ranks wait in `run_on_one_rank` with `assist`.
        """
        residuals = manifest.compression
        if not (self._divided or (residuals is not None and self._comm.size > 1)):
            items = self._updater_states.own() if manifest.values else None
            manifest = replace(manifest, updater=forms(items))
            arrays = self._all_arrays(items or {}, residuals, values=manifest.values)
            return manifest, (yield from write_files(folder, arrays))
        with marked(folder) as mark:
            begin = verb, folder, mark, manifest.values, residuals
            self._request(verb, "write", *begin)
            states, files = self._write(*begin)
        if states is not None and self._divided:
            owners = self._updater_states.owners()
            manifest = replace(manifest, owned=OwnedStates(states, owners))
        elif states is not None:
            manifest = replace(manifest, updater=states[self._engine.placement.leader])
        if files is None:
            files = yield from write_files(folder, self._gathered(verb, manifest))
        return manifest, files

    def end(self) -> None:
        """Release the state of an updater object, which the last save has read."""
        self._items = {}

    def assist(self, request: tuple[str, Any]) -> None:
        """Take this rank's part in the leader's `fill`; collective, run on the other ranks."""
        kind, arguments = request
        if kind == "write":
            self._write(*arguments)
        elif kind == "state":
            self.gather_states(*arguments)
        elif kind == "residual":
            self._residual_states.gather(*arguments)
        else:
            self._gather_item(*arguments)

    def _request(self, verb: str, kind: str, *arguments: Any) -> None:
        """Let the other ranks call `assist`."""
        leader = self._engine.placement.leader
        request_assistance(self._comm, leader, verb, (kind, arguments))

    def _write(
        self,
        verb: str,
        folder: str,
        mark: str,
        values: bool,
        residuals: CompressionManifest | None,
    ) -> tuple[tuple[UpdaterState, ...] | None, list[File] | None]:
        """Write each rank's parts to the leader's folder, if all ranks find it; collective.

        Returns
        -------
        states : tuple of dict, or None
            The forms of the updater's states on all ranks; None without an updater's state.
        files : list of File, or None
            None if the folder is on a disk that not all ranks have.
        """

        def begin() -> Generator[None, None, tuple[bool, UpdaterState | None]]:
            yield
            owns = self._divided or self._comm.rank == self._engine.placement.leader
            items = self._updater_states.own() if values and owns else None
            self._items = items or {}
            return has_mark(folder, mark), forms(items)

        found = run_on_all_ranks(self._comm, verb, begin())
        states = tuple(state or {} for _, state in found)
        owned = states if any(state is not None for _, state in found) else None
        apart = [rank for rank, (shared, _) in enumerate(found) if not shared]
        rank, leader = self._comm.rank, self._engine.placement.leader
        if apart:
            if rank == leader:
                _log.info(
                    "%s: the directory %s of rank %s is not on the disks of %s; rank %s writes the "
                    "parts of all ranks",
                    verb,
                    folder,
                    leader,
                    format_ranks(apart),
                    leader,
                )
            return owned, None
        work = write_files(folder, self._rank_arrays(residuals, values=values), rank)
        written = run_on_all_ranks(self._comm, verb, work)
        return owned, [file for files in written for file in files]

    def _rank_arrays(self, residuals: CompressionManifest | None, *, values: bool) -> NamedArrays:
        """Return the tensors and pieces that this rank writes beside the other ranks."""
        own, rank = self._residual_states.own(residuals), self._comm.rank
        leader = self._engine.placement.leader
        if self._divided:
            parts = self._own_parts.arrays(values=values)
            bases = self._residual_states.bases(residuals if rank == leader else None)
            return chain(parts, tensors(self._items, rank), bases, own)
        if rank == leader:
            return self._all_arrays(self._items, residuals, values=values)
        return own

    # Arrays

    def _saved_key(self, spec: KeySpec) -> SavedKey:
        """Return a key as the manifest has it; without states if it has no slot yet."""
        layout = self._engine.layout
        if spec.key not in layout:
            return SavedKey(spec, {}, 0)
        slot = layout[spec.key]
        rule = self._engine.rule_of(slot)
        states = {name: state.dtype for name, state in rule.states(slot).items()}
        return SavedKey(spec, states, rule.count(slot))

    def _optimizer(self, config: bool) -> OptimizerManifest | None:
        """Return the manifest of the optimizer, if one is set."""
        if not isinstance(self._engine.rule, FusedRule):
            return None
        optimizer = self._engine.rule.source
        kind = type(optimizer).__name__
        if not config:
            return OptimizerManifest(kind, None)
        found = {}
        for name, value in optimizer.config().items():
            if isinstance(value, dict):  # factors by key, which are checked already
                found[name] = {one_key(key): factor for key, factor in value.items()}
            else:
                strict_json.check(value, f"{name} of {optimizer!r}")
                found[name] = value
        return OptimizerManifest(kind, found)

    def _all_arrays(
        self, items: Items, residuals: CompressionManifest | None, *, values: bool
    ) -> NamedArrays:
        """Return all tensors of this rank, which has all values and states."""
        return chain(
            self._arrays(values=values),
            tensors(items),
            self._residual_states.bases(residuals),
            self._residual_states.own(residuals),
        )

    def _arrays(self, *, values: bool) -> Iterator[tuple[str, Array]]:
        """Yield the values and states of all keys, of which this rank has all."""
        layout = self._engine.layout
        for spec in layout.registry:
            if values:
                yield self._value(spec)
            if spec.key not in layout:
                continue
            slot = layout[spec.key]
            for name, state in self._engine.rule_of(slot).states(slot).items():
                out = self._comm.to_host(state)
                yield state_name(spec.index, name), out.reshape(spec.shape)

    def _value(self, spec: KeySpec) -> tuple[str, Array]:
        """Return the value of a key, with its name in the checkpoint."""
        out = np.empty(spec.shape, spec.dtype)
        self._engine.read_values(*self._engine.plan_pull([(spec.key, out)]))
        return value_name(spec.index), out

    def _gathered(self, verb: str, manifest: Manifest) -> NamedArrays:
        """Yield all tensors on the leader, which receives the parts of one key at a time."""
        if not self._divided:
            yield from self._all_arrays(self._items, None, values=manifest.values)
        for spec, saved, _ in manifest.keys if self._divided else ():
            if manifest.values:
                yield self._value(spec)
            if not saved:
                continue
            self._request(verb, "state", spec.key)
            for name, state in self.gather_states(spec.key).items():
                yield state_name(spec.index, name), self._comm.to_host(state).reshape(spec.shape)
        for rank, items in enumerate(manifest.owned.states if manifest.owned else ()):
            for index, (key, item) in enumerate(items.items()):
                if isinstance(item, Tensor):
                    self._request(verb, "item", key, rank)
                    yield updater_name(index, rank), self._gather_item(key, rank)
        for encoded in manifest.compression.keys if manifest.compression else ():
            spec = manifest.keys[encoded.key_index].spec
            for rank in range(encoded.senders):
                self._request(verb, "residual", spec.key, rank)
                residual = self._residual_states.gather(spec.key, rank)
                yield residual_name(spec.index, rank), residual.reshape(spec.shape)
        yield from self._residual_states.bases(manifest.compression)

    def _gather_item(self, key: Key, rank: int) -> Any:
        """Return an item of the updater's state of a rank; collective."""
        mine = self._items[key] if rank == self._comm.rank else None
        return self._comm.control.broadcast(mine, rank, f"the updater's {key!r} of rank {rank}")

    def gather_states(self, key: Key) -> dict[str, Array]:
        """Return the states of a key, of which each rank has a part; collective."""
        slot = self._engine.layout[key]
        to = slot.state.to.within(slot.entry.lo, slot.entry.hi)
        bounds = bounds_of(to, slot.entry.spec.size, self._comm.size)
        counts = [hi - lo for lo, hi in pairwise(bounds)]
        wholes = {}
        for name, own in self._engine.rule_of(slot).states(slot).items():
            wholes[name] = self._engine.kernels.empty((slot.entry.spec.size,), own.dtype)
            work = self._comm.allgatherv(own, wholes[name], counts)
            work.label = f"the {name} of key {key!r}"
            work.wait()
        return wholes
