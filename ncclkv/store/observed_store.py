"""`ObservedStore`: the verbs of a store by which a program observes it."""

from __future__ import annotations

import os

from ncclkv.engine.instrument import Instrument
from ncclkv.store.instruments import Instruments
from ncclkv.store.tracing import Trace, Tracing
from ncclkv.tracebacks import public_methods


@public_methods()
class ObservedStore:
    """The verbs of a `KVStore` that observe it; each delegates to one component."""

    _instruments: Instruments
    _tracing: Tracing

    def add_instrument(self, instrument: Instrument) -> None:
        """Call the methods of an instrument at the store's later events; local.

        Parameters
        ----------
        instrument : Instrument
            An instrument that was added before is not called twice.

        Raises
        ------
        UsageError
            When `instrument` is of another class.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> class Verbs(ncclkv.Instrument):
        ...     def verb(self, name, seconds):
        ...         print(name)
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.zeros(2))
        ...     kv.add_instrument(Verbs())
        ...     kv.push("w", np.ones(2))
        push
        close
        """
        self._instruments.add(instrument)

    def remove_instrument(self, instrument: Instrument) -> None:
        """Stop the calls of an instrument; local.  Nothing happens if it was not added."""
        self._instruments.remove(instrument)

    def trace(self, directory: str | os.PathLike[str] | None) -> Trace | None:
        """Write the store's events to a new file in a directory; local.

        The trace begins at once.  A trace ends at the end of a ``with`` block around the call, by
        its method ``stop``, by ``kv.trace(None)``, and with the store.  The command ``ncclkv trace
        DIRECTORY`` merges the files of all ranks for Perfetto or Chrome.

        Parameters
        ----------
        directory : path or None
            Made if it is not there; each rank and each trace has a file of its own.  None ends all
            traces of this store, also that of ``NCCLKV_TRACE``.

        Returns
        -------
        Trace or None
            A ``with`` block with the method ``stop``, and the attribute ``path``.

        Raises
        ------
        UsageError
            When no file can be made there.

        Examples
        --------
        >>> import tempfile, numpy as np, ncclkv
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ncclkv.create("local") as kv:
        ...         kv.init("w", np.zeros(2))
        ...         with kv.trace(directory) as trace:
        ...             kv.push("w", np.ones(2))
        ...     with open(trace.path) as file:
        ...         len(file.readlines()) > 2
        True
        """
        return self._tracing.start(directory)
