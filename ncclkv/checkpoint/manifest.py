"""Manifest of a checkpoint, its ``checkpoint.json``: keys, optimizer, updater, step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.checkpoint.strict_json import Fields, Limits, Unsound
from ncclkv.checkpoint.tensors import Tensor, tensor
from ncclkv.table.registry import Key, KeySpec

_OPS = ("sum", "avg", "max", "min")
_STATE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RUN = re.compile(r"[0-9a-f]{32}")

_KEY_BYTES = 1024
"""Bytes in ``checkpoint.json`` for a key, without its name."""

_REST_BYTES = 4 * 1024 * 1024
"""Bytes for everything else: extra, the optimizer, the plain values of an updater."""

_UNKNOWN_BYTES = 32 * 1024 * 1024
"""Bytes for a store without keys: enough for some 200,000 keys with names of 20 characters."""

_NUMBERS = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class OptimizerManifest:
    """An optimizer without its states.

    Attributes
    ----------
    kind : str
        Name of the optimizer's class.
    config : dict or None
        Its numbers, and dicts of factors by key; None in a checkpoint that has none.
    """

    kind: str
    config: dict[str, Any] | None


@dataclass(frozen=True)
class Manifest:
    """A checkpoint without its arrays.

    Attributes
    ----------
    step : int
    extra : Any
        Value given to ``save(extra=...)``.
    specs : tuple of KeySpec
        In the order of initialisation.
    values : bool
        False for a checkpoint of an optimizer's states alone.
    optimizer : OptimizerManifest or None
    states : tuple of dict of numpy.dtype
        For each key, the dtypes of the optimizer's states by name; they have the key's shape.
    updates : tuple of int
        For each key, how often the optimizer has updated it.
    updater : list of (key, Tensor or value) or None
        State of an updater object: arrays, or plain values in a list of one.
    run : str or None
        Id of the store that saved it, 32 hexadecimal digits; None in old versions.
    """

    step: int
    extra: Any
    specs: tuple[KeySpec, ...]
    values: bool
    optimizer: OptimizerManifest | None
    states: tuple[dict[str, np.dtype[Any]], ...]
    updates: tuple[int, ...]
    updater: list[tuple[Key, Tensor | list[Any]]] | None
    run: str | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the checkpoint, by name."""
        found: dict[str, Tensor] = {}
        for spec, dtypes in zip(self.specs, self.states, strict=True):
            if self.values:
                found[value_name(spec.index)] = Tensor(spec.shape, spec.dtype)
            for name, dtype in dtypes.items():
                found[state_name(spec.index, name)] = Tensor(spec.shape, dtype)
        for index, (_, item) in enumerate(self.updater or ()):
            if isinstance(item, Tensor):
                found[updater_name(index)] = item
        return found


def value_name(index: int) -> str:
    """Return the tensor name of a key's value; it has the index, as keys are arbitrary text."""
    return f"value.{index}"


def state_name(index: int, name: str) -> str:
    """Return the name of the tensor of a key's state."""
    return f"state.{index}.{name}"


def updater_name(index: int) -> str:
    """Return the tensor name of an item of an updater's state."""
    return f"updater.{index}"


def to_plain(manifest: Manifest) -> dict[str, Any]:
    """Convert a manifest to JSON values."""
    keys = [
        {
            "key": spec.key,
            "shape": list(spec.shape),
            "dtype": dtype_name(spec.dtype),
            "op": spec.op,
            "states": {name: dtype_name(dtype) for name, dtype in dtypes.items()},
            "updates": updates,
        }
        for spec, dtypes, updates in zip(
            manifest.specs, manifest.states, manifest.updates, strict=True
        )
    ]
    return {
        "step": manifest.step,
        "extra": manifest.extra,
        "keys": keys,
        "values": manifest.values,
        "optimizer": None
        if manifest.optimizer is None
        else _optimizer_to_plain(manifest.optimizer),
        "updater": None if manifest.updater is None else _updater_to_plain(manifest.updater),
        "run": manifest.run,
    }


def _optimizer_to_plain(optimizer: OptimizerManifest) -> dict[str, Any]:
    """Convert an optimizer; factors by key become pairs, as JSON would turn int keys into str."""
    config = optimizer.config
    numbers = {name: x for name, x in (config or {}).items() if not isinstance(x, dict)}
    factors = [[name, list(x.items())] for name, x in (config or {}).items() if isinstance(x, dict)]
    return {
        "class": optimizer.kind,
        "configured": config is not None,
        "numbers": numbers,
        "factors": factors,
    }


def _updater_to_plain(updater: list[tuple[Key, Tensor | list[Any]]]) -> list[Any]:
    """Convert items by key; arrays become their shape and dtype."""
    return [
        [
            key,
            {"shape": list(item.shape), "dtype": dtype_name(item.dtype)}
            if isinstance(item, Tensor)
            else {"value": item[0]},
        ]
        for key, item in updater
    ]


def from_plain(fields: Fields) -> Manifest:
    """Return the manifest that JSON values describe.

    Raises
    ------
    Unsound
        When the values describe no manifest.
    NotSupported
        When a dtype needs a package that is not installed.
    """
    specs, states, updates = [], [], []
    for index, key in enumerate(fields.objects("keys")):
        spec, dtypes = _key(index, key)
        specs.append(spec)
        states.append(dtypes)
        updates.append(key.whole("updates"))
    names = [spec.key for spec in specs]
    if len(set(names)) != len(names) or len({type(name) for name in names}) > 1:
        raise Unsound("a key is twice in it, or keys are of two kinds")
    optimizer, updater = fields.any("optimizer"), fields.any("updater")
    if optimizer is None and any(states):
        raise Unsound("it has optimizer states, and no optimizer")
    return Manifest(
        fields.whole("step"),
        fields.any("extra"),
        tuple(specs),
        fields.flag("values"),
        None if optimizer is None else _optimizer(Fields(optimizer, "optimizer")),
        tuple(states),
        tuple(updates),
        None if updater is None else _updater(fields.pairs("updater")),
        _run(fields.optional("run")),
    )


def _run(run: Any) -> str | None:
    """Return the id of the run that saved a checkpoint."""
    if run is not None and not (isinstance(run, str) and _RUN.fullmatch(run)):
        raise Unsound(f"{run!r:.60} is not the id of a run")
    return run


def limits(keys: Iterable[Key] | None) -> Limits:
    """Return limits of ``checkpoint.json`` for the given keys; None: the keys are not known yet."""
    if keys is None:
        return Limits(_UNKNOWN_BYTES)
    # In JSON a character takes up to six bytes.
    return Limits(_REST_BYTES + sum(_KEY_BYTES + 6 * len(str(key)) for key in keys))


def _key(index: int, fields: Fields) -> tuple[KeySpec, dict[str, np.dtype[Any]]]:
    """Return a key, and the dtypes of its states by name."""
    key = fields.any("key")
    if type(key) not in (int, str):
        raise Unsound(f"{key!r:.60} is not a key")
    op = fields.text("op")
    if op not in _OPS:
        raise Unsound(f"{op!r:.60} is not an op")
    shape = fields.items("shape")
    found = tensor(shape, fields.text("dtype"))
    states = Fields(fields.any("states"), f"states of key {key!r:.60}").all()
    for name in states:
        if not _STATE.fullmatch(name):
            raise Unsound(f"{name!r:.60} is not a name of a state")
    dtypes = {name: tensor(shape, dtype).dtype for name, dtype in states.items()}
    return KeySpec(key, index, found.shape, found.dtype, op), dtypes


def _optimizer(fields: Fields) -> OptimizerManifest:
    """Return an optimizer; its class checks the numbers itself."""
    config = dict(Fields(fields.any("numbers"), "numbers of the optimizer").all())
    if any(type(number) not in _NUMBERS for number in config.values()):
        raise Unsound("an optimizer's numbers are not numbers")
    for name, pairs in fields.pairs("factors"):
        config[str(name)] = dict(Fields({"factors": pairs}, str(name)).pairs("factors"))
    return OptimizerManifest(fields.text("class"), config if fields.flag("configured") else None)


def _updater(pairs: list[list[Any]]) -> list[tuple[Key, Tensor | list[Any]]]:
    """Return the items of an updater's state."""
    found: list[tuple[Key, Tensor | list[Any]]] = []
    for key, item in pairs:
        fields = Fields(item, f"item {key!r:.60} of the updater")
        if "value" in item:
            found.append((key, [item["value"]]))
        else:
            found.append((key, tensor(fields.any("shape"), fields.any("dtype"))))
    return found
