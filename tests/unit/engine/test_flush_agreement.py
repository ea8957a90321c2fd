"""Random programs with different pushes on each rank, compared with a model.

A rank fills its ``grad_view`` in some steps without a push, and pushes later. In an uneven block
each rank has its own number of steps, and leaves with or without waiting pushes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.testing import run_ranks
from tests.harness.extent import examples

pytestmark = pytest.mark.limit(60)

OPS = ("sum", "avg", "max", "prod")
RATE = 0.5
COUNT = 3
"""Elements of a key."""


@dataclass(frozen=True)
class Program:
    """Actions of all ranks; `steps` has an action by step, rank and key."""

    size: int
    ops: tuple[str, ...]
    rule: str
    options: dict[str, Any]
    steps: tuple[tuple[tuple[str, ...], ...], ...]
    lengths: tuple[int, ...] = ()
    """Number of steps of each rank in an uneven block."""
    flushed: tuple[bool, ...] = ()
    """Flags of an uneven block: a flush ends the step."""


@st.composite
def programs(draw: Callable[..., Any], *, uneven: bool) -> Program:
    """Draw steps of two to four ranks; in an uneven block the ranks of a step act alike."""
    size, keys = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    action = st.sampled_from(["push", "push", "fill", "push what is filled", ""])
    step = st.tuples(*[action] * keys)
    alike = step.map(lambda actions: (actions,) * size)
    one = alike if uneven else st.tuples(*[step] * size)
    steps = tuple(draw(st.lists(one, min_size=1, max_size=6)))
    options = {
        "update_on": draw(st.sampled_from(["every_rank", "root", "sharded"])),
        "bucket_bytes": draw(st.sampled_from([0, 1024])),
        "missing": "error" if uneven else "zeros",
    }
    return Program(
        size,
        tuple(draw(st.sampled_from(OPS)) for _ in range(keys)),
        draw(st.sampled_from(["assign", "add", "sgd"])),
        options,
        steps,
        tuple(draw(st.integers(0, len(steps))) for _ in range(size)) if uneven else (),
        tuple(draw(st.booleans()) for _ in steps) if uneven else (),
    )


def amount(rank: int, step: int, key: int) -> int:
    """Return a rank's gradient in a step; averages of up to four ranks are whole numbers."""
    return 12 * ((5 * rank + 3 * step + 7 * key) % 9 - 4)


def add(key: Any, value: Any, stored: Any) -> None:
    stored += value


@dataclass
class Rank:
    """A rank's store, and the gradients that its user has filled in."""

    kv: Any
    filled: dict[int, int] = field(default_factory=dict)
    """Amounts written to a key's gradient and not pushed, by key."""
    waiting: set[int] = field(default_factory=set)

    def act(self, action: str, step: int, key: int) -> None:
        """Push a key, or fill its gradient, or both."""
        value = amount(self.kv.rank, step, key)
        if action == "push" and key not in self.filled:
            self.push(key, np.full(COUNT, float(value)))
        elif action:
            if key in self.waiting:  # the same on all ranks that have this step
                self.kv.wait()
                self.waiting.clear()
            gradient = self.kv.grad_view(key)
            if key in self.filled:
                np.testing.assert_array_equal(gradient, self.filled[key])
            self.filled[key] = value + self.filled.get(key, 0)
            gradient[...] = self.filled[key]
            if action != "fill":
                self.push(key, gradient)

    def push(self, key: int, value: Any) -> None:
        self.kv.push(key, value)
        # A second push of a waiting key flushes all waiting keys.
        self.waiting = {key} if key in self.waiting else {*self.waiting, key}
        self.filled.pop(key, None)


def play(program: Program) -> list[Any]:
    """Run a program on this rank, and return the values."""
    with ncclkv.create("threads", timeout=5, **program.options) as kv:
        rank = Rank(kv)
        for key, op in enumerate(program.ops):
            kv.init(key, np.zeros(COUNT), op=op)
        if program.rule == "sgd":
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=RATE))
        elif program.rule == "add":
            kv.set_updater(add)
        if program.lengths:
            with kv.uneven():
                play_steps(program, rank, program.lengths[kv.rank])
        else:
            play_steps(program, rank, len(program.steps))
        for key, value in rank.filled.items():
            np.testing.assert_array_equal(kv.grad_view(key), value)
        return [kv.pull(key) for key in range(len(program.ops))]


def play_steps(program: Program, rank: Rank, count: int) -> None:
    for step, actions in enumerate(program.steps[:count]):
        for key, action in enumerate(actions[rank.kv.rank]):
            rank.act(action, step, key)
        if not program.flushed or program.flushed[step]:
            rank.kv.wait()
            rank.waiting.clear()


def model(program: Program) -> list[Any]:
    """Return the values at the end of a program."""
    values = [0.0] * len(program.ops)
    filled: dict[tuple[int, int], int] = {}
    for step, actions in enumerate(program.steps):
        ranks = range(program.size)
        if program.lengths:
            ranks = [rank for rank in ranks if step < program.lengths[rank]]
        for key, op in enumerate(program.ops):
            pushed = []
            for rank in ranks:
                action = actions[rank][key]
                has = (rank, key) in filled
                if action == "push" and not has:
                    pushed.append(amount(rank, step, key))
                elif action:
                    value = amount(rank, step, key) + filled.pop((rank, key), 0)
                    if action == "fill":
                        filled[rank, key] = value
                    else:
                        pushed.append(value)
            if pushed:
                total = float({"max": max, "prod": math.prod}.get(op, sum)(pushed))
                if op == "avg":
                    total /= len(pushed) if program.lengths else program.size
                values[key] = updated(program.rule, values[key], total)
    return values


def updated(rule: str, value: float, total: float) -> float:
    """Return a value after its update."""
    return {"assign": total, "add": value + total, "sgd": value - RATE * total}[rule]


def check(program: Program) -> None:
    for rank, values in enumerate(run_ranks(program.size, play, program, timeout=5)):
        for key, (got, wanted) in enumerate(zip(values, model(program), strict=True)):
            np.testing.assert_array_equal(got, wanted, err_msg=f"key {key} on rank {rank}")


few = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@few
@given(programs(uneven=False))
def test_ranks_that_push_different_keys(program: Program) -> None:
    check(program)


@few
@given(programs(uneven=True))
def test_ranks_that_leave_at_random_steps(program: Program) -> None:
    check(program)
