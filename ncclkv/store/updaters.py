"""Verbs that say what becomes of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclkv.arguments import check_length
from ncclkv.engine.update_rule import FunctionRule, FusedRule, Rule
from ncclkv.errors import UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.fused import FusedUpdater
from ncclkv.store import check
from ncclkv.store.agreement import propose
from ncclkv.store.core import Core
from ncclkv.typing import Updater


class UpdateVerbs(Core):
    """``set_updater`` and ``set_optimizer``."""

    def set_updater(self, updater: Updater) -> None:
        """Fold sums into values by a function of the user's; collective.

        Parameters
        ----------
        updater : callable, or object with ``update`` and perhaps ``dispose``
            ``updater(key, input, stored)`` changes `stored` in place; its result is ignored.  `key`
            is as the user gave it, `input` the sum over all ranks, both arrays are NumPy arrays of
            the key's shape and the store's own: copy what is to be kept. It is called before
            ``push`` returns, once for each key pushed: ints ascending, strings in the order of
            their initialisation. What it raises leaves ``push``; with ``update_on="root"`` other
            ranks raise `UpdaterError` at their next pull or wait. ``dispose()`` is called when the
            updater is replaced or the store closed.

        Raises
        ------
        UsageError
            When `updater` cannot be called so.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> def update(key, input, stored):
        ...     stored += 2 * input
        >>> with ncclkv.create("local") as kv:
        ...     kv.init(3, np.zeros(2))
        ...     kv.set_updater(update)
        ...     kv.push(3, np.ones(2))
        ...     kv.pull(3)
        array([2., 2.])
        """
        with self._session.verb("set_updater"):
            self._operations.note("set_updater")
            rule, notes = propose(
                self._comm,
                "set_updater",
                lambda: (self._function_rule(updater), ["an updater"]),
                note=self._engine.layout.sealed,
            )
            self._install(rule, notes)
        self._raise_late()

    _set_updater = set_updater

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Run an optimizer on the store; pushes are gradients then, and pulls weights; collective.

        Parameters
        ----------
        optimizer : Optimizer
            Such as ``ncclkv.optimizer.SGD(learning_rate=0.1, momentum=0.9)``, alike on all ranks.
            Changes of its learning rate and other attributes take effect at the next push.  Setting
            the same object again keeps its state; another one starts anew.

        Raises
        ------
        UsageError
            When `optimizer` is not an `Optimizer`.
        SpecMismatch
            On every rank, when ranks set different ones.

        Examples
        --------
        >>> import numpy as np, ncclkv
        >>> with ncclkv.create("local") as kv:
        ...     kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
        ...     kv.init("w", np.ones(2))
        ...     kv.push("w", np.ones(2))
        ...     kv.pull("w")
        array([0.5, 0.5])
        """
        with self._session.verb("set_optimizer"):
            self._operations.note("set_optimizer")
            again = self._engine.rule.source is optimizer
            rule, notes = propose(
                self._comm,
                "set_optimizer",
                lambda: (
                    self._fused_rule(optimizer),
                    [*_config(optimizer), f"its state is kept: {again}"],
                ),
                note=self._engine.layout.sealed,
            )
            if not again:
                self._install(rule, notes)
        self._raise_late()

    def _fused_rule(self, optimizer: Optimizer) -> FusedRule:
        """Return the rule of an optimizer that can update the store's keys."""
        if not isinstance(optimizer, Optimizer):
            raise UsageError(
                f"set_optimizer takes an Optimizer, not a {type(optimizer).__name__}; make one by "
                f"ncclkv.optimizer.create('sgd', learning_rate=0.1)"
            )
        rule = FusedRule(FusedUpdater(optimizer, self._kernels), type(optimizer).__name__)
        for spec in self._engine.layout.registry:
            check.updatable(rule.check, spec)
        return rule

    def _install(self, rule: Rule, sealed: Sequence[bool]) -> None:
        """Change the rule; if one of the ranks has sealed the layout, all have."""
        try:
            if any(sealed):
                self._engine.layout.seal()
            self._engine.set_rule(rule)
        except MemoryError as error:  # here alone; the others have changed theirs
            self._session.broken_off("the change of the updater", error)
            raise
        # Another rule may refuse other keys, and have values elsewhere.
        self._recent.clear()

    def _function_rule(self, updater: Any) -> FunctionRule:
        """The rule of a function or an object with ``update``."""
        if isinstance(updater, Optimizer):
            raise UsageError(
                f"set_updater takes a function, and {updater!r} is an optimizer; call set_optimizer"
            )
        update = updater if callable(updater) else getattr(updater, "update", None)
        if isinstance(updater, type) or not callable(update):
            check_length("set_updater: the updater", updater)
            raise UsageError(
                f"set_updater takes a function of (key, input, stored), or an object with such an "
                f"update method, not {updater!r}; a store without an updater is a new one"
            )
        dispose = getattr(updater, "dispose", None)
        return FunctionRule(
            updater,
            self._guarded(update),
            self._guarded(dispose) if callable(dispose) else lambda: None,
            self.rank,
            getattr(updater, "__name__", type(updater).__name__),
        )

    def _guarded(self, function: Callable[..., object]) -> Callable[..., object]:
        """A function of the user's, inside which the store's verbs are refused."""

        def call(*arguments: Any) -> object:
            with self._session.updating():
                return function(*arguments)

        return call


def _config(optimizer: Optimizer) -> list[str]:
    """What ranks must have alike of an optimizer."""
    return [f"{name}={value}" for name, value in optimizer.config().items()]
