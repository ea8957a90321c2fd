"""Self-test: rows about a trial of all ranks, which each rank runs in a child."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ncclkv import env
from ncclkv.doctor.probe import Ended, ask
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, RankRows, Row, refused, to_json
from ncclkv.errors import LaunchError

_PROGRAM = "from ncclkv.doctor.trial import run; run()"

_SECONDS = 90.0
"""Limit of a trial, whose waits end earlier."""

_TIMEOUT = 20.0
_TIMEOUT_OF_A_RANK = 0.1
"""Limit of its waits for other ranks, whose errors name the missing ones: of any job, and more for
each rank, since the ranks of a large job start at different times.  ``NCCLKV_TIMEOUT`` may be less.
"""

_FAR_CLOCKS = 1.0
_NEAR_CLOCKS = 0.01
"""Seconds by which clocks may differ, and by which a busy machine makes equal clocks differ."""

_LARGER = "make /dev/shm larger: docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"

_DEADLINE = "ending the job: "
"""Words before the call of MPI, NCCL or CUDA that the watchdog has ended."""

_MENDS = {
    "NCCLKV_NODE_MEMORY": "unset NCCLKV_NODE_MEMORY",
    "file descriptors are left": "see the row of open files",
    "cannot open the memory file": "start the ranks of a host in one container, as one user, or "
    "containers with --pid=host --cap-add=SYS_PTRACE",
    "free for windows": _LARGER,
}
"""Commands by a part of the reason against a faster way to share memory."""

_AFTER_CRASH = {
    "importing ncclkv": "python -c 'import ncclkv' shows the whole error",
    "starting MPI": "start ranks by the mpirun of the MPI that mpi4py loads: ncclkv run finds it",
}
_AFTER_OTHER_CRASH = "see the row of /dev/shm; NCCLKV_NODE_MEMORY=messages shares no memory"
"""Advice by the step in which a trial crashed, and for other steps."""


def ask_trial(report: RankRows, *, test: bool) -> Ended:
    """Run the trial of this rank in a child; rank 0 receives the rank's report; collective.

    Without `test` it only joins the ranks.
    """
    timeout = _TIMEOUT + _TIMEOUT_OF_A_RANK * (env.launched_size() or 1)
    with suppress(LaunchError):  # a wrong value has a row of its own
        timeout = min(timeout, env.timeout())
    given = json.dumps({"report": to_json(report), "timeout": timeout, "test": test})
    return ask(_PROGRAM, _SECONDS, given)


def rows(ended: Ended) -> Iterator[Row]:
    """Yield the rows of a trial, as far as it came."""
    told = ended.told
    if (joined := told.get("joined")) is not None:
        size = joined["size"]
        yield Row("MPI start", f"{size} rank{'s' * (size > 1)} joined", joined["library"])
    if "sharing" in told:
        yield _sharing(*told["sharing"])
    if "clocks" in told and told["joined"]["size"] > 1:
        yield _clocks(told["clocks"])
    if "on gpus" in told:
        yield _memory(told)
    for gpu in ("", "gpu "):
        if f"{gpu}sums" in told:
            yield _sums(f"{gpu}sums".replace("gpu", "GPU"), told[f"{gpu}sums"])
        if f"{gpu}speed" in told:
            size = told["joined"]["size"]
            name = f"{gpu}allreduce".replace("gpu", "GPU")
            yield _speed(name, size, told[f"{gpu}speed"])
    if "error" in told:
        yield refused("self-test", told["error"], found=f"failed while {told['step']}")
    elif ended.problem:
        yield _crash(ended)


def _crash(ended: Ended) -> Row:
    """Return the row of a trial that has crashed, or hung."""
    step = ended.told.get("step", "importing ncclkv")
    by_step = _AFTER_CRASH.get(step, _AFTER_OTHER_CRASH)
    mend = _LARGER if "SIGBUS" in ended.problem else by_step
    why = f"while {step} a rank {ended.problem}" + f": {ended.last}" * bool(ended.last)
    if _DEADLINE in ended.last:
        late = ended.last.partition(_DEADLINE)[2].partition(";")[0]
        why, mend = f"{late}: a rank that it waited for did not come", "see the other ranks' rows"
        return Row("self-test", f"waited while {step}", "", why, mend, BLOCKS)
    return Row("self-test", f"crashed while {step}", "", why, mend, BLOCKS)


def _sharing(method: str, action: str, reasons: list[str]) -> Row:
    """Return the row of the way in which the ranks of a node share memory."""
    if not method:
        return Row("node memory", "one rank a host", "messages between hosts")
    used = action.partition(":")[0]
    if not reasons:
        return Row("node memory", method, used)
    why = f"not faster, because of {'; '.join(reasons)}"
    mend = next((mend for part, mend in _MENDS.items() if part in reasons[0]), "")
    return Row("node memory", method, used, why, mend, WARNS)


def _clocks(seconds: float) -> Row:
    if seconds < _NEAR_CLOCKS:
        return Row("clocks", "within 10 ms")
    found = f"{seconds:.2f} s apart"
    if seconds < _FAR_CLOCKS:
        return Row("clocks", found)
    why = "times in logs and traces of hosts do not fit together"
    return Row("clocks", found, "", why, "start chrony or ntpd on every host", WARNS)


def _memory(told: dict[str, Any]) -> Row:
    """Return the row of the memory in which stores named "dist" keep values."""
    if not told["on gpus"]:
        ranks = told["a gpu"]
        return Row("store dist", "GPU memory, by NCCL", f"{ranks} rank{'s' * (ranks > 1)} a GPU")
    row = refused("store dist", told["on gpus"], WARNS, "host memory")
    return row if told["gpus"] else row._replace(mend="", level=OK)


def _sums(name: str, wrong: list[str]) -> Row:
    if not wrong:
        return Row(name, "exact", "known values of float32, float64, int64")
    why = "a rank has pulled a wrong sum of known values: a fault of memory, MPI, NCCL or ncclkv"
    mend = "run it again; NCCLKV_NODE_MEMORY=messages and NCCLKV_COMPILED=0 show which part it is"
    return Row(name, f"wrong: {', '.join(wrong)}", "", why, mend, BLOCKS)


def _speed(name: str, size: int, told: dict[str, float]) -> Row:
    """Return the row of the speed of an allreduce, beside that of a copy."""
    if not told["right"]:
        return _sums(name, ["float32 allreduce"])
    algorithm = told["allreduce"]
    bus = algorithm * 2 * (size - 1) / size
    found = f"{algorithm:.3g} GB/s ({bus:.3g} on the bus), {told['nbytes'] / (1 << 20):.3g} MiB"
    if size == 1:
        found = f"{algorithm:.3g} GB/s, {told['nbytes'] / (1 << 20):.3g} MiB"
    return Row(name, found, f"{told['copy']:.3g} GB/s a copy, all ranks at once")
