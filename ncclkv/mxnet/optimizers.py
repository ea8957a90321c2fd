"""MXNet's optimizers as optimizers of ncclkv, by their names and arguments."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import mxnet
import numpy as np

from ncclkv import optimizer as built_in
from ncclkv.errors import NotSupported
from ncclkv.mxnet.watched_schedules import Repeated, Watched, converted_schedule
from ncclkv.optimizer import Optimizer
from ncclkv.optimizer.common import COMMON
from ncclkv.store.keys import is_list
from ncclkv.typing import Key


class RoundedAdam(built_in.Adam):
    """Adam with MXNet's rounding of beta1 and beta2 to float32, before they are taken from 1.

    For beta2 = 0.999 the share of the square then differs by 1e-5, and each step by 6e-6.
    """

    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        rate, beta1, _, beta2, _, *others = super().scalars(key, count)
        share1, share2 = (1 - float(np.float32(beta)) for beta in (beta1, beta2))
        return rate, beta1, share1, beta2, share2, *others


_ROUNDED = {"Adam": RoundedAdam}
"""Classes in place of those of ncclkv, whose results are closer to MXNet's."""

_ATTRIBUTES = {"AdaGrad": {"eps": "float_stable_eps"}}
"""MXNet's attributes that have not the names of their arguments, by optimizer."""


class Followed:
    """An optimizer of MXNet that the program may change, and ours with the same hyperparameters.

    Attributes
    ----------
    optimizer : mxnet.optimizer.Optimizer
        MXNet's, as given.
    ours : Optimizer

    Raises
    ------
    NotSupported
        When there is no such optimizer here.
    """

    def __init__(self, theirs: Any) -> None:
        self.optimizer = theirs
        self.ours = _converted(theirs)
        self._schedule = Watched(theirs.lr_scheduler, theirs.num_update)
        self._own = _own(theirs, self.ours)
        self._factors: dict[str, Any] = {}
        self.follow([*theirs.param_dict])

    def follow(self, key: Any) -> None:
        """Give ours the hyperparameters of MXNet's optimizer, with the factors of some keys.

        Raises
        ------
        ReadOnlyAttribute
            When the program has changed a hyperparameter on which states depend, as a momentum.
        """
        theirs, ours = self.optimizer, self.ours
        if theirs.lr_scheduler is not self._schedule.given:
            ours.lr_scheduler = converted_schedule(theirs.lr_scheduler)
            self._schedule = Watched(theirs.lr_scheduler, theirs.num_update)
        elif self._schedule.is_changed():
            # It has counted the updates so far: its arguments alone do not give its rates.
            ours.lr_scheduler = Repeated(theirs.lr_scheduler)
            self._schedule = Watched(theirs.lr_scheduler, theirs.num_update)
        if theirs.lr_scheduler is None and ours.learning_rate != theirs.lr:
            ours.learning_rate = theirs.lr
        for name, value in _common(theirs).items():
            if getattr(ours, name) != value:
                setattr(ours, name, value)
        own = _own(theirs, ours)
        for name, value in own.items():
            if value != self._own[name]:
                setattr(ours, name, value)
        self._own = own
        for name in ("lr_mult", "wd_mult"):
            self._follow_factors(name, key if is_list(key) else [key])

    def _follow_factors(self, name: str, keys: Any) -> None:
        """Take factors from MXNet's optimizer; those of Gluon's parameters come first."""
        given, ours = getattr(self.optimizer, name), getattr(self.ours, name)
        if given != self._factors.get(name):
            self._factors[name] = dict(given)
            ours.clear()
            ours.update(given)
            keys = {*keys, *self.optimizer.param_dict}
        with suppress(TypeError):  # unhashable items are no keys: the store refuses them
            for key in keys:
                parameter = self.optimizer.param_dict.get(key)
                if parameter is not None and ours.get(key) != getattr(parameter, name):
                    ours[key] = getattr(parameter, name)

    def count(self) -> None:
        """Give MXNet's optimizer the count of updates, from which its `learning_rate` follows.

        Its schedule counts too, as in MXNet's own updates: a change by the program begins there.
        """
        self.optimizer.num_update = self.ours.num_update
        self._schedule.count(self.ours.num_update)

    def lead(self) -> None:
        """Give MXNet's optimizer the hyperparameters of ours, which a checkpoint has changed."""
        theirs, ours = self.optimizer, self.ours
        for name in COMMON:
            setattr(theirs, name, getattr(ours, name))
        for name in self._own:
            setattr(theirs, _held(theirs, name), getattr(ours, name))
        self._own = _own(theirs, ours)
        self.count()
        if theirs.lr_scheduler is None:
            theirs.lr = ours.learning_rate


def _held(theirs: Any, name: str) -> str:
    """Return the attribute of MXNet's optimizer that holds an argument."""
    return _ATTRIBUTES.get(type(theirs).__name__, {}).get(name, name)


def _own(theirs: Any, ours: Optimizer) -> dict[str, Any]:
    """Return the hyperparameters of MXNet's optimizer that not every optimizer has, by argument."""
    names = [each for each in ours.hyperparameters if each not in ("learning_rate", *COMMON)]
    return {name: getattr(theirs, _held(theirs, name)) for name in names}


def _common(theirs: Any) -> dict[str, Any]:
    """Return what every optimizer has; MXNet clips nothing by a bound of 0 or less."""
    common = {name: getattr(theirs, name) for name in COMMON}
    bound = common["clip_gradient"]
    return {**common, "clip_gradient": bound if bound and bound > 0 else None}


def _converted(theirs: Any) -> Optimizer:
    """Return the optimizer of the same name with the same arguments.

    Raises
    ------
    NotSupported
        When there is none, or MXNet's class is one of the program.
    """
    name = type(theirs).__name__
    kind = _ROUNDED.get(name) or getattr(built_in, name, None)
    own = getattr(mxnet.optimizer, name, None) is type(theirs)
    if not (own and isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise NotSupported(
            f"set_optimizer: ncclkv has no optimizer {name}; run MXNet's own, on the store by "
            f"kv.set_updater(mx.optimizer.get_updater(optimizer)), or on each rank by "
            f"update_on_kvstore=False in gluon.Trainer, and MXNET_UPDATE_ON_KVSTORE=0 for Module"
        )
    schedule = converted_schedule(theirs.lr_scheduler)
    names = {*kind.hyperparameters} - {"learning_rate"}
    given = {each: getattr(theirs, _held(theirs, each)) for each in names}
    return kind(
        **{**given, **_common(theirs)},
        learning_rate=theirs.lr if schedule is None else None,
        lr_scheduler=schedule,
        begin_num_update=theirs.num_update,
        param_idx2name=theirs.idx2name,
        multi_precision=theirs.multi_precision,
    )
