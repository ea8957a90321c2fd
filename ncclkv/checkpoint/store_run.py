"""Identity of the store that saves; it distinguishes its checkpoints from those of other stores."""

from __future__ import annotations

import logging
import os

from ncclkv.checkpoint.directory import generations
from ncclkv.checkpoint.read import read_manifest
from ncclkv.errors import CheckpointError

_log = logging.getLogger("ncclkv")


class StoreRun:
    """StoreRun: the saves and loads of one store.

    Attributes
    ----------
    id : str
        32 hexadecimal digits, written into every checkpoint of the store.
    """

    def __init__(self) -> None:
        self.id = os.urandom(16).hex()
        self._runs: set[str | None] = {self.id}
        self._paths: set[str] = set()

    def add(self, path: str, run: str | None) -> None:
        """Record a checkpoint that this store has saved or loaded, and the run that saved it."""
        self._paths.add(path)
        if run is not None:
            self._runs.add(run)

    def warn(self, directory: str, *, values: bool) -> None:
        """Warn, once a run, when the newest checkpoint is of a run that was not loaded.

        Parameters
        ----------
        directory : str
            Directory of the next save.
        values : bool
            Compare with checkpoints of values; False: with those of optimizer states alone.
        """
        try:
            path = next(one.path for one in generations(directory) if one.values == values)
            if path in self._paths:
                return
            run = read_manifest(path).run
        except (StopIteration, OSError):
            return
        except CheckpointError:
            run = None  # damaged: its run is unknown
        if run in self._runs:
            return
        self.add(path, run)
        _log.warning(
            "%s is the newest checkpoint in its directory, and was saved by another job or store "
            "(run %s); this store has not loaded it, and both remove old checkpoints there: load "
            "it, or give each job its own directory",
            path,
            run or "unknown",
        )
