"""Configs of optimizers: `set_config` restores hyperparameters, `from_config` an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ncclkv.errors import UsageError
from ncclkv.optimizer import create
from ncclkv.optimizer.base import Optimizer


def check_config(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Refuse a config that `set_config` refuses; change nothing.

    Raises
    ------
    UsageError
    """
    trial = copy.copy(optimizer)
    # An assignment copies the factors: the trial must not change those of the optimizer.
    trial.lr_mult, trial.wd_mult = optimizer.lr_mult, optimizer.wd_mult
    _assign(trial, config)
    reached = trial.config()
    for name in sorted({*reached, *config}):
        if reached.get(name) != config.get(name):
            raise UsageError(
                f"{name} of {optimizer!r} cannot become {config.get(name)!r}; call set_optimizer "
                f"with an optimizer of that {name}"
            )


def set_config(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Replace an optimizer's hyperparameters by those of another optimizer of its class.

    Parameters
    ----------
    optimizer : Optimizer
    config : mapping
        Result of the other's `Optimizer.config`.

    Raises
    ------
    UsageError
        When a number differs that is read-only, such as a momentum; then nothing is changed.

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
            continue  # read-only: `check_config` finds the difference


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Return a built-in optimizer with this config, a result of `Optimizer.config`.

    Raises
    ------
    UsageError
        When no built-in optimizer has the name.

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
