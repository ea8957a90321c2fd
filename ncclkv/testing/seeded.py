"""`Seeded`: a world in which one seed decides every turn, every delay and the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from ncclkv import env
from ncclkv.arguments import check_count
from ncclkv.comm.host import threads as ranks_as_threads
from ncclkv.errors import KVStoreError, UsageError, annotate
from ncclkv.testing import batons
from ncclkv.testing.faults import Fault, Faults
from ncclkv.testing.habits import Habits, draw_habits
from ncclkv.testing.identities import Identities
from ncclkv.testing.installed import installed
from ncclkv.testing.mail import SeededTransport
from ncclkv.testing.point_log import PointLog
from ncclkv.testing.program import run_as_rank
from ncclkv.testing.turns import NANOSECONDS, Turns, WorldEnd
from ncclkv.testing.world_threads import Thread, Threads, only_world

Result = TypeVar("Result")


class NoProgress(KVStoreError):
    """No rank of a seeded world can go on; the text has the stack of each."""


@dataclass
class RankOutcomes(Generic[Result]):
    """Results and exceptions of the ranks of a world.

    Attributes
    ----------
    results : dict of int to object
        The results of the ranks that returned.
    errors : dict of int to BaseException
        The exceptions of the ranks that raised.
    seconds : dict of int to float
        The time at which each rank ended.
    """

    results: dict[int, Result] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)


class Seeded:
    """A world of ranks in which one seed decides every turn, every delay and the time.

    One rank runs at a time.  The world draws from the seed who runs next, whether a rank loses
    time, and how long a message takes.  Clocks of the package show a time that the world moves, so
    a timeout of minutes passes in a second.  The same seed and program give the same trace.

    Parameters
    ----------
    seed : int
    keep_trace : bool
        Whether to keep each point as a line of text, in `trace`.
    faults : sequence of Fault, optional
        Of `ncclkv.testing.faults`: what goes wrong.
    lines : sequence of str, optional
        Ends of paths of source files, as ``diagnosis/hang.py``: each of their lines is a point.
    habits : Habits, optional
        Of `ncclkv.testing.habits`; by default drawn from the seed.

    Attributes
    ----------
    seed : int
    trace : list of str
        The points of the last run: time in nanoseconds, actor, label, file and line.
    sha256 : str
        The SHA-256 of all points of the last run.
    seconds : float
        The length of the last run by the world's clock.
    lost : float
        Seconds that the world took from ranks and messages of the last run, all together.
    points : int
        Count of points of the last run.

    Examples
    --------
    >>> import numpy as np, ncclkv
    >>> def body():
    ...     with ncclkv.create("dist") as kv:
    ...         kv.init("w", np.zeros(2))
    ...         kv.push("w", np.full(2, kv.rank + 1.0))
    ...         return kv.pull("w")
    >>> world = ncclkv.testing.Seeded(7)
    >>> ncclkv.testing.run_ranks(3, body, world=world)
    [array([6., 6.]), array([6., 6.]), array([6., 6.])]
    >>> first = world.sha256
    >>> ncclkv.testing.run_ranks(3, body, world=world)[0]
    array([6., 6.])
    >>> world.sha256 == first
    True
    """

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        faults: Sequence[Fault] = (),
        lines: Sequence[str] = (),
        habits: Habits | None = None,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"Seeded: seed is {seed!r}; give an int, as Seeded(7)")
        self.seed = seed
        self.trace: list[str] = []
        self.sha256 = ""
        self.seconds = self.lost = 0.0
        self.points = 0
        self._keep_trace = keep_trace
        self._habits = habits
        self._faults = faults
        self._files = lines

    def run(
        self, size: int, body: Callable[[], Result], timeout: float | None = None
    ) -> RankOutcomes[Result]:
        """Run a function on ranks of this world, and return what each did.

        Raises
        ------
        NoProgress
            When no rank can go on.
        UsageError
            When `size` is not an int above 0, or another world runs in this process.
        """
        check_count("Seeded.run: size", size, 1)
        random = Random(self.seed)
        drawn = draw_habits(random)
        habits = self._habits or drawn
        trace = PointLog(keep=self._keep_trace)
        turns = Turns(
            random, habits, trace, batons.choose(threads=bool(self._files)), Faults(self._faults)
        )
        outcome: RankOutcomes[Result] = RankOutcomes()
        threads = Threads(turns, Identities(self.seed), self._files)
        with only_world(threads), installed(threads, habits):
            made = ranks_as_threads.communicators(size, env.timeout(timeout), SeededTransport)
            for rank, communicator in enumerate(made):
                _SeededRank(rank, communicator, body, outcome, turns).start_on(rank)
            try:
                turns.run()
            finally:
                ranks_as_threads.release(made)
        self.trace, self.sha256 = trace.lines, trace.sha256
        self.seconds, self.points = turns.seconds, turns.points
        self.lost = turns.lost / NANOSECONDS
        for error in outcome.errors.values():
            annotate(error, f"in the world of seed {self.seed}, after {turns.seconds:.6f} s")
        if turns.ended:
            stacks = "\n".join(turns.stacks.values())
            raise NoProgress(f"seed {self.seed}: {turns.ended} at {turns.seconds:.6f} s\n{stacks}")
        return outcome


class _SeededRank(Thread, Generic[Result]):
    """A thread of a world that is a rank.

    Parameters
    ----------
    rank : int
    communicator : HostCommunicator
    body : callable
    outcome : RankOutcomes
        Gets the result of `body`, or its exception.
    turns : Turns
    """

    def __init__(
        self,
        rank: int,
        communicator: Any,
        body: Callable[[], Result],
        outcome: RankOutcomes[Result],
        turns: Turns,
    ) -> None:
        super().__init__(name=f"rank {rank}")
        self._rank, self._communicator, self._body = rank, communicator, body
        self._outcome, self._turns = outcome, turns

    def run(self) -> None:
        try:
            self._outcome.results[self._rank] = run_as_rank(self._communicator, self._body)
        except WorldEnd:
            raise
        except BaseException as error:
            self._outcome.errors[self._rank] = error
        self._outcome.seconds[self._rank] = self._turns.seconds
