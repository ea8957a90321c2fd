"""An optimizer's numbers, put back to what they were."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ncclkv.errors import UsageError
from ncclkv.optimizer import create
from ncclkv.optimizer.base import Optimizer


def check_config(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Refuse what `set_config` refuses, and change nothing.

    Raises
    ------
    UsageError
    """
    trial = copy.copy(optimizer)
    # To assign the factors is to copy them: the trial's are not to be the optimizer's own.
    trial.lr_mult, trial.wd_mult = optimizer.lr_mult, optimizer.wd_mult
    _assign(trial, config)
    reached = trial.config()
    for name in sorted({*reached, *config}):
        if reached.get(name) != config.get(name):
            raise UsageError(
                f"{name} of {optimizer!r} cannot become {config.get(name)!r}; set an optimizer "
                f"with that {name}"
            )


def set_config(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Give an optimizer the numbers of another one of its class.

    Parameters
    ----------
    optimizer : Optimizer
    config : mapping
        What the other's `Optimizer.config` has returned.

    Raises
    ------
    UsageError
        When a number differs that cannot be changed, such as a momentum; nothing is changed then.

    Examples
    --------
    >>> from ncclkv.optimizer import SGD
    >>> sgd = SGD(learning_rate=0.5)
    >>> set_config(sgd, SGD(learning_rate=0.25).config())
    >>> sgd.learning_rate
    0.25
    """
    check_config(optimizer, config)
    _assign(optimizer, config)


def _assign(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Assign the numbers that differ and can be assigned."""
    for name, value in config.items():
        try:
            if getattr(optimizer, name, value) != value:
                setattr(optimizer, name, value)
        except AttributeError:
            continue  # it cannot be assigned, and whoever compares will see that it differs


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Make the built-in optimizer whose `Optimizer.config` has returned that.

    Raises
    ------
    UsageError
        When there is none.

    Examples
    --------
    >>> from ncclkv.optimizer import SGD
    >>> from_config(SGD(learning_rate=0.5, momentum=0.9).config())
    SGD(learning_rate=0.5, momentum=0.9, wd=0.0, rescale_grad=1.0, clip_gradient=None)
    """
    apart = ("name", "lr_mult", "wd_mult")
    optimizer = create(
        config.get("name", ""), **{name: x for name, x in config.items() if name not in apart}
    )
    set_config(optimizer, config)
    return optimizer
