"""Exit wait: one rank waits, at its end, until all ranks have arrived, up to a deadline."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from ncclkv import concurrency, env
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.host.final_barrier import FinalBarrier
from ncclkv.comm.host.peer_processes import RankProcess
from ncclkv.errors import CommError
from ncclkv.system import abort

# Seconds between two polls of the late ranks' processes.
_PROCESS_SECONDS = 0.05

# Messages that a process sent before its end have arrived after this time.
_ARRIVAL_SECONDS = 0.3

PATIENCE = 10.0
"""Maximum of seconds that a rank waits for the others after a failure."""

# After a failure no notice is sent to other machines: a second message to a dead process can crash
# MPICH.  The ranks there have this time to end by themselves.  Without a failure, the notice of a
# process that has ended there has this time to arrive.
_OTHER_MACHINES_SECONDS = 2.0

# Longer sleeps than of other waits: a rank may work for hours after the others have ended.
_FIRST_SLEEP, _MAX_SLEEP = 50e-6, 5e-3


class ExitWait:
    """Waits until all ranks of some barriers have arrived, or no late rank can arrive.

    Parameters
    ----------
    barriers : sequence of FinalBarrier
    failure : str
        The reason of this rank's failure; empty without one.

    Attributes
    ----------
    ends_job : bool
        True once ``NCCLKV_EXIT_TIMEOUT`` has passed.
    """

    def __init__(self, barriers: Sequence[FinalBarrier], failure: str) -> None:
        self._barriers = barriers
        self._timeout = max(each.timeout for each in barriers)
        self._failure, self._failed_at = failure, 0.0
        self._may_end_job = abort.may_end_the_job()
        self._polled_at = 0.0
        self._in_vain_since = math.inf
        self._reports = 0
        self.ends_job = False

    def wait(self) -> str:
        """Wait; return the reason to end without ``MPI_Finalize``, empty when all have arrived."""
        limit, waited = env.exit_timeout(), 0.0
        for waited in Backoff(math.inf if limit is None else limit, _pause):
            try:
                if self._all_arrived():
                    return ""
                if self._gives_up(waited):
                    return self._failure
                if waited > self._timeout * (self._reports + 1):
                    self._reports = int(waited / self._timeout)
                    self._report_late(waited)
            except CommError as error:
                return self._failure or abort.reason_of(error)
        self.ends_job = True
        return (
            f"waited {waited:.1f} s (NCCLKV_EXIT_TIMEOUT={limit:g}) at the end of the job for "
            f"{self._describe_late()}"
        )

    def _is_short(self) -> bool:
        """Return whether this rank has failed, and so waits for a short time only."""
        return bool(self._failure) and self._may_end_job

    def _all_arrived(self) -> bool:
        """Exchange notices; return whether all ranks have arrived."""
        late = any(each.late() for each in self._barriers)
        for each in self._barriers:
            each.arrive(near_only=self._is_short() and late)
        return not late

    def _gives_up(self, waited: float) -> bool:
        """Return whether this rank ends with its failure, and waits no longer."""
        if waited - self._polled_at > _PROCESS_SECONDS:
            self._polled_at = waited
            if self._waits_in_vain(waited):
                return True
        patience = min(self._timeout, PATIENCE) if self._is_short() else self._timeout
        return bool(self._failure) and waited - self._failed_at > patience

    def _waits_in_vain(self, waited: float) -> bool:
        """Return whether no late rank can arrive; the end of an awaited process is a failure."""
        near, far = self._late()
        ended = [each for each, has_ended in {**near, **far}.items() if has_ended]
        all_stuck = all(each.state() for each in near)
        if not ((near or far) and all_stuck if self._is_short() else ended):
            self._in_vain_since = math.inf
            return False
        self._in_vain_since = min(self._in_vain_since, waited)
        beyond = far if self._is_short() else ended[0] in far
        if waited - self._in_vain_since < (_OTHER_MACHINES_SECONDS if beyond else _ARRIVAL_SECONDS):
            return False
        if not self._failure:
            self._failure = f"RankDied: {ended[0]} has ended, and other ranks wait for its arrival"
            self._failed_at = waited
        return self._is_short() and all_stuck

    def _late(self) -> tuple[dict[RankProcess, bool], dict[RankProcess, bool]]:
        """Return the late processes that can be seen from here, and the others.

        The value of a process is whether it is known to have ended.
        """
        near: dict[RankProcess, bool] = {}
        far: dict[RankProcess, bool] = {}
        for peers, ranks in ((each.peers, each.late()) for each in self._barriers):
            for rank in ranks:
                found = near if peers.is_near(rank) else far
                found[peers.of(rank)] = peers.has_ended(rank)
        return near, far

    def _describe_late(self) -> str:
        """Describe the late processes, and the states of those that can be seen from here."""
        near, far = self._late()
        states = {each: each.state() for each in near}
        seen = [f"{each}, which {state}" if state else str(each) for each, state in states.items()]
        return ", ".join([*seen, *map(str, far)])

    def _report_late(self, waited: float) -> None:
        """Write a line about the late ranks, and make neighbours among them write stacks."""
        if any(each.late() and each.is_first() for each in self._barriers):
            sys.stderr.write(
                f"{abort.here()} has waited {waited:.0f} s at the end of the job for "
                f"{self._describe_late()}; ranks end together, and the job goes on until they "
                f"all do (NCCLKV_EXIT_TIMEOUT=SECONDS ends it instead)\n"
            )
            sys.stderr.flush()
        stuck = {
            each.peers.of(rank)
            for each in self._barriers
            if each.is_first(near_only=True)
            for rank in filter(each.peers.is_near, each.late())
        }
        for process in stuck:
            process.show_stacks()


def _pause(attempt: int) -> None:
    concurrency.sleep(min(_FIRST_SLEEP * attempt, _MAX_SLEEP))
