"""Schedules: the learning rate as a function of the count of updates, as in MXNet.

A schedule is any function of ``num_update``, the largest count of updates of a key, which begins at
1.  The classes here are those of ``mxnet.lr_scheduler`` 1.9.1, with its rates to the last bit.
Their objects never change, and a checkpoint holds their arguments.

``num_update`` is set when a key is pushed, so no rate depends on buckets.  All keys of a push, of a
group or of a replay have one rate.  If ranks may push different keys, the flush sets the count,
equally on all ranks.  A checkpoint holds no such count: it is the largest of the saved counts.

Ranks compare the schedules here by their arguments, and a function of the program by its name
alone.  A store that loads a checkpoint with such a function must have an optimizer with a function
of this name.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ncclkv.arguments import check_count, check_known, check_length
from ncclkv.errors import UsageError
from ncclkv.optimizer.hyperparameters import finite
from ncclkv.tracebacks import public_init

Schedule: TypeAlias = Callable[[int], float]

_MODES = ("linear", "constant")


class LRScheduler(ABC):
    """A schedule that may begin with a warm-up; a subclass is a frozen dataclass with the decay.

    ::

        linear warm-up:    warmup_begin_lr
                           + (base_lr - warmup_begin_lr) * num_update / warmup_steps
        constant warm-up:  warmup_begin_lr

    Attributes
    ----------
    base_lr : float
        Learning rate after the warm-up, before any decay.
    warmup_steps : int
        The warm-up lasts while ``num_update`` is below this count.
    warmup_begin_lr : float
        At most `base_lr`.
    warmup_mode : {"linear", "constant"}

    Raises
    ------
    UsageError
        When an argument is not such a value.
    """

    base_lr: float
    warmup_steps: int
    warmup_begin_lr: float
    warmup_mode: str

    def __post_init__(self) -> None:
        self._set(
            base_lr=finite("base_lr", self.base_lr, least=0.0),
            warmup_steps=check_count("warmup_steps", self.warmup_steps),
            warmup_begin_lr=finite("warmup_begin_lr", self.warmup_begin_lr, least=0.0),
        )
        check_known("warmup_mode", self.warmup_mode, _MODES)
        if self.warmup_begin_lr > self.base_lr:
            raise UsageError(
                f"warmup_begin_lr is {self.warmup_begin_lr}, and base_lr {self.base_lr}; give a "
                f"warmup_begin_lr of at most base_lr"
            )

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of an update."""
        if num_update >= self.warmup_steps:
            return self.decayed(num_update)
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (self.base_lr - self.warmup_begin_lr) * float(num_update) / float(self.warmup_steps)
        return self.warmup_begin_lr + rise

    @abstractmethod
    def decayed(self, num_update: int) -> float:
        """Return the learning rate of an update after the warm-up."""

    def _set(self, **values: Any) -> None:
        """Replace arguments by their checked values, before the object is used."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@public_init
@dataclass(frozen=True)
class FactorScheduler(LRScheduler):
    """Multiplies the learning rate by a factor after every `step` updates.

    Parameters
    ----------
    step : int
        At least 1.
    factor : float
        From 0 to 1.
    stop_factor_lr : float
        A lower product is replaced by this rate.
    base_lr, warmup_steps, warmup_begin_lr, warmup_mode
        As for `LRScheduler`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> rate = FactorScheduler(step=2, factor=0.5, base_lr=1.0)
    >>> [rate(num_update) for num_update in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    step: int
    factor: float = 1.0
    stop_factor_lr: float = 1e-8
    base_lr: float = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            step=check_count("step", self.step, 1),
            factor=_factor(self.factor),
            stop_factor_lr=finite("stop_factor_lr", self.stop_factor_lr, least=0.0),
            _reached=(0, self.base_lr),
        )

    def decayed(self, num_update: int) -> float:
        # The product is made step by step, as in MXNet: a power would round differently.
        wanted = max(0, (num_update - 1) // self.step)
        reached: tuple[int, float] = self.__dict__["_reached"]
        done, rate = reached if reached[0] <= wanted else (0, self.base_lr)
        for _ in range(done, wanted):
            before, rate = rate, max(rate * self.factor, self.stop_factor_lr)
            if rate == before:
                break
        self._set(_reached=(wanted, rate))
        return rate


@public_init
@dataclass(frozen=True)
class MultiFactorScheduler(LRScheduler):
    """Multiplies the learning rate by a factor after each of some updates.

    Parameters
    ----------
    step : sequence of int
        Counts of updates, at least 1, in increasing order.
    factor : float
        From 0 to 1.
    base_lr, warmup_steps, warmup_begin_lr, warmup_mode
        As for `LRScheduler`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> rate = MultiFactorScheduler(step=[2, 3], factor=0.5, base_lr=1.0)
    >>> [rate(num_update) for num_update in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """

    step: tuple[int, ...]
    factor: float = 1.0
    base_lr: float = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("step", self.step)
        if not isinstance(self.step, (list, tuple)) or not self.step:
            raise UsageError(f"step is {self.step!r}; give a list of numbers of updates")
        steps = tuple(check_count("a number of step", each, 1) for each in self.step)
        if list(steps) != sorted(set(steps)):
            raise UsageError(f"step is {self.step!r}; give its numbers in increasing order")
        self._set(step=steps, factor=_factor(self.factor))

    def decayed(self, num_update: int) -> float:
        rate = self.base_lr
        for each in self.step:
            if num_update > each:
                rate *= self.factor
        return rate


@public_init
@dataclass(frozen=True)
class PolyScheduler(LRScheduler):
    """Lets the learning rate fall to `final_lr` as a power of the updates left.

    ::

        final_lr + (base_lr - final_lr) * (1 - n / N) ** pwr

    for the n-th of N updates after the warm-up.

    Parameters
    ----------
    max_update : int
        The last update of the decay, above `warmup_steps`; `final_lr` holds after it.
    base_lr : float
    pwr : float
        At least 0.
    final_lr : float
    warmup_steps, warmup_begin_lr, warmup_mode
        As for `LRScheduler`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> rate = PolyScheduler(max_update=4, base_lr=1.0, pwr=1)
    >>> [rate(num_update) for num_update in (1, 2, 3, 4, 5)]
    [0.75, 0.5, 0.25, 0.0, 0.0]
    """

    max_update: int
    base_lr: float = 0.01
    pwr: float = 2.0
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            max_update=_last(self.max_update, self.warmup_steps),
            pwr=finite("pwr", self.pwr, least=0.0),
            final_lr=finite("final_lr", self.final_lr, least=0.0),
        )

    def decayed(self, num_update: int) -> float:
        done = min(num_update, self.max_update) - self.warmup_steps
        left = 1 - float(done) / float(self.max_update - self.warmup_steps)
        return self.final_lr + (self.base_lr - self.final_lr) * math.pow(left, self.pwr)


@public_init
@dataclass(frozen=True)
class CosineScheduler(LRScheduler):
    """Lets the learning rate fall to `final_lr` along half a period of the cosine.

    ::

        final_lr + (base_lr - final_lr) * (1 + cos(pi * n / N)) / 2

    for the n-th of N updates after the warm-up.

    Parameters
    ----------
    max_update : int
        The last update of the decay, above `warmup_steps`; `final_lr` holds after it.
    base_lr, final_lr : float
    warmup_steps, warmup_begin_lr, warmup_mode
        As for `LRScheduler`.

    Raises
    ------
    UsageError
        When an argument is not such a value.

    Examples
    --------
    >>> rate = CosineScheduler(max_update=4, base_lr=1.0, warmup_steps=2)
    >>> [round(rate(num_update), 3) for num_update in (1, 2, 3, 4, 5)]
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """

    max_update: int
    base_lr: float = 0.01
    final_lr: float = 0.0
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_mode: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            max_update=_last(self.max_update, self.warmup_steps),
            final_lr=finite("final_lr", self.final_lr, least=0.0),
        )

    def decayed(self, num_update: int) -> float:
        done = min(num_update, self.max_update) - self.warmup_steps
        angle = math.pi * done / (self.max_update - self.warmup_steps)
        return self.final_lr + (self.base_lr - self.final_lr) * (1 + math.cos(angle)) / 2


_BY_NAME = {
    each.__name__: each
    for each in (FactorScheduler, MultiFactorScheduler, PolyScheduler, CosineScheduler)
}


def _factor(given: Any) -> float:
    """Return a factor from 0 to 1."""
    factor = finite("factor", given, least=0.0)
    if factor > 1:
        raise UsageError(f"factor is {given!r}; give a number of at most 1")
    return factor


def _last(given: Any, warmup_steps: int) -> int:
    """Return the index of the last update of a decay, which begins after the warm-up."""
    last = check_count("max_update", given, 1)
    if last <= warmup_steps:
        raise UsageError(
            f"max_update is {last}, and warmup_steps {warmup_steps}; give a max_update above it"
        )
    return last


def checked_schedule(name: str, given: Any) -> Schedule | None:
    """Return a schedule, or None.

    Raises
    ------
    UsageError
        When `given` is no function; `name` begins the error's text.
    """
    if given is None or (callable(given) and not isinstance(given, type)):
        return given
    check_length(name, given)
    raise UsageError(
        f"{name} is {given!r}; give a function of num_update, such as "
        f"ncclkv.optimizer.CosineScheduler(max_update=1000, base_lr=0.1)"
    )


def with_base_lr(schedule: Schedule, base_lr: float) -> Schedule:
    """Return the schedule with another `base_lr`.

    Raises
    ------
    UsageError
        When the schedule is a function of the program.
    """
    if type(schedule) in _BY_NAME.values():
        return dataclasses.replace(schedule, base_lr=base_lr)  # type: ignore[type-var]
    raise UsageError(
        f"learning_rate is {base_lr!r} beside the lr_scheduler {_path(schedule)}, which alone sets "
        f"the rate; leave learning_rate out"
    )


def describe(schedule: Schedule) -> dict[str, Any]:
    """Return plain values that ranks compare and checkpoints hold.

    A function of the program is described by its name alone.

    Examples
    --------
    >>> describe(FactorScheduler(10, 0.5))["factor"]
    0.5
    >>> describe(math.exp)
    {'function': 'math.exp'}
    """
    kind = type(schedule)
    if _BY_NAME.get(kind.__name__) is not kind:
        return {"function": _path(schedule)}
    values = {each.name: getattr(schedule, each.name) for each in dataclasses.fields(kind)}
    return {
        "class": kind.__name__,
        **{name: list(x) if isinstance(x, tuple) else x for name, x in values.items()},
    }


def _path(function: Schedule) -> str:
    """Return the full name of a function, or of the class of a callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def from_description(made: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `describe` has described.

    Raises
    ------
    UsageError
        When the description is of a function of a program, or wrong.
    """
    if not isinstance(made, Mapping) or "function" in made:
        given = made["function"] if isinstance(made, Mapping) else made
        raise UsageError(
            f"lr_scheduler is {given!r}, a function of the program; first call set_optimizer with "
            f"an optimizer that has it as lr_scheduler"
        )
    arguments = dict(made)
    kind = arguments.pop("class", None)
    check_known("lr_scheduler", kind, _BY_NAME)
    try:
        return _BY_NAME[kind](**arguments)
    except TypeError as error:
        raise UsageError(f"lr_scheduler {kind}: {error}; give its arguments by name") from error
