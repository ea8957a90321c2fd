"""Every verb accepts or refuses any argument; a refusal leaves the store unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv import optimizer
from ncclkv.errors import UsageError
from ncclkv.testing import run_ranks
from tests.conformance.expect import check_words
from tests.conformance.malformed import ARRAYS, JUNK, KEYS, SHAPE, Malformed
from tests.harness.extent import examples
from tests.harness.slow import stretched

pytestmark = pytest.mark.limit(60)

CALLS_EACH = 8
"""Number of calls on one store."""

VERBS: dict[str, tuple[str, ...]] = {
    "init": ("key", "value"),
    "reset": ("key", "value"),
    "push": ("key", "value"),
    "pull": ("key", "out"),
    "pushpull": ("key", "value", "out"),
    "broadcast": ("key", "value", "out"),
    "wait": ("key",),
    "value": ("key",),
    "grad_view": ("key",),
    "spec": ("key",),
    "__contains__": ("key",),
    "allreduce": ("value",),
    "allgather": ("value",),
    "broadcast_object": ("value",),
    "allgather_object": ("value",),
    "is_capable": ("key",),
    "set_gradient_compression": ("value",),
    "row_sparse_pull": ("key", "out"),
}
"""Verbs after whose success the store is usable, with their arguments."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "init": ("op",),
    "reset": ("reset_states",),
    "push": ("priority",),
    "pull": ("priority", "ignore_sparse", "local"),
    "pushpull": ("priority",),
    "broadcast": ("priority",),
    "allreduce": ("op", "out"),
    "allgather": ("out",),
    "broadcast_object": ("root",),
}

keys = st.one_of(
    st.sampled_from([Malformed(repr(key), lambda key=key: key) for key in KEYS]),
    st.sampled_from(JUNK),
)
arrays = st.one_of(st.sampled_from(ARRAYS), st.sampled_from(JUNK))
junk = st.sampled_from(JUNK)


@dataclass(frozen=True)
class Call:
    """A call of a verb; each use makes its arguments anew."""

    verb: str
    given: tuple[Malformed, ...]
    options: dict[str, Malformed] = field(default_factory=dict)
    in_group: bool = False

    def make(self, kv: Any) -> None:
        """Make the call, inside a group if the call asks for one."""
        verb = getattr(kv, self.verb)
        given = [one.make() for one in self.given]
        options = {name: one.make() for name, one in self.options.items()}
        if not self.in_group:
            verb(*given, **options)
            return
        with kv.group():
            kv.push("b", np.full(SHAPE, 5.0))
            verb(*given, **options)


@st.composite
def calls(draw: Callable[..., Any], verbs: Sequence[str] = tuple(VERBS)) -> Call:
    """Draw a call of one of `verbs`, with some of its options."""
    verb = draw(st.sampled_from(verbs))
    given = [draw(keys if name == "key" else arrays) for name in VERBS[verb]]
    names = draw(st.sets(st.sampled_from(OPTIONS[verb]))) if verb in OPTIONS else set()
    options = {name: draw(junk) for name in sorted(names)}
    return Call(verb, tuple(given), options, draw(st.integers(0, 4)) == 0)


def opened(create: Callable[[], Any]) -> Any:
    """Open a store with all of `KEYS`, whose elements are 2."""
    kv = create()
    kv.init(list(KEYS), [np.full(SHAPE, 2.0)] * len(KEYS))
    return kv


def values(kv: Any) -> dict[Any, Any]:
    """Return all values of a store."""
    return {key: kv.pull(key) for key in list(kv.keys())}


def same(got: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert list(got) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(got[key], value, err_msg=repr(key))


def works(kv: Any) -> None:
    """Check that a store still adds and returns values."""
    value = np.full(SHAPE, kv.rank + 1.0)
    total = kv.num_workers * (kv.num_workers + 1) / 2
    kv.push(list(KEYS), [value, 10 * value])
    same({key: kv.pull(key) for key in KEYS}, {"a": value * 0 + total, "b": value * 0 + 10 * total})


def refused_or_done(kv: Any, call: Call) -> None:
    """Make a call; check that a refusal keeps the waiting pushes and adds nothing."""
    kv.push("a", np.full(SHAPE, 3.0))
    expected = {**values_but_a(kv), "a": np.full(SHAPE, 3.0 * kv.num_workers)}
    try:
        call.make(kv)
    except UsageError as error:
        if call.verb != "is_capable":  # the class's, not the instance's
            check_words(error, f"rank {kv.rank} of {kv.num_workers}: ")
        got = values(kv)
        same(got, {key: expected[key] for key in got})
        assert set(got) == set(expected)
    works(kv)


def values_but_a(kv: Any) -> dict[Any, Any]:
    """Return all values of a store but that of the key which waits for a flush."""
    return {key: kv.pull(key) for key in list(kv.keys()) if key != "a"}


def play(create: Callable[[], Any], program: Sequence[Call]) -> None:
    """Make all calls on one store."""
    with opened(create) as kv:
        for call in program:
            refused_or_done(kv, call)


def few(count: int) -> settings:
    return settings(
        max_examples=examples(count),
        deadline=None,
        derandomize=True,
        database=None,
        # The failed call is enough; a search for a shorter program would take minutes.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )


programs = st.lists(calls(), min_size=CALLS_EACH, max_size=CALLS_EACH)


@few(600)
@given(programs)
def test_random_verbs_on_one_rank(program: list[Call]) -> None:
    play(lambda: ncclkv.create("local"), program)


@few(200)
@given(programs)
def test_random_verbs_on_two_ranks(program: list[Call]) -> None:
    run_ranks(2, play, lambda: ncclkv.create("threads"), program, timeout=stretched(5))


@few(100)
@given(programs)
def test_random_verbs_on_two_ranks_that_update_on_the_root(program: list[Call]) -> None:
    def create() -> Any:
        return ncclkv.create("threads", update_on="root", bucket_bytes=0)

    run_ranks(2, play, create, program, timeout=stretched(5))


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_with_each_wrong_argument(verb: str) -> None:
    """Check each wrong argument alone, with all others right."""
    right = {"key": Malformed("'a'", lambda: "a"), "value": ARRAYS[0], "out": ARRAYS[0]}
    for place, _ in enumerate(VERBS[verb]):
        with opened(lambda: ncclkv.create("local")) as kv:
            for one in JUNK:
                given = [right[name] for name in VERBS[verb]]
                given[place] = one
                refused_or_done(kv, Call(verb, tuple(given)))


@pytest.mark.parametrize(("verb", "option"), [(v, o) for v in OPTIONS for o in OPTIONS[v]])
def test_each_option_with_each_wrong_value(verb: str, option: str) -> None:
    right = {"key": Malformed("'a'", lambda: "a"), "value": ARRAYS[0], "out": ARRAYS[0]}
    for one in JUNK:
        with opened(lambda: ncclkv.create("local")) as kv:
            key = Malformed("'new'", lambda: "new") if verb == "init" else right["key"]
            given = (key, *(right[name] for name in VERBS[verb][1:]))
            refused_or_done(kv, Call(verb, given, {option: one}))


CREATE = (
    "name",
    "comm",
    "update_on",
    "root",
    "bucket_bytes",
    "timeout",
    "missing",
    "nonfinite",
    "verify_every",
    "repair",
    "reproducible",
)


@pytest.mark.parametrize("option", CREATE)
@pytest.mark.parametrize("name", ["local", "threads", "dist_sync"])
def test_each_option_of_create_with_each_wrong_value(name: str, option: str) -> None:
    for one in JUNK:
        try:
            kv = ncclkv.create(**{"name": name, option: one.make()})
        except UsageError:
            continue
        with kv:
            kv.init(list(KEYS), [np.full(SHAPE, 2.0)] * len(KEYS))
            works(kv)


@pytest.mark.parametrize("verb", ["set_updater", "set_optimizer"])
@pytest.mark.parametrize("size", [1, 2])
def test_wrong_updaters_are_refused_or_fail_when_called(verb: str, size: int) -> None:
    """Check that an object accepted as updater may fail only when it is called."""

    def body(one: Malformed) -> None:
        with opened(lambda: ncclkv.create("threads")) as kv:
            try:
                getattr(kv, verb)(one.make())
            except UsageError:
                same(values(kv), dict.fromkeys(KEYS, np.full(SHAPE, 2.0)))
                works(kv)

    for one in JUNK:
        run_ranks(size, body, one, timeout=stretched(5))


SGD_OPTIONS = ("learning_rate", "momentum", "wd", "rescale_grad", "clip_gradient", "lr_mult")


@pytest.mark.parametrize("option", SGD_OPTIONS)
def test_wrong_numbers_of_an_optimizer_are_refused(option: str) -> None:
    for one in JUNK:
        try:
            made = optimizer.SGD(**{option: one.make()})
        except (UsageError, TypeError):
            continue
        with opened(lambda: ncclkv.create("local")) as kv:
            kv.set_optimizer(made)
            kv.pushpull("a", np.ones(SHAPE))


@pytest.mark.parametrize("verb", [*VERBS, "set_updater", "set_optimizer", "group", "barrier"])
def test_calls_with_wrong_signatures_raise(verb: str) -> None:
    with opened(lambda: ncclkv.create("local")) as kv:
        before = values(kv)
        wrong: list[Callable[[], Any]] = [
            lambda: getattr(kv, verb)(*[np.ones(SHAPE)] * 9),
            lambda: getattr(kv, verb)(nobody="a"),
        ]
        if VERBS.get(verb, ()) and verb != "wait":
            wrong.append(lambda: getattr(kv, verb)())
        for call in wrong:
            with pytest.raises((TypeError, UsageError)):
                call()
        same(values(kv), before)
        works(kv)
