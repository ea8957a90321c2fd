"""Verbs that save a store to a directory and load it from there."""

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
from ncclkv.checkpoint.tensors import Array, check_library
from ncclkv.checkpoint.write import write
from ncclkv.engine.update_rule import FusedRule
from ncclkv.errors import CheckpointError, UsageError
from ncclkv.store.agreement import propose
from ncclkv.store.restoring import Restoring
from ncclkv.store.single_rank import run_on_one_rank
from ncclkv.store.transfers import flag


class Loaded(NamedTuple):
    """What ``kv.load`` has found beside the values.

    Attributes
    ----------
    step : int
        As it was given to ``kv.save``.
    extra : Any
        As it was given to ``kv.save``; tuples have become lists.
    path : str
        The checkpoint, where the rank that has read it found it.
    """

    step: int
    extra: Any
    path: str


class CheckpointVerbs(Restoring):
    """``save`` and ``load``, and MXNet's of an optimizer alone."""

    def save(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        step: int = 0,
        extra: Any = None,
        keep: int = 2,
    ) -> str:
        """Write all values, and what the optimizer remembers, to a new checkpoint; collective.

        One rank writes: rank 0, or the root with ``update_on="root"``.  The checkpoint is complete
        on its disk before it gets its name in the directory, so a process killed at whatever moment
        leaves the checkpoints that were there, or the new one as well.

        Parameters
        ----------
        directory : path, optional
            On the writing rank's machine, for this job's checkpoints alone; made if it is not
            there.  By default the environment's ``NCCLKV_CHECKPOINT``.
        step : int
            How far the run is, of 0 or more; `load` gives it back.
        extra : Any
            Anything that JSON can hold, such as the state of a random generator or of a schedule;
            the writing rank's is saved.
        keep : int
            So many checkpoints stay in the directory, the new one included; older ones are removed.

        Returns
        -------
        str
            The new checkpoint's path on the writing rank's machine.

        Raises
        ------
        CheckpointError
            On every rank, when it cannot be written, with the rank, its host, the path and the
            system's reason.  The store is as it was, and so are older checkpoints.  An older one
            that cannot be removed is a warning in the log, as is a newest one in the directory that
            another job has saved and this store has not loaded.
        NotSupported
            When the package safetensors is not installed there.

        Notes
        -----
        An updater object with ``state_dict()`` has what that returns saved: arrays, in host memory
        or a GPU's, and plain values, by name.  A function has nothing to save.

        Examples
        --------
        >>> import tempfile, numpy as np, ncclkv
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ncclkv.create("local") as kv:
        ...         kv.init("w", np.full(2, 1.5))
        ...         path = kv.save(directory, step=120, extra={"epoch": 3})
        ...     with ncclkv.create("local") as kv:
        ...         loaded = kv.load(directory)
        ...         print(loaded.step, loaded.extra, kv.pull("w"))
        120 {'epoch': 3} [1.5 1.5]
        """
        with self._session.verb("save"):

            def work() -> Generator[None, None, str]:
                where = _directory("save", directory)
                strict_json.check(extra, "extra")
                return (yield from self._write(where, step, extra, keep, values=True))

            self._agree_numbers("save", step, keep)
            return run_on_one_rank(self._comm, self._leader, "save", work())

    def load(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        required: bool = True,
        fallback: bool = False,
    ) -> Loaded | None:
        """Take all values, and what the optimizer remembers, from a checkpoint; collective.

        One rank reads, as one writes, and gives the others what they need.  It checks everything
        before anything is changed.  The number of ranks, ``update_on``, ``bucket_bytes`` and
        the kind of memory may be other than those that the checkpoint was saved with.

        Parameters
        ----------
        directory : path, optional
            What was given to `save`, for the newest checkpoint there; or one checkpoint in it.  By
            default the environment's ``NCCLKV_CHECKPOINT``.
        required : bool
            Whether it is an error that there is no checkpoint.
        fallback : bool
            Whether the newest sound checkpoint is loaded when newer ones are damaged, with a
            warning in the log of what is wrong with the newest.

        Returns
        -------
        Loaded or None
            Step, extra and path; None where there is no checkpoint and none is required.

        Raises
        ------
        CheckpointError
            On every rank, and with the store as it was: when there is none, when it is damaged or
            no checkpoint of ncclkv's (the message names an older one that is sound), or when it is
            of other keys or another updater than the store's.
        NotSupported
            When the package safetensors is not installed on the reading rank.

        Notes
        -----
        A store without keys gets the checkpoint's; one with keys must have the same, in any order.
        A store without an updater gets the checkpoint's optimizer; one with an optimizer of that
        class gets its numbers, such as the learning rate.  An updater object is set first, and its
        ``load_state_dict`` is called on the ranks that it runs on, with arrays in the memory that
        the store's values are in: CuPy's on a GPU.
        """
        with self._session.verb("load"):
            fallback = flag("load", "fallback", fallback)
            loaded = self._read(
                "load", directory, required=required, values=True, fallback=fallback
            )
            if loaded is None:
                return None
            path, head = loaded
            return Loaded(head.step, head.extra, path)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write what the optimizer remembers, without the values; collective.

        Parameters
        ----------
        fname : path
            A directory, also one for `save`: what that has saved there stays.
        dump_optimizer : bool
            Whether the optimizer's numbers are to be loaded too.

        Raises
        ------
        CheckpointError
            As for `save`.
        UsageError
            When no optimizer is set.
        """
        verb = "save_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)

            def work() -> Generator[None, None, str]:
                where = _directory(verb, fname)
                kept = self._write(where, 0, None, 1, values=False, config=dump_optimizer)
                return (yield from kept)

            self._agree_numbers(verb, 0, 1)
            run_on_one_rank(self._comm, self._leader, verb, work())

    def load_optimizer_states(self, fname: str) -> None:
        """Take back what the optimizer remembers, and no values; collective.

        Parameters
        ----------
        fname : path
            What was given to `save_optimizer_states`, or to `save`.

        Raises
        ------
        CheckpointError
            As for `load`.
        UsageError
            When no optimizer is set.
        """
        verb = "load_optimizer_states"
        with self._session.verb(verb):
            self._need_optimizer(verb)
            self._read(verb, fname, required=True, values=False)

    def _need_optimizer(self, verb: str) -> None:
        """Refuse to go on without an optimizer."""
        if not isinstance(self._engine.rule, FusedRule):
            raise UsageError(f"{verb}: no optimizer is set; call set_optimizer first")

    def _agree_numbers(self, verb: str, step: Any, keep: Any) -> None:
        """See that all ranks save the same, and flush what waits."""
        self._operations.note(verb)
        # Ranks have memory in common, and meet here: what they wrote there before is all written.
        propose(self._comm, verb, lambda: (None, _numbers(verb, step=(step, 0), keep=(keep, 1))))
        self._engine.settle()
        self._comm.synchronize()

    def _write(
        self, where: str, step: int, extra: Any, keep: int, *, values: bool, config: bool = True
    ) -> Generator[None, None, str]:
        """Write a checkpoint, on the rank that does."""
        head, arrays = self._to_save(int(step), extra, values=values, config=config)
        self._run.warn(where, values=values)
        path = yield from write(where, head, arrays, int(keep), self._author())
        self._run.add(path, self._run.id)
        return path

    def _read(
        self, verb: str, directory: Any, *, required: bool, values: bool, fallback: bool = False
    ) -> tuple[str, Manifest] | None:
        """Load a checkpoint into the store; return its path and its manifest."""
        self._operations.note(verb)
        self._engine.settle()
        arrays: dict[str, Array] = {}

        def work() -> Generator[None, None, tuple[str, Manifest] | None]:
            where = _directory(verb, directory)
            check = partial(self._check_head, values=values)
            known = self.keys() or None
            loaded = yield from read(where, check, values=values, fallback=fallback, keys=known)
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
            self._restore(verb, found[1], arrays, values=values)
        return found


def _directory(verb: str, directory: Any) -> str:
    """The absolute path of the directory that was given, or of the environment's."""
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
    """Whole numbers that all ranks must have alike, each with its least."""
    for name, (given, least) in numbers.items():
        check_length(f"{verb}: {name}", given)
        whole = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
        if not whole or given < least:
            raise UsageError(f"{verb}: {name}={given!r} is not an int of {least} or more; give one")
    return [f"{name}={int(given)}" for name, (given, _) in numbers.items()]
