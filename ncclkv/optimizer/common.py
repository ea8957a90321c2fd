"""`Common`: the arguments that every optimizer takes, beside its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ncclkv.arguments import P, Result, known_arguments


class Common(TypedDict, total=False):
    """Arguments of `ncclkv.optimizer.Optimizer`, which documents them; all have defaults."""

    wd: float
    rescale_grad: float
    clip_gradient: float | None


COMMON = tuple(Common.__annotations__)
"""Names of the arguments."""


def optimizer_arguments(name: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Make a constructor refuse unknown arguments; its ``**common`` stands for those of `Common`.

    Parameters
    ----------
    name : str
        Name of the class.

    Raises
    ------
    UnknownArgument
        As for `known_arguments`.
    """
    # Names in torch, which a program may have used before.
    return known_arguments(name, COMMON, lr="learning_rate", weight_decay="wd", eps="epsilon")
