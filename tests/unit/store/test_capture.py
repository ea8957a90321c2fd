"""Captures of stores in host memory, which has no graphs, are refused."""

from __future__ import annotations

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NotSupported
from ncclkv.testing import run_ranks


@pytest.mark.parametrize(("name", "size"), [("local", 1), ("threads", 1), ("threads", 3)])
def test_a_capture_is_refused_and_changes_nothing(name: str, size: int) -> None:
    def body() -> None:
        with ncclkv.create(name) as kv:
            kv.init("w", np.zeros(3))
            with pytest.raises(NotSupported) as caught, kv.capture():
                kv.push("w", np.ones(3))
            text = str(caught.value)
            assert text.startswith(f"rank {kv.rank} of {size}: ")
            assert (
                "has no graphs: only stores in a GPU's memory, such as create('nccl'), can" in text
            )
            assert "make its calls each time instead" in text
            kv.push("w", np.ones(3))
            assert kv.pull("w").tolist() == [size] * 3

    run_ranks(size, body)
