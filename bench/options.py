"""Options of the benchmark, from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.models import MODELS

KIB, MIB = 1024, 1024 * 1024

MAX_ROUNDS = 25
"""Maximum of SGD steps after which float32 holds the values exactly."""


@dataclass(frozen=True)
class Options:
    """Options of a run, equal on every rank.

    Attributes
    ----------
    gpu : bool
        Stores in a GPU's memory, over NCCL.
    quick : bool
        A short run without reliable times.
    rounds, warmups : int
        Measured rounds, and rounds before them without a result.
    max_bytes : int
        The longest buffer of the tables over sizes.
    floors : bool
        Show the bounds that developers hold ratios to.
    parts, models : tuple of str
    out : Path
        The folder of the report, the JSON and the plots.
    """

    gpu: bool = False
    quick: bool = False
    floors: bool = False
    rounds: int = 7
    warmups: int = 2
    max_bytes: int = 128 * MIB
    parts: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    out: Path = Path("build/bench")

    @property
    def factor(self) -> int:
        """Return the ratio of a size to the one before."""
        return 32 if self.quick else 2


def parse(
    argv: Sequence[str] | None,
    host: Sequence[str],
    gpu: Sequence[str],
    by_name: Sequence[str] = (),
) -> Options:
    """Parse the command line; `host` and `gpu` list the default parts of the two modes."""
    every = list(dict.fromkeys([*host, *gpu, *by_name]))
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the collectives and the store, with checks."
    )
    option = parser.add_argument
    option("where", nargs="?", default="host", choices=["host", "gpu"], help="memory of the values")
    option("--quick", action="store_true", help="fewer sizes, models and rounds; ratios are rough")
    option(
        "--only", nargs="+", choices=every, metavar="PART", help=f"parts to run: {', '.join(every)}"
    )
    option("--models", nargs="+", choices=list(MODELS), help="key lists of the store's table")
    option("--floors", action="store_true", help="show the bound of each ratio, and if it is met")
    option("--rounds", type=int, help="turns of each candidate (7; quick: 3)")
    option("--max-bytes", type=int, help="bytes of the longest buffer (128 MiB; quick: 8 MiB)")
    option("--out", type=Path, default=Options.out, help="folder of the results")
    given = parser.parse_args(argv)
    on_gpu = given.where == "gpu"
    rounds = given.rounds if given.rounds is not None else (3 if given.quick else 7)
    longest = given.max_bytes or (8 * MIB if given.quick else 128 * MIB)
    if not 1 <= rounds <= MAX_ROUNDS or longest < 8:
        parser.error(f"--rounds must be 1 to {MAX_ROUNDS}, and --max-bytes at least 8")
    return Options(
        gpu=on_gpu,
        quick=given.quick,
        floors=given.floors,
        rounds=rounds,
        warmups=0 if given.quick else 2,
        max_bytes=longest,
        parts=tuple(given.only or (gpu if on_gpu else host)),
        models=tuple(given.models or (["ResNet-50"] if given.quick else MODELS)),
        out=given.out,
    )
