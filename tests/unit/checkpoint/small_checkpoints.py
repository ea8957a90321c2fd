"""Small checkpoints for the tests of their files; functions that change and sign them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.checkpoint.files import Piece
from ncclkv.checkpoint.manifest import (
    Manifest,
    OptimizerManifest,
    SavedKey,
    state_name,
    value_name,
)
from ncclkv.checkpoint.read import LoadedCheckpoint, read
from ncclkv.checkpoint.tensors import Tensor
from ncclkv.checkpoint.write import write, write_files
from ncclkv.table.registry import KeySpec

Array = NDArray[Any]

KEYS = {"a": np.dtype("float32"), "b": np.dtype("bool")}


def head(step: int = 7) -> Manifest:
    """Return a manifest of two keys of two elements; the optimizer has a state of one key."""
    first, second = (KeySpec(k, i, (2,), dtype) for i, (k, dtype) in enumerate(KEYS.items()))
    keys = SavedKey(first, {"momentum": np.dtype("float32")}, 3), SavedKey(second, {}, 0)
    config = {"name": "sgd", "learning_rate": 0.5, "lr_mult": {"a": 2.0}}
    updater: dict[int | str, Any] = {"n": [{"of": 3}], 5: Tensor((1,), np.dtype("int64"))}
    optimizer = OptimizerManifest("SGD", config)
    return Manifest(step, [1, None], keys, True, optimizer, updater, "0" * 32)


def arrays() -> dict[str, Array]:
    """Return the arrays of that manifest."""
    return {
        value_name(0): np.array([1.5, -0.0], np.float32),
        state_name(0, "momentum"): np.array([0.25, 8], np.float32),
        value_name(1): np.array([True, False]),
        "updater.1": np.array([-9]),
    }


def fill(folder: str) -> Any:
    """Write the arrays of that manifest, as one rank."""
    return head(), (yield from write_files(folder, arrays().items()))


def fill_divided(folder: str) -> Any:
    """Write the arrays as two ranks that have parts of them: the second has most elements."""
    whole = arrays()
    parts: list[list[tuple[str | Piece, Array]]] = [
        [(Piece("value.0", 0, 1), whole["value.0"][:1]), ("updater.1", whole["updater.1"])],
        [
            (Piece("value.0", 1, 2), whole["value.0"][1:]),
            ("state.0.momentum", whole["state.0.momentum"]),
            (Piece("value.1", 0, 1), whole["value.1"][:1]),
            (Piece("value.1", 1, 2), whole["value.1"][1:]),
        ],
    ]
    files = []
    for rank, part in enumerate(parts):
        files += yield from write_files(folder, part, rank)
    return head(), files


def written(
    directory: Path, step: int = 7, keep: int = 9, fill: Callable[[str], Any] = fill
) -> Path:
    """Write a new checkpoint into a directory, and return its path."""

    def filled(folder: str) -> Any:
        manifest, files = yield from fill(folder)
        return replace(manifest, step=step), files

    return Path(result(write(str(directory), step, filled, keep, "a test")))


def loaded(path: Path) -> LoadedCheckpoint | None:
    """Load a directory, or one checkpoint in it."""
    found: LoadedCheckpoint | None = result(read(str(path), lambda head: None))
    return found


def result(work: Any) -> Any:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def sign(path: Path, text: bytes) -> None:
    """Replace ``checkpoint.json`` and its digest."""
    (path / "checkpoint.json").write_bytes(text)
    sums = f"{hashlib.sha256(text).hexdigest()}  checkpoint.json\n"
    (path / "checkpoint.sha256").write_text(sums)


def change(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of ``checkpoint.json``, and sign the file."""
    made = json.loads((path / "checkpoint.json").read_text())
    change(made)
    sign(path, json.dumps(made).encode())


def replace_tensors(path: Path, blob: bytes) -> None:
    """Replace the tensors; the manifest gets the new size and digest."""
    (path / "tensors-0000.safetensors").write_bytes(blob)
    sha256 = hashlib.sha256(blob).hexdigest()
    change(path, lambda made: made["files"][0].update(bytes=len(blob), sha256=sha256))
