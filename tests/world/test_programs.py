"""Programs of several ranks on real threads, without a world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ncclkv
from tests.world import arrays, faults, plan
from tests.world.draw import Draw, draw
from tests.world.faults import DEATHS, FAULTS, Fault, break_program
from tests.world.oracle import reverse_verdict, run, verdict

# Seconds that the machine may take from ranks that are threads.
LOST = 2.0


def name(fault: Fault) -> str:
    return fault.__name__.strip("_")


def broken(fault: Fault, seed: int) -> tuple[plan.Program, faults.Expectation]:
    """Return the first program from a seed on that such a fault fits."""
    while True:
        program = draw(seed, 2 + seed % 2, 6, busy=0.01, timeout=1.5)
        try:
            return break_program(program, Draw(f"fault {seed}"), [fault])
        except ValueError:
            seed += 100


@pytest.mark.parametrize("seed", range(60))
def test_a_valid_program_ends_with_the_numbers_of_the_model(seed: int) -> None:
    program = draw(seed, 2 + seed % 2, 8, busy=0.01, timeout=10.0)
    complaint = verdict(run(program))
    assert not complaint, f"{program}\n{complaint}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_a_broken_program_raises_what_is_promised(fault: Fault, seed: int) -> None:
    if seed and fault in (DEATHS[-1], FAULTS[-1 - len(DEATHS)]):
        pytest.skip("waits for a timeout, or nearly")
    program, expected = broken(fault, seed)
    complaint = reverse_verdict(run(program), expected, lost=LOST)
    assert not complaint, f"{program}\n{complaint}"


def test_averages_of_few_ranks_on_several_nodes() -> None:
    store = plan.StorePlan((plan.KeyPlan("a", (3000,), op="avg"),))
    steps = (plan.Uneven(0, ("a",), (1, 2, 2)),)
    program = plan.Program(3, (store,), steps, (("NCCLKV_RANKS_PER_NODE", "1"),), 10.0)
    assert not verdict(run(program))


def test_a_message_of_another_size_is_explained() -> None:
    keys = (plan.KeyPlan("a", (1,)),)
    steps = (
        plan.Only((1,), plan.Overlap(0, ("a",))),
        plan.Only((0,), plan.AllGather(0, 4)),
        plan.Broadcast(1, ("a",)),
    )
    stores = plan.StorePlan(keys, update_on="root"), plan.StorePlan(keys)
    program = plan.Program(2, stores, steps, (("NCCLKV_NODE_MEMORY", "messages"),), 5.0)
    errors = run(program).errors
    assert [type(error).__name__ for error in errors.values()] == ["OrderMismatch"] * 2
    assert all("overlap" in str(error) for error in errors.values())


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.add.reduce
    program = plan.Program(
        2,
        (plan.StorePlan((plan.KeyPlan("a"),)),),
        (plan.Push(0, ("a",)), plan.Pull(0, ("a",))),
        timeout=10.0,
    )
    assert not verdict(run(program))
    monkeypatch.setitem(arrays._OPS, "sum", lambda *args, **kw: right(*args, **kw) + 1)
    complaint = verdict(run(program))
    assert "WrongValue: rank 0, step 1, store 0, key 'a'" in complaint


@pytest.mark.parametrize("fault", [FAULTS[0], DEATHS[0]], ids=name)
def test_a_fault_without_an_error_is_found(fault: Fault) -> None:
    program, expected = broken(fault, 0)
    steps = tuple(step for step in program.steps if not isinstance(step, plan.Only))
    complaint = reverse_verdict(run(replace(program, steps=steps)), expected, lost=LOST)
    assert "has the wrong end: no error" in complaint


def test_draws_are_the_same_on_every_python() -> None:
    draws = Draw("pinned")
    assert (draws.below(1000), draws.chance(0.5), draws.pick("abcdef")) == (362, False, "d")
    assert draws.shuffled([1, 2, 3, 4]) == [4, 3, 2, 1]
    assert draws.some("abcd") == ("b", "d")
    choices = [draws.weighted("abcdefghij", [0.1] * 10) for _ in range(8)]
    assert "".join(choices) == "acfcbibj"
    assert draws.real(3.0) == 0.491383065498169


def test_seconds_are_the_same_on_every_python() -> None:
    store = plan.StorePlan((plan.KeyPlan("a"),))
    program = plan.Program(2, (store,), (plan.Busy(0, 0.1),) * 1000)  # 99.99... before 3.12
    _, expected = break_program(program, Draw(0), [FAULTS[0]])
    assert expected.seconds == faults.MISMATCH_SECONDS + 100.0


@pytest.mark.parametrize("seed", range(20))
def test_a_program_printed_is_its_source(seed: int) -> None:
    program = draw(seed, 2, 20)
    assert eval(repr(program), vars(plan)) == program


def test_a_store_has_keys_of_one_kind_also_further_ones() -> None:
    found = set()
    for seed in range(60):
        program, _ = break_program(draw(seed, 2, 8), Draw(seed))
        steps = [step.step if isinstance(step, plan.Only) else step for step in program.steps]
        for number, store in enumerate(program.stores):
            added = [s.keys for s in steps if isinstance(s, plan.Init) and s.store == number]
            keys = [each.key for several in (store.keys, *added) for each in several]
            kinds = {type(key) for key in keys}
            assert len(kinds) == 1
            found |= kinds
    assert found == {int, str}


@pytest.mark.parametrize("missing", ["error", "zeros"])
@pytest.mark.parametrize("kind", [plan.Push, plan.Group, plan.Overlap])
def test_a_learning_rate_may_change_inside_a_step(kind: type[plan.Call], missing: str) -> None:
    keys = (plan.KeyPlan("a", (40,)),)
    store = plan.StorePlan(keys, plan.Sgd(0.5), missing=missing)
    given = {"pushes": ("a",), "pulls": ("a",)} if kind is plan.Group else {"keys": ("a",)}
    steps = tuple(kind(0, **given, rate=rate) for rate in (0.25, 0.125))  # type: ignore[call-arg]
    program = plan.Program(2, (store,), steps, timeout=10.0)
    assert not verdict(run(program))


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
def test_a_store_is_loaded_into_another(update_on: str, empty: bool) -> None:
    keys = plan.KeyPlan("a", (40,)), plan.KeyPlan("b", (3,), "f4")
    stores = [plan.StorePlan(keys, adds=True)]
    if not empty:
        stores.append(plan.StorePlan(keys, plan.Sgd(0.5, 0.5), update_on="sharded"))
    push = plan.Push(0, ("a", "b"))
    for store in stores:
        steps = (push, plan.Move(0, update_on, 256, empty), push)
        assert not verdict(run(plan.Program(2, (store,), steps, timeout=10.0)))


@pytest.mark.parametrize("pulls", [False, True])
@pytest.mark.parametrize("block", ["", "group", "overlap"])
def test_batches_of_an_uneven_block_may_be_blocks(
    block: str, pulls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = []
    for name in ("group", "overlap"):
        made = getattr(ncclkv.KVStore, name)

        def noted(kv: Any, *keys: Any, name: str = name, made: Any = made) -> Any:
            entered.append(name)
            return made(kv, *keys)

        monkeypatch.setattr(ncclkv.KVStore, name, noted)
    store = plan.StorePlan((plan.KeyPlan("a", (40,)), plan.KeyPlan("b", op="avg")))
    steps = (plan.Uneven(0, ("a", "b"), (1, 3), pulls, block=block),)
    assert not verdict(run(plan.Program(2, (store,), steps, timeout=10.0)))
    assert entered == ([block] * 4 if block else [])
