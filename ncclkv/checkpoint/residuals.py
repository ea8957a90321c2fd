"""The field ``compression`` of ``checkpoint.json``: keys with residuals, and keys with a basis.

A residual is the part of a sender's gradients that is not sent yet.  The tensor of a residual is
named by the index of its key and by its sender, has the shape of the key, and is float32.  The
field lists the indices of all keys with the same codec and senders: most stores have one such list.

A basis is the matrix Q of a key that powersgd compresses, equal on all ranks.  Its tensor is named
by the index of the key, and holds the columns of Q.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclkv.checkpoint.strict_json import DamagedCheckpoint, check_form
from ncclkv.checkpoint.tensors import Tensor
from ncclkv.errors import CheckpointError

RANKS, ARRAYS = "ranks", "arrays"
"""Kinds of senders: ranks, or the arrays of a push in one process, by their positions."""

MOST = 1024 * 1024
"""Maximum of residuals in a checkpoint: a small forged file may not fill the memory with names."""

_CODEC = re.compile(r"[a-z0-9][a-z0-9_]{0,63}")
_SCOPES = ("rank", "node")
_GROUP = {"codec": str, "scope": str, "senders": int, "keys": [int]}
_BASES = {"launches": int, "columns": int, "keys": [int]}
_FORM = {"each": str, "groups": [_GROUP], "bases": [_BASES]}
_FLOAT32 = np.dtype(np.float32)


class EncodedKey(NamedTuple):
    """A key whose residuals are in a checkpoint.

    Attributes
    ----------
    key_index : int
        Its position among the keys of the checkpoint.
    codec : str
        The type of its codec.
    scope : str
        The parameter ``scope`` of its codec.
    senders : int
        Count of its residuals.
    """

    key_index: int
    codec: str
    scope: str
    senders: int


class SavedBasis(NamedTuple):
    """A key with a basis, without the elements of Q.

    Attributes
    ----------
    key_index : int
        Its position among the keys of the checkpoint.
    launches : int
        Count of the sums of the key.
    columns : int
        Columns of Q; 0 if no sum has been compressed.
    """

    key_index: int
    launches: int
    columns: int


class CompressionManifest(NamedTuple):
    """The residuals and bases of a checkpoint, without their elements.

    Attributes
    ----------
    each : str
        The kind of the senders: `RANKS` or `ARRAYS`.
    keys : tuple of EncodedKey
    bases : tuple of SavedBasis
    """

    each: str
    keys: tuple[EncodedKey, ...]
    bases: tuple[SavedBasis, ...] = ()


def residual_name(index: int, sender: int) -> str:
    """Return the tensor name of the residual of a key's sender."""
    return f"residual.{index}.{sender}"


def basis_name(index: int) -> str:
    """Return the tensor name of the basis of a key."""
    return f"basis.{index}"


def parse_name(name: str) -> tuple[int, int]:
    """Return the index and the sender in a tensor's name that `residual_name` has made."""
    _, index, sender = name.split(".")
    return int(index), int(sender)


def residual_tensors(
    manifest: CompressionManifest | None, shapes: Sequence[tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return the tensors of all residuals by name; `shapes` are those of the keys."""
    return {
        residual_name(key.key_index, sender): Tensor(shapes[key.key_index], _FLOAT32)
        for key in (manifest.keys if manifest else ())
        for sender in range(key.senders)
    }


def basis_tensors(
    manifest: CompressionManifest | None, shapes: Sequence[tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return the tensors of all bases by name; `shapes` are those of the keys."""
    return {
        basis_name(basis.key_index): Tensor(
            (basis.columns, math.prod(shapes[basis.key_index][1:])), _FLOAT32
        )
        for basis in (manifest.bases if manifest else ())
        if basis.columns
    }


def check_residual_count(keys: Iterable[EncodedKey]) -> None:
    """Refuse to save more residuals than `MOST`.

    Raises
    ------
    CheckpointError
    """
    total = sum(key.senders for key in keys)
    if total > MOST:
        raise CheckpointError(
            f"the store has {total:,} residuals of gradients, and a checkpoint holds up to "
            f"{MOST:,}; compress fewer keys"
        )


def to_plain(manifest: CompressionManifest | None) -> dict[str, Any] | None:
    """Convert the field to JSON values."""
    if manifest is None:
        return None
    return {
        "each": manifest.each,
        "groups": _rows(_GROUP, manifest.keys),
        "bases": _rows(_BASES, manifest.bases),
    }


def _rows(fields: Iterable[str], found: Iterable[EncodedKey | SavedBasis]) -> list[dict[str, Any]]:
    """Return a row for all keys with the same fields; the last field of a row is its keys."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for each in found:
        groups.setdefault(each[1:], []).append(each.key_index)
    return [dict(zip(fields, (*common, keys), strict=True)) for common, keys in groups.items()]


def from_plain(made: Any, keys: int) -> CompressionManifest | None:
    """Return the field that JSON values describe, in a checkpoint with a count of keys.

    Raises
    ------
    DamagedCheckpoint
    """
    if made is None:
        return None
    check_form(made, _FORM, "compression")
    if made["each"] not in (RANKS, ARRAYS):
        raise DamagedCheckpoint(f"compression.each is {made['each']!r:.60}, not a kind of senders")
    found = sorted(
        EncodedKey(index, row["codec"], row["scope"], row["senders"])
        for place, row in enumerate(made["groups"])
        for index in _checked(f"compression.groups[{place}]", row, keys)["keys"]
    )
    bases = sorted(
        SavedBasis(index, row["launches"], row["columns"])
        for place, row in enumerate(made["bases"])
        for index in _in_range(f"compression.bases[{place}]", row, keys)["keys"]
    )
    for each in (found, bases):
        if len({key.key_index for key in each}) != len(each):
            raise DamagedCheckpoint("compression has a key twice")
    total = sum(key.senders for key in found)
    if total > MOST:
        raise DamagedCheckpoint(f"compression has {total:,} residuals; the limit is {MOST:,}")
    return CompressionManifest(made["each"], (*found,), (*bases,))


def _checked(where: str, row: dict[str, Any], keys: int) -> dict[str, Any]:
    """Return a row of keys with residuals, once its values are checked."""
    if not _CODEC.fullmatch(row["codec"]):
        raise DamagedCheckpoint(f"{where}.codec is {row['codec']!r:.60}, not the type of a codec")
    if row["scope"] not in _SCOPES:
        raise DamagedCheckpoint(f"{where}.scope is {row['scope']!r:.60}, not a scope")
    if not row["senders"]:
        raise DamagedCheckpoint(f"{where}.senders is 0")
    return _in_range(where, row, keys)


def _in_range(where: str, row: dict[str, Any], keys: int) -> dict[str, Any]:
    """Return a row, once the indices of its keys are checked."""
    if row["keys"] and max(row["keys"]) >= keys:
        raise DamagedCheckpoint(
            f"{where}.keys has the index {max(row['keys'])}, and the checkpoint has {keys} keys"
        )
    return row
