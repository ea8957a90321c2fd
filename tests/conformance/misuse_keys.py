"""Wrong keys: refused by name, with the store unchanged."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import (
    KeyAlreadyInitialized,
    KeyNotInitialized,
    KeyTypeMismatch,
    UsageError,
)
from tests.conformance.expect import full, intact, probed, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def verbs(kv: Any, key: Any) -> list[Callable[[], Any]]:
    """Return every verb that takes a key, called with `key`."""
    return [
        lambda: kv.push(key, full(1)),
        lambda: kv.pull(key, out=full(0)),
        lambda: kv.pull(key),
        lambda: kv.pushpull(key, full(1)),
        lambda: kv.reset(key, full(1)),
        lambda: kv.value(key),
        lambda: kv.grad_view(key),
        lambda: kv.spec(key),
        lambda: kv.wait(key),
    ]


@case()
def types_that_are_no_keys(create: Stores) -> None:
    kv = probed(create)
    for key in (True, 3.0, b"3", None, {3}, 3 + 0j, range(2), object()):
        name = type(key).__name__
        calls = [
            *verbs(kv, key),
            lambda key=key: kv.init(key, full(0)),
            lambda key=key: kv.broadcast(key, full(0), full(0)),
        ]
        # Without a key, `wait` is a valid call: it waits for all keys.
        for call in calls[:8] + calls[9:] if key is None else calls:
            with refused(kv, KeyTypeMismatch, name, "str", "int"):
                call()
        with refused(kv, KeyTypeMismatch, name):
            kv.push([3, key], [full(1), full(1)])
    intact(kv)


@case()
def key_types_are_type_errors_too(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, TypeError, "float"):
        kv.push(3.0, full(1))
    intact(kv)


@case()
def both_kinds_of_key_in_one_call(create: Stores) -> None:
    kv = create()
    with refused(kv, KeyTypeMismatch, "3", "'a'", "int", "str"):
        kv.init([3, "a"], [full(0), full(0)])
    assert list(kv.keys()) == []
    kv.init("a", full(2))
    same(kv.pull("a"), 2)


@case()
def integers_where_keys_are_strings(create: Stores) -> None:
    kv = create()
    kv.init("a", full(2))
    for call in verbs(kv, 3):
        with refused(kv, KeyTypeMismatch, "3", "int", "str"):
            call()
    with refused(kv, KeyTypeMismatch, "3", "int", "str"):
        kv.init(3, full(0))
    assert list(kv.keys()) == ["a"]
    same(kv.pull("a"), 2)


@case()
def keys_without_init(create: Stores) -> None:
    kv = probed(create)
    for call in verbs(kv, 99):
        with refused(kv, KeyNotInitialized, "99", "init"):
            call()
    with refused(kv, KeyError, "99"):
        kv.push(99, full(1))
    intact(kv)


@case()
def the_message_of_a_missing_key_is_a_sentence(create: Stores) -> None:
    kv = create()
    kv.init("weight", full(0))
    try:
        kv.push("wieght", full(0))
    except KeyNotInitialized as error:
        text = str(error)
    assert not text.startswith(("'", '"')), text
    assert "'wieght'" in text, text
    assert "'weight'" in text, text


@case()
def one_key_of_a_list_without_init(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, KeyNotInitialized, "99", "init"):
        kv.push([3, 5, 99], [full(100), full(100), full(100)])
    outs = [full(-1), full(-1), full(-1)]
    with refused(kv, KeyNotInitialized, "99", "init"):
        kv.pull([3, 5, 99], out=outs)
    for out in outs:
        same(out, -1)
    values = [full(100), full(100)]
    with refused(kv, KeyNotInitialized, "99", "init"):
        kv.pushpull([3, 99], values)
    for value in values:
        same(value, 100)
    with refused(kv, KeyNotInitialized, "99", "init"):
        kv.reset([3, 99], [full(100), full(100)])
    intact(kv)


@case()
def second_init(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, KeyAlreadyInitialized, "3", "reset"):
        kv.init(3, full(100))
    with refused(kv, KeyAlreadyInitialized, "5", "reset"):
        kv.init([7, 5], [full(100), full(100)])
    assert 7 not in kv
    intact(kv)


@case()
def a_key_twice_in_one_init(create: Stores) -> None:
    kv = probed(create)
    for keys in ([7, 7], [7, 8, 7]):
        with refused(kv, UsageError, "7", "twice"):
            kv.init(keys, [full(1)] * len(keys))
        assert 7 not in kv
        assert 8 not in kv
    intact(kv)


@case()
def a_key_twice_in_one_reset_or_broadcast(create: Stores) -> None:
    kv = probed(create)
    with refused(kv, UsageError, "3", "twice"):
        kv.reset([3, 3], [full(1), full(2)])
    with refused(kv, UsageError, "3", "twice"):
        kv.broadcast([3, 3], [full(1), full(2)], [full(0), full(0)])
    intact(kv)


@case()
def several_keys_that_are_no_list(create: Stores) -> None:
    kv = probed(create)
    values = {3: full(2), 5: full(4)}
    lists: list[Any] = [range(3, 6, 2), values.keys(), values, np.array([3, 5]), iter([3, 5])]
    for keys in lists:
        with refused(kv, KeyTypeMismatch, type(keys).__name__, "give list(...)"):
            kv.pull(keys)
    # The order of a set of str differs from process to process.
    with refused(kv, KeyTypeMismatch, "set", "give sorted(...)"):
        kv.pull({"a", "b"})
    intact(kv)


@case()
def a_key_too_long_to_show(create: Stores) -> None:
    kv = probed(create)
    with pytest.raises(KeyTypeMismatch, match="is a dict") as caught:
        kv.init({i: full(i) for i in range(100)}, full(0))
    assert len(str(caught.value)) < 300, caught.value
    intact(kv)


@case()
def integers_too_long_to_be_shown(create: Stores) -> None:
    kv = probed(create)
    for key in (10**5000, -(10**5000)):
        for call in [*verbs(kv, key), lambda key=key: kv.init([key], [full(0)])]:
            with refused(kv, KeyTypeMismatch, "16,610 bits", "str"):
                call()
        assert key not in kv
        with refused(kv, UsageError, "priority", "16,610 bits"):
            kv.push(3, full(1), priority=key)
        with refused(kv, UsageError, "pull: local", "16,610 bits"):
            kv.pull(3, local=key)
        with refused(kv, UsageError, "set_updater", "16,610 bits"):
            kv.set_updater(key)
        with pytest.raises(UsageError, match="capability is an int of 16,610 bits"):
            kv.is_capable(key)
    intact(kv)
    kv.init(2**3000 - 1, full(7))
    same(kv.pull(2**3000 - 1), 7)


class Name(str, Enum):
    """Keys that print as ``Name.W``."""

    W = "w"
    B = "b"


class Other(str):
    """A key that compares equal to every other key."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("w")

    def __str__(self) -> str:
        return "w"


@case()
def members_of_an_enumeration_of_str_are_their_characters(create: Stores) -> None:
    kv = create()
    kv.init(["w", Name.B], [full(2), full(4)])
    assert list(kv.keys()) == ["w", "b"]
    assert {type(key) for key in list(kv.keys())} == {str}
    assert Name.W in kv
    values, one = [full(1), full(2)], full(0)
    for keys in (["w", "b"], [Name.W, Name.B], ["w", Name.B]):
        for _ in range(2):
            kv.push(keys, values)
            kv.pull(keys[1], out=one)
            same(kv.pull("w"), kv.num_workers)
            same(one, 2 * kv.num_workers)


@case()
def a_key_that_only_equals_another_is_its_own_characters(create: Stores) -> None:
    kv = create()
    kv.init(["w", "b"], [full(2), full(4)])
    value, values = full(1), [full(1), full(1)]
    kv.push("w", value)
    kv.push(["w", "b"], values)
    for key, given in ((Other("b"), value), ([Other("b"), "w"], values)):
        kv.pull("b", out=full(0))
        kv.push(key, given)
        same(kv.pull("b"), kv.num_workers)
    for key, given in ((Other("c"), value), ([Other("c"), "b"], values)):
        with refused(kv, KeyNotInitialized, "'c'"):
            kv.push(key, given)
    same(kv.pull("w"), kv.num_workers)
