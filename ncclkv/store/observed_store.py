"""`ObservedStore`: the verbs of a store by which a program observes it."""

from __future__ import annotations

import os
from typing import Any, overload

from ncclkv.engine.instrument import Instrument
from ncclkv.store.counting import Counting
from ncclkv.store.instruments import Instruments
from ncclkv.store.tracing import Trace, Tracing
from ncclkv.tracebacks import public_methods


@public_methods()
class ObservedStore:
    """The verbs of a `KVStore` that observe it; each delegates to one component."""

    _instruments: Instruments
    _tracing: Tracing
    _counting: Counting

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

    @overload
    def trace(self, directory: str | os.PathLike[str]) -> Trace: ...

    @overload
    def trace(self, directory: None) -> None: ...

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

    def metrics(self) -> dict[str, Any]:
        """Return this rank's counts since the first call, as values that JSON can hold; local.

        The first call begins to count, so a store whose metrics nobody reads pays nothing.
        ``NCCLKV_METRICS=FILE`` counts from the creation on.

        Returns
        -------
        dict
            ``rank``, ``ranks``, ``seconds``
                This rank, the number of ranks, and the time of counting.
            ``verbs``
                ``calls`` and ``seconds`` of each verb.
            ``pushed_bytes``, ``pulled_bytes``, ``update_seconds``
                Bytes copied from and to the program's arrays, and the time of updates.
            ``waited_seconds``
                Seconds in which this rank waited for others.
            ``buckets``
                For each bucket, by its number as a text, and for ``"one-off"`` arrays: ``launches``
                and ``completed`` collectives; their ``nbytes``, ``wire_bytes`` that this rank
                sends, ``seconds`` from launch to completion, ``waited_seconds`` of the host,
                ``median_seconds``; ``median_skew_seconds`` between the entries of the last two
                ranks; and ``busbw_bytes_per_second``, as NCCL's tests compute it.  The time
                includes that for late ranks.
            ``last``
                Number of ``sums`` whose arrivals are known, and for each of the ``ranks`` that was
                last: ``count``, ``seconds``, ``median_seconds`` and ``most_seconds`` after the
                rank before.  Only ranks of this node that share memory are compared.
            ``awaited``
                The same numbers for the waits of this rank, by the rank awaited last.  Waits
                between nodes count, too.
            ``summary``
                Sentences about the ranks that were last.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.init("w", np.zeros(1024, np.float32))
        ...     started = kv.metrics()
        ...     kv.push("w", np.ones(1024, np.float32))
        ...     kv.wait()
        ...     metrics = kv.metrics()
        >>> metrics["verbs"]["push"]["calls"], metrics["pushed_bytes"]
        (1, 4096)
        """
        return self._counting.read()
