"""MXNet's schedules of the learning rate as schedules of ncclkv."""

from __future__ import annotations

import copy
from typing import Any

from ncclkv import optimizer as built_in
from ncclkv.optimizer.schedule import Schedule

_WARMUP = ("warmup_steps", "warmup_begin_lr", "warmup_mode")
_ARGUMENTS = {
    "FactorScheduler": {"step": "step", "factor": "factor", "stop_factor_lr": "stop_factor_lr"},
    "MultiFactorScheduler": {"step": "step", "factor": "factor"},
    "PolyScheduler": {"max_update": "max_update", "pwr": "power", "final_lr": "final_lr"},
    "CosineScheduler": {"max_update": "max_update", "final_lr": "final_lr"},
}
"""Arguments of the schedules of both libraries, and the attributes that hold them in MXNet's."""


class Repeated:
    """A schedule of MXNet, whose objects count, as a function of the count of updates alone.

    Parameters
    ----------
    given : callable
        Copied, and left as it is.
    """

    def __init__(self, given: Any) -> None:
        self._given = copy.deepcopy(given)
        self._present, self._last = copy.deepcopy(given), 0

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of an update; smaller counts may follow larger ones."""
        if num_update < self._last:
            self._present = copy.deepcopy(self._given)
        self._last = num_update
        rate: float = self._present(num_update)
        return rate


class Watched:
    """A schedule of MXNet whose attributes the program may change, and that counts as in MXNet.

    Parameters
    ----------
    given : callable or None
    num_update : int
        Count of updates so far.

    Attributes
    ----------
    given : callable or None
        Called with each count of updates, so that a change begins at the rate of that count.
    """

    def __init__(self, given: Any, num_update: int) -> None:
        self.given, self._last = given, num_update
        self._remember()

    def count(self, num_update: int) -> None:
        """Let the schedule count, once for a count; a function without attributes is not called.

        A schedule that the program has just changed counts after `is_changed` has found the change.
        """
        if self._seen and num_update != self._last and not self.is_changed():
            self._last = num_update
            self.given(num_update)
            self._remember()

    def is_changed(self) -> bool:
        """Return whether the program has changed an attribute of the schedule."""
        found = _attributes(self.given)
        return found != self._seen and not any(
            found == self._counted(self._last + more) for more in range(2)
        )

    def _counted(self, num_update: int) -> dict[str, Any]:
        """Return the attributes after a call, on a copy: ranks of `run_ranks` may share one."""
        counted = copy.deepcopy(self._copy)
        counted(num_update)
        return _attributes(counted)

    def _remember(self) -> None:
        self._copy, self._seen = copy.deepcopy(self.given), _attributes(self.given)


def _attributes(schedule: Any) -> dict[str, Any]:
    """Return the scalars and texts that a schedule has now, in lists too, by attribute."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in getattr(schedule, "__dict__", {}).items()
        if isinstance(value, (int, float, str, list, tuple))
    }


def converted_schedule(theirs: Any) -> Schedule | None:
    """Return a schedule with the rates of MXNet's.

    The four schedules that both libraries have are converted by their arguments, which ranks
    compare and checkpoints hold.  Others are called: those of the program, those that have counted,
    and those whose warm-up ends at another rate than the decay begins.
    """
    if theirs is None:
        return None
    name = type(theirs).__name__
    arguments = _ARGUMENTS.get(name)
    if arguments is None or type(theirs).__module__ != "mxnet.lr_scheduler":
        return Repeated(theirs)
    base_lr = getattr(theirs, "base_lr_orig", theirs.base_lr)
    if base_lr != theirs.warmup_final_lr:  # replaced by the program, or multiplied already
        return Repeated(theirs)
    given = {each: getattr(theirs, held) for each, held in arguments.items()}
    given.update({each: getattr(theirs, each) for each in _WARMUP})
    schedule: Schedule = getattr(built_in, name)(base_lr=base_lr, **given)
    return schedule
