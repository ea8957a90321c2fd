"""`Trainer`: updates parameters from gradients of all ranks, as MXNet's Gluon does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from ncclkv import env
from ncclkv.arguments import check_flag, known_arguments
from ncclkv.compress.parameters import complete_parameters
from ncclkv.errors import DTypeMismatch, ReadOnlyAttribute, UsageError
from ncclkv.optimizer import create as create_optimizer
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.hyperparameters import finite
from ncclkv.store.backends import ALONE
from ncclkv.store.create import create
from ncclkv.store.kvstore import KVStore
from ncclkv.store.plugin import KVStoreBase
from ncclkv.tracebacks import public, public_methods
from ncclkv.trainer.local_updates import LocalUpdates
from ncclkv.trainer.parameters import Parameters
from ncclkv.trainer.stored_values import StoredValues


@public_methods()
class Trainer:
    """Sums gradients over all ranks and updates parameters in place; names are Gluon's.

    At its creation, a collective call, all parameters take rank 0's values.  The first step, or
    `load_states` before it, takes rank 0's values again if a rank has changed a parameter since.
    So a program may load parameters after it has created the trainer, and then states.

    With updates on the store, a program that changes parameters between steps (clipping, averages
    of weights, new values) calls `reset_values` after the change.  Else the next step raises
    `UsageError`, because the store would restore its own values.  The comparison reads each
    parameter in host memory once a step.

    ==========================  ===============================  =================================
    ``kvstore``                 ``update_on_kvstore=None``       updates
    ==========================  ===============================  =================================
    None                        False; True is refused           on this process alone
    a name of one process       False; True makes the store      on this process alone
    another name, or a store    True if the store is capable,    True: on the store, whose
                                unless the environment has       placement selects the ranks;
                                MXNET_UPDATE_ON_KVSTORE=0        False: on each rank, from sums
    ==========================  ===============================  =================================

    Parameters
    ----------
    params : torch.nn.Module, mapping, or iterable
        Parameters, with equal names in equal order on all ranks.  A module stands for its
        parameters that require a gradient.  A mapping has arrays by name; their gradients are
        assigned to `grads` before each step.  An iterable yields ``(name, value)``, or ``(name,
        value, gradient)`` with a gradient array that the program writes.  Tensors that require a
        gradient have their own.
    optimizer : str or Optimizer
        A name for `ncclkv.optimizer.create`, or an optimizer.
    optimizer_params : dict, optional
        Arguments of the named optimizer.
    kvstore : str, KVStore or None
        A name for `ncclkv.create`, a store without keys and optimizer, or None.  A trainer closes
        only a store that it has created.
    compression_params : dict, optional
        Passed to ``set_gradient_compression`` of the store, such as ``{"type": "fp16"}``.  Updates
        on this process alone compress nothing.
    update_on_kvstore : bool, optional
        Whether the optimizer runs on the store.  If not, gradients hold sums after each step, and
        parameters must lie in host memory.

    Attributes
    ----------
    optimizer : Optimizer
        A changed hyperparameter takes effect at the next step.
    kvstore : KVStore or None
    update_on_kvstore : bool
    grads : dict
        Gradients by name, of parameters that have none of their own.  A step uses and removes them.

    Raises
    ------
    UsageError
        When an argument is refused, such as a store with keys: each trainer needs its own store.
    DTypeMismatch
        When `compression_params` has a type that compresses none of the parameters.
    NotSupported
        When the store lacks what `compression_params` or `update_on_kvstore` ask for.
    LaunchError
        When MXNET_UPDATE_ON_KVSTORE is not a whole number.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> weights = {"w": np.ones(2), "b": np.zeros(1)}
    >>> trainer = ncclkv.Trainer(weights, "sgd", {"learning_rate": 0.5}, kvstore="local")
    >>> trainer.grads.update(w=np.array([2.0, 4.0]), b=np.ones(1))
    >>> trainer.step(batch_size=2)
    >>> weights
    {'w': array([0.5, 0. ]), 'b': array([-0.25])}
    """

    @known_arguments("Trainer")
    def __init__(
        self,
        params: Any,
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: str | KVStoreBase | None = "dist",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        self._params = Parameters(params)
        self._stored: StoredValues | None = None
        self.grads = self._params.grads
        self.optimizer = _optimizer(optimizer, optimizer_params)
        self._scale = self.optimizer.rescale_grad
        if update_on_kvstore is not None:
            update_on_kvstore = check_flag("update_on_kvstore", update_on_kvstore)
        self.kvstore: Any = _store(kvstore, update_on_kvstore)
        self._owned = self.kvstore if self.kvstore is not kvstore else None
        try:
            self.update_on_kvstore = _decide(self.kvstore, update_on_kvstore)
            self._local = None if self.update_on_kvstore else LocalUpdates(self.optimizer)
            self._open(compression_params)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _open(self, compression_params: Mapping[str, Any] | None) -> None:
        """Give the store its optimizer and keys, and all ranks rank 0's values."""
        store, params = self.kvstore, self._params
        if store is None:
            if compression_params is not None:
                complete_parameters(compression_params)  # a wrong name fails on one process, too
            return
        if compression_params is not None:
            store.set_gradient_compression(compression_params)
        if self.update_on_kvstore:
            store.set_optimizer(self.optimizer)
        if isinstance(store, KVStore):
            self._stored = StoredValues(store, params.names, params.values)
        else:
            store.broadcast(params.names, params.values, params.values)
        if compression_params is not None and isinstance(store, KVStore):
            _check_compressed(store, params.names, compression_params)

    def _start(self) -> None:
        """Take parameters that were loaded before the first step; collective."""
        if self._stored is not None:
            self._stored.start()

    # Steps

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Sum gradients over all ranks, divide by `batch_size`, and update; collective.

        Parameters
        ----------
        batch_size : float
            The samples of all ranks together, if gradients are sums over samples; above 0.
        ignore_stale_grad : bool
            Whether parameters without a gradient are left as they are.  All ranks must leave out
            the same, unless the store was created with ``missing="zeros"``.

        Raises
        ------
        UsageError
            When a parameter has no gradient; when the program has changed a parameter that the
            store updates, without a call of `reset_values`.  A change of a tensor on a GPU through
            its ``.data`` is not found.
        """
        names, gradients, values = self._begin(batch_size, ignore_stale_grad)
        self._start()
        if self.update_on_kvstore:
            self._step_on_store(names, gradients, values)
        else:
            self._reduce(names, gradients)
            self._update(names, gradients, values)
        self._params.clear()

    def _step_on_store(self, names: list[str], gradients: list[Any], values: list[Any]) -> None:
        """Sum gradients and update values on the store; refuse changes that would be lost."""
        if self._stored is not None:
            self._stored.check(names, values)
        self.kvstore.pushpull(names, gradients, out=values)
        if self._stored is not None:
            self._stored.note(names, values)

    def reset_values(self) -> None:
        """Take values that the program has given to parameters; collective.

        All ranks, and the store, get rank 0's values of all parameters.  The optimizer's states
        stay; master copies of 16-bit parameters get the new values.

        Raises
        ------
        UsageError
            When the store is in a block, such as ``uneven``.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> weight = np.ones(2)
        >>> with ncclkv.create("local") as kv:
        ...     trainer = ncclkv.Trainer({"w": weight}, "sgd", {"learning_rate": 0.5}, kvstore=kv)
        ...     for _ in range(2):
        ...         trainer.grads["w"] = np.array([1.0, -1.0])
        ...         trainer.step(1)
        ...         np.clip(weight, -1, 1, out=weight)
        ...         trainer.reset_values()
        array([0.5, 1. ])
        array([0., 1.])
        """
        if self._stored is not None:
            self._stored.reset()
        elif self.kvstore is not None:
            self.kvstore.broadcast(self._params.names, self._params.values, self._params.values)

    def allreduce_grads(self) -> None:
        """Sum gradients over all ranks, in place; collective.

        Call `update` after the program has used or changed the sums.

        Raises
        ------
        UsageError
            When the optimizer runs on the store, or a parameter has no gradient.
        """
        self._refuse_on_store("allreduce_grads")
        names, gradients, _ = self._params.gradients(ignore_missing=False)
        self._start()
        self._reduce(names, gradients)

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Update parameters from gradients that `allreduce_grads` has summed.

        Parameters as of `step`.

        Raises
        ------
        UsageError
            When the optimizer runs on the store, or a parameter has no gradient.
        """
        self._refuse_on_store("update")
        self._update(*self._begin(batch_size, ignore_stale_grad))
        self._params.clear()

    def _begin(
        self, batch_size: float, ignore_stale_grad: bool
    ) -> tuple[list[str], list[Any], list[Any]]:
        """Set the factor of the gradients; return names, gradients and values."""
        size = finite("batch_size", batch_size)
        if size <= 0:
            raise UsageError(f"batch_size is {batch_size!r}; give a number above 0")
        found = self._params.gradients(
            ignore_missing=check_flag("ignore_stale_grad", ignore_stale_grad)
        )
        factor = self._scale / size
        if self.optimizer.rescale_grad != factor:
            self.optimizer.rescale_grad = factor
        return found

    def _reduce(self, names: list[str], gradients: list[Any]) -> None:
        """Replace gradients by their sums over all ranks."""
        if self.kvstore is not None:
            self.kvstore.pushpull(names, gradients)

    def _update(self, names: list[str], gradients: list[Any], values: list[Any]) -> None:
        """Update values on this rank."""
        if self._local is not None:
            self._local.update(names, gradients, values)

    def _refuse_on_store(self, verb: str) -> None:
        """Refuse a verb that needs the sums, which stay on the store."""
        if self.update_on_kvstore:
            raise UsageError(
                f"{verb}: the optimizer runs on the store, so the sums stay there; call step, or "
                f"create the Trainer with update_on_kvstore=False"
            )

    # Hyperparameters and states

    @property
    @public
    def learning_rate(self) -> float:
        """The optimizer's present learning rate."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    @public
    def learning_rate(self, lr: object) -> NoReturn:
        raise ReadOnlyAttribute(
            f"learning_rate of a Trainer cannot be assigned; call set_learning_rate({lr!r})"
        )

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the next step; all ranks must set the same.

        Raises
        ------
        UsageError
            When `lr` is not a number of at least 0.
        """
        self.optimizer.set_learning_rate(lr)

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Write the optimizer's states and hyperparameters, without parameters; collective.

        Parameters
        ----------
        fname : path
            A directory, as for ``KVStore.save``.

        Raises
        ------
        CheckpointError
            When the directory cannot be written.
        """
        if self._local is None:
            self.kvstore.save_optimizer_states(fname, dump_optimizer=True)
        else:
            self._local.save(fname, self.kvstore)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Read what `save_states` has written, with the same `update_on_kvstore`; collective.

        Raises
        ------
        CheckpointError
            When the directory holds no such states.
        """
        self._start()
        if self._local is None:
            self.kvstore.load_optimizer_states(fname)
        else:
            self._local.load(fname)

    # End

    def close(self) -> None:
        """Close the store that the trainer has created, if any; collective."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owned is not None:
            self._owned.__exit__(kind, error, trace)


def _optimizer(given: Any, arguments: Mapping[str, Any] | None) -> Optimizer:
    """Return the trainer's optimizer."""
    if isinstance(given, Optimizer) and arguments:
        raise UsageError(
            f"optimizer_params={arguments!r} was given with the optimizer {given!r}; set its "
            f"attributes, or give the optimizer's name"
        )
    return given if isinstance(given, Optimizer) else create_optimizer(given, **(arguments or {}))


def _store(given: Any, update_on_kvstore: bool | None) -> Any:
    """Return the store of the trainer, or None."""
    if isinstance(given, KVStore):
        _refuse_used(given)
    if given is None or isinstance(given, KVStoreBase):
        return given
    if isinstance(given, str) and given.lower() in ALONE and not update_on_kvstore:
        return None
    return create(given)


def _refuse_used(store: KVStore) -> None:
    """Refuse a store whose keys or optimizer the trainer would replace."""
    found = f"the keys {store.keys()[0]!r}, ..." if store.keys() else ""
    if store.optimizer is not None:
        found = f"{found} and an optimizer" if found else "an optimizer"
    if found:
        raise UsageError(
            f"Trainer: the store already has {found}, perhaps of another Trainer; give each "
            f"Trainer a store of its own, made by ncclkv.create"
        )


def _check_compressed(store: KVStore, names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse a compression of no parameter: all gradients would be sent whole."""
    if not any(map(store.gradient_compression, names)):
        dtypes = sorted({str(store.spec(name).dtype) for name in names})
        raise DTypeMismatch(
            f"Trainer: compression_params={dict(given)} compresses no parameter, because their "
            f"dtypes are {', '.join(dtypes)}; train in float32, or leave compression_params out"
        )


def _decide(store: Any, update_on_kvstore: bool | None) -> bool:
    """Return whether the optimizer runs on the store."""
    capable = store is not None and store.is_capable(KVStoreBase.OPTIMIZER)
    if update_on_kvstore and not capable:
        what = "kvstore is None" if store is None else f"the store {store.type!r} runs no optimizer"
        raise UsageError(
            f"update_on_kvstore=True, but {what}; give another kvstore, or leave update_on_kvstore "
            f"out"
        )
    if update_on_kvstore is None:
        return capable and env.update_on_kvstore()
    return update_on_kvstore
