"""Checkpoints: saves a store to a directory, and loads it from there."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ncclkv import env
from ncclkv.arguments import check_length
from ncclkv.checkpoint import strict_json
from ncclkv.checkpoint.manifest import Manifest
from ncclkv.checkpoint.read import read
from ncclkv.checkpoint.run import Run
from ncclkv.checkpoint.tensors import Array, check_library
from ncclkv.checkpoint.write import write
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.store import check
from ncclkv.store.agreement import propose
from ncclkv.store.context import Context
from ncclkv.store.registration import Registration
from ncclkv.store.restoring import Restoring
from ncclkv.store.saving import Saving
from ncclkv.store.single_rank import run_on_one_rank
from ncclkv.store.updaters import Updaters


class Loaded(NamedTuple):
    """The part of a checkpoint that ``kv.load`` returns, beside the values.

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


class Checkpoints:
    """Runs saves and loads: one rank writes and reads the files, and all ranks learn the outcome.

    That rank, the leader, is the root with ``update_on="root"``, and else rank 0.
    """

    def __init__(self, context: Context, registration: Registration, updaters: Updaters) -> None:
        self._leader = context.engine.placement.leader
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls
        self._run = Run()
        self._registration = registration
        self._saving = Saving(context)
        self._restoring = Restoring(context, registration, updaters, self._leader)

    # Verbs

    def save_store(self, directory: Any, *, step: Any, extra: Any, keep: Any) -> str:
        """Write all values and the optimizer's state to a new checkpoint."""
        with self._session.verb("save"):

            def work() -> Generator[None, None, str]:
                where = _directory("save", directory)
                strict_json.check(extra, "extra")
                return (yield from self._write(where, step, extra, keep, values=True))

            self._flush_alike("save", step, keep)
            return run_on_one_rank(self._comm, self._leader, "save", work())

    def load_store(self, directory: Any, *, required: bool, fallback: Any) -> Loaded | None:
        """Take all values and the optimizer's state from a checkpoint."""
        with self._session.verb("load"):
            fallback = check.flag("load", "fallback", fallback)
            loaded = self._read(
                "load", directory, required=required, values=True, fallback=fallback
            )
            if loaded is None:
                return None
            path, manifest = loaded
            return Loaded(manifest.step, manifest.extra, path)

    def save_states(self, fname: Any, dump_optimizer: bool) -> None:
        """Write the optimizer's state alone."""
        verb = "save_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)

            def work() -> Generator[None, None, str]:
                where = _directory(verb, fname)
                kept = self._write(where, 0, None, 1, values=False, config=dump_optimizer)
                return (yield from kept)

            self._flush_alike(verb, 0, 1)
            run_on_one_rank(self._comm, self._leader, verb, work())

    def load_states(self, fname: Any) -> None:
        """Take the optimizer's state alone."""
        verb = "load_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)
            self._read(verb, fname, required=True, values=False)

    def _need_optimizer(self, verb: str) -> None:
        """Refuse to go on without an optimizer."""
        if not isinstance(self._engine.rule, FusedRule):
            raise UsageError(f"{verb}: no optimizer is set; call set_optimizer first")

    # Writing

    def _flush_alike(self, verb: str, step: Any, keep: Any) -> None:
        """Make sure that all ranks save the same, and flush what was pushed."""
        self._calls.record(verb)
        # Ranks share memory: after this agreement all that they wrote there before is written.
        propose(self._comm, verb, lambda: (None, _numbers(verb, step=(step, 0), keep=(keep, 1))))
        self._engine.settle()
        self._comm.synchronize()

    def _write(
        self, where: str, step: int, extra: Any, keep: int, *, values: bool, config: bool = True
    ) -> Generator[None, None, str]:
        """Write a checkpoint, on the leader."""
        manifest, arrays = self._saving.content(
            int(step), extra, self._run.id, values=values, config=config
        )
        self._run.warn(where, values=values)
        path = yield from write(where, manifest, arrays, int(keep), _author())
        self._run.add(path, self._run.id)
        return path

    # Reading

    def _read(
        self, verb: str, directory: Any, *, required: bool, values: bool, fallback: bool = False
    ) -> tuple[str, Manifest] | None:
        """Load a checkpoint into the store; return its path and its manifest."""
        self._calls.record(verb)
        self._engine.settle()
        arrays: dict[str, Array] = {}

        def work() -> Generator[None, None, tuple[str, Manifest] | None]:
            where = _directory(verb, directory)
            fits = partial(self._restoring.check, values=values)
            keys = self._registration.all_keys() or None
            loaded = yield from read(where, fits, values=values, fallback=fallback, keys=keys)
            if loaded is None and required:
                raise CheckpointError(
                    f"{where} holds no checkpoint; name the directory that was given to save"
                )
            if loaded is None:
                return None
            self._run.add(loaded.path, loaded.manifest.run)
            arrays.update(loaded.arrays)
            return loaded.path, loaded.manifest

        found = run_on_one_rank(self._comm, self._leader, verb, work())
        if found is not None:
            self._restoring.install(verb, found[1], arrays, values=values)
        return found


def _author() -> str:
    """Return the name of the program that writes, with its version if it is installed."""
    from importlib import metadata  # slow to import, and needed by a save alone

    try:
        return f"ncclkv {metadata.version('ncclkv')}"
    except metadata.PackageNotFoundError:
        return "ncclkv"


def _directory(verb: str, directory: Any) -> str:
    """Return the absolute path of the directory given, or of the environment's."""
    check_library()
    given = env.checkpoint() if directory is None else directory
    check_length(f"{verb}: the directory", given)
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise UsageError(f"{verb}: {given!r} is not a path; give a str or a pathlib.Path")
    if not os.fspath(given):
        raise UsageError(
            f"{verb}: no directory was given; give one, or set NCCLKV_CHECKPOINT in the environment"
        )
    return os.path.abspath(given)


def _numbers(verb: str, **numbers: tuple[Any, int]) -> list[str]:
    """Return whole numbers as ranks compare them, each given with its minimum."""
    for name, (given, minimum) in numbers.items():
        check_length(f"{verb}: {name}", given)
        whole = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
        if not whole or given < minimum:
            raise UsageError(
                f"{verb}: {name}={given!r} is not an int of {minimum} or more; give one"
            )
    return [f"{name}={int(given)}" for name, (given, _) in numbers.items()]
