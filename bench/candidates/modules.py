"""Training steps of torch modules, and the plain step on every rank that they are checked by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench.job import Job
from bench.rounds import Candidate, Marks

BATCH = 8
"""Inputs of a rank in a step."""

CLASSES = 10
LEARNING_RATE, MOMENTUM = 0.01, 0.9
TOLERANCE = 1e-5
"""Greatest difference from the expected gradients, relative to the greatest of a parameter."""


class Reference:
    """Steps of a plain module, whose gradients are averaged in one sum after the backward pass.

    Attributes
    ----------
    module : torch.nn.Module
    nbytes : int
        Bytes of the gradients.
    inputs, labels : torch.Tensor
        This rank's batch of the present step.
    weights : list of torch.Tensor
        Parameters before the step.
    loss : float
        This rank's loss.
    own, averages : list of torch.Tensor
        Gradients of this rank, and their averages over the ranks.
    """

    def __init__(
        self, job: Job, make: Callable[[], torch.nn.Module], shape: tuple[int, ...]
    ) -> None:
        self._job = job
        self._shape = (BATCH, *shape)
        self._turn = 0
        torch.manual_seed(0)
        self.module = make()
        self._parameters = [*self.module.parameters()]
        self._sgd = sgd(self.module)
        count = sum(each.numel() for each in self._parameters)
        self.nbytes = 4 * count
        self._flat = np.empty(count, np.float32)

    def copy(self) -> torch.nn.Module:
        """Return a copy of the module."""
        return deepcopy(self.module)

    def advance(self, turn: int) -> None:
        """Make the step of a turn, unless another candidate has asked for the step before."""
        if turn == self._turn:
            return
        self._turn = turn
        comm = self._job.comm
        random = torch.Generator().manual_seed(turn * comm.size + comm.rank)
        self.inputs = torch.randn(self._shape, generator=random)
        self.labels = torch.randint(CLASSES, (BATCH,), generator=random)
        self.weights = [each.detach().clone() for each in self._parameters]
        self._sgd.zero_grad()
        loss = cross_entropy(self.module(self.inputs), self.labels)
        loss.backward()
        self.loss = loss.item()
        self.own = [each.grad.clone() for each in self._parameters]
        self._average()
        self._sgd.step()

    def _average(self) -> None:
        """Average the gradients over the ranks; waits for the sums."""
        comm = self._job.comm
        sums = torch.from_numpy(self._flat)
        torch.cat([each.reshape(-1) for each in self.own], out=sums)
        comm.allreduce(self._flat, self._flat).wait()
        parts = (sums / comm.size).split([each.numel() for each in self.own])
        self.averages = [p.view_as(own) for p, own in zip(parts, self.own, strict=True)]
        for parameter, average in zip(self._parameters, self.averages, strict=True):
            parameter.grad = average


class Step(Candidate):
    """A whole step of a module: forward, backward with the reduction, and torch's SGD.

    Parameters
    ----------
    model : torch.nn.Module
        Module that averages gradients over the ranks, or a plain module.
    reduces : bool
        Whether the step averages gradients; if not, it is in the ``no_sync`` of a wrapper.
    updates : bool
        Whether SGD makes a step; no step of a wrapper can be faster than a plain module without.
    """

    def __init__(
        self, name: str, model: Any, reference: Reference, *, reduces: bool, updates: bool = True
    ) -> None:
        self.name = name
        self._model = model
        self._parameters = [*model.parameters()]
        self._reference = reference
        self._reduces, self._updates = reduces, updates
        self._local = getattr(model, "no_sync", nullcontext)
        self._sgd = sgd(model)
        self._turn = 0

    def prepare(self, step: int) -> None:
        self._turn += 1
        self._reference.advance(self._turn)
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self._reference.weights)

    def run(self, mark: Marks) -> None:
        with nullcontext() if self._reduces else self._local():
            self._sgd.zero_grad()
            loss = cross_entropy(self._model(self._reference.inputs), self._reference.labels)
            mark("forward")
            loss.backward()
            mark("backward")
        if self._updates:
            self._sgd.step()
            mark("update")
        self._loss = loss.item()

    def wrong(self) -> int:
        reference = self._reference
        expected = reference.averages if self._reduces else reference.own
        pairs = zip(self._parameters, expected, strict=True)
        wrong = sum(different(parameter.grad, gradient) for parameter, gradient in pairs)
        return wrong + int(not abs(self._loss - reference.loss) <= TOLERANCE)


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    """Return torch's SGD with momentum."""
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def different(found: torch.Tensor, expected: torch.Tensor) -> int:
    """Return the count of elements that differ by more than the tolerance; NaN differs."""
    near = (found - expected).abs() <= TOLERANCE * expected.abs().max()
    return int(near.numel() - near.count_nonzero())
