"""`Updater`: an optimizer as a function of key, gradient and weight, with states of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.arrays.dtypes import real_numbers
from ncclkv.errors import ShapeMismatch, UsageError
from ncclkv.kernels.base import Array, Measured, Segments
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.programs import PROGRAMS
from ncclkv.optimizer.base import MASTER, Optimizer
from ncclkv.tracebacks import public
from ncclkv.typing import ArrayLike, Key


class Updater:
    """An optimizer that updates arrays in host memory, key by key.

    Use it without a store, or as a store's updater.  `set_optimizer` is faster: it updates whole
    buckets, and shares weights and states between the ranks of a node.

    Parameters
    ----------
    optimizer : Optimizer

    Attributes
    ----------
    optimizer : Optimizer
        Each call reads its hyperparameters.

    Raises
    ------
    UsageError
        When `optimizer` is no optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UsageError(
                f"get_updater takes an Optimizer, not a {type(optimizer).__name__}; make one by "
                f"ncclkv.optimizer.create('sgd', learning_rate=0.1)"
            )
        self.optimizer = optimizer
        self._kernels = HostKernels()
        self._states: dict[Key, dict[str, Array]] = {}
        self._counts: dict[Key, int] = {}

    @public
    def __call__(self, key: Key, grad: ArrayLike, weight: ArrayLike) -> None:
        """Update `weight` in place by a gradient of its shape and dtype.

        Parameters
        ----------
        key : int or str
            Selects the states and the factors; a new key has new states.
        grad, weight : array
            In host memory, as stores on hosts take them.

        Raises
        ------
        UsageError
            When an argument is no such array, or a factor is not a finite number; when the
            optimizer has a `clip_global_norm`, which needs `update_all`.
        DTypeMismatch
            When the optimizer cannot update the dtype.
        ShapeMismatch
            When the shapes differ.
        """
        if self.optimizer.clip_global_norm is not None:
            raise UsageError(
                f"update of key {key!r}: clip_global_norm is a bound on the gradients of all keys "
                f"together; call update_all with all of them, or a store's set_optimizer"
            )
        self.update_all([key], [grad], [weight])

    @public
    def update_all(
        self, keys: Sequence[Key], grads: Sequence[ArrayLike], weights: Sequence[ArrayLike]
    ) -> None:
        """Update several weights in place, key by key.

        The gradients of one call are those that a `clip_global_norm` bounds together.  Parameters
        and errors are those of a call with one key.
        """
        pairs = [self._pair(*given) for given in zip(keys, grads, weights, strict=True)]
        bound, total = self.optimizer.clip_global_norm, None
        if bound is not None:
            total = np.array([0.0, bound])
            for gradient, _ in pairs:
                self._add_squares(real_numbers(gradient.reshape(-1)), total[:1])
        for key, (gradient, stored) in zip(keys, pairs, strict=True):
            self._update(key, gradient, stored, total)

    def _pair(self, key: Key, grad: ArrayLike, weight: ArrayLike) -> tuple[Array, Array]:
        """Return a gradient and the weight that it updates, both checked."""
        what = f"update of key {key!r}"
        gradient, stored = self._kernels.value(grad, what), self._kernels.out(weight, what)
        self.optimizer.check_weights(key, stored.dtype)
        if (gradient.shape, gradient.dtype) != (stored.shape, stored.dtype):
            raise ShapeMismatch(
                f"{what}: the gradient is {gradient.dtype} {gradient.shape}, the weight "
                f"{stored.dtype} {stored.shape}; give a gradient of the weight's shape and dtype",
                key=key,
            )
        return gradient, stored

    def _add_squares(self, gradient: Array, total: Array) -> None:
        """Add the squares of a flat gradient to ``total[0]``."""
        row, segments = np.array([[0.0, 1.0, -1.0]]), Segments(np.array([0, gradient.size]))
        arrays = gradient, gradient, (), row, segments, total.reshape(1, 1)
        scratch = self._kernels.measure_scratch(gradient.size, 1)
        self._kernels.measure("squares", *arrays, scratch)

    def _update(self, key: Key, gradient: Array, stored: Array, total: Array | None) -> None:
        """Update a weight; `total` is as of `Measured`."""
        states = self._states_of(key, stored)
        master = states.get(MASTER.name) if self.optimizer.multi_precision else None
        count = self._counts.get(key, 0) + 1
        before = self.optimizer.begin_num_update
        num_update = max(self.optimizer.num_update, before + count)
        step = self.optimizer.snapshot(num_update)
        self._counts[key] = count
        self.optimizer.count_updates(num_update)
        flat = stored.reshape(-1)  # a copy, if the weight is not in C order
        weights = real_numbers(flat)
        arrays = (
            weights,
            real_numbers(gradient.reshape(-1)),
            tuple(real_numbers(states[each.name].reshape(-1)) for each in step.states),
            np.array([step.scalars(key, before + count)], np.float64),
            Segments(np.array([0, weights.size], np.int64)),
        )
        wide = None if master is None else master.reshape(-1)
        norms, sums = PROGRAMS[step.program].norms, None
        if norms is not None:
            sums = np.zeros((1, norms.sums))
            scratch = self._kernels.measure_scratch(weights.size, 1)
            before_step = Measured(total=total)
            self._kernels.measure(
                step.program, *arrays, sums, scratch, master=wide, measured=before_step
            )
        self._kernels.update(step.program, *arrays, master=wide, measured=Measured(sums, total))
        if not np.may_share_memory(flat, stored):
            stored[...] = flat.reshape(stored.shape)

    def _states_of(self, key: Key, weight: Array) -> dict[str, Array]:
        """Return the states of a key by name; new states have their first elements."""
        states = self._states.setdefault(key, {})
        for each in self.optimizer.states_for(weight.dtype):
            if each.name not in states:
                dtype, copied = each.dtype_for(weight.dtype), each.init == "weights"
                states[each.name] = (
                    weight.astype(dtype, order="C") if copied else np.zeros(weight.shape, dtype)
                )
        for name, state in states.items():
            if state.shape != weight.shape:
                raise ShapeMismatch(
                    f"update of key {key!r}: its {name} has shape {state.shape}, the weight "
                    f"{weight.shape}; give the weight that the key had before, or another key",
                    key=key,
                )
        return states

    def state_dict(self) -> dict[str, Any]:
        """Return the states and counts of all keys, as checkpoints hold them.

        Returns
        -------
        dict
            ``"updates"`` is a list of ``[key, count]``; ``"state.3.momentum"`` is the momentum of
            the key with index 3 in this list.
        """
        keys = list(self._counts)
        found: dict[str, Any] = {"updates": [[key, self._counts[key]] for key in keys]}
        for index, key in enumerate(keys):
            for name, state in self._states[key].items():
                found[f"state.{index}.{name}"] = state
        return found

    @public
    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Replace all states and counts by the result of another updater's `state_dict`.

        Raises
        ------
        UsageError
            When `state` is no such result, or of an optimizer with other states.
        """
        counts = {key: int(count) for key, count in state.get("updates", [])}
        wanted = {
            f"state.{index}.{each.name}": (key, each.name)
            for index, key in enumerate(counts)
            for each in self.optimizer.states
        }
        masters = {
            f"state.{index}.{MASTER.name}": (key, MASTER.name)
            for index, key in enumerate(counts)
            if self.optimizer.multi_precision
        }
        given = state.keys() - {"updates"}
        if not wanted.keys() <= given <= wanted.keys() | masters.keys():
            raise UsageError(
                f"load_state_dict: the items are {sorted(map(str, state))}, and {self.optimizer!r} "
                f"has {sorted(wanted)} and 'updates'; load the state of such an optimizer"
            )
        self._counts = counts
        self._states = {key: {} for key in counts}
        for item in given:
            key, name = (wanted | masters)[item]
            self._states[key][name] = np.array(state[item], order="C")
        num_update = self.optimizer.begin_num_update + max(counts.values(), default=0)
        self.optimizer.count_updates(num_update)


@public
def get_updater(optimizer: Optimizer) -> Updater:
    """Return a function that updates arrays by an optimizer; MXNet's name.

    Parameters
    ----------
    optimizer : Optimizer

    Returns
    -------
    Updater
        A callable of (key, grad, weight), also for `set_updater`.

    Raises
    ------
    UsageError
        When `optimizer` is no optimizer.

    Examples
    --------
    >>> import numpy as np
    >>> from ncclkv.optimizer import SGD
    >>> update = get_updater(SGD(learning_rate=0.5))
    >>> weight = np.ones(2)
    >>> update("w", np.array([1.0, 2.0]), weight)
    >>> weight
    array([0.5, 0. ])
    """
    return Updater(optimizer)
