"""Collectives without keys: random calls against NumPy, the log of calls, and events."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.errors import UsageError
from ncclkv.testing import run_ranks
from tests.harness.extent import examples
from tests.unit.store.recorded_calls import last, noted, on_two_ranks

pytestmark = pytest.mark.limit(60)

STEP = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}

arrays = st.tuples(
    st.sampled_from(["int8", "uint32", "int64", "float32", "float64", "bool"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
calls = st.tuples(st.sampled_from([*STEP, "gather"]), st.lists(arrays, min_size=1, max_size=4))


def part(rank: int, call: int, item: int, form: tuple[str, tuple[int, ...]]) -> Any:
    """Return a rank's array: small whole numbers, of which all products are exact."""
    dtype, shape = form
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 7 + 5 * rank + 3 * call + item) % 6
    return numbers.astype(dtype).reshape(shape)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.integers(1, 4), st.lists(calls, min_size=1, max_size=5))
def test_random_calls(size: int, program: list[Any]) -> None:
    def body() -> None:
        with ncclkv.create("threads", timeout=10) as kv:
            for number, (op, forms) in enumerate(program):
                every = [
                    [part(rank, number, item, form) for rank in range(size)]
                    for item, form in enumerate(forms)
                ]
                mine = [parts[kv.rank] for parts in every]
                if op == "gather":
                    got, want = kv.allgather(mine), [np.stack(parts) for parts in every]
                else:
                    got = kv.allreduce(mine, op)
                    want = [np.asarray(reduce(STEP[op], parts)) for parts in every]
                for one, other in zip(got, want, strict=True):
                    assert (one.dtype, one.shape) == (other.dtype, other.shape)
                    np.testing.assert_array_equal(one, other)

    run_ranks(size, body, timeout=10)


def test_calls_are_recorded_with_their_arguments() -> None:
    def body(kv: Any) -> list[str]:
        texts = []
        for call in (
            lambda: kv.allreduce(np.ones((2, 3)), "avg"),
            lambda: kv.allreduce([1, 2.0]),
            lambda: kv.allgather(True),
        ):
            before = noted(kv)
            call()
            count, digest = noted(kv)
            assert (count, digest != before[1]) == (before[0] + 1, True)
            texts.append(last(kv).text.partition(" at ")[0])
        return texts

    assert (
        on_two_ranks(body)
        == [
            [
                "allreduce(float64 (2, 3), op='avg')",
                "allreduce(int64 (), float64 (), op='sum')",
                "allgather(bool ())",
            ]
        ]
        * 2
    )


def test_refused_calls_are_not_recorded() -> None:
    def body(kv: Any) -> None:
        before = noted(kv)
        with pytest.raises(UsageError):
            kv.allreduce("text")
        with pytest.raises(UsageError):
            kv.allreduce(1, "mean")
        with pytest.raises(UsageError):
            kv.allgather(1, out=np.zeros(3))
        assert noted(kv) == before

    on_two_ranks(body)


class Launches(Instrument):
    """Records launches and completions."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, int]] = []
        self.completions = 0

    def launched(self, launch: Launch) -> None:
        self.launches.append((launch.label, launch.nbytes, launch.wire))

    def completed(self, seq: int, seconds: float) -> None:
        self.completions += 1


def test_events_of_one_collective_for_each_dtype() -> None:
    def body(kv: Any) -> Launches:
        log = Launches()
        kv.add_instrument(log)
        kv.allreduce([np.ones(1000), 1, np.ones(24)], "max")
        kv.allgather(np.ones(3, np.float32))
        return log

    label = "allreduce(float64 (1000,), int64 (), float64 (24,), op='max')"
    for log in on_two_ranks(body):
        assert [(text, nbytes) for text, nbytes, _ in log.launches] == [
            (label, 8192),
            (label, 8),
            ("allgather(float32 (3,))", 24),
        ]
        assert log.launches[-1][2] == 12
        assert log.completions == 3
