"""torch's SGD on every rank, after a sum over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.candidates.baselines import Bucketed, Flat
from bench.data import LEARNING_RATE, MOMENTUM
from bench.libraries.torch_dist import TorchLibrary
from bench.rounds import Marks
from ncclkv.comm.types import Buffer


class TorchSGD:
    """Weights that start at 0, and torch's fused SGD on them.

    Parameters
    ----------
    gradients : list of ndarray
        Gradients of the weights, as the optimizer reads them.
    """

    def __init__(
        self, library: TorchLibrary, weights: Sequence[Buffer], gradients: Sequence[Buffer]
    ) -> None:
        self.weights = weights
        parameters = []
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.fill(0)
            parameter = library.tensor(weight)
            parameter.grad = library.tensor(gradient)
            parameters.append(parameter)
        self._sgd: Any = library.torch.optim.SGD(
            parameters, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True
        )

    def step(self) -> None:
        self._sgd.step()


class FlatDescent(Flat):
    """In-place sum of flat gradients, followed by an optimizer that has views of them."""

    sgd: TorchSGD

    def run(self, mark: Marks) -> None:
        super().run(mark)
        mark("sum")
        self.sgd.step()
        mark("update")

    def wrong(self) -> int:
        return self.work.wrong(self.sgd.weights, self.expected)


class BucketedDescent(Bucketed):
    """Gradients copied into buckets, summed and copied back, then the optimizer."""

    sgd: TorchSGD

    @property
    def into(self) -> Sequence[Buffer]:
        return self.work.gradients

    def run(self, mark: Marks) -> None:
        super().run(mark)
        self.sgd.step()
        mark("update")

    def wrong(self) -> int:
        return self.work.wrong(self.sgd.weights, self.expected)
