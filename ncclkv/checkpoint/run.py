"""Identity of the store that saves, to tell its checkpoints from those of others."""

from __future__ import annotations

import logging
import uuid

from ncclkv.checkpoint.directory import generations
from ncclkv.checkpoint.read import read_head
from ncclkv.errors import CheckpointError

_log = logging.getLogger("ncclkv")


class Run:
    """One store's saves and loads.

    Attributes
    ----------
    id : str
        32 hexadecimal digits, written into every checkpoint of the store.
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._runs: set[str | None] = {self.id}
        self._paths: set[str] = set()

    def add(self, path: str, run: str | None) -> None:
        """Note a checkpoint that this store has saved or loaded, and the run that saved it."""
        self._paths.add(path)
        if run is not None:
            self._runs.add(run)

    def warn(self, directory: str, *, values: bool) -> None:
        """Warn, once a run, when the newest checkpoint is of a run that was not loaded.

        Parameters
        ----------
        directory : str
            Where the store is about to save.
        values : bool
            Whether a checkpoint of values is saved; one of an optimizer alone is compared with its
            like.
        """
        try:
            path = next(one.path for one in generations(directory) if one.values == values)
            if path in self._paths:
                return
            run = read_head(path).run
        except (StopIteration, OSError):
            return
        except CheckpointError:
            run = None  # it is damaged, and of whom cannot be told
        if run in self._runs:
            return
        self.add(path, run)
        _log.warning(
            "%s is the newest checkpoint there, and was saved by another job or store (run %s), "
            "which this store has not loaded; both keep and remove checkpoints in one row: load "
            "it, or give each a directory of its own",
            path,
            run or "unknown",
        )
