"""`Common`: the arguments that every optimizer takes, beside its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from ncclkv.arguments import known_arguments
from ncclkv.optimizer.schedule import Schedule
from ncclkv.other_names import OF_ARGUMENTS
from ncclkv.tracebacks import P, Result


class Settings(TypedDict, total=False):
    """Arguments that `ncclkv.optimizer.Optimizer` takes as ``**settings``, and documents."""

    lr_scheduler: Schedule | None
    begin_num_update: int
    param_idx2name: Mapping[int, str] | None
    multi_precision: bool
    clip_global_norm: float | None


class Common(Settings, total=False):
    """All arguments of `ncclkv.optimizer.Optimizer`; all have defaults."""

    wd: float
    rescale_grad: float
    clip_gradient: float | None


COMMON = ("wd", "rescale_grad", "clip_gradient")
"""Names of the arguments that are hyperparameters of every optimizer."""

OTHER_NAMES = {"lr": "learning_rate", "weight_decay": "wd", "eps": "epsilon"}
"""Names of arguments by their names in torch, which a program may have used before."""


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
    settings = (*COMMON, *Settings.__annotations__)
    return known_arguments(name, settings, OF_ARGUMENTS, **OTHER_NAMES)
