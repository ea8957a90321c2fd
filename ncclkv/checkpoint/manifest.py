"""What a checkpoint says of itself in ``checkpoint.json``: keys, optimizer, updater, step."""

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
_RUN = re.compile(r"[0-9a-f]{32}")

_KEY_BYTES = 1024
"""Limit in ``checkpoint.json`` for a key, its name apart."""

_REST_BYTES = 4 * 1024 * 1024
"""And of all else: extra, the optimizer, the plain values of an updater."""

_UNKNOWN_BYTES = 32 * 1024 * 1024
"""Limit for a store without keys: some 200,000 keys with names of 20 characters."""

_NUMBERS = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class OptimizerManifest:
    """An optimizer without what it remembers.

    Attributes
    ----------
    kind : str
        The name of its class.
    config : dict or None
        Its numbers, and dicts of factors by key; None where they were not saved.
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
        The user's own.
    specs : tuple of KeySpec
        In the order of initialisation.
    values : bool
        Whether the keys' values are in it, and not only what an optimizer remembers.
    optimizer : OptimizerHead or None
    states : tuple of tuples of numpy.dtype
        Of each key: the arrays of its shape that the optimizer remembers.
    updater : list of (key, Tensor or value) or None
        What an updater object has given as its state: arrays, or plain values in a list of one.
    run : str or None
        Which store saved it, as 32 hexadecimal digits; None in checkpoints of old versions.
    """

    step: int
    extra: Any
    specs: tuple[KeySpec, ...]
    values: bool
    optimizer: OptimizerManifest | None
    states: tuple[tuple[np.dtype[Any], ...], ...]
    updater: list[tuple[Key, Tensor | list[Any]]] | None
    run: str | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The arrays that belong to it, by the names that they have in its files."""
        found: dict[str, Tensor] = {}
        for spec, dtypes in zip(self.specs, self.states, strict=True):
            if self.values:
                found[value_name(spec.index)] = Tensor(spec.shape, spec.dtype)
            for number, dtype in enumerate(dtypes):
                found[state_name(spec.index, number)] = Tensor(spec.shape, dtype)
        for index, (_, item) in enumerate(self.updater or ()):
            if isinstance(item, Tensor):
                found[updater_name(index)] = item
        return found


def value_name(index: int) -> str:
    """The tensor of a key's value; keys are any text, and names of tensors are not."""
    return f"value.{index}"


def state_name(index: int, number: int) -> str:
    """The `number`-th tensor of what an optimizer remembers of a key."""
    return f"state.{index}.{number}"


def updater_name(index: int) -> str:
    """The tensor of an item of an updater's state."""
    return f"updater.{index}"


def to_plain(head: Manifest) -> dict[str, Any]:
    """A head as JSON has it."""
    keys = [
        {
            "key": spec.key,
            "shape": list(spec.shape),
            "dtype": dtype_name(spec.dtype),
            "op": spec.op,
            "states": [dtype_name(dtype) for dtype in dtypes],
        }
        for spec, dtypes in zip(head.specs, head.states, strict=True)
    ]
    return {
        "step": head.step,
        "extra": head.extra,
        "keys": keys,
        "values": head.values,
        "optimizer": None if head.optimizer is None else _optimizer_to_plain(head.optimizer),
        "updater": None if head.updater is None else _updater_to_plain(head.updater),
        "run": head.run,
    }


def _optimizer_to_plain(optimizer: OptimizerManifest) -> dict[str, Any]:
    """Numbers apart from factors by key, whose keys JSON would make str."""
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
    """Items by key, arrays as their shape and dtype."""
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
    """The head that JSON holds.

    Raises
    ------
    Unsound
        When there can be none such.
    NotSupported
        As of `tensor`.
    """
    specs, states = [], []
    for index, key in enumerate(fields.objects("keys")):
        spec, dtypes = _key(index, key)
        specs.append(spec)
        states.append(dtypes)
    names = [spec.key for spec in specs]
    if len(set(names)) != len(names) or len({type(name) for name in names}) > 1:
        raise Unsound("a key is twice in it, or keys are of two kinds")
    optimizer, updater = fields.any("optimizer"), fields.any("updater")
    if optimizer is None and any(states):
        raise Unsound("it has what an optimizer remembers, and no optimizer")
    return Manifest(
        fields.whole("step"),
        fields.any("extra"),
        tuple(specs),
        fields.flag("values"),
        None if optimizer is None else _optimizer(Fields(optimizer, "optimizer")),
        tuple(states),
        None if updater is None else _updater(fields.pairs("updater")),
        _run(fields.optional("run")),
    )


def _run(run: Any) -> str | None:
    """The store that saved a checkpoint."""
    if run is not None and not (isinstance(run, str) and _RUN.fullmatch(run)):
        raise Unsound(f"{run!r:.60} is not the id of a run")
    return run


def limits(keys: Iterable[Key] | None) -> Limits:
    """Return how long ``checkpoint.json`` may be for some keys, or None for keys not known yet."""
    if keys is None:
        return Limits(_UNKNOWN_BYTES)
    # In JSON a character takes up to six bytes.
    return Limits(_REST_BYTES + sum(_KEY_BYTES + 6 * len(str(key)) for key in keys))


def _key(index: int, fields: Fields) -> tuple[KeySpec, tuple[np.dtype[Any], ...]]:
    """A key, and the dtypes of what an optimizer remembers of it."""
    key = fields.any("key")
    if type(key) not in (int, str):
        raise Unsound(f"{key!r:.60} is not a key")
    op = fields.text("op")
    if op not in _OPS:
        raise Unsound(f"{op!r:.60} is not an op")
    shape = fields.items("shape")
    found = tensor(shape, fields.text("dtype"))
    dtypes = tuple(tensor(shape, dtype).dtype for dtype in fields.items("states"))
    return KeySpec(key, index, found.shape, found.dtype, op), dtypes


def _optimizer(fields: Fields) -> OptimizerManifest:
    """An optimizer, whose class looks at the numbers itself."""
    config = dict(Fields(fields.any("numbers"), "numbers of the optimizer").all())
    if any(type(number) not in _NUMBERS for number in config.values()):
        raise Unsound("an optimizer's numbers are not numbers")
    for name, pairs in fields.pairs("factors"):
        config[str(name)] = dict(Fields({"factors": pairs}, str(name)).pairs("factors"))
    return OptimizerManifest(fields.text("class"), config if fields.flag("configured") else None)


def _updater(pairs: list[list[Any]]) -> list[tuple[Key, Tensor | list[Any]]]:
    """The items of an updater's state."""
    found: list[tuple[Key, Tensor | list[Any]]] = []
    for key, item in pairs:
        fields = Fields(item, f"item {key!r:.60} of the updater")
        if "value" in item:
            found.append((key, [item["value"]]))
        else:
            found.append((key, tensor(fields.any("shape"), fields.any("dtype"))))
    return found
