"""Checkpoints: saves a store to a directory, and loads it from there.

``save`` settles all buckets and waits for all ranks.  Then one rank, the leader, works, and the
others wait (`ncclkv.store.single_rank`).  After each file the leader sends a message, so the
deadline limits each file, not the whole save.  The last message is success or failure, and on
failure all ranks raise the same error.  Values and states are saved by key, not by bucket.  So a
checkpoint can be loaded with another count of ranks, placement, bucket size or device.

Under ``update_on="sharded"`` all ranks write side by side (`ncclkv.store.all_ranks`), each the
elements that it updates (`ncclkv.store.own_parts`).  The leader then receives names, digests and
pieces of all files, and writes ``checkpoint.json`` last.  Ranks of several hosts may have other
disks under the same path.  So the leader marks the hidden directory by a file with a random name,
and each rank looks for the mark.  If any rank does not find the mark, the leader writes all files:
it requests each key, and all ranks gather the key's states (``Saving.gather_states``).  Residuals
of compressed gradients are written in the same way, under every placement: each rank has its own.

The rank that reads compares the manifest with the store's keys and updater before it reads an
array.  Before anything is changed, all files are in memory and checked, and every rank has checked
its own updater.  Values and states go to all ranks by broadcasts of about 64 MiB.  A captured step
continues with the new values.

The residuals of all ranks may not fit in the memory of one.  So the first read checks them, and
keeps none.  Once the values are installed, the files with residuals are read and checked again, one
after another, and each residual is sent to its rank (`ncclkv.store.residual_states`).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

from ncclkv import env
from ncclkv.arguments import check_count, check_flag, check_length
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import Manifest
from ncclkv.checkpoint.read import LoadedCheckpoint, read
from ncclkv.checkpoint.store_run import StoreRun
from ncclkv.checkpoint.tensors import check_library
from ncclkv.checkpoint.write import write
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.store.agreement import propose
from ncclkv.store.context import Component, Context
from ncclkv.store.residual_states import ResidualStates
from ncclkv.store.restoring import Restoring
from ncclkv.store.saving import Saving
from ncclkv.store.single_rank import run_on_one_rank
from ncclkv.store.updater_states import UpdaterStates


class Loaded(NamedTuple):
    """Result of ``kv.load``: the step and the extra value of the loaded checkpoint.

    Attributes
    ----------
    step : int
        As given to ``kv.save``.
    extra : Any
        As given to ``kv.save``; tuples have become lists.
    path : str
        The checkpoint, by its path on the rank that has read it.
    """

    step: int
    extra: Any
    path: str


class Checkpoints(Component):
    """Runs saves and loads, of which all ranks get the outcome.

    One rank, the leader, makes a checkpoint's directory, and reads its files.  The leader is the
    root with ``update_on="root"``, and else rank 0.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._leader = self._engine.placement.leader
        self._run = StoreRun()
        states = UpdaterStates(context), ResidualStates(context)
        self._saving = Saving(context, *states)
        self._restoring = Restoring(context, *states)

    # Verbs

    def save_store(self, directory: Any, *, step: Any, extra: Any, keep: Any) -> str:
        """Write all values and the optimizer's state to a new checkpoint; collective."""
        with self._session.verb("save"):
            return self._save("save", directory, step, extra, keep)

    def load_store(self, directory: Any, *, required: bool, fallback: Any) -> Loaded | None:
        """Take all values and the optimizer's state from a checkpoint; collective."""
        with self._session.verb("load"):
            fallback = check_flag("load: fallback", fallback)
            return self._read("load", directory, required=required, fallback=fallback)

    def save_states(self, fname: Any, dump_optimizer: bool) -> None:
        """Write the optimizer's state alone; collective."""
        verb = "save_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)
            self._save(verb, fname, values=False, config=dump_optimizer)

    def load_states(self, fname: Any) -> None:
        """Take the optimizer's state alone; collective."""
        verb = "load_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)
            self._read(verb, fname, values=False)

    def _need_optimizer(self, verb: str) -> None:
        """Refuse a verb of a store without an optimizer."""
        if not isinstance(self._engine.rule, FusedRule):
            raise UsageError(f"{verb}: no optimizer is set; call set_optimizer first")

    # Writing

    def _save(
        self,
        verb: str,
        directory: Any,
        step: Any = 0,
        extra: Any = None,
        keep: Any = 1,
        *,
        values: bool = True,
        config: bool = True,
    ) -> str:
        """Flush all pushes, then write, once all ranks agree on the save."""

        def work() -> Generator[None, None, str]:
            where = _directory(verb, directory)
            strict_json.check(extra, "extra")
            manifest = self._saving.manifest(
                int(step), extra, self._run.id, values=values, config=config
            )
            self._run.warn(where, values=values)
            fill = partial(self._saving.fill, verb, manifest)
            path = yield from write(where, int(step), fill, int(keep), _author(), values=values)
            self._run.add(path, self._run.id)
            return path

        self._calls.record(verb)
        # Ranks share memory: the agreement completes all their earlier writes to it.
        layout = self._engine.layout
        check = partial(_counts, verb, step, keep)
        _, sealed = propose(self._comm, verb, lambda: (None, check()), note=layout.sealed)
        # Else a key may have owners on one rank, and be whole on another.
        layout.seal_on_all(verb, sealed)
        self._engine.settle()
        self._comm.synchronize()
        try:
            return run_on_one_rank(
                self._comm, self._leader, verb, work(), assist=self._saving.assist
            )
        finally:
            self._saving.end()

    # Reading

    def _read(
        self,
        verb: str,
        directory: Any,
        *,
        required: bool = True,
        values: bool = True,
        fallback: bool = False,
    ) -> Loaded | None:
        """Load a checkpoint into the store."""
        self._calls.record(verb)
        self._engine.settle()
        found_here: list[LoadedCheckpoint] = []

        def work() -> Generator[None, None, tuple[str, Manifest] | None]:
            where = _directory(verb, directory)
            fits = partial(self._restoring.check, values=values)
            keys = [spec.key for spec in self._engine.layout.registry] or None
            loaded = yield from read(where, fits, values=values, fallback=fallback, keys=keys)
            if loaded is None and required:
                first = ", or call load(required=False) at a first start"
                raise CheckpointError(
                    f"{where} holds no checkpoint; name the directory that was given to save"
                    f"{first if verb == 'load' else ''}"
                )
            if loaded is None:
                return None
            self._run.add(loaded.path, loaded.manifest.run)
            found_here.append(loaded)
            return loaded.path, loaded.manifest

        found = run_on_one_rank(self._comm, self._leader, verb, work())
        if found is None:
            return None
        path, manifest = found
        loaded_here = found_here[0] if found_here else None
        self._restoring.install(verb, manifest, loaded_here, values=values)
        return Loaded(manifest.step, manifest.extra, path)


def _author() -> str:
    """Return the name of the program that writes, with its version if it is installed."""
    from importlib import metadata  # slow to import, and needed by a save alone

    try:
        return f"ncclkv {metadata.version('ncclkv')}"
    except metadata.PackageNotFoundError:
        return "ncclkv"


def _directory(verb: str, directory: Any) -> str:
    """Return the absolute path of `directory`; of that in NCCLKV_CHECKPOINT if it is None."""
    check_library()
    given = env.checkpoint() if directory is None else directory
    check_length(f"{verb}: the directory", given)
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise UsageError(f"{verb}: {given!r} is not a path; give a str or a pathlib.Path")
    if not os.fspath(given):
        raise UsageError(
            f"{verb}: no directory was given; give one, or set NCCLKV_CHECKPOINT in the "
            f"environment, as ncclkv run --checkpoint DIR does"
        )
    return os.path.abspath(given)


def _counts(verb: str, step: Any, keep: Any) -> list[str]:
    """Return the counts of a save as ranks compare them."""
    step, keep = check_count(f"{verb}: step", step), check_count(f"{verb}: keep", keep, 1)
    return [f"step={step}", f"keep={keep}"]
