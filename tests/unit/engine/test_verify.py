"""Comparison of the ranks' values: the outlier, the error's text, and no cost when off."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from ncclkv.engine.verify import Checksums, Difference, describe, differences
from ncclkv.errors import Divergence
from ncclkv.testing import run_ranks
from tests.conformance import CASES, Case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

HERE = [case for case in CASES if case.name.startswith("divergence")]


Sums = tuple[Checksums, Checksums]
"""A rank's checksums of the values in the store, and of the arrays pulled into."""


def of_keys(sums: list[int] | None, count: int) -> Checksums:
    """Return checksums of an array for each of `count` keys, or of none."""
    numbers = range(count) if sums is not None else range(0)
    return Checksums.of(count, list(numbers), np.array(sums or [], np.uint64))


def checksums(held: list[int], pulled: list[int] | None = None, counts: bool = True) -> Sums:
    """Return a rank's checksums of as many keys."""
    values = of_keys(held, len(held))
    values.comparable[:] = counts
    return values, of_keys(pulled, len(held))


def compared(all_ranks: list[Sums], keys: list[str], root: int) -> list[Difference]:
    """Return the keys that differ between ranks."""
    held, pulled = zip(*all_ranks, strict=True)
    return differences(held, pulled, keys, root)


def outliers(sums: list[int], root: int = 0) -> tuple[int, ...]:
    """Return the outliers among ranks with these checksums."""
    found = compared([checksums([each]) for each in sums], ["w"], root)
    assert len(found) <= 1
    return found[0].held if found else ()


@pytest.mark.parametrize(
    ("sums", "root", "wrong"),
    [
        ([5, 5, 5, 5], 0, ()),
        ([5, 5, 6, 5], 0, (2,)),
        ([6, 5, 5, 5], 0, (0,)),  # the root is an outlier like any other
        ([5, 6], 0, (1,)),  # a tie of two: the root's side wins
        ([5, 6], 1, (0,)),
        ([5, 6, 6, 5], 1, (0, 3)),
        ([5, 6, 7], 2, (0, 1)),
        ([5, 6, 6, 7, 7], 0, (0, 3, 4)),  # a tie without the root: the first side wins
        ([2**64 - 1, 2**64 - 1, 2**63], 0, (2,)),
    ],
)
def test_the_outlier_is_found(sums: list[int], root: int, wrong: tuple[int, ...]) -> None:
    assert outliers(sums, root) == wrong


def test_keys_checked_on_some_ranks_alone_are_left_out() -> None:
    keys = ["key0"]
    assert compared([checksums([5]), checksums([6], counts=False)], keys, 0) == []
    assert compared([checksums([5], [7]), checksums([5])], keys, 0) == []
    assert compared([checksums([5], [7]), checksums([5], [8])], keys, 0) == [
        Difference("key0", (), (1,))
    ]


def test_a_rank_whose_arrays_differ_among_themselves() -> None:
    received = [checksums([5], [5]) for _ in range(3)]
    received[1][1].highest[:] = 9
    assert compared(received, ["w"], 0) == [Difference("w", (), (1,))]


@pytest.mark.parametrize(
    ("found", "size", "text"),
    [
        (
            [Difference("w", (2,), (2,))],
            4,
            "of key 'w' rank 2 has other bits than ranks 0, 1, 3 (held and pulled)",
        ),
        ([Difference(3, (0,), ())], 2, "of key 3 rank 0 has other bits than rank 1 (held)"),
        (
            [Difference("w", (), tuple(range(6)))],
            64,
            "of key 'w' ranks 0, 1, 2, 3 and 2 more ranks have other bits than ranks 6, 7, 8, 9 "
            "and 54 more ranks (pulled)",
        ),
        (
            [Difference("w", (1,), (2,))],
            3,
            "of key 'w' rank 1 has other bits than ranks 0, 2 (held), and rank 2 has other bits "
            "than ranks 0, 1 (pulled)",
        ),
        (
            [Difference(key, (1,), ()) for key in range(6)],
            2,
            "; ".join(f"of key {key} rank 1 has other bits than rank 0 (held)" for key in range(4))
            + " and 2 more keys",
        ),
    ],
)
def test_text_of_the_error(found: list[Difference], size: int, text: str) -> None:
    assert describe(found, size) == text


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("ranks_per_node", [1, 2])
@pytest.mark.parametrize("case", HERE, ids=lambda case: case.name)
def test_ranks_on_several_nodes(
    case: Case, ranks_per_node: int, update_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check one copy a node, since ranks of a node share their values."""
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", str(ranks_per_node))

    def body() -> None:
        with Stores("threads", update_on) as create:
            case.body(create)

    run_ranks(4, body)


def diverging(**options: Any) -> Any:
    """Create a store whose updater has one other result on rank 1."""
    kv = ncclkv.create("threads", **options)
    kv.init("w", np.zeros(3))
    wrong = [1.0]

    def step(key: Any, value: Any, stored: Any) -> None:
        stored += value + (wrong.pop() if wrong and kv.rank == 1 else 0)

    kv.set_updater(step)
    kv.push("w", np.ones(3))
    return kv


def test_the_complete_error() -> None:
    def body() -> None:
        kv = diverging(verify_every=1)
        with pytest.raises(Divergence) as caught:
            kv.pull("w")
        assert str(caught.value) == (
            f"rank {kv.rank} of 3: after 1 flush values differ: of key 'w' rank 1 has other "
            f"bits than ranks 0, 2 (held and pulled); check for a rank that modifies its values in "
            f"place, or an updater that depends on the rank; or let create(..., repair=True) give "
            f"all ranks rank 0's values"
        )
        kv.close()

    run_ranks(3, body)


def test_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def body() -> None:
        with diverging(verify_every=1, repair=True) as kv:
            assert kv.pull("w").tolist() == [3, 3, 3]
            assert kv.repaired == 1

    with caplog.at_level(logging.WARNING, "ncclkv"):
        run_ranks(3, body)
    assert [record.message for record in caplog.records] == [
        "rank 0 of 3: after 1 flush values differ: of key 'w' rank 1 has other bits than ranks "
        "0, 2 (held and pulled); all ranks now have rank 0's values, but not the state of its "
        "updater step"
    ]


def counted(kv: Any) -> list[int]:
    """Record the number of arrays of each later checksum call."""
    calls: list[int] = []
    kernels = context_of(kv).engine.kernels
    kernels.checksums = _counting(kernels.checksums, calls)
    return calls


def _counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def call(arrays: Any) -> Any:
        calls.append(len(arrays))
        return function(arrays)

    return call


def read(kv: Any, times: int) -> None:
    for _ in range(times):
        kv.pull("w")


def test_no_checksum_between_comparisons() -> None:
    def body() -> None:
        for every, expected in ((0, []), (4, [1, 1]), (1, [1] * 10)):
            with ncclkv.create("threads", verify_every=every) as kv:
                kv.init("w", np.ones(SHARED_FROM_BYTES // 8))
                kv.push("w", np.ones(SHARED_FROM_BYTES // 8))
                calls = counted(kv)
                read(kv, 10)
                # One array, the pulled one: the ranks share the weights.
                assert calls == expected

    run_ranks(2, body)


def test_one_rank_has_nothing_to_compare() -> None:
    with ncclkv.create("local", verify_every=1, repair=True) as kv:
        kv.init("w", np.ones(3))
        calls = counted(kv)
        read(kv, 3)
        kv.barrier()
        assert calls == []
        assert kv.repaired == 0
