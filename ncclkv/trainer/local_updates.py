"""`LocalUpdates`: an optimizer that each rank runs on its own parameters, from equal gradients."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from ncclkv.errors import CheckpointError, UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.restore import copied, set_config
from ncclkv.optimizer.updater import Updater, get_updater
from ncclkv.store.create import create
from ncclkv.store.kvstore import KVStore


class LocalUpdates:
    """Updates parameters in place, without a store."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._updater = get_updater(optimizer)

    def update(self, names: Sequence[str], gradients: Sequence[Any], values: Sequence[Any]) -> None:
        """Update values by their gradients."""
        self._updater.update_all(names, gradients, values)

    def save(self, fname: str | os.PathLike[str], ranks: KVStore | None) -> None:
        """Write states, counts and hyperparameters to a directory; collective over `ranks`.

        All ranks hold the same states, and the first writes them.

        Raises
        ------
        CheckpointError, UsageError
            On every rank, when the first rank cannot write.
        """
        failure: Exception | None = None
        if ranks is None or ranks.rank == 0:
            try:
                with _holder(self._updater) as holder:
                    holder.save(fname, extra=_to_plain(self._updater.optimizer.config()))
            except Exception as error:
                failure = error
        failed = failure is not None
        if ranks is not None:
            failed = ranks.allreduce(failed, "max")
        if failure is not None:
            raise failure
        if failed:
            raise CheckpointError(f"save_states: rank 0 could not write {fname}; see its error")

    def load(self, fname: str | os.PathLike[str]) -> None:
        """Read what `save` has written; change nothing if it does not fit.

        Raises
        ------
        CheckpointError
            When `fname` holds no such states, or those of another optimizer.
        """
        optimizer = self._updater.optimizer
        # The states are loaded beside those in use, until states and hyperparameters are checked.
        loaded = get_updater(copied(optimizer))
        with _holder(loaded) as holder:
            found = holder.load(fname)
        config = _from_plain(None if found is None else found.extra, fname)
        try:
            set_config(optimizer, config)
        except UsageError as error:
            raise CheckpointError(
                f"load_states: the hyperparameters in {fname} are not those of this trainer's "
                f"optimizer: "
                f"{error}"
            ) from error
        self._updater.load_state_dict(loaded.state_dict())


def _holder(updater: Updater) -> KVStore:
    """Return a store of this process, whose checkpoints hold the states of an updater."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a store of this process alone is intended
        holder = create("local")
    holder.set_updater(updater)
    return holder


def _to_plain(config: dict[str, Any]) -> list[list[Any]]:
    """Convert an optimizer's hyperparameters to JSON values; a dict becomes a list of pairs."""
    return [
        [name, "pairs", [list(item) for item in value.items()]]
        if isinstance(value, dict)
        else [name, "value", value]
        for name, value in config.items()
    ]


def _from_plain(plain: Any, fname: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the hyperparameters that `_to_plain` has converted."""
    try:
        return {
            name: dict(map(tuple, value)) if kind == "pairs" else value
            for name, kind, value in plain
        }
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"load_states: {fname} was not written by save_states of a trainer that updates on "
            f"each rank; load it with the update_on_kvstore that it was saved with"
        ) from error
