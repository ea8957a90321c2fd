"""Ranks for tests of the emulated NCCL: processes that each run one function."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.harness.slow import stretched

LIMIT = 30.0
"""Seconds of all ranks; afterwards they are killed, and their test fails."""

PRELOADED = ["numpy", "ml_dtypes", "pytest", "tests.nccl.emulated.collectives"]


@dataclass
class World:
    """A rank's connection to the others, by files.

    Attributes
    ----------
    rank, size : int
    """

    rank: int
    size: int
    folder: Path
    _steps: int = 0

    def tell(self, what: object = None) -> list[Any]:
        """Send an object to all ranks; return the objects of all, in order."""
        self._steps += 1
        self.say(f"step{self._steps}-{self.rank}", what)
        return [self.hear(f"step{self._steps}-{rank}") for rank in range(self.size)]

    def say(self, name: str, what: object = None) -> None:
        """Publish an object under a name; any process of the world can read it later."""
        unfinished = self.folder / f".{name}-{self.rank}"
        unfinished.write_bytes(pickle.dumps(what))
        unfinished.rename(self.folder / name)

    def hear(self, name: str) -> Any:
        """Wait until a name is published, and return its object."""
        while not (self.folder / name).exists():
            time.sleep(0.001)
        return pickle.loads((self.folder / name).read_bytes())


@dataclass
class Rank:
    """The end of a rank.

    Attributes
    ----------
    code : int or None
        The exit code, negative for a signal; None if the rank was killed at the end.
    result : object
        Result of its function.
    out, err : str
    """

    code: int | None
    result: Any
    out: str
    err: str


@dataclass
class Running:
    """Ranks that are running."""

    world: World
    processes: list[BaseProcess] = field(default_factory=list)

    def kill(self, rank: int) -> None:
        """Kill a rank, and wait until it is dead."""
        self.processes[rank].kill()
        self.processes[rank].join()

    def join(self, limit: float = LIMIT) -> list[Rank]:
        """Wait for all ranks; return their ends."""
        until = time.monotonic() + stretched(limit)
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        ranks = [self._ended(rank) for rank in range(self.world.size)]
        stuck = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        words = "\n".join(f"rank {n}: {each.out}{each.err}" for n, each in enumerate(ranks))
        assert not stuck, f"ranks {stuck} still run after {limit} s\n{words}"
        return ranks

    def _ended(self, rank: int) -> Rank:
        def text(kind: str) -> str:
            file = self.world.folder / f"{kind}-{rank}"
            return file.read_text() if file.exists() else ""

        result = self.world.folder / f"result-{rank}"
        value = pickle.loads(result.read_bytes()) if result.exists() else None
        return Rank(self.processes[rank].exitcode, value, text("out"), text("err"))


@cache
def _context() -> ForkServerContext:
    # A process without loaded libraries forks all ranks: each starts in milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextlib.contextmanager
def running(
    function: FunctionType, size: int, *arguments: object, **variables: str
) -> Iterator[Running]:
    """Start ranks that call ``function(world, *arguments)``; kill those left at the end.

    Parameters
    ----------
    function : callable
        A function at the top of a module of this package.
    size : int
    *arguments : object
    **variables : str
        Environment variables; ``EMULATED_DEVICES`` is the count of ranks by default.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = Running(World(0, size, Path(folder)))
        variables = {"EMULATED_DEVICES": str(min(size, 4)), **variables}
        try:
            for rank in range(size):
                world = World(rank, size, Path(folder))
                # pytest's module names differ from those of Python's import.
                name = f"{__package__}.{Path(function.__code__.co_filename).stem}"
                given = (name, function.__name__, world, arguments, variables)
                process = _context().Process(target=_run, args=given, daemon=True)
                process.start()
                ranks.processes.append(process)
            yield ranks
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()


def run(
    function: FunctionType,
    size: int,
    *arguments: object,
    limit: float = LIMIT,
    **variables: str,
) -> list[Rank]:
    """Run ranks to their ends, which must succeed; the arguments are those of `running`."""
    with running(function, size, *arguments, **variables) as ranks:
        ended = ranks.join(limit)
    for rank, each in enumerate(ended):
        assert each.code == 0, f"rank {rank} ended with {each.code}\n{each.out}{each.err}"
    return ended


def _run(
    module: str,
    name: str,
    world: World,
    arguments: tuple[object, ...],
    variables: dict[str, str],
) -> None:
    """Run as one rank; exit without Python's own end, which might wait for hanging streams."""
    os.environ.update(variables)
    for descriptor, kind in ((1, "out"), (2, "err")):
        sys.__stdout__.flush()
        file = os.open(world.folder / f"{kind}-{world.rank}", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    code = 1
    try:
        function = getattr(importlib.import_module(module), name)
        world.say(f"result-{world.rank}", function(world, *arguments))
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        sys.__stderr__.flush()
    os._exit(code)
