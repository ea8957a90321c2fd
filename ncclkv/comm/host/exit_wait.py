"""Exit wait: one rank waits, at its end, until all ranks have arrived, up to a deadline."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ncclkv import env
from ncclkv.comm.host.final_barrier import FinalBarrier, Member
from ncclkv.system import abort, stacks

# Ranks that come within this time announce their arrival to nobody.
_SOON = 0.5

# Between two looks at neighbours' processes, and how long one must have been gone: what it sent
# before its end has arrived by then.
_LOOK_SECONDS = 0.05
_GONE_SECONDS = 0.3

PATIENCE = 10.0
"""Most seconds that a rank waits for the others after a failure."""

# After a failure nothing is sent to other machines, where a second message to a dead process can
# crash this one: they get this long to end by themselves.
_OTHER_MACHINES = 2.0

_SHORTEST, _LONGEST = 50e-6, 5e-3


class ExitWait:
    """Wait until all members of some barriers have arrived, or it is in vain.

    Parameters
    ----------
    barriers : sequence of FinalBarrier
    failure : str
        The reason why this rank ends badly; empty when it does not.
    """

    def __init__(self, barriers: Sequence[FinalBarrier], failure: str) -> None:
        self._barriers = barriers
        self._timeout = max(each.timeout for each in barriers)
        self._limit = env.exit_timeout()
        self._deadlines = 0
        self._looked = self._start = time.monotonic()
        self._vain_since: float | None = None
        self._fail(failure)
        self.ends_job = False
        """True once ``NCCLKV_EXIT_TIMEOUT`` has passed."""

    def wait(self) -> str:
        """Wait; return the reason to end without ``MPI_Finalize``, empty when all have arrived."""
        from mpi4py import MPI

        begin, pause = self._start, _SHORTEST
        while True:
            try:
                if self._have_met(time.monotonic() - begin):
                    return ""
            except MPI.Exception as error:
                problem = f"CommAborted: MPI reports at the end: {abort.reason_of(error)}"
                return self._failure or problem
            now = time.monotonic()
            reason = self._in_vain(now) or self._too_long(now - begin, now - self._start)
            if reason:
                return reason
            if now - begin > self._timeout * (self._deadlines + 1):
                self._deadlines = int((now - begin) / self._timeout)
                self._name_late(now - begin)
            time.sleep(pause)
            pause = min(pause * 1.1, _LONGEST)

    def _fail(self, failure: str) -> None:
        """Note why this rank ends badly; from now on it waits a bounded time."""
        self._failure = failure
        self._hurry = bool(failure) and abort.may_end_the_job()
        self._start = time.monotonic()

    def _have_met(self, waited: float) -> bool:
        """Advance; return whether all have arrived."""
        for each in self._barriers:
            if self._hurry:
                each.announce(each.is_neighbour)
            elif waited > min(_SOON, self._timeout / 2):
                each.announce(lambda member: True)
            each.hear()
        # Ranks that failed enter only when that is safe: peers may be dead.
        if not self._hurry or not any(each.late() for each in self._barriers):
            for each in self._barriers:
                each.enter()
        passed = [each.passed() for each in self._barriers]
        return all(passed)

    def _in_vain(self, now: float) -> str:
        """Return the reason when no rank that is late can come any more."""
        if now - self._looked < _LOOK_SECONDS:
            return ""
        self._looked = now
        near, far = self._late()
        gone = [each for each in near if each.process.has_ended()]
        stuck = [each for each in near if each.process.state()]
        vain = (near or far) and len(stuck) == len(near) if self._hurry else gone
        if not vain:
            self._vain_since = None
            return ""
        self._vain_since = self._vain_since or now
        grace = _OTHER_MACHINES if far and self._hurry else _GONE_SECONDS
        if now - self._vain_since < grace:
            return ""
        if not self._failure:
            self._fail(f"RankDied: {gone[0]} has ended, and others wait for it at their end")
        return self._failure if self._hurry and len(stuck) == len(near) else ""

    def _late(self) -> tuple[list[Member], list[Member]]:
        """Return the late ranks whose processes can be seen from here, and the others."""
        near: dict[Member, None] = {}
        far: dict[Member, None] = {}
        for barrier in self._barriers:
            for member in barrier.late():
                (near if barrier.is_neighbour(member) else far)[member] = None
        return list(near), list(far)

    def _too_long(self, waited: float, failed: float) -> str:
        """Return the reason when this rank does not wait any longer.

        Parameters
        ----------
        waited, failed : float
            Seconds since the wait began, and since the failure.
        """
        if self._limit is not None and waited > self._limit:
            self.ends_job = True
            return (
                f"waited {waited:.1f} s (NCCLKV_EXIT_TIMEOUT={self._limit:g}) at the end of the "
                f"job for {self._names()}"
            )
        patience = min(self._timeout, PATIENCE) if self._hurry else self._timeout
        return self._failure if self._failure and failed > patience else ""

    def _names(self) -> str:
        """The late ranks, with their hosts and processes, and the state of those seen from here."""
        near, far = self._late()
        states = {each: each.process.state() for each in near}
        words = [f"{each}, which {state}" if state else str(each) for each, state in states.items()]
        return ", ".join([*words, *map(str, far)])

    def _name_late(self, waited: float) -> None:
        """Write who is late, and have the stacks of those written that can be seen from here."""
        for barrier in self._barriers:
            late = barrier.late()
            if late and barrier.is_first():
                sys.stderr.write(
                    f"{abort.here()} has waited {waited:.0f} s at the end of the job for "
                    f"{self._names()}; ranks end together, and the job goes on until they all do "
                    f"(NCCLKV_EXIT_TIMEOUT=SECONDS ends it instead)\n"
                )
                sys.stderr.flush()
            for each in late:
                if barrier.is_neighbour(each) and barrier.is_first(each.place):
                    stacks.show(each.pid, each.signal)
