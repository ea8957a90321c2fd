"""`Optimizer`: the base class of optimizers; `State`: an array that an optimizer keeps."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np

from ncclkv.arguments import check_count, check_flag, check_length
from ncclkv.arrays.dtypes import dtype_name, is_low_precision
from ncclkv.errors import DTypeMismatch, ReadOnlyAttribute, UsageError
from ncclkv.optimizer.common import OTHER_NAMES, Settings
from ncclkv.optimizer.hyperparameters import (
    checked_factors,
    checked_names,
    clipping_bound,
    finite,
    not_negative,
)
from ncclkv.optimizer.schedule import Schedule, checked_schedule, describe, with_base_lr
from ncclkv.tracebacks import public, trim
from ncclkv.typing import Key

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


class State(NamedTuple):
    """An array that an optimizer keeps for each array of weights.

    Attributes
    ----------
    name : str
        An identifier; it names the array in checkpoints.
    dtype : str
        Name of a dtype, or ``"compute"``: float32 for 16-bit weights, else the weights' dtype.
    init : str
        First elements: ``"zeros"``, or ``"weights"`` for a copy of the weights.
    """

    name: str
    dtype: str = "compute"
    init: str = "zeros"

    def dtype_for(self, weights: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the state of such weights."""
        if self.dtype != "compute":
            return np.dtype(self.dtype)
        return np.dtype(np.float32) if is_low_precision(weights) else weights


MASTER = State("master", "float32", "weights")
"""State of 16-bit weights with ``multi_precision=True``: the weights in float32."""

_FACTORS = ("lr_mult", "wd_mult")
_BY_KEY = (*_FACTORS, "idx2name")

Checks: TypeAlias = Mapping[str, Callable[[str, Any], Any]]
"""Checks by attribute: ``check(name, value)`` returns the value to assign, or raises UsageError."""

_CHECKS: Checks = {
    "learning_rate": not_negative,
    "wd": not_negative,
    "rescale_grad": finite,
    "clip_gradient": clipping_bound,
    "clip_global_norm": clipping_bound,
    "lr_scheduler": checked_schedule,
    "begin_num_update": check_count,
    "idx2name": checked_names,
    **dict.fromkeys(_FACTORS, checked_factors),
}


class Optimizer(ABC):
    """An optimizer that a store runs; names are MXNet's.

    A subclass declares its `program`, its `states`, and in `scalars` those of a key's update.
    The store allocates the states, counts the updates and calls the kernels.  16-bit weights are
    updated in float32, with float32 states, and rounded once an update.

    Parameters
    ----------
    learning_rate : float, optional
        At least 0.  If None, the rate is `default_learning_rate`, or that of `lr_scheduler`.
    wd : float
        Weight decay, at least 0.
    rescale_grad : float
        Factor of every gradient, applied first.
    clip_gradient : float, optional
        Bound, above 0, on the absolute value of each element of the rescaled gradient.
    lr_scheduler : callable, optional
        Schedule of the learning rate: a function of the largest count of updates of a key, such as
        `ncclkv.optimizer.CosineScheduler`.  A `learning_rate` beside it replaces its ``base_lr``.
    begin_num_update : int
        Count of updates that are taken as made, for the schedule and for `scalars`.
    param_idx2name : dict of int to str, optional
        Names of integer keys, under which `lr_mult` and `wd_mult` may have their factors, too.
        As in MXNet, `wd_mult` is 0 for names that end neither in ``_weight`` nor in ``_gamma``.
    multi_precision : bool
        Whether float16 and bfloat16 weights have a master copy in float32, as a state.  An update
        changes the master, and the weight is its rounding.  Otherwise such a weight is updated in
        float32 and rounded, so a change of less than half a unit in its last place is lost.
    clip_global_norm : float, optional
        Bound, above 0, on the norm n of all rescaled gradients of a flush together.  If n is
        larger, all gradients are multiplied by ``clip_global_norm / (n + 1e-8)``, before
        `clip_gradient` is applied.  The formula is that of Gluon's ``clip_global_norm``, with its
        1e-8; torch's ``clip_grad_norm_`` adds 1e-6.  A flush is all keys pushed since the last
        pull, wait or flush.  The store updates no key before the sums of all these keys are
        complete.  So push all keys before the first pull.  A second push of a key, or a push after
        a change of a hyperparameter, begins a new flush.

    Attributes
    ----------
    wd, rescale_grad, clip_gradient, lr_scheduler, begin_num_update
        As given; an assignment takes effect at the next push.  All ranks must assign equal values.
    clip_global_norm : float or None
        Another bound takes effect at the next push, but not a change from or to None.
    num_update : int
        The largest count of updates of a key, kept by the store under a schedule.
    rate_before : float or None
        Of a snapshot: the learning rate of the update before, for optimizers that read it.
    lr_mult, wd_mult : dict
        Factors of the learning rate and of the weight decay by key or, if it has none, by its name;
        1 for other keys.  Assigned dicts are copied.  The next push checks items that were put into
        the dicts.
    idx2name : dict
        The names as given.
    name : str
        Name of the optimizer in `create` and in checkpoints.
    hyperparameters : tuple of str
        Names of the arguments, in the order of ``repr``.
    program : str
        Name of the arithmetic in `ncclkv.kernels.programs.PROGRAMS`.
    default_learning_rate : float
        The learning rate if none is given.
    checks : mapping of str to callable
        `Checks` of the attributes that a subclass adds.
    complex_weights : bool
        Whether complex weights are updated, as pairs of reals.
    counted : bool
        Whether `scalars` reads its `count`.  Else equal hyperparameters reuse a table.
    decayed_names : tuple of str
        Ends of names to which MXNet applies the weight decay.

    Raises
    ------
    UsageError
        When an argument, or a value assigned to an attribute, is not such a value; on an
        assignment to torch's name of an attribute, such as ``lr``.
    ReadOnlyAttribute
        On an assignment to a hyperparameter that decides which states there are, such as a
        momentum.

    Examples
    --------
    >>> from ncclkv.optimizer import SGD, FactorScheduler
    >>> sgd = SGD(lr_scheduler=FactorScheduler(step=100, factor=0.5, base_lr=0.2))
    >>> sgd.learning_rate
    0.2
    >>> sgd.learning_rate = 0.1
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: learning_rate cannot be set to 0.1: it is that of the lr_scheduler; \
assign another schedule, or None, to lr_scheduler first
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[tuple[str, ...]]
    program: ClassVar[str]
    default_learning_rate: ClassVar[float] = 0.01
    checks: ClassVar[Checks] = {}
    complex_weights: ClassVar[bool] = False
    counted: ClassVar[bool] = False
    decayed_names: ClassVar[tuple[str, ...]] = ("_weight", "_gamma")

    wd: float
    rescale_grad: float
    clip_gradient: float | None
    lr_scheduler: Schedule | None
    begin_num_update: int
    num_update: int
    rate_before: float | None = None
    lr_mult: dict[Key, float]
    wd_mult: dict[Key, float]
    idx2name: dict[int, str]
    _rate: float
    _clip_global_norm: float | None
    _assignments = 0

    def __init__(
        self,
        *,
        learning_rate: float | None,
        wd: float = 0.0,
        rescale_grad: float = 1.0,
        clip_gradient: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self.lr_scheduler = None
        self.learning_rate = self.default_learning_rate if learning_rate is None else learning_rate
        self.wd = wd
        self.rescale_grad = rescale_grad
        self.clip_gradient = clip_gradient
        names = settings.get("param_idx2name")
        self.__dict__["idx2name"] = checked_names("param_idx2name", {} if names is None else names)
        self.set_lr_mult({})
        self.set_wd_mult({})
        self.begin_num_update = settings.get("begin_num_update", 0)
        self.num_update = self.begin_num_update
        self._multi_precision = check_flag(
            "multi_precision", settings.get("multi_precision", False)
        )
        self.clip_global_norm = settings.get("clip_global_norm")
        schedule = checked_schedule("lr_scheduler", settings.get("lr_scheduler"))
        if schedule is not None and learning_rate is not None:
            schedule = with_base_lr(schedule, self._rate)
        self.lr_scheduler = schedule

    @public
    def __setattr__(self, name: str, value: Any) -> None:
        """Assign a checked value, and count the assignment for `version`."""
        known = OTHER_NAMES.get(name)
        if known is not None and name not in self.hyperparameters and hasattr(self, known):
            raise UsageError(
                f"{type(self).__name__} has no attribute {name!r}, so the assignment would change "
                f"nothing; assign to {known!r}"
            )
        attribute = getattr(type(self), name, None)
        read_only = isinstance(attribute, property) and attribute.fset is None
        if read_only and name in (*self.hyperparameters, "multi_precision"):
            check_length(name, value)
            raise ReadOnlyAttribute(
                f"{name} of {self!r} cannot be set to {value!r}, because the states depend on "
                f"{name}; make an optimizer with {name}={value!r}, and give it to set_optimizer or "
                f"to a new Trainer"
            )
        check = _CHECKS.get(name) or self.checks.get(name)
        super().__setattr__(name, value if check is None else check(name, value))
        self.__dict__["_assignments"] = self._assignments + 1

    def __repr__(self) -> str:
        values = [f"{name}={value}" for name, value in self._hyperparameter_values().items()]
        return f"{type(self).__name__}({', '.join(values)})"

    def _hyperparameter_values(self) -> dict[str, Any]:
        """Return the arguments that make an equal optimizer; settings only if they are set."""
        scheduled = self.lr_scheduler is not None
        values = {
            name: None if scheduled and name == "learning_rate" else getattr(self, name)
            for name in self.hyperparameters
        }
        if scheduled:
            values["lr_scheduler"] = self.lr_scheduler
        if self.multi_precision:
            values["multi_precision"] = True
        if self.clip_global_norm is not None:
            values["clip_global_norm"] = self.clip_global_norm
        if self.begin_num_update:
            values["begin_num_update"] = self.begin_num_update
        return values

    @property
    def learning_rate(self) -> float:
        """The present learning rate; with a schedule it is read-only.

        An assignment takes effect at the next push.  All ranks must assign equal values.
        """
        try:
            return self.rate_at(self.num_update)
        except Exception as error:
            trim(error)
            raise

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self.lr_scheduler is not None:
            raise UsageError(
                f"learning_rate cannot be set to {rate!r}: it is that of the lr_scheduler; assign "
                f"another schedule, or None, to lr_scheduler first"
            )
        self._rate = rate

    def rate_at(self, num_update: int) -> float:
        """Return the learning rate of an update.

        Raises
        ------
        UsageError
            When the schedule returns no finite number of at least 0.
        """
        try:
            if self.lr_scheduler is None:
                return self._rate
            what = f"lr_scheduler(num_update={num_update})"
            return finite(what, self.lr_scheduler(num_update), least=0.0)
        except Exception as error:
            trim(error)
            raise

    def rates_at(self, num_update: int) -> tuple[float, float]:
        """Return the learning rates of an update, and of the update before if it has an effect."""
        rate = self.rate_at(num_update)
        return rate, rate

    def count_updates(self, num_update: int) -> None:
        """Set `num_update`; the store calls it, and the count is none of the rank's settings."""
        self.__dict__["num_update"] = num_update

    @property
    def version(self) -> tuple[int, ...]:
        """A value that is new after an assignment to an attribute, or a change in a dict."""
        # The dicts count their changes.
        found = self.__dict__
        changes = found["lr_mult"].version, found["wd_mult"].version, found["idx2name"].version
        return self._assignments, *changes

    @public
    def set_learning_rate(self, learning_rate: float) -> None:
        """Assign to `learning_rate`.

        Raises
        ------
        UsageError
            When the rate is refused, or the optimizer has a schedule.
        """
        self.learning_rate = learning_rate

    @public
    def set_lr_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the learning rate by key.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        self.lr_mult = cast("dict[Key, float]", factors)

    @public
    def set_wd_mult(self, factors: Mapping[Key, float]) -> None:
        """Replace the factors of the weight decay by key.

        The factors of names without weight decay, as of `param_idx2name`, are 0 unless given.

        Raises
        ------
        UsageError
            When `factors` is not a mapping of keys to finite numbers.
        """
        given = checked_factors("wd_mult", factors)
        undecayed = [
            name for name in self.idx2name.values() if not name.endswith(self.decayed_names)
        ]
        self.wd_mult = {**dict.fromkeys(undecayed, 0.0), **given}

    @property
    def clip_global_norm(self) -> float | None:
        """The bound on the norm of all gradients; None is fixed, since it decides the flushes."""
        return self._clip_global_norm

    @clip_global_norm.setter
    def clip_global_norm(self, bound: float | None) -> None:
        before = self.__dict__.setdefault("_clip_global_norm", bound)
        if (before is None) != (bound is None):
            raise UsageError(
                f"clip_global_norm is {before} and cannot become {bound}, since a store's flushes "
                f"depend on it; call set_optimizer with an optimizer of that clip_global_norm"
            )
        self.__dict__["_clip_global_norm"] = bound

    @property
    def multi_precision(self) -> bool:
        """Return the flag as given; it is read-only, since a store allocates the master copies."""
        return self._multi_precision

    def states_for(self, dtype: np.dtype[Any]) -> tuple[State, ...]:
        """Return the states of weights of a dtype: `states`, and a master copy if they have one."""
        has_master = self.multi_precision and is_low_precision(dtype)
        return (*self.states, MASTER) if has_master else self.states

    @property
    @abstractmethod
    def states(self) -> tuple[State, ...]:
        """The arrays kept for each array of weights, in the order of the program."""

    @abstractmethod
    def scalars(self, key: Key, count: int) -> tuple[float, ...]:
        """Return the row of scalars with which the program updates a key.

        Keys with equal factors and counts must have equal rows: one row is computed for them.

        Parameters
        ----------
        key : int or str
            Used only to look up its factors, by `learning_rate_of` and `wd_of`.
        count : int
            Index of this update of the key, from 1.
        """

    def check_weights(self, key: Key, dtype: np.dtype[Any]) -> None:
        """Refuse a key whose weights the optimizer cannot update.

        Raises
        ------
        DTypeMismatch
            When `dtype` is not a floating dtype, or is a complex dtype that the optimizer refuses.
        """
        kinds = "fc" if self.complex_weights else "f"
        if dtype.kind not in kinds and not is_low_precision(dtype):
            also = " (and complex64 and complex128)" if self.complex_weights else ""
            raise DTypeMismatch(
                f"key {key!r} is {dtype_name(dtype)}, and {type(self).__name__} updates float16, "
                f"bfloat16, float32 and float64{also}; keep such a key in a store without an "
                f"optimizer, or give set_updater a function",
                key=key,
            )

    def config(self) -> dict[str, Any]:
        """Return all hyperparameters of an update, as plain values that ranks can compare.

        Raises
        ------
        UsageError
            When `lr_mult` or `wd_mult` has an item that is not a finite number.
        """
        values = self._hyperparameter_values()
        if self.lr_scheduler is not None:
            values["lr_scheduler"] = describe(self.lr_scheduler)
        by_key = {name: dict(self.__dict__[name].frozen(name)) for name in _BY_KEY}
        if not by_key["idx2name"]:
            del by_key["idx2name"]
        return {"name": self.name, **values, **by_key}

    def learning_rate_of(self, key: Key) -> float:
        """Return the learning rate of a key."""
        return self.learning_rate * self.factors_of(key)[0]

    def wd_of(self, key: Key) -> float:
        """Return the weight decay of a key."""
        return self.wd * self.factors_of(key)[1]

    def factors_of(self, key: Key) -> tuple[float, ...]:
        """Return the factors of a key's learning rate and weight decay.

        A subclass may append scalars: keys with equal scalars have equal rows.
        """
        name = self.idx2name.get(key, key) if isinstance(key, int) else key
        lr_mult, wd_mult = (
            factors.get(key, factors.get(name, 1.0)) for factors in (self.lr_mult, self.wd_mult)
        )
        return lr_mult, wd_mult

    def common_scalars(self, key: Key) -> tuple[float, float, float]:
        """Return the last scalars of a row, in the order of ``kernels/programs/gradient.h``.

        Returns
        -------
        wd, rescale_grad, clip_gradient : float
            The bound is -1 if there is none.
        """
        clip = self.clip_gradient
        return self.wd_of(key), self.rescale_grad, -1.0 if clip is None else clip

    def snapshot(self, num_update: int | None = None) -> Optimizer:
        """Return a copy that later changes do not affect.

        Snapshots between two changes of a factor share their dicts.

        Parameters
        ----------
        num_update : int, optional
            A schedule is replaced by its learning rate at this count, by default `num_update`.

        Raises
        ------
        UsageError
            As for `config`.
        """
        made = copy.copy(self)
        for name in _BY_KEY:
            made.__dict__[name] = self.__dict__[name].frozen(name)
        rate, before = self.rates_at(self.num_update if num_update is None else num_update)
        made.__dict__.update(lr_scheduler=None, _rate=rate, rate_before=before)
        return made
