"""`Steps`: snapshots of an optimizer's hyperparameters, a new one only after a change."""

from __future__ import annotations

from typing import Any

from ncclkv.optimizer.base import Optimizer


class Steps:
    """The steps of one optimizer.

    Each push keeps its step, because its update may run after a later change of a hyperparameter.
    A bucket is launched before a push with another step, so an equal value must not make a new
    step: a rank that assigns it would launch other collectives.

    Attributes
    ----------
    source : Optimizer
    config : dict
        The hyperparameters of the last step, as `Optimizer.config` returns them.
    """

    def __init__(self, source: Optimizer) -> None:
        self.source = source
        self.config: dict[str, Any] = {}
        self._version: object = None
        self._step = source
        self._rates: tuple[float, float] | None = None

    def at(self, num_update: int) -> Optimizer:
        """Return the present step: the same object until a hyperparameter changes.

        Parameters
        ----------
        num_update : int
            Index of the update, for a schedule of the learning rate.

        Raises
        ------
        UsageError
            When a factor, or the learning rate of the schedule, is not a finite number.
        """
        source, version = self.source, self.source.version
        unchanged = version == self._version
        if unchanged and source.lr_scheduler is None:
            return self._step
        config, rates = self.config if unchanged else source.config(), source.rates_at(num_update)
        if config != self.config or rates != self._rates:
            self._step, self._rates = source.snapshot(num_update), rates
        self._version, self.config = version, config
        return self._step
