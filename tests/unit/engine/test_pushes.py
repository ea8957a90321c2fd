"""Keys that wait in a bucket, and what they refuse."""

from __future__ import annotations

import pytest

from ncclkv.comm.types import DoneWork
from ncclkv.engine.pushes import Pushes


@pytest.fixture
def bucket() -> Pushes:
    """A bucket of three keys, of which `a` and `b` wait."""
    made = Pushes(3)
    made.push({"a"}, "step")
    made.push({"b"}, "step")
    return made


@pytest.mark.parametrize(
    ("keys", "step", "expected"),
    [({"c"}, "step", False), ({"b", "c"}, "step", True), ({"c"}, "other", True)],
)
def test_a_second_push_and_another_step_conflict(
    bucket: Pushes, keys: set[str], step: str, expected: bool
) -> None:
    assert bucket.conflicts(keys, step) is expected


def test_nothing_conflicts_with_an_empty_bucket(bucket: Pushes) -> None:
    bucket.end_launch(bucket.waiting)
    assert not bucket.waiting
    assert not bucket.conflicts({"a"}, "other")


def test_a_launch_of_some_keys_leaves_the_others(bucket: Pushes) -> None:
    bucket.end_launch({"b", "c"})
    assert bucket.waiting == {"a"}
    assert bucket.needs("a")
    assert not bucket.needs("b")


def test_a_deferred_update_needs_every_gradient(bucket: Pushes) -> None:
    bucket.end_launch(bucket.waiting)
    bucket.defer(None)
    assert bucket.needs("c")
    assert bucket.conflicts({"c"}, "step")
    bucket.end_deferred()
    assert not bucket.needs("c")


def test_neutral_elements_are_not_the_programs_own(bucket: Pushes) -> None:
    bucket.push_filled("c")
    assert bucket.own == {"a", "b"}
    bucket.end_launch({"c"})
    bucket.push({"c"}, "step")
    assert bucket.own == {"a", "b", "c"}


def test_stale_ranges_are_one_until_they_are_published(bucket: Pushes) -> None:
    bucket.mark_stale(8, 16)
    bucket.mark_stale(32, 48)
    bucket.mark_stale(0, 4)
    assert bucket.stale == (0, 48)
    bucket.end_publication(DoneWork())
    assert bucket.stale is None
    assert len(bucket.works) == 1


def test_a_step_that_was_not_executed_leaves_nothing(bucket: Pushes) -> None:
    bucket.defer(None)
    bucket.mark_stale(0, 8)
    bucket.add(DoneWork())
    bucket.forget()
    assert [*bucket.waiting, *bucket.deferred, *bucket.works] == []
    assert bucket.stale is None
