"""Saving: makes the content of a checkpoint, as JSON values and arrays in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import numpy as np

from ncclkv.arrays import cupy, device
from ncclkv.arrays.dtypes import check_dtype
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import (
    Manifest,
    OptimizerManifest,
    SavedKey,
    state_name,
    updater_name,
    value_name,
)
from ncclkv.checkpoint.tensors import Array, Tensor
from ncclkv.comm.types import Owners
from ncclkv.engine.bucket_state import Slot
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.context import Component
from ncclkv.store.keys import one_key
from ncclkv.table.registry import Key, KeySpec

Items = dict[Key, Any]


class Saving(Component):
    """Makes the content of a checkpoint, on the rank that writes it."""

    def check(self, verb: str) -> None:
        """Refuse an updater of which each rank has a state of its own.

        Raises
        ------
        NotSupported
        """
        rule = self._engine.rule
        divides = self._engine.placement.divides and self._comm.size > 1
        if divides and self._state_dict() is not None:
            raise NotSupported(
                f"{verb}: the updater {rule.name} has a state_dict, and with update_on='sharded' "
                f"each rank updates other keys, so its states differ; create the store with "
                f"update_on='root' or 'every_rank', or set an optimizer"
            )

    def content(
        self,
        step: int,
        extra: Any,
        run: str,
        request: Callable[[Key], None],
        *,
        values: bool,
        config: bool,
    ) -> tuple[Manifest, Iterator[tuple[str, Array]]]:
        """Return the manifest of a checkpoint, and its arrays, each made when it is needed.

        Parameters
        ----------
        step, extra
            As given to ``kv.save``.
        run : str
            The identity of the store that saves.
        request : callable
            Called with a key before the ranks gather its states: the other ranks then call
            `gather_states`.
        values : bool
            Whether the keys' values are saved, and an updater's state.
        config : bool
            Whether the optimizer's hyperparameters are saved.
        """
        items = self._updater_state() if values else None
        keys = tuple(self._saved_key(spec) for spec in self._engine.layout.registry)
        updater = None if items is None else {key: _form(item) for key, item in items.items()}
        manifest = Manifest(step, extra, keys, values, self._optimizer(config), updater, run)
        return manifest, self._arrays(manifest, items or {}, request)

    def _saved_key(self, spec: KeySpec) -> SavedKey:
        """Return a key as the manifest has it; without states if it has no slot yet."""
        layout, rule = self._engine.layout, self._engine.rule
        if spec.key not in layout:
            return SavedKey(spec, {}, 0)
        slot = layout[spec.key]
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
        numbers = {}
        for name, number in optimizer.config().items():
            if isinstance(number, dict):  # factors by key, which are checked already
                numbers[name] = {one_key(key): factor for key, factor in number.items()}
            else:
                strict_json.check(number, f"{name} of {optimizer!r}")
                numbers[name] = number
        return OptimizerManifest(kind, numbers)

    def _arrays(
        self, manifest: Manifest, items: Items, request: Callable[[Key], None]
    ) -> Iterator[tuple[str, Array]]:
        """Yield the tensors of the manifest, in host memory."""
        layout = self._engine.layout
        for spec, saved, _ in manifest.keys:
            if manifest.values:
                out = np.empty(spec.shape, spec.dtype)
                self._engine.read_values(*self._engine.plan_pull([(spec.key, out)]))
                yield value_name(spec.index), out
            states = self._states(layout[spec.key], request) if saved else {}
            for name, state in states.items():
                out = self._comm.to_host(state)
                yield state_name(spec.index, name), out.reshape(spec.shape)
        for index, item in enumerate(items.values()):
            if isinstance(item, np.ndarray):
                yield updater_name(index), item

    def _states(self, slot: Slot, request: Callable[[Key], None]) -> dict[str, Array]:
        """Return the whole states of a key; if ranks have parts of them, the parts of all ranks."""
        states = self._engine.rule.states(slot)
        if not states or not isinstance(slot.state.to, Owners):
            return states
        request(slot.entry.key)
        return self.gather_states(slot.entry.key)

    def gather_states(self, key: Key) -> dict[str, Array]:
        """Return the states of a key, of which each rank has a part; collective."""
        slot = self._engine.layout[key]
        owners = cast("Owners", slot.state.to)
        bounds = owners.within(slot.entry.lo, slot.entry.hi).bounds
        counts = [hi - lo for lo, hi in pairwise(bounds)]
        wholes = {}
        for name, own in self._engine.rule.states(slot).items():
            wholes[name] = self._engine.kernels.empty((slot.entry.spec.size,), own.dtype)
            work = self._comm.allgatherv(own, wholes[name], counts)
            work.label = f"the {name} of key {key!r}"
            work.wait()
        return wholes

    def _state_dict(self) -> Callable[[], Any] | None:
        """Return the method of an updater object that returns its state, if there is one."""
        rule = self._engine.rule
        state_dict = getattr(rule.source, "state_dict", None)
        return state_dict if isinstance(rule, FunctionRule) and callable(state_dict) else None

    def _updater_state(self) -> Items | None:
        """Return the state of an updater object: copies of arrays, and JSON values."""
        rule, state_dict = self._engine.rule, self._state_dict()
        if state_dict is None:
            return None
        with self._session.updating():
            given = state_dict()
        if not isinstance(given, dict):
            raise UsageError(
                f"state_dict of the updater {rule.name} returned a {type(given).__name__}; return "
                f"a dict of arrays and JSON values by name"
            )
        return {one_key(key): self._item(key, value) for key, value in given.items()}

    def _item(self, key: Any, value: Any) -> Any:
        """Return an item of an updater's state: a copy in host memory, or a JSON value."""
        what = f"state_dict()[{key!r}] of the updater"
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            return np.array(array, check_dtype(array.dtype, what), order="C")
        if not (cupy.is_own(value) or device.recognises(value)):
            strict_json.check(value, what)
            return value
        view = self._engine.kernels.value(value, what)
        out = np.empty(view.shape, check_dtype(view.dtype, what))
        self._engine.kernels.unpack(self._engine.kernels.copy(view).reshape(-1), out)
        return out


def _form(item: Any) -> Tensor | list[Any]:
    """Return an item as the manifest has it."""
    return Tensor(item.shape, item.dtype) if isinstance(item, np.ndarray) else [item]
