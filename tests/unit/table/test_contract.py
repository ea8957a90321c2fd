"""Call digests: equal on ranks if, and only if, they have made the same calls."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.diagnosis.call_ring import NBYTES, CallRing
from ncclkv.table import contract
from tests.harness.extent import examples

FEW = settings(max_examples=examples(200), deadline=None, derandomize=True)
KEYS = 1000


class Call(NamedTuple):
    """A call, with the indices of its keys in the registry."""

    verb: str
    priority: int
    pushed: frozenset[int]
    read: frozenset[int]


indices = st.frozensets(st.integers(0, 50), max_size=5)
calls = st.builds(Call, st.sampled_from(contract.VERBS), st.integers(-3, 2**40), indices, indices)
programs = st.lists(calls, max_size=8)


def advance_digest(digest: int, code: int, keys: int) -> int:
    """Return the digest after one more call, which a ring of its own appends."""
    ring, frame = CallRing(memoryview(bytearray(NBYTES))), sys._getframe(1)
    return ring.append(ring.intern(code, keys, "a call", frame), digest)


def mark_of(program: list[Call]) -> int:
    mark = 0
    for verb, priority, pushed, read in program:
        keys = sum(map(contract.push_code, pushed)) + sum(map(contract.pull_code, read))
        mark = advance_digest(mark, contract.call_code(verb, priority), keys & contract.MASK)
    return mark


@FEW
@given(programs, programs)
def test_different_calls_have_different_digests(first: list[Call], second: list[Call]) -> None:
    assert (mark_of(first) == mark_of(second)) == (first == second)


@FEW
@given(programs, st.data())
def test_calls_in_another_order_have_another_digest(
    program: list[Call], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(program))
    assert (mark_of(program) == mark_of(other)) == (program == other)


@FEW
@given(programs, calls)
def test_one_more_call_changes_the_digest(program: list[Call], more: Call) -> None:
    assert mark_of([*program, more]) != mark_of(program)
    assert mark_of([more, *program]) != mark_of(program)


@FEW
@given(st.lists(st.integers(0, 50), unique=True), st.data())
def test_the_order_of_keys_in_a_call_has_no_effect(keys: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(keys))
    assert sum(map(contract.push_code, keys)) == sum(map(contract.push_code, other))


def test_push_and_pull_of_a_key_differ() -> None:
    numbers = [f(index) for f in (contract.push_code, contract.pull_code) for index in range(KEYS)]
    assert len(set(numbers)) == 2 * KEYS
    assert all(0 <= number <= contract.MASK for number in numbers)


def test_verbs_and_priorities_have_different_codes() -> None:
    whole = [contract.call_code(verb, each) for verb in contract.VERBS for each in range(-50, 50)]
    assert len(set(whole)) == len(contract.VERBS) * 100
    assert all(0 <= number <= contract.MASK for number in whole)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_a_digest_is_equal_in_every_process(seed: str) -> None:
    program = (
        "from ncclkv.table import contract\n"
        "from tests.unit.table.test_contract import advance_digest\n"
        "print(advance_digest(7, contract.call_code('push', -2), contract.push_code(3)))"
    )
    digest = subprocess.check_output(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, text=True
    )
    assert int(digest) == advance_digest(7, contract.call_code("push", -2), contract.push_code(3))


def test_a_digest_fits_a_signed_word() -> None:
    mark = 0
    for number in range(1000):
        mark = advance_digest(mark, contract.call_code("push"), contract.push_code(number))
        assert -(2**63) <= mark < 2**63


# The key that differs

numbers = {
    number: f"key {index}"
    for index in range(KEYS)
    for number in (contract.push_code(index), contract.pull_code(index))
}
sets = st.sets(st.integers(0, KEYS - 1), min_size=1)
kinds = st.sampled_from([contract.push_code, contract.pull_code])


@FEW
@given(sets, kinds, st.data())
def test_one_additional_key_is_found(keys: set[int], kind: object, data: st.DataObject) -> None:
    more = data.draw(st.sampled_from(sorted(keys)))
    whole = sum(map(kind, keys)) & contract.MASK
    less = sum(map(kind, keys - {more})) & contract.MASK
    assert contract.differing_key(whole, less, numbers) == (f"key {more}", None)
    assert contract.differing_key(less, whole, numbers) == (None, f"key {more}")


@FEW
@given(sets, kinds, st.data())
def test_an_exchanged_key_is_found(keys: set[int], kind: object, data: st.DataObject) -> None:
    mine = data.draw(st.sampled_from(sorted(keys)))
    theirs = data.draw(st.integers(0, KEYS - 1).filter(lambda key: key not in keys))
    common = sum(map(kind, keys - {mine}))
    first, second = (common + kind(key) & contract.MASK for key in (mine, theirs))
    found = contract.differing_key(first & contract.MASK, second & contract.MASK, numbers)
    assert found == (f"key {mine}", f"key {theirs}")


@FEW
@given(sets, sets)
def test_larger_differences_are_not_guessed(first: set[int], second: set[int]) -> None:
    if len(first - second) > 1 or len(second - first) > 1:
        one, other = (
            sum(map(contract.push_code, keys)) & contract.MASK for keys in (first, second)
        )
        assert contract.differing_key(one, other, numbers) == (None, None)


# Texts


def test_keys_are_as_the_user_wrote_them() -> None:
    assert contract.describe("push", ["w"]) == "push('w')"
    assert contract.describe("push", [3, 5], priority=-2) == "push(3, 5, priority=-2)"
    assert contract.describe("barrier", []) == "barrier()"


def test_many_keys_and_long_ones_are_cut() -> None:
    assert contract.describe("pull", range(200)) == "pull(0, 1, 2, ... 200 keys)"
    words = contract.describe("pull", ["k" * 500])
    assert words.startswith("pull('kkkk")
    assert words.endswith("...)")
    assert len(words) < 50
