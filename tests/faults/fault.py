"""A fault in a job, drawn from a seed and an index, so that it can be repeated alone."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

LAYOUTS: tuple[dict[str, str], ...] = (
    {},
    {"NCCLKV_NODE_MEMORY": "messages"},
    {"NCCLKV_NODE_MEMORY": "halves"},
    {"NCCLKV_RANKS_PER_NODE": "1"},
    {"NCCLKV_RANKS_PER_NODE": "2"},
    {"NCCLKV_COMPILED": "0"},
)
"""Ways in which ranks share memory or exchange messages, as variables of the environment."""

ENDS = ("raise", "exit", "os-exit", "kill", "terminate")
"""One rank ends in the middle of the job."""

SILENT_ENDS = ("os-exit-0", "exec")
"""One rank ends with code 0, which mpirun alone takes for success."""

PAUSES = ("stop", "hang")
"""One rank makes no further call until the others' deadline."""

MISMATCHES = ("extra-push", "missing-step", "extra-pull", "extra-barrier", "extra-init")
"""One rank makes other calls than the rest."""

HARMLESS = ("slow", "stop-and-continue", "fork", "signals", "wrong-call", "thread", "collect")
"""One rank is delayed or interrupted, and the job continues."""

KINDS = (*ENDS, *SILENT_ENDS, *PAUSES, *MISMATCHES, *HARMLESS)

STEPS = 8
"""Steps of a job; a fault strikes before the last two.  A job that is struck from a thread has no
last step, since the thread may strike at any time."""


@dataclass(frozen=True)
class Fault:
    """One fault and the job that it strikes.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    ranks, victim, step : int
        The size of the job, the rank that the fault strikes, and the step in which it does.
    moment : {"before", "between", "during"}
        Before the step's push, between its push and its pull, or at any time, from a thread.
    delay : float
        Seconds that the thread of "during" waits, and that a pause which ends takes.
    layout : int
        A row of `LAYOUTS`.
    run : bool
        Start by ``ncclkv run`` in place of mpirun.
    update_on : {"every_rank", "root"}
    updater : {"none", "sgd", "function"}
    bucket_bytes : int
    seed : int
        Of the job's own choices: keys, sizes, ways to push.
    """

    kind: str
    ranks: int
    victim: int
    step: int
    moment: str
    delay: float
    layout: int
    run: bool
    update_on: str
    updater: str
    bucket_bytes: int
    seed: int

    def __str__(self) -> str:
        start = "run" if self.run else "mpirun"
        return f"{self.kind}-{start}-{self.victim}of{self.ranks}-{self.moment}-{self.layout}"

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of the job."""
        return LAYOUTS[self.layout]

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Fault:
        return Fault(**json.loads(text))


def draw(seed: int, index: int) -> Fault:
    """Draw the fault of that index; kinds take turns, in an order of the seed's."""
    order = random.Random(seed).sample(KINDS, len(KINDS))
    kind = order[index % len(order)]
    rng = random.Random(f"{seed}/{index}")
    ranks = rng.choice((2, 3, 4))
    moments = ["before"] if kind == "missing-step" else ["before", "between"]
    if kind in ("os-exit", "kill", "stop", "os-exit-0"):
        moments.append("during")
    return Fault(
        kind=kind,
        ranks=ranks,
        victim=rng.randrange(ranks),
        step=rng.randrange(1, STEPS - 2),
        moment=rng.choice(moments),
        delay=rng.uniform(0.0, 0.3),
        layout=rng.randrange(len(LAYOUTS)),
        run=kind in SILENT_ENDS or rng.random() < 0.5,
        update_on=rng.choice(("every_rank", "every_rank", "root")),
        updater=rng.choice(("none", "sgd", "function")),
        bucket_bytes=rng.choice((0, 4096, 1 << 20)),
        seed=rng.randrange(1 << 30),
    )
