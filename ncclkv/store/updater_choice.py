"""Updaters: choose how a sum is folded into a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclkv.arguments import check_flag, check_length
from ncclkv.engine.update_rule import FunctionRule, KeepSums, Rule
from ncclkv.errors import UsageError
from ncclkv.other_names import is_of_mxnet, optimizer_of_another
from ncclkv.store import check
from ncclkv.store.agreement import propose
from ncclkv.store.context import Component
from ncclkv.store.session import Session

if TYPE_CHECKING:
    from ncclkv.engine.fused_rule import FusedRule
    from ncclkv.optimizer.base import Optimizer


class UpdaterChoice(Component):
    """Sets a function or an optimizer as the engine's update rule, the same on all ranks."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer in force; None if there is none, or a function."""
        from ncclkv.optimizer.base import Optimizer

        source: Any = self._engine.rule.source
        return source if isinstance(source, Optimizer) else None

    # Verbs

    def use_function(self, updater: Any) -> None:
        """Fold sums into values by a function of the program; collective."""
        with self._session.verb("set_updater", raises=True):
            self._use("set_updater", lambda: (self._function_rule(updater), ["an updater"]))

    def use_optimizer(self, optimizer: Any, *, reset_states: Any) -> None:
        """Fold sums into values by an optimizer; collective."""
        from ncclkv.engine.fused_rule import FusedRule  # a store that only sums needs none

        with self._session.verb("set_optimizer", raises=True):
            before, config = self._engine.rule, {}
            again = before.source is optimizer and reset_states is False

            def make() -> tuple[Rule, list[str]]:
                rule = self._fused_rule(optimizer)
                config.update(optimizer.config())
                items = [f"{name}={value}" for name, value in config.items()]
                kept = None
                if isinstance(before, FusedRule) and not check_flag("reset_states", reset_states):
                    kept = before.continued_by(optimizer, self._engine.layout.states)
                return kept or rule, [*items, f"its state is kept: {kept is not None}"]

            self._use("set_optimizer", make, again=again)
            self._calls.agree_hyperparameters(config)

    def keep_sums(self) -> None:
        """Let all later keys have sums alone, which stay in the gradients; collective."""
        with self._session.verb("set_updater", raises=True):
            self._use("set_updater", lambda: (KeepSums(), ["sums"]))
            self._engine.layout.has_values = False

    def _use(
        self, verb: str, make: Callable[[], tuple[Rule, list[str]]], *, again: bool = False
    ) -> None:
        """Put a rule in force that all ranks make alike, unless it is in force already."""
        layout = self._engine.layout

        def checked() -> tuple[Rule, list[str]]:
            if not layout.has_values:
                raise UsageError(
                    f"{verb}: the keys of this store have no values to update, since it serves "
                    f"the module that DataParallel wraps; create another store"
                )
            return make()

        self._calls.record(verb)
        rule, sealed = propose(self._comm, verb, checked, note=layout.sealed)
        if not again:
            self._engine.set_rule(rule, sealed)

    # Rules

    def _fused_rule(self, optimizer: Any) -> FusedRule:
        """Make the rule of an optimizer.

        Raises
        ------
        UsageError
            When the argument is no `Optimizer`.
        DTypeMismatch
            When the store has a complex key, and the optimizer updates no complex weights.
        """
        from ncclkv.engine.fused_rule import FusedRule
        from ncclkv.optimizer.base import Optimizer

        if not isinstance(optimizer, Optimizer):
            if is_of_mxnet(optimizer):
                raise UsageError(
                    f"set_optimizer takes an optimizer of ncclkv, not MXNet's "
                    f"{type(optimizer).__name__}; after `import ncclkv.mxnet` the store of "
                    f"ncclkv.mxnet.create('dist_sync') takes MXNet's, or make one of ncclkv by "
                    f"ncclkv.optimizer.create('sgd', learning_rate=0.1)"
                )
            if found := optimizer_of_another(optimizer):
                raise UsageError(f"set_optimizer: {found}")
            given = f"a {type(optimizer).__name__}"
            if isinstance(optimizer, type):
                given = f"the class {optimizer.__name__}"
            raise UsageError(
                f"set_optimizer takes an Optimizer, not {given}; make one by "
                f"ncclkv.optimizer.create('sgd', learning_rate=0.1)"
            )
        rule = FusedRule(optimizer, self._engine.kernels)
        for spec in self._engine.layout.registry:
            check.updatable(rule.check, spec)
        return rule

    def _function_rule(self, updater: Any) -> FunctionRule:
        """Return the rule of a function, or of an object with ``update``."""
        from ncclkv.optimizer.base import Optimizer

        if isinstance(updater, Optimizer):
            raise UsageError(
                f"set_updater takes a function, and {updater!r} is an optimizer; call set_optimizer"
            )
        if is_of_mxnet(updater):
            raise UsageError(_of_mxnet(updater))
        update = updater if callable(updater) else getattr(updater, "update", None)
        if isinstance(updater, type) or not callable(update):
            check_length("set_updater: the updater", updater)
            raise UsageError(
                f"set_updater takes a function of (key, input, stored), or an object with such an "
                f"update method, not {updater!r}; to have no updater, create a new store"
            )
        _check_signature(update)
        dispose = getattr(updater, "dispose", None)
        return FunctionRule(
            updater,
            _guarded(self._session, update),
            _guarded(self._session, dispose) if callable(dispose) else lambda: None,
            self._comm.rank,
            getattr(updater, "__name__", type(updater).__name__),
            warns=self._comm.rank == 0 or not self._engine.placement.replicated,
        )


def _check_signature(update: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with three arguments, before the first push."""
    try:
        signature = inspect.signature(update)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(*("key", "input", "stored"))
    except TypeError as error:
        raise UsageError(
            f"set_updater: the updater is called with (key, input, stored), and takes "
            f"{signature} ({error}); write def updater(key, input, stored)"
        ) from None


def _of_mxnet(updater: Any) -> str:
    """Return the text of the error for an optimizer of MXNet, or its ``Updater``."""
    kind = f"MXNet's {type(updater).__name__}"
    if not callable(updater):
        return f"set_updater takes a function, and {kind} is an optimizer; call set_optimizer"
    return (
        f"set_updater: {kind} updates NDArrays, and this store has NumPy arrays; after `import "
        f"ncclkv.mxnet` give it to the store of ncclkv.mxnet.create('dist_sync')"
    )


def _guarded(session: Session, function: Callable[..., object]) -> Callable[..., object]:
    """Return a function of the program, wrapped so that it cannot call the store's verbs."""

    def call(*arguments: Any) -> object:
        with session.updating():
            return function(*arguments)

    return call
