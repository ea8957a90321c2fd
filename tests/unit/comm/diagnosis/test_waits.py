"""Chains of waiting ranks, over nodes that answer or do not."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv import concurrency
from ncclkv.comm.diagnosis import mismatch as module
from ncclkv.comm.diagnosis import waits
from ncclkv.comm.diagnosis.flight_recorder import FlightRecorder
from ncclkv.comm.diagnosis.hang import HangDetector
from ncclkv.comm.diagnosis.roster import Member, Roster
from tests.unit.comm.diagnosis.connected_ranks import note, ranks


def test_waits_are_followed_from_rank_to_rank() -> None:
    first, second, third, fourth = ranks(4)
    note(second, 1)
    second.recorder.record_wait({2}, "a sum", 1.0)
    third.recorder.record_wait({0, 3}, "a sum", 1.0)
    for each in (second, third, fourth):
        each.notify("")
    first.receive()
    assert waits.chain(first, [1]) == {1: [2], 2: [0, 3], 3: ()}
    second.recorder.clear_wait()
    second.notify("")
    first.receive()
    assert waits.chain(first, [1]) == {1: ()}


def member(node: tuple[int, ...]) -> Member:
    return Member("host", 1, node, None, "files", "", (), "", False)


def test_nodes_that_do_not_answer_are_named() -> None:
    first, *others = ranks(6)
    nodes = [(0, 1), (0, 1), (2, 3), (2, 3), (4, 5), (4, 5)]
    first.roster = Roster([member(node) for node in nodes], 0.0)
    assert waits.silent_nodes(first, 0.0) == [], "nobody was asked"
    note(first, 1)
    assert waits.silent_nodes(first, 0.0) == [(2, 3), (4, 5)]
    others[2].notify("")
    first.receive()
    assert waits.silent_nodes(first, 0.0) == [(4, 5)]
    assert waits.silent_nodes(first, concurrency.monotonic() + 1) == [(2, 3), (4, 5)], (
        "that was too long ago"
    )


def test_other_nodes_are_notified_of_a_wait_and_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    calls = ranks(4)
    pages = {rank: module.np.zeros(module.NBYTES, module.np.uint8) for rank in (0, 1)}
    for rank in (0, 1):
        calls[rank].recorder = FlightRecorder(rank, pages)
    note(calls[0], 1)
    note(calls[1], 1, 2)
    calls[0].collect_reports([1, 3], 0.0)
    assert calls[0].transport.notified == [2, 3], "one message each"
    calls[2].receive()
    assert [calls[2].report(rank).calls[-1].call_index for rank in (0, 1)] == [1, 2]


def test_a_circle_of_waiting_ranks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    first, second = ranks(2)
    first.roster = Roster([member((rank,))._replace(host=f"node{rank}") for rank in (0, 1)], 0.0)
    late = HangDetector(first).timeout_error
    work: Any = "a sum"
    note(first, 1, 2)
    note(second, 1)
    second.recorder.record_wait({0}, "a sum", 4.0)
    second.notify("")
    first.receive()
    assert (
        "; rank 1 waits for rank 0; ranks 0, 1 wait for each other, and have made the same calls: "
        "messages between them are lost, or slower than the timeout allows; look at the network "
        "of node0, node1; rank 1 on "
    ) in str(late(work, {1}, 5.0, 5.0))
    second.recorder.clear_wait()
    second.notify("")
    first.receive()
    assert "; all ranks must make the same calls in the same order: look at what rank 1 did" in str(
        late(work, {1}, 5.0, 5.0)
    )
