"""How long a wait has lasted, and when to look beyond what it waits for."""

from __future__ import annotations

import time

from ncclkv.comm import backoff

# Sleeps grow faster than between messages: a poll of an event costs more than one of a message.
_ATTEMPTS_PER_DOUBLING = 8

# Between two looks at the clock and at whatever costs more than a look at an event.
_LOOK_SECONDS = 5e-3

# A rank may leave just after it did its part, whose result is still on its way to us.
_GRACE_SECONDS = 0.2


class Deadline:
    """The clock of one wait of the host, which begins now.

    Parameters
    ----------
    limit : float
        Seconds that the wait may take.

    Attributes
    ----------
    waited : float
        Seconds that it had taken at the last `pause` or `tick`.
    reported : int
        How often a line on stderr was due about it.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.waited = 0.0
        self.reported = 0
        self._start = self._looked = time.monotonic()
        self._lost: float | None = None
        self._attempt = 0

    def pause(self) -> bool:
        """Let others run for a moment; tell whether it is time to look around."""
        self._attempt += 1
        backoff.pause(self._attempt, _ATTEMPTS_PER_DOUBLING)
        now = self.tick()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def tick(self) -> float:
        """Look at the clock: how long the wait has lasted so far."""
        now = time.monotonic()
        self.waited = now - self._start
        return now

    def late(self) -> bool:
        """Tell whether the limit had passed at the last `pause` or `tick`."""
        return self.waited > self.limit

    def lost_long_ago(self) -> bool:
        """Whether the first call of this lies far enough back."""
        self._lost = self.waited if self._lost is None else self._lost
        return self.waited - self._lost > _GRACE_SECONDS
