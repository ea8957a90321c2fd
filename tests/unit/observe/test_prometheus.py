"""Metrics at a port, as Prometheus reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NotSupported, UsageError

REASON = "prometheus-client is not installed: pip install 'ncclkv[metrics]'"


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init("w", np.zeros(256, "f4"))
        yield store


def scrape(port: int | None) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text: str = page.read().decode()
    return text


def test_a_scrape_has_the_counts(kv: ncclkv.KVStore) -> None:
    pytest.importorskip("prometheus_client", reason=REASON)
    with ncclkv.observe.serve(kv, 0) as served:
        for _ in range(3):
            kv.push("w", np.ones(256, "f4"))
        text = scrape(served.port)
        assert 'ncclkv_pushed_bytes_total{rank="0",store="local"} 3072.0' in text
        assert 'ncclkv_verbs_calls_total{rank="0",store="local",verb="push"} 3.0' in text
        assert "# HELP ncclkv_buckets_wire_bytes_total bytes that this rank has sent" in text
        assert "ncclkv_buckets_launches" in text
        kv.push("w", np.ones(256, "f4"))
        assert 'verb="push"} 4.0' in scrape(served.port)
        with pytest.raises(UsageError, match=f"port {served.port} of 127.0.0.1 cannot be opened"):
            ncclkv.observe.serve(kv, served.port or 0)
    with pytest.raises(URLError):
        scrape(served.port)
    served.close()


def test_ranks_are_labels(kv: ncclkv.KVStore) -> None:
    pytest.importorskip("prometheus_client", reason=REASON)
    kv.metrics()
    counter: Any = kv._observing.counting._counter
    counter.late(1, 3, 0.5)
    counter.blocked("a barrier", [2], 0.25)
    with ncclkv.observe.serve(kv, 0) as served:
        text = scrape(served.port)
    assert 'ncclkv_last_seconds_total{last_rank="3",rank="0",store="local"} 0.5' in text
    assert 'ncclkv_awaited_seconds_total{awaited_rank="2",rank="0",store="local"} 0.25' in text


def test_other_ranks_serve_nothing() -> None:
    other: Any = SimpleNamespace(rank=1)
    with ncclkv.observe.serve(other) as served:
        assert served.port is None


def test_a_missing_package_is_named(kv: ncclkv.KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(NotSupported, match=r"pip install 'ncclkv\[metrics\]'"):
        ncclkv.observe.serve(kv)
