"""Counting: the metrics of a store, for the program and for the file of ``NCCLKV_METRICS``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ncclkv import env
from ncclkv.store.attached_instruments import AttachedInstruments
from ncclkv.store.context import Component, Context

if TYPE_CHECKING:
    from ncclkv.observe.counter import Counter

_log = logging.getLogger("ncclkv")


class Counting(Component):
    """Counts from the first call of `read` on, or from the creation if a file is named."""

    def __init__(self, context: Context, instruments: AttachedInstruments, name: str) -> None:
        super().__init__(context)
        self._instruments = instruments
        self._counter: Counter | None = None
        path = env.metrics()
        if not path:
            return
        from ncclkv.observe.metrics_file import MetricsFile  # only a file needs it

        counter = self._start()
        try:
            instruments.attach(MetricsFile(path, name, counter))
        except OSError as error:  # other ranks have begun to train
            _log.error("NCCLKV_METRICS=%r: no metrics are written: %s", path, error)

    def read(self) -> dict[str, Any]:
        """Return the counts since the first call."""
        counter = self._counter or self._start()
        return counter.metrics()

    def _start(self) -> Counter:
        """Begin to count."""
        from ncclkv.observe.counter import Counter  # a store that counts nothing needs none

        counter = self._counter = Counter(self._comm.rank, self._comm.size)
        self._instruments.attach(counter)
        return counter
