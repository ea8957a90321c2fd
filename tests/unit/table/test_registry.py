"""The registry: keys in order of their init, and refused specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ncclkv.errors import KeyAlreadyInitialized, KeyNotInitialized, KeyTypeMismatch
from ncclkv.table.registry import Key, KeySpec, Registry


def registered(*keys: Key) -> Registry:
    registry = Registry()
    registry.add(KeySpec(key, i, (1,), np.dtype("f4")) for i, key in enumerate(keys))
    return registry


def test_the_registry_keeps_the_order_of_initialisation() -> None:
    registry = registered("z", "a", "m")
    assert [spec.key for spec in registry] == ["z", "a", "m"]
    assert len(registry) == 3
    assert "a" in registry
    assert "b" not in registry
    assert registry["m"].index == 2
    assert str(registry["m"]) == "key 'm': float32 (1,) sum"


@pytest.mark.parametrize(
    ("keys", "given", "order"),
    [
        ((9, 1, 5), [5, 9, 1], [1, 5, 9]),
        (("z", "a", "m"), ["a", "m", "z"], ["z", "a", "m"]),
        ((10, -2), [10, -2], [-2, 10]),
    ],
)
def test_updaters_see_ints_ascending_and_strings_as_initialised(
    keys: Sequence[Key], given: list[Key], order: list[Key]
) -> None:
    assert registered(*keys).update_order(given) == order


def test_refused_specs() -> None:
    registry = registered("weight", "bias")
    with pytest.raises(KeyNotInitialized) as missing:
        registry["wieght"]
    assert str(missing.value) == (
        "key 'wieght' has no value yet: call init('wieght', value); did you mean 'weight'?"
    )
    with pytest.raises(KeyTypeMismatch, match=r"key 3 is an int, but the keys .* are strs"):
        registry[3]
    with pytest.raises(KeyAlreadyInitialized, match=r"key 'bias' has a value .*reset\('bias'"):
        registry.check_new(["new", "bias"])
    with pytest.raises(KeyAlreadyInitialized, match="key 'new' is twice in the list"):
        registry.check_new(["new", "other", "new"])
    with pytest.raises(KeyTypeMismatch, match="key 3 is an int"):
        registry.check_new(["new", 3])
    with pytest.raises(KeyNotInitialized, match=r"key 7 has no value yet: call init\(7, value\)$"):
        Registry()[7]
    assert [spec.key for spec in registry] == ["weight", "bias"]


def test_a_registry_with_more_keys_is_no_copy() -> None:
    class Whole(Registry):
        def __iter__(self) -> Iterator[KeySpec]:
            raise AssertionError("a broadcast of one key must not look at all others")

    registry = Whole()
    registry.add([KeySpec("a", 0, (1,), np.dtype("f4"))])
    more = registry.with_keys([KeySpec("b", 1, (2,), np.dtype("f4"))])
    assert (more["a"].index, more["b"].shape) == (0, (2,))
    assert more.update_order(["b", "a"]) == ["a", "b"]
    assert [spec.key for spec in more] == ["a", "b"]
    assert (len(more), len(registry)) == (2, 1)
    assert "b" not in registry
    with pytest.raises(KeyTypeMismatch, match="such as 'a'"):
        more[3]
