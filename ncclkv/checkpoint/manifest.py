"""Manifest: the fields of ``checkpoint.json`` about the store: keys, optimizer, updater, step.

The other fields are about the files: `ncclkv.checkpoint.write` writes format, version, author and
the list of files, and `ncclkv.checkpoint.read` checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.checkpoint import residuals
from ncclkv.checkpoint.residuals import CompressionManifest
from ncclkv.checkpoint.strict_json import ANY, DamagedCheckpoint, by_key, check_form
from ncclkv.checkpoint.tensors import Tensor, tensor
from ncclkv.table.registry import Key, KeySpec

_OPS = ("sum", "avg", "max", "min", "prod")
_STATE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RUN = re.compile(r"[0-9a-f]{32}")

_KEY_BYTES = 1024
"""Bytes in ``checkpoint.json`` for a key, without its name."""

_REST_BYTES = 4 * 1024 * 1024
"""Bytes for everything else: extra, the optimizer, the plain values of an updater."""

_PIECE_BYTES = 64
"""Bytes for a piece of a tensor that several ranks have written."""

_PIECES_BYTES = 12 * 1024 * 1024
"""Bytes for all pieces."""

_UNKNOWN_BYTES = 32 * 1024 * 1024
"""Bytes for a store without keys: enough for some 200,000 keys with names of 20 characters."""

_PLAIN = (int, float, str, bool, type(None))

# Fields of ``checkpoint.json``; those of any type are checked where they are used.
_KEY = {"key": ANY, "shape": ANY, "dtype": ANY, "op": ANY, "states": dict, "updates": int}
_FORM = {
    "step": int,
    "extra": ANY,
    "keys": [_KEY],
    "values": bool,
    "optimizer": ANY,
    "updater": ANY,
    "updater_by_rank": ANY,
    "compression": ANY,
    "run": str,
}
_OWNED = {"states": list, "owners": list}
_OPTIMIZER = {"class": str, "configured": bool, "hyperparameters": dict, "factors": ANY}


class SavedKey(NamedTuple):
    """A key of a checkpoint.

    Attributes
    ----------
    spec : KeySpec
    states : dict of numpy.dtype
        The dtypes of the optimizer's states of the key by name; they have the key's shape.
    updates : int
        Count of the optimizer's updates of the key.
    """

    spec: KeySpec
    states: dict[str, np.dtype[Any]]
    updates: int


class OptimizerManifest(NamedTuple):
    """An optimizer without its states.

    Attributes
    ----------
    kind : str
        Name of the optimizer's class.
    config : dict or None
        Its hyperparameters, and dicts of factors by key; None in a checkpoint that has none.
    """

    kind: str
    config: dict[str, Any] | None


UpdaterState: TypeAlias = dict[Key, "Tensor | list[Any]"]
"""State of an updater object by name: the form of an array, or a plain value in a list."""


class OwnedStates(NamedTuple):
    """States of an updater object whose ranks update different keys.

    Attributes
    ----------
    states : tuple of dict
        The state on each rank.
    owners : tuple of (int or None)
        The rank that updates each key, in the order of the keys; None if no rank had updated it.
    """

    states: tuple[UpdaterState, ...]
    owners: tuple[int | None, ...]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint without its arrays.

    Attributes
    ----------
    step : int
    extra : Any
        Value given to ``save(extra=...)``.
    keys : tuple of SavedKey
        In the order of initialisation.
    values : bool
        False for a checkpoint of an optimizer's states alone.
    optimizer : OptimizerManifest or None
    updater : dict of (Tensor or list) by key, or None
        State of an updater object on all ranks that update.
    run : str
        Id of the store that saved it, 32 hexadecimal digits.
    owned : OwnedStates or None
        States of an updater object, in place of `updater`, if each rank has another state.
    compression : CompressionManifest or None
        What compression keeps of gradients; None if it keeps nothing.
    """

    step: int
    extra: Any
    keys: tuple[SavedKey, ...]
    values: bool
    optimizer: OptimizerManifest | None
    updater: UpdaterState | None
    run: str
    owned: OwnedStates | None = None
    compression: CompressionManifest | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the checkpoint, by name."""
        found: dict[str, Tensor] = {}
        for spec, states, _ in self.keys:
            if self.values:
                found[value_name(spec.index)] = Tensor(spec.shape, spec.dtype)
            for name, dtype in states.items():
                found[state_name(spec.index, name)] = Tensor(spec.shape, dtype)
        for index, item in enumerate((self.updater or {}).values()):
            if isinstance(item, Tensor):
                found[updater_name(index)] = item
        for rank, state in enumerate(self.owned.states if self.owned else ()):
            for index, item in enumerate(state.values()):
                if isinstance(item, Tensor):
                    found[updater_name(index, rank)] = item
        shapes = [key.spec.shape for key in self.keys]
        return {**found, **residuals.basis_tensors(self.compression, shapes), **self.residuals()}

    def residuals(self) -> dict[str, Tensor]:
        """Return the tensors of residuals, by name."""
        return residuals.residual_tensors(self.compression, [key.spec.shape for key in self.keys])


def value_name(index: int) -> str:
    """Return the tensor name of a key's value; it has the index, as keys are arbitrary text."""
    return f"value.{index}"


def state_name(index: int, name: str) -> str:
    """Return the tensor name of an optimizer's state of a key."""
    return f"state.{index}.{name}"


def updater_name(index: int, rank: int | None = None) -> str:
    """Return the tensor name of an item of an updater's state; `rank` if ranks have others."""
    return f"updater.{index}" if rank is None else f"updater.{rank}.{index}"


def to_plain(manifest: Manifest) -> dict[str, Any]:
    """Convert a manifest to JSON values."""
    optimizer, updater, owned = manifest.optimizer, manifest.updater, manifest.owned
    return {
        "step": manifest.step,
        "extra": manifest.extra,
        "keys": [
            {
                "key": spec.key,
                "shape": spec.shape,
                "dtype": dtype_name(spec.dtype),
                "op": spec.op,
                "states": {name: dtype_name(dtype) for name, dtype in states.items()},
                "updates": updates,
            }
            for spec, states, updates in manifest.keys
        ],
        "values": manifest.values,
        "optimizer": None if optimizer is None else _optimizer_to_plain(*optimizer),
        "updater": None if updater is None else _state_to_plain(updater),
        "updater_by_rank": None
        if owned is None
        else {"states": [*map(_state_to_plain, owned.states)], "owners": owned.owners},
        "compression": residuals.to_plain(manifest.compression),
        "run": manifest.run,
    }


def _optimizer_to_plain(kind: str, config: dict[str, Any] | None) -> dict[str, Any]:
    """Convert an optimizer; factors by key become pairs, as JSON would turn int keys into str."""
    items = (config or {}).items()
    return {
        "class": kind,
        "configured": config is not None,
        "hyperparameters": {name: x for name, x in items if not isinstance(x, dict)},
        "factors": [[name, list(x.items())] for name, x in items if isinstance(x, dict)],
    }


def _state_to_plain(state: UpdaterState) -> list[list[Any]]:
    """Convert the state of an updater object to pairs."""
    return [[key, _item_to_plain(item)] for key, item in state.items()]


def _item_to_plain(item: Tensor | list[Any]) -> dict[str, Any]:
    """Convert an item of an updater's state."""
    if isinstance(item, Tensor):
        return {"shape": item.shape, "dtype": dtype_name(item.dtype)}
    return {"value": item[0]}


def from_plain(made: Any) -> Manifest:
    """Return the manifest that JSON values describe.

    Raises
    ------
    DamagedCheckpoint
        When the values describe no manifest.
    NotSupported
        When a dtype needs a package that is not installed.
    """
    check_form(made, _FORM)
    keys = tuple(_key(index, row) for index, row in enumerate(made["keys"]))
    names = [key.spec.key for key in keys]
    if len(set(names)) != len(names) or len({type(name) for name in names}) > 1:
        raise DamagedCheckpoint("it has a key twice, or keys of two types")
    optimizer, updater, run = made["optimizer"], made["updater"], made["run"]
    if optimizer is None and any(key.states for key in keys):
        raise DamagedCheckpoint("it has states of an optimizer, but no optimizer")
    if not _RUN.fullmatch(run):
        raise DamagedCheckpoint(f"{run!r:.60} is not the id of a run")
    return Manifest(
        made["step"],
        made["extra"],
        keys,
        made["values"],
        None if optimizer is None else _optimizer(optimizer),
        None if updater is None else _state(updater),
        run,
        None if made["updater_by_rank"] is None else _owned(made["updater_by_rank"], len(keys)),
        residuals.from_plain(made["compression"], len(keys)),
    )


def size_limit(keys: Iterable[Key] | None, pieces: int | None = None) -> int:
    """Return the bytes that ``checkpoint.json`` may have.

    Parameters
    ----------
    keys : iterable of keys, or None
        None: any keys, and any count of pieces.
    pieces : int, optional
        Count of the pieces of tensors; by default any.
    """
    if keys is None:
        return _UNKNOWN_BYTES
    of_pieces = _PIECES_BYTES if pieces is None else min(_PIECES_BYTES, pieces * _PIECE_BYTES)
    # In JSON a character takes up to six bytes.
    return _REST_BYTES + of_pieces + sum(_KEY_BYTES + 6 * len(str(key)) for key in keys)


def _key(index: int, row: dict[str, Any]) -> SavedKey:
    """Return a key of a checkpoint."""
    key, shape, op = row["key"], row["shape"], row["op"]
    if type(key) not in (int, str):
        raise DamagedCheckpoint(f"{key!r:.60} is not a key")
    if op not in _OPS:
        raise DamagedCheckpoint(f"{op!r:.60} is not an op")
    for name in row["states"]:
        if not _STATE.fullmatch(name):
            raise DamagedCheckpoint(f"{name!r:.60} is not a name of an optimizer's state")
    spec = KeySpec(key, index, *tensor(shape, row["dtype"]), op)
    states = {name: tensor(shape, dtype).dtype for name, dtype in row["states"].items()}
    return SavedKey(spec, states, row["updates"])


def _optimizer(made: Any) -> OptimizerManifest:
    """Return an optimizer; its class checks the hyperparameters itself."""
    check_form(made, _OPTIMIZER, "optimizer")
    config = dict(made["hyperparameters"])
    if any(type(value) not in _PLAIN for value in config.values()):
        raise DamagedCheckpoint("optimizer.hyperparameters holds a list or an object")
    for name, pairs in by_key(made["factors"], "optimizer.factors").items():
        config[str(name)] = by_key(pairs, f"{name!r:.60} of optimizer.factors")
    return OptimizerManifest(made["class"], config if made["configured"] else None)


def _state(made: Any) -> UpdaterState:
    """Return the state of an updater object."""
    return {key: _item(key, item) for key, item in by_key(made, "updater").items()}


def _owned(made: Any, keys: int) -> OwnedStates:
    """Return the states of an updater object on all ranks."""
    check_form(made, _OWNED, "updater_by_rank")
    states, owners = tuple(map(_state, made["states"])), tuple(made["owners"])
    named = [rank for rank in owners if rank is not None]
    if len(owners) != keys or not all(
        type(rank) is int and 0 <= rank < len(states) for rank in named
    ):
        raise DamagedCheckpoint("updater_by_rank.owners does not name a rank for each key")
    return OwnedStates(states, owners)


def _item(key: Key, made: Any) -> Tensor | list[Any]:
    """Return an item of an updater's state."""
    check_form(made, dict, "updater", f"{key!r:.60}")
    if "value" in made:
        return [made["value"]]
    check_form(made, {"shape": ANY, "dtype": ANY}, "updater", f"{key!r:.60}")
    return tensor(made["shape"], made["dtype"])
