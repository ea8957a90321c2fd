"""New values of keys: one exchange, however many keys."""

from __future__ import annotations

from typing import Any

import numpy as np

import ncclkv
from ncclkv.testing import run_ranks
from tests.harness.context import context_of


def test_a_reset_of_several_keys_flushes_once() -> None:
    def body() -> tuple[list[str], list[float]]:
        with ncclkv.create("threads", nonfinite="raise", bucket_bytes=0) as kv:
            keys = ["a", "b", "c"]
            kv.init(keys, [np.zeros(4)] * 3)
            kv.push(keys, [np.ones(4)] * 3)
            control, labels = context_of(kv).comm.control, []
            allgather = control.allgather

            def counted(item: Any, label: str = "") -> Any:
                labels.append(label)
                return allgather(item, label)

            control.allgather = counted
            kv.reset(keys, [np.full(4, 5.0)] * 3)
            del control.allgather
            return labels, [float(value[0]) for value in kv.pull(keys)]

    assert run_ranks(2, body) == [(["agreement on reset", "the keys pushed"], [5, 5, 5])] * 2
