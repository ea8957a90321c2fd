"""The `Job` that every part of the benchmark receives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import ncclkv
from bench.data import Pattern
from bench.memory import HostMemory
from bench.options import Options
from ncclkv.comm.base import Communicator

if TYPE_CHECKING:
    from bench.libraries.base import Library


@dataclass
class Job:
    """Run of the benchmark: its ranks, memory and options, and its results so far.

    Attributes
    ----------
    libraries : list of Library
        Other libraries that are present on every rank.
    record : dict
        Content of the JSON, by part.
    wrong : int
        Wrong elements, over all ranks and parts.
    stream : TextIO, optional
        File that receives what rank 0 prints; by default the standard output.
    """

    comm: Communicator
    memory: HostMemory
    options: Options
    libraries: list[Library] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    wrong: int = 0
    stream: TextIO | None = None

    def __post_init__(self) -> None:
        self.pattern = Pattern(self.memory.xp)

    def print(self, text: str = "") -> None:
        """Print on rank 0."""
        if self.comm.rank == 0:
            print(text, file=self.stream, flush=True)

    def tell(self, text: str) -> None:
        """Print on the standard error of rank 0, where people wait for the report."""
        if self.comm.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def store(self, **options: Any) -> ncclkv.KVStore:
        """Create a store of all ranks; collective."""
        store: ncclkv.KVStore = ncclkv.create(self.memory.store, comm=self.comm, **options)
        return store

    def barrier(self) -> None:
        """Wait until all ranks have arrived; all continue at about the same time."""
        self.memory.synchronize()
        # A rank that waits long in the first barrier polls rarely; the second barrier is short for
        # all.
        self.comm.control.barrier("bench")
        self.comm.control.barrier("bench")

    def fits(self, what: str, nbytes: int) -> bool:
        """Return whether every rank has `nbytes` free; if not, print a skipped part; collective."""
        free = min(self.comm.control.allgather(self.memory.free_bytes(), "free memory"))
        if nbytes <= 0.9 * free:
            return True
        self.print(
            f"# {what} is left out: it takes {nbytes / 2**30:.1f} GiB a rank, and "
            f"{free / 2**30:.1f} GiB are free for each"
        )
        return False

    def progress(self, total: int, title: str) -> Callable[[], None]:
        """Show a bar on rank 0 if tqdm is installed; return the function that advances the bar.

        Without a title no bar is shown.
        """
        try:
            from tqdm import tqdm
        except ImportError:
            return lambda: None
        off = self.comm.rank != 0 or not title
        bar = tqdm(total=total, desc=title, disable=off, leave=False, mininterval=0.5, ncols=80)

        def move() -> None:
            bar.update()
            if bar.n >= total:
                bar.close()

        return move
