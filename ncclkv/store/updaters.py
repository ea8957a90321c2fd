"""Updaters: choose how a sum is folded into a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclkv.arguments import check_length
from ncclkv.engine.fused_rule import FusedRule
from ncclkv.engine.update_rule import FunctionRule, Rule
from ncclkv.errors import UsageError
from ncclkv.optimizer.base import Optimizer
from ncclkv.store import check
from ncclkv.store.agreement import propose
from ncclkv.store.context import Context
from ncclkv.store.session import Session


class Updaters:
    """Sets a function or an optimizer as the engine's update rule, alike on all ranks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls

    # Verbs

    def use_function(self, updater: Any) -> None:
        """Fold sums into values by a function of the program."""
        with self._session.verb("set_updater"):
            self._calls.record("set_updater")
            rule, sealed = propose(
                self._comm,
                "set_updater",
                lambda: (self._function_rule(updater), ["an updater"]),
                note=self._engine.layout.sealed,
            )
            self.install(rule, sealed)
        self._context.raise_updater_error()

    def use_optimizer(self, optimizer: Any) -> None:
        """Fold sums into values by an optimizer."""
        with self._session.verb("set_optimizer"):
            self._calls.record("set_optimizer")
            again = self._engine.rule.source is optimizer
            rule, sealed = propose(
                self._comm,
                "set_optimizer",
                lambda: (
                    self._fused_rule(optimizer),
                    [*_config(optimizer), f"its state is kept: {again}"],
                ),
                note=self._engine.layout.sealed,
            )
            if not again:
                self.install(rule, sealed)
        self._context.raise_updater_error()

    # For other components

    def install(self, rule: Rule, sealed: Sequence[bool]) -> None:
        """Follow another rule; collective.

        Parameters
        ----------
        rule : Rule
        sealed : sequence of bool
            Whether all keys have places, on each rank: if they have on a rank, they get them here.
        """
        if any(sealed):
            self._engine.layout.seal()
        self._engine.set_rule(rule)

    # Rules

    def _fused_rule(self, optimizer: Any) -> FusedRule:
        """Return the rule of an optimizer that can update the store's keys."""
        if not isinstance(optimizer, Optimizer):
            raise UsageError(
                f"set_optimizer takes an Optimizer, not a {type(optimizer).__name__}; make one by "
                f"ncclkv.optimizer.create('sgd', learning_rate=0.1)"
            )
        rule = FusedRule(optimizer, self._engine.kernels)
        for spec in self._engine.layout.registry:
            check.updatable(rule.check, spec)
        return rule

    def _function_rule(self, updater: Any) -> FunctionRule:
        """Return the rule of a function, or of an object with ``update``."""
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
            _guarded(self._session, update),
            _guarded(self._session, dispose) if callable(dispose) else lambda: None,
            self._comm.rank,
            getattr(updater, "__name__", type(updater).__name__),
        )


def _guarded(session: Session, function: Callable[..., object]) -> Callable[..., object]:
    """Return a function of the program's, inside which the store's verbs are refused."""

    def call(*arguments: Any) -> object:
        with session.updating():
            return function(*arguments)

    return call


def _config(optimizer: Optimizer) -> list[str]:
    """Return the hyperparameters that ranks must have alike."""
    return [f"{name}={value}" for name, value in optimizer.config().items()]
