"""Configs of optimizers: `set_config` restores hyperparameters, `from_config` an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ncclkv.errors import UsageError
from ncclkv.optimizer import create
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.schedule import from_description


def check_config(optimizer: Optimizer, config: Mapping[str, Any]) -> None:
    """Refuse a config that `set_config` refuses; change nothing.

    Raises
    ------
    UsageError
    """
    trial = copied(optimizer)
    _assign(trial, config)
    reached = trial.config()
    # Without master copies in the config, those of the optimizer start from the weights.
    wanted = {"multi_precision": True, **config} if optimizer.multi_precision else config
    for name in sorted({*reached, *wanted}):
        if reached.get(name) != wanted.get(name):
            raise UsageError(
                f"{name} of {optimizer!r} cannot become {config.get(name)!r}; call set_optimizer "
                f"with an optimizer of that {name}"
            )


def copied(optimizer: Optimizer) -> Optimizer:
    """Return a copy whose changes do not affect the optimizer."""
    made = copy.copy(optimizer)
    # An assignment copies the dict.
    made.lr_mult, made.wd_mult = optimizer.lr_mult, optimizer.wd_mult
    made.idx2name = optimizer.idx2name
    return made


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
        When a read-only hyperparameter differs, such as a momentum; then nothing is changed.

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
    """Assign the hyperparameters that differ and can be assigned."""
    present = optimizer.config()
    # First of all, because a learning rate can be assigned only without a schedule.
    schedule = config.get("lr_scheduler")
    if present.get("lr_scheduler") != schedule:
        optimizer.lr_scheduler = None if schedule is None else from_description(schedule)
    for name, value in {"begin_num_update": 0, "idx2name": {}, **config}.items():
        if name == "lr_scheduler" or (name == "learning_rate" and schedule is not None):
            continue
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
    apart = ("name", "lr_mult", "wd_mult", "idx2name")
    arguments = {name: x for name, x in config.items() if name not in apart}
    if "lr_scheduler" in arguments:
        arguments["lr_scheduler"] = from_description(arguments["lr_scheduler"])
    optimizer = create(config.get("name", ""), **arguments)
    set_config(optimizer, config)
    return optimizer
