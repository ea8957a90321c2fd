"""Parts of the ranks: each element is in one part, and no array is larger than a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.checkpoint import write
from ncclkv.checkpoint.files import Piece
from ncclkv.optimizer import Adam
from ncclkv.store.own_parts import OwnParts
from ncclkv.testing import run_ranks
from tests.harness.context import context_of

SIZES = [3, 0, 700, 33, 5000]


@pytest.mark.parametrize("nbytes", [0, 4096, 1 << 20])
@pytest.mark.parametrize("file_bytes", [16, 1000, 1 << 20])
def test_each_element_is_in_one_part(
    nbytes: int, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "FILE_BYTES", file_bytes)
    keys = [*range(len(SIZES))]

    def body() -> tuple[dict[str, Any], list[tuple[str | Piece, Any]]]:
        with ncclkv.create("threads", update_on="sharded", bucket_bytes=nbytes) as kv:
            kv.init(keys, [np.arange(size, dtype=np.float32) for size in SIZES])
            kv.set_optimizer(Adam())
            kv.push(2, np.ones(700, np.float32))
            values = {f"value.{key}": kv.pull(key) for key in keys}
            kv.init(99, np.ones((2, 1)))  # has no bucket
            values[f"value.{len(keys)}"] = np.ones((2, 1))
            return values, [*OwnParts(context_of(kv)).arrays(values=True)]

    results = run_ranks(3, body)
    values = results[0][0]
    seen: dict[str, Any] = {}
    for rank, (_, arrays) in enumerate(results):
        for of, array in arrays:
            assert array.nbytes <= file_bytes
            name, lo, hi = of if isinstance(of, Piece) else (of, 0, array.size)
            assert array.ndim == 1 or not isinstance(of, Piece)
            covered = seen.setdefault(name, {})
            assert not covered.keys() & set(range(lo, hi)), (rank, name)
            covered.update(zip(range(lo, hi), array.reshape(-1), strict=True))
    for name, value in values.items():
        found = seen[name]
        assert [found[place] for place in range(value.size)] == [*value.reshape(-1)], name
    for number, size in enumerate(SIZES):
        assert len(seen[f"state.{number}.mean"]) == len(seen[f"state.{number}.variance"]) == size


def test_states_alone() -> None:
    def body() -> set[str]:
        with ncclkv.create("threads", update_on="sharded") as kv:
            kv.init([0, 1], [np.zeros(100), np.zeros(5)])
            kv.set_optimizer(Adam())
            kv.push(0, np.ones(100))
            names = OwnParts(context_of(kv)).arrays(values=False)
            return {of if isinstance(of, str) else of.tensor for of, _ in names}

    assert all(not name.startswith("value") for found in run_ranks(3, body) for name in found)
