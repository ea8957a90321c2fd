"""Layouts: the memory of keys, by their storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.engine.layout import Layout
from ncclkv.engine.reductions import Reductions
from ncclkv.errors import NotSupported
from ncclkv.table.bucket import Bucket
from ncclkv.table.cost import Sizing
from ncclkv.table.registry import KeySpec


def to_everyone(buckets: Sequence[Bucket], loads: list[int]) -> list[To]:
    """Return the destinations of sums that every rank receives."""
    return [EVERYONE] * len(buckets)


def ignore(state: Any) -> None:
    """Allocate no states."""


@pytest.fixture
def layout() -> Layout:
    comm = SoloCommunicator(1.0)
    reductions = Reductions(comm)
    return Layout(comm, Sizing(4096), to_everyone, ignore, reductions, share_weights=False)


def specs(*storages: str) -> list[KeySpec]:
    """Return keys of four elements, one of each storage."""
    return [
        KeySpec(f"k{index}", index, (4,), np.dtype(np.float32), storage=storage)
        for index, storage in enumerate(storages)
    ]


def test_dense_keys_share_a_bucket(layout: Layout) -> None:
    layout.add(specs("dense", "dense"), [np.ones(4, np.float32), np.full(4, 2, np.float32)])
    layout.seal()
    assert len(layout.states) == 1
    assert layout["k0"].weight_view.tolist() == [1, 1, 1, 1]
    assert layout["k1"].weight_view.tolist() == [2, 2, 2, 2]


def test_an_unknown_storage_is_refused_and_nothing_is_sealed(layout: Layout) -> None:
    layout.add(specs("dense", "rows"), [np.ones(4, np.float32)] * 2)
    with pytest.raises(NotSupported, match="storage 'rows'"):
        layout.seal()
    assert not layout.states
    assert not layout.sealed
