"""Saving: makes the content of a checkpoint, as plain values and arrays in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ncclkv.arrays import cupy, device
from ncclkv.arrays.dtypes import check_dtype
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import (
    Manifest,
    OptimizerManifest,
    state_name,
    updater_name,
    value_name,
)
from ncclkv.checkpoint.tensors import Array, Tensor
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.update_rule import FunctionRule
from ncclkv.errors import UsageError
from ncclkv.store.context import Context
from ncclkv.store.keys import one_key
from ncclkv.table.registry import Key

Items = list[tuple[Key, Any]]


class Saving:
    """Makes the content of a checkpoint, on the rank that writes it."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._session = context.session

    def content(
        self, step: int, extra: Any, run: str, *, values: bool, config: bool
    ) -> tuple[Manifest, Iterator[tuple[str, Array]]]:
        """Return the manifest of a checkpoint, and its arrays, each made when it is needed.

        Parameters
        ----------
        step, extra
            As given to ``kv.save``.
        run : str
            The identity of the store that saves.
        values : bool
            Whether the keys' values are saved, and an updater's state.
        config : bool
            Whether the optimizer's hyperparameters are saved.
        """
        items = self._updater_state() if values else None
        registry = self._engine.layout.registry
        head = Manifest(
            step,
            extra,
            tuple(registry),
            values,
            self._optimizer_head(config),
            tuple(
                {name: state.dtype for name, state in self._states(spec.key).items()}
                for spec in registry
            ),
            tuple(self._updates(spec.key) for spec in registry),
            None if items is None else [(key, _form(item)) for key, item in items],
            run,
        )
        return head, self._arrays(head, items or [])

    def _optimizer_head(self, config: bool) -> OptimizerManifest | None:
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

    def _states(self, key: Key) -> dict[str, Array]:
        """Return the optimizer's states of a key; none where the key has no place yet."""
        layout = self._engine.layout
        return self._engine.rule.states(layout[key]) if key in layout else {}

    def _updates(self, key: Key) -> int:
        """Return how often the optimizer has updated a key."""
        layout = self._engine.layout
        return self._engine.rule.count(layout[key]) if key in layout else 0

    def _arrays(self, head: Manifest, items: Items) -> Iterator[tuple[str, Array]]:
        """Yield the tensors of the manifest, in host memory."""
        for spec in head.specs:
            if head.values:
                out = np.empty(spec.shape, spec.dtype)
                self._engine.read_values(*self._engine.plan_pull([(spec.key, out)]))
                yield value_name(spec.index), out
            for name, state in self._states(spec.key).items():
                out = np.empty(state.shape, state.dtype)
                self._engine.kernels.unpack_all([state], [out])
                yield state_name(spec.index, name), out.reshape(spec.shape)
        for index, (_, item) in enumerate(items):
            if isinstance(item, np.ndarray):
                yield updater_name(index), item

    def _updater_state(self) -> Items | None:
        """Return an updater object's state: copies of arrays, and plain values."""
        rule = self._engine.rule
        state_dict = getattr(rule.source, "state_dict", None)
        if not isinstance(rule, FunctionRule) or not callable(state_dict):
            return None
        with self._session.updating():
            given = state_dict()
        if not isinstance(given, dict):
            raise UsageError(
                f"state_dict of the updater {rule.name} returned a {type(given).__name__}; return "
                f"a dict of arrays and plain values by name"
            )
        return [(one_key(key), self._item(key, value)) for key, value in given.items()]

    def _item(self, key: Any, value: Any) -> Any:
        """Return an item of an updater's state: a copy in host memory, or a plain value."""
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
