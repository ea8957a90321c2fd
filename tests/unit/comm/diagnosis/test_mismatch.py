"""Comparison of the ranks' calls: requests, replies, the first difference and its text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ncclkv import concurrency
from ncclkv.comm.diagnosis import mismatch as module
from ncclkv.comm.diagnosis.flight_recorder import FlightRecorder
from ncclkv.comm.diagnosis.mismatch import VERDICT_CALLS, CallComparison
from ncclkv.comm.diagnosis.reports import FEWER_BATCHES, RecordedCall
from ncclkv.errors import OrderMismatch
from tests.unit.comm.diagnosis.connected_ranks import note, ranks


def test_a_request_is_answered_and_both_ranks_find_the_difference() -> None:
    first, second = ranks(2)
    note(first, 1, 2, 3)
    note(second, 1, 2, 4)
    first.request_reports([1])
    error = second.compare_reports()
    assert isinstance(error, OrderMismatch)
    both = (
        "the ranks differ in call 3 of this store: rank 0 called call 3 at train.py:3, but rank 1 "
        "called call 4 at train.py:4; make the same calls in the same order on all ranks"
    )
    assert str(error) == f"rank 1 of 2: {both}"
    assert str(first.compare_reports()) == f"rank 0 of 2: {both}"


def test_a_rank_that_closes_early_gets_advice() -> None:
    push = RecordedCall(8, 1, 0, "push(3) at train.py:5", 0.0)
    for text in ("close() at train.py:9", "pull(3) at train.py:6"):
        said = ranks(2)[0]._describe(1, push, push._replace(code=2, text=text))
        assert said.endswith(f"on all ranks ({FEWER_BATCHES})") == text.startswith("close")


def test_a_reply_is_not_answered() -> None:
    first, second = ranks(2)
    first.request_reports([1])
    second.receive()
    first.receive()
    second.receive()
    assert first.transport.notified == [1]
    assert second.transport.notified == [0]


def test_all_ranks_are_notified_at_once() -> None:
    first, *others = ranks(4)
    note(first, 1)
    for other in others:
        note(other, 2)
    first.notify("")
    for other in others:
        assert "rank 0 called call 1" in str(other.compare_reports())


def test_a_slow_rank_compares_when_it_reaches_the_call() -> None:
    first, second = ranks(2)
    note(first, 1, 2, 3)
    note(second, 1)
    first.notify("")
    assert second.compare_reports() is None
    note(second, 2)
    assert second.compare_reports() is None
    note(second, 9)
    assert "call 3 of this store" in str(second.compare_reports())


def test_compared_reports_are_released() -> None:
    first, second = ranks(2)
    note(first, 1, 2)
    note(second, 1, 2)
    first.notify("")
    assert second.compare_reports() is None
    assert not second._uncompared
    note(second, 3)
    assert second.compare_reports() is None


def test_ranks_without_calls_do_not_differ() -> None:
    first, second = ranks(2)
    first.request_reports([1])
    assert second.compare_reports() is None
    assert first.compare_reports() is None
    assert first.compare_pages() is None


def test_only_the_last_calls_are_reported() -> None:
    first, second = ranks(2)
    note(first, *range(VERDICT_CALLS + 50))
    note(second, *range(VERDICT_CALLS + 40), *[-1] * 10)
    first.notify("")
    assert len(second.transport.inbox[0][1]) < 64 * 1024
    assert f"call {VERDICT_CALLS + 41} of this store" in str(second.compare_reports())


def test_pages_of_neighbours_are_read() -> None:
    first, second, third = ranks(3)
    pages = {rank: module.np.zeros(module.NBYTES, module.np.uint8) for rank in (0, 1)}
    for rank, calls in enumerate((first, second)):
        calls.recorder = FlightRecorder(rank, pages)
    note(first, 1, 2)
    note(second, 1, 3)
    note(third, 1, 4)
    assert "rank 0 called call 2 at train.py:2, but rank 1 called call 3" in str(
        first.compare_pages()
    )
    assert "rank 1 of 3: the ranks differ in call 2" in str(second.compare_pages())
    assert third.compare_pages() is None, "it shares no memory"


def test_the_rank_with_the_lowest_number_that_differs_is_shown() -> None:
    calls = ranks(4)
    for each, what in zip(calls, (5, 5, 6, 7), strict=True):
        note(each, what)
    for each in calls[:3]:
        each.notify("")
    assert "rank 0 called call 5 at train.py:5, but rank 3" in str(calls[3].compare_reports())


# Keys in only one of two calls


def odd(
    first: CallComparison, second: CallComparison, texts: tuple[str, str], found: tuple[Any, Any]
) -> str:
    """Return the second rank's text when keys differ; `found` has the differing keys."""
    note(first, 1, keys=10, text=texts[0])
    note(second, 1, keys=20, text=texts[1])
    seen = []

    def odd_key(one: int, other: int) -> tuple[Any, Any]:
        seen.append((one, other))
        return found

    second.differing_keys = lambda: odd_key
    first.notify("")
    said = str(second.compare_reports())
    assert seen in ([], [(10, 20)]), "in the order of ranks"
    return said


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (("a", None), "(only rank 0 has key 'a');"),
        ((None, 7), "(only rank 1 has key 7);"),
        (("a", "b"), "(only rank 0 has key 'a', only rank 1 has key 'b');"),
        ((None, None), "but rank 1 called push(0, ... 9 keys) at b.py:2; make"),
        ((0, 0), "(only rank 0 has key 0, only rank 1 has key 0);"),
    ],
)
def test_differing_keys_are_named_if_the_text_is_cut(found: tuple[Any, Any], words: str) -> None:
    texts = ("push(0, ... 9 keys) at a.py:1", "push(0, ... 9 keys) at b.py:2")
    assert words in odd(*ranks(2), texts, found)


def test_differing_keys_are_not_named_if_the_text_has_all_keys() -> None:
    texts = ("push('a') at a.py:1", "push('b') at b.py:2")
    assert "only rank" not in odd(*ranks(2), texts, ("a", "b"))


# A difference without a known call


def test_an_error_is_explained_by_other_ranks_reports() -> None:
    first, second = ranks(2)
    note(first, 1)
    note(second, 2)
    first.notify("")
    error = second.explain(OrderMismatch("somehow"))
    assert "rank 0 called call 1 at train.py:1, but rank 1 called call 2" in str(error)
    assert first.transport.inbox, "the others are told"


def test_an_error_without_other_reports_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    first, _ = ranks(2)
    note(first, 1)
    found = str(first.explain(OrderMismatch("somehow")))
    assert found.startswith("rank 0 of 2: somehow; rank 0 on ")
    assert " last called call 1 at train.py:1, " in found


def test_an_error_before_any_call_is_kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 1e9)
    first, _ = ranks(2)
    assert str(first.explain(OrderMismatch("somehow"))) == "rank 0 of 2: somehow"
    assert str(first.explain(OrderMismatch("rank 0: somehow"))) == "rank 0: somehow"


def test_a_forwarded_verdict_names_the_rank_that_found_it() -> None:
    first, second, third = ranks(3)
    for each in (first, second, third):
        note(each, 1)
    first.notify("rank 0 of 3: it is wrong")
    found = second.compare_reports()
    second.notify(str(found))
    third.transport.inbox.pop(0)  # the first request is lost
    assert str(third.compare_reports()) == "rank 2 of 3: rank 0 found: rank 0 of 3: it is wrong"


# Last reports of ranks


def test_the_last_calls_of_missing_ranks_are_named() -> None:
    first, second, third = ranks(3)
    note(second, 1, 2)
    second.notify("")
    first.receive()
    said = first.describe_calls({1, 2})
    assert re.fullmatch(
        r"rank 1 on \S+ \(pid \d+\) last called call 2 at train\.py:2, \d+\.\d s ago", said
    )
    assert first.describe_calls({2}) == "", "nothing is known of it"
    note(third, 7)
    third.notify("")
    first.receive()
    assert first.describe_calls({2, 1}).count(" last called ") == 2
    assert first.describe_calls({2, 1}).index("rank 1 on") < first.describe_calls({2, 1}).index(
        "rank 2 on"
    )


def test_many_ranks_are_counted() -> None:
    first, *others = ranks(13)
    for other in others:
        note(other, 1)
        other.notify("")
    first.receive()
    said = first.describe_calls(range(13))
    assert said.count(" last called ") == 8
    assert said.endswith("; and 4 more")


def test_an_old_report_has_its_age() -> None:
    """Check that a report's seconds count from its call, not from its arrival."""
    first, second = ranks(2)
    note(second, 1)
    second.notify("")
    first.receive()
    concurrency.sleep(0.25)
    seconds = float(re.findall(r"(\d+\.\d) s ago", first.describe_calls({1}))[0])
    assert seconds >= 0.2


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_first_further_call_of_a_rank_is_named(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    both = ranks(2)
    for each in both:
        note(each, 1, 2)
    note(both[ahead], 3, 4)
    both[0].notify("")
    both[1].notify("")
    for each in both:
        error = each.explain(OrderMismatch("the digests differ"))
        assert str(error) == (
            f"rank {each.transport.rank} of 2: the digests differ; after the same calls "
            f"rank {ahead} called call 3 at train.py:3"
        )


def test_a_rank_behind_names_both_calls_of_the_ranks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    behind, *ahead = ranks(4)
    note(behind, 1)
    for each, call in zip(ahead, (2, 3, 2), strict=True):
        note(each, 1, call)
        each.notify("")
    assert str(behind.explain(OrderMismatch("the digests differ"))) == (
        "rank 0 of 4: the digests differ; after the same calls rank 1 called call 2 at train.py:2, "
        "rank 2 called call 3 at train.py:3"
    )


def test_the_end_of_a_block_by_an_exception_names_where_to_look() -> None:
    first, second = ranks(2)
    note(first, 1, text="end of an overlap('a')")
    note(second, 2, text="early end of an overlap('a')")
    second.notify("")
    first.transport.left_ranks()
    assert str(first.compare_reports()).endswith(
        "; make the same calls in the same order on all ranks (an exception has ended the block of "
        "rank 1: look at the error there)"
    )
