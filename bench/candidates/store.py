"""The store's step, in the styles in which users write it."""

from __future__ import annotations

import ncclkv
from bench.data import Expected, Products, Signs
from bench.rounds import Candidate, Marks
from bench.workload import Workload
from ncclkv.comm.types import Buffer


class Lists(Candidate):
    """One push and one pull of all keys, with the user's own arrays."""

    def __init__(
        self, work: Workload, kv: ncclkv.KVStore, expected: Expected, name: str = "lists"
    ) -> None:
        self.name = name
        self.work = work
        self.kv = kv
        self.expected = expected

    def prepare(self, step: int) -> None:
        self.work.fill(step)
        self.work.overwrite_outs()
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        self.kv.push(self.work.names, self.work.gradients)
        mark("push")
        self.kv.pull(self.work.names, out=self.work.outs)
        mark("pull")

    def wrong(self) -> int:
        return self.work.wrong(self.work.outs, self.expected)


class Compressed(Lists):
    """`Lists` of values that a codec sends exactly, or nearly so."""

    def __init__(
        self, work: Workload, kv: ncclkv.KVStore, signs: Signs | Products, name: str
    ) -> None:
        self.name = name
        self.work = work
        self.kv = kv
        self._signs = signs
        self._step = 0

    def prepare(self, step: int) -> None:
        self._step = step
        self._signs.fill(self.work.gradients, step)
        self.work.overwrite_outs()

    def wrong(self) -> int:
        return self._signs.wrong(self.work.outs, self._step, self.work.job.comm.size)


class KeyByKey(Lists):
    """A loop that pushes every key with its priority, and a loop that pulls every key."""

    def run(self, mark: Marks) -> None:
        work, kv = self.work, self.kv
        for index, (key, gradient) in enumerate(zip(work.names, work.gradients, strict=True)):
            kv.push(key, gradient, priority=-index)
        mark("push")
        for place, (key, out) in enumerate(zip(work.names, work.outs, strict=True)):
            kv.pull(key, out=out, priority=-place)
        mark("pull")


class InTurn(Lists):
    """MXNet's Module: push a key and pull it, then the next key."""

    def run(self, mark: Marks) -> None:
        work, kv = self.work, self.kv
        triples = zip(work.names, work.gradients, work.outs, strict=True)
        for place, (key, gradient, out) in enumerate(triples):
            kv.push(key, gradient, priority=-place)
            kv.pull(key, out=out, priority=-place)
        mark("push and pull")


class InGroup(InTurn):
    """The loops of `KeyByKey` inside ``kv.group()``."""

    def run(self, mark: Marks) -> None:
        with self.kv.group():
            super().run(mark)
        mark("flush")


class Views(Lists):
    """Gradients written into `grad_view`, values read from `value`."""

    def __init__(
        self, work: Workload, kv: ncclkv.KVStore, expected: Expected, name: str = "views"
    ) -> None:
        super().__init__(work, kv, expected, name)
        self.gradients = [kv.grad_view(key) for key in work.names]
        self.values: list[Buffer] = []

    def prepare(self, step: int) -> None:
        self.work.fill(step, self.gradients)
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        self.kv.push(self.work.names, self.gradients)
        mark("push")
        self.values = [self.kv.value(key) for key in self.work.names]
        mark("value")

    def wrong(self) -> int:
        return self.work.wrong(self.values, self.expected)
