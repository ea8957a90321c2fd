"""A codec is a class and a row of two tables; its keys share a bucket with those of others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.base import Collective
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Wire
from ncclkv.compress.parameters import complete_parameters
from ncclkv.compress.registry import CODECS, codec_of
from ncclkv.engine import reductions
from ncclkv.engine.reduction import Senders, Span
from ncclkv.kernels.host import HostKernels
from ncclkv.testing import run_ranks
from tests.harness.context import context_of


class Plain:
    """A codec that sends float32 unchanged."""

    name = "plain"
    declared = ()
    keeps_residual = False
    dtypes = ("float32",)
    ops = ("sum",)
    most_senders = sys.maxsize

    def __init__(self) -> None:
        self.parameters = {"type": self.name, "scope": "rank"}

    def pays(self, shape: Sequence[int], senders: int) -> bool:
        return shape != (2,)


class PlainReduction:
    """Adds the arrays of all senders, which every rank reads."""

    def __init__(self, store: reductions.Reductions) -> None:
        self._comm = store.comm
        self.prepared: list[tuple[list[Any], Senders | None]] = []

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        self.prepared.append((list(span.keys), senders))
        ranks = range(self._comm.size) if senders is None else senders

        def steps(wire: Wire, apply: Apply | None) -> Steps:
            own = span.gradients.copy()
            parts = yield from wire.read(
                own, lambda _, owner: (0, own.size) if owner in ranks else None
            )
            receive[...] = sum(part for part in parts if part is not None)
            if apply is not None:
                apply(0, receive.size)

        return self._comm.program(steps, what="a plain sum", nbytes=span.gradients.nbytes)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the codec to the tables."""

    def made(store: reductions.Reductions, *_: Any) -> PlainReduction:
        return PlainReduction(store)

    monkeypatch.setitem(CODECS, "plain", Plain)
    form = reductions.Form(made, lambda *_: None, made)
    monkeypatch.setitem(reductions.FORMS, "plain", form)


def prepared(kv: Any) -> list[tuple[list[Any], Senders | None]]:
    """Return the keys and senders of the collectives of the codec so far."""
    (state,) = context_of(kv).engine.layout.states
    (made,) = set(state.coded.values())
    found: list[tuple[list[Any], Senders | None]] = made.prepared
    return found


KEYS = ["a", "b", "c", "d"]


@pytest.mark.usefixtures("plain")
def test_keys_of_two_codecs_share_a_bucket() -> None:
    def work() -> None:
        with ncclkv.create("threads") as kv:
            kv.init(KEYS, [np.zeros(70, np.float32)] * 4)
            kv.set_gradient_compression({"type": "plain"}, keys=["a", "b", "d"])
            for step in range(1, 4):
                kv.push(KEYS, [np.full(70, step * (kv.rank + 1), np.float32)] * 4)
                for value in kv.pull(KEYS):
                    assert (value == step * 6).all()
            kv.push(["a", "c"], [np.full(70, kv.rank, np.float32)] * 2)
            assert (kv.pull("a") == 3).all()
            assert prepared(kv) == [(["a", "b"], None), (["d"], None), (["a"], None)]

    run_ranks(3, work)


@pytest.mark.usefixtures("plain")
def test_short_keys_are_in_the_sums_of_a_codec_that_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work() -> None:
        with ncclkv.create("threads") as kv:
            kv.set_gradient_compression({"type": "plain"})
            kv.set_gradient_compression(None, keys="d")
            kv.init(KEYS, [np.zeros(2 if key in "bd" else 70, np.float32) for key in KEYS])
            kv.push(KEYS, [np.full(2 if key in "bd" else 70, 1, np.float32) for key in KEYS])
            assert all((value == 3).all() for value in kv.pull(KEYS))
            assert prepared(kv) == [(each, None) for each in expected]
            assert "encoded by plain: 'a', 'c'" in kv.explain_plan()

    expected = [["a"], ["c"]]
    run_ranks(3, work)
    taking = reductions.FORMS["plain"]._replace(takes_short_keys=True)
    monkeypatch.setitem(reductions.FORMS, "plain", taking)
    expected = [["a", "b", "c"]]
    run_ranks(3, work)


@pytest.mark.usefixtures("plain")
def test_a_collective_is_prepared_anew_for_other_senders() -> None:
    def work() -> None:
        with ncclkv.create("threads") as kv:
            kv.init("a", np.zeros(3, np.float32))
            kv.set_gradient_compression({"type": "plain"})
            with kv.uneven():
                for _ in range(1 + (kv.rank != 1)):
                    kv.push("a", np.full(3, kv.rank + 1, np.float32))
                    kv.wait()
            assert (kv.pull("a") == 4).all()
            assert prepared(kv) == [(["a"], None), (["a"], frozenset([0, 2]))]

    run_ranks(3, work)


@pytest.mark.usefixtures("plain")
def test_the_last_rule_that_matches_a_key_counts() -> None:
    with ncclkv.create("threads") as kv:
        rules = context_of(kv).engine.reductions
        kv.init(["x1", "x2", "y"], [np.zeros(2, np.float32)] * 3)
        kv.set_gradient_compression({"type": "plain"}, keys="x*")
        kv.set_gradient_compression(None, keys="x2")
        assert [kv.gradient_compression(key) is None for key in ("x1", "x2", "y")] == [
            False,
            True,
            True,
        ]
        assert len(rules.rules) == 2
        kv.set_gradient_compression({"type": "2bit"})
        assert len(rules.rules) == 1
        assert kv.gradient_compression("x2")["type"] == "2bit"


CODECS_OVER_RANKS = [
    {"type": "2bit"},
    {"type": "1bit"},
    {"type": "fp16"},
    {"type": "topk", "ratio": 0.1},
]


@pytest.mark.parametrize("codec", CODECS_OVER_RANKS, ids=lambda codec: codec["type"])
def test_other_keys_at_each_push_need_no_more_memory(codec: dict[str, Any]) -> None:
    """Ranges of a bucket that are pushed for the first time use parts of the same arrays."""
    keys = [f"k{number}" for number in range(12)]

    def work() -> None:
        with ncclkv.create("threads") as kv:
            kv.set_gradient_compression(codec)
            kv.init(keys, [np.zeros(1000, np.float32) for _ in keys])
            comm, sizes = context_of(kv).comm, []
            allocate = comm.allocate
            kv.push(keys, [np.ones(1000, np.float32) for _ in keys])
            kv.wait()
            comm.allocate = lambda nbytes: (sizes.append(nbytes), allocate(nbytes))[1]
            for lo in range(len(keys)):
                for hi in range(lo + 1, len(keys) + 1):
                    kv.push(keys[lo:hi], [np.ones(1000, np.float32)] * (hi - lo))
                    kv.wait()
            assert sizes == []

    run_ranks(2, work)


@pytest.mark.parametrize(("scope", "senders"), [("rank", 4), ("node", 2)])
def test_senders_are_ranks_or_nodes(scope: str, senders: int) -> None:
    comm: Any = SimpleNamespace(rank=0, size=4, nodes=[[0, 1], [2, 3]], kernels=HostKernels())
    codec = codec_of(complete_parameters({"type": "2bit", "scope": scope}))
    assert reductions.Reductions(comm).senders(codec) == senders
