"""Instrument: receives the events of one rank's store, as a trace or a counter does."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ncclkv.table.registry import Key


class Launch(NamedTuple):
    """A launched collective.

    Attributes
    ----------
    seq : int
        Its index among the collectives of the store, from 1 and equal on all ranks.
    kind : str
        ``"allreduce"``, ``"reduce"``, ``"reduce_scatter"``, ``"broadcast"`` or ``"allgather"``.
    label : str
        Names of its keys, as in error texts.
    nbytes : int
        Bytes of the array that is reduced, broadcast or gathered; slots are padded to 256 bytes.
    wire : int
        Bytes of a reduction that this rank sends, or that its neighbours read; 0 of a broadcast.
    bucket : int or None
        Index of the bucket, as `KVStore.explain_plan` shows; None of arrays without keys.
    keys : collection of int or str
        Empty for arrays without keys.
    root : int or None
        The root of a reduce or a broadcast.
    """

    seq: int
    kind: str
    label: str
    nbytes: int
    wire: int
    bucket: int | None = None
    keys: Collection[Key] = ()
    root: int | None = None


class Instrument:
    """Receives the events of one rank's store; a subclass overrides what it observes.

    Give an object to `KVStore.add_instrument`.  A store without instruments pays nothing for
    events, and an instrument receives only the events whose methods it overrides.

    Methods run inside the verb that they observe, on the thread that called the verb, so they call
    no verb.  An instrument that raises an exception is removed, and the exception is logged.  All
    durations are in seconds of ``time.perf_counter``.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> class Bytes(ncclkv.Instrument):
    ...     total = 0
    ...     def launched(self, launch):
    ...         self.total += launch.nbytes
    >>> bytes_reduced = Bytes()
    >>> with ncclkv.create("local") as kv:
    ...     kv.init("w", np.zeros(1024, np.float32))
    ...     kv.set_optimizer(ncclkv.optimizer.SGD())
    ...     kv.add_instrument(bytes_reduced)
    ...     kv.push("w", np.ones(1024, np.float32))
    >>> bytes_reduced.total
    4096
    """

    def begun(self, name: str) -> None:
        """Observe that a verb begins; refused verbs do not begin."""

    def verb(self, name: str, seconds: float) -> None:
        """Observe that a verb has returned, or raised an exception, after `seconds`."""

    def packed(self, bucket: int, keys: Collection[Key], nbytes: int, seconds: float) -> None:
        """Observe that a push has copied, or added, its arrays of a bucket's keys.

        Arrays that a type of compression reads in place are not copied.  On a GPU `seconds` is the
        time that the host took to launch the copies.
        """

    def launched(self, launch: Launch) -> None:
        """Observe the launch of a collective."""

    def updated(self, label: str, seconds: float) -> None:
        """Observe the updates of keys, by a function, by norms, or of one complete sum.

        A sum is updated in ranges, as they arrive, and `seconds` adds up their times.  On a GPU
        `seconds` is the time that the host took to launch the kernels.
        """

    def waited(self, seq: int, seconds: float) -> None:
        """Observe the end of the host's wait for a collective, which took `seconds`."""

    def completed(self, seq: int, seconds: float) -> None:
        """Observe that a host wait has completed a collective, `seconds` after its launch."""

    def late(self, seq: int, rank: int, seconds: float) -> None:
        """Observe the rank of the node that entered a sum last; emitted after each host wait.

        All ranks that wait for each other in shared memory receive the same rank and time.  Ranks
        of other nodes, ranks that exchange messages, and GPUs publish no times.

        Parameters
        ----------
        seq : int
        rank : int
            The last rank; this rank or another.
        seconds : float
            Time between the entries of the last two ranks.
        """

    def unpacked(self, bucket: int | None, nbytes: int, seconds: float) -> None:
        """Observe that a pull has copied values out of a bucket; None before its first flush."""

    def waiting(self, what: str, ranks: Collection[int]) -> None:
        """Observe that the host has waited a quarter of a second for `ranks`, and still waits.

        Parameters
        ----------
        what : str
            The collective, or the exchange of the hosts.
        ranks : collection of int
        """

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        """Observe the end of a wait of the host for other ranks, by memory or by messages.

        Waits of less than ten microseconds are left out.

        Parameters
        ----------
        what : str
            The collective, or the exchange of the hosts.
        ranks : collection of int
            The ranks that were awaited last.
        seconds : float
        """

    def device(self, seq: int, begin: float, seconds: float) -> None:
        """Observe the time of a collective on the GPU's stream; emitted by a later verb.

        The host does not wait for these times: events on the stream have them.

        Parameters
        ----------
        seq : int
        begin : float
            Time of ``time.perf_counter`` at which the GPU began, to some microseconds.
        seconds : float
        """

    def failed(self, error: str) -> None:
        """Observe the error that broke the store: its class and text."""

    def closed(self) -> None:
        """Observe the end of the store: it was closed, or left by an exception."""


EVENTS = tuple(name for name in vars(Instrument) if not name.startswith("_"))
"""Names of all events, which are the methods of an instrument."""
