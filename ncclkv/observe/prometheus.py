"""Prometheus: the metrics of a store at a port of rank 0.

A scrape reads what rank 0 has counted.  A scrape starts no collective, and so learns of other ranks
only what rank 0 has seen of them: the rank that was last, and the ranks that rank 0 has awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ncclkv.errors import NotSupported, UsageError
from ncclkv.tracebacks import public

PORT = 9464
"""The default port, which Prometheus's list of ports has for exporters of this kind."""


class CountingStore(Protocol):
    """A store that counts, as `KVStore` does."""

    @property
    def rank(self) -> int:
        """The index of this rank."""

    @property
    def type(self) -> str:
        """The name of the store."""

    def metrics(self) -> dict[str, Any]:
        """Return the counts."""


class Served(AbstractContextManager["Served"]):
    """A port at which metrics are served; made by `serve`.

    Attributes
    ----------
    port : int or None
        None on ranks that serve nothing.
    """

    def __init__(self, port: int | None, close: Callable[[], object]) -> None:
        self.port = port
        self._close = close

    def close(self) -> None:
        """Close the port; a second call does nothing."""
        close, self._close = self._close, lambda: None
        close()

    def __exit__(self, *raised: object) -> None:
        self.close()


@public
def serve(kv: CountingStore, port: int = PORT, address: str = "127.0.0.1") -> Served:
    """Serve the metrics of rank 0 to Prometheus; local, and begins to count.

    Parameters
    ----------
    kv : KVStore
    port : int
        0 for any free port.
    address : str
        Address to listen at; ``"0.0.0.0"`` lets other machines read the metrics.

    Returns
    -------
    Served
        Has ``port`` and ``close``, and may be a ``with`` block.  On ranks other than 0 nothing is
        served.

    Raises
    ------
    NotSupported
        When the package prometheus-client is not installed.
    UsageError
        When the port cannot be opened.
    """
    if kv.rank != 0:
        return Served(None, lambda: None)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise NotSupported(
            "serve needs the package prometheus-client: pip install 'ncclkv[metrics]'"
        ) from error
    kv.metrics()  # counts from now on
    registry = CollectorRegistry()
    registry.register(_Collector(kv))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise UsageError(
            f"serve: port {port} of {address} cannot be opened: {error.strerror}; give another port"
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Served(server.server_port, close)


class _Collector:
    """Turns the metrics of a store into Prometheus's, at each scrape."""

    def __init__(self, kv: CountingStore) -> None:
        self._kv = kv

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics."""
        from prometheus_client.core import CounterMetricFamily

        metrics = self._kv.metrics()
        common = [self._kv.type, str(metrics["rank"])]
        for name, help_text, label, values in _families(metrics):
            labels = ["store", "rank", *([label] if label else [])]
            family = CounterMetricFamily(f"ncclkv_{name}", help_text, labels=labels)
            for value_label, value in values:
                family.add_metric([*common, *([value_label] if label else [])], value)
            yield family


_Family = tuple[str, str, str, list[tuple[str, float]]]
"""Name, text of help, own label, and the values by the own label."""

_COLUMNS: dict[tuple[str, str], dict[str, str]] = {
    ("verbs", "verb"): {
        "calls": "calls of a verb",
        "seconds": "seconds in calls of a verb",
    },
    ("buckets", "bucket"): {
        "launches": "collectives that were launched",
        "completed": "collectives that have completed",
        "nbytes": "bytes of the arrays in the collectives",
        "wire_bytes": "bytes that this rank has sent",
        "seconds": "seconds from launch to completion",
        "waited_seconds": "seconds in which the host waited for the collectives",
    },
    ("awaited", "awaited_rank"): {
        "count": "waits of this rank, by the rank awaited last",
        "seconds": "seconds of these waits",
    },
    ("last", "last_rank"): {
        "count": "sums at which this rank of the node was the last to arrive",
        "seconds": "seconds from the arrival of the rank before to its own",
    },
}
"""Tables of the metrics with the label of their rows, and the text of help of each column."""


def _families(metrics: dict[str, Any]) -> Iterator[_Family]:
    """Yield each family of counters."""
    for name, help_text in (
        ("pushed_bytes", "bytes copied from the program's arrays"),
        ("pulled_bytes", "bytes copied to the program's arrays"),
        ("update_seconds", "seconds of updates on the host"),
        ("waited_seconds", "seconds of waits for other ranks"),
    ):
        yield name, help_text, "", [("", metrics[name])]
    rows = {**metrics, "last": metrics["last"]["ranks"]}
    for (group, label), columns in _COLUMNS.items():
        for column, help_text in columns.items():
            values = [(key, row[column]) for key, row in rows[group].items()]
            yield f"{group}_{column}", help_text, label, values
