"""Dump files for ``ncclkv explain``: each rank writes its own when its store breaks."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ncclkv import concurrency, env
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.diagnosis.mismatch import REPORT_CALLS, CallComparison
from ncclkv.comm.diagnosis.reports import Report

FORMAT = 1
"""Version of the files."""

BEFORE_A_STORE = "create"
"""The name in place of a store's, when its creation failed."""

_PACKAGES = ("ncclkv", "numpy", "mpi4py", "cupy-cuda12x", "cupy-cuda13x")

# Ranks that raise the same error usually do so within this time.
_OTHERS_SECONDS = 1.0

# The stores and ranks whose dump file this process has written, and the errors in those files.
_done: set[tuple[str, int]] = set()
_errors: WeakSet[BaseException] = WeakSet()


def write(error: BaseException, calls: CallComparison | None, transport: str = "") -> None:
    """Write this rank's file to the directory of ``NCCLKV_DUMP``, and wait for other ranks' files.

    The file is written under another name and renamed.  A failure to write is one line on stderr.

    Parameters
    ----------
    error : BaseException
        The error that breaks the store.
    calls : CallComparison or None
        The comparison of the store, whose lock the caller holds; None when its creation failed.
    transport : str
        Name of the store's transport.
    """
    folder = env.dump()
    if not folder or error in _errors:
        return
    store, rank, _ = _identity(calls)
    if calls is not None and (store, rank) in _done:
        return
    _errors.add(error)
    _done.add((store, rank))
    try:
        path = Path(folder) / f"{store}-rank{rank}.json"
        content = json.dumps(_content(error, calls, transport), indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(content)
        unfinished.replace(path)
        if calls is not None:
            with suppress(Exception):  # MPI may be gone
                _await_others(path.parent, store, calls)
    except Exception as failure:  # the store's own error must be raised, not this one
        with suppress(Exception):
            reason = f"{type(failure).__name__}: {failure}"
            sys.stderr.write(
                f"ncclkv: NCCLKV_DUMP={folder!r}: the file of rank {rank} was not written: "
                f"{reason}; set a directory that this rank can write to\n"
            )


def _await_others(folder: Path, store: str, calls: CallComparison) -> None:
    """Wait a moment for the files of other ranks: an uncaught error here would end them first."""
    ranks = {*calls.peers}
    for _ in Backoff(_OTHERS_SECONDS):
        ranks -= calls.transport.left_ranks().keys()
        files = {rank: folder / f"{store}-rank{rank}.json" for rank in ranks}
        ranks = {rank for rank in ranks if not (calls.state(rank) or files[rank].exists())}
        if not ranks:
            break


def _identity(calls: CallComparison | None) -> tuple[str, int, int]:
    """Return the store's name, which is equal on all its ranks, this rank, and the size."""
    if calls is None:
        return BEFORE_A_STORE, env.launched_rank() or 0, env.launched_size() or 1
    name = "store" if calls.roster is None else calls.roster.name
    return name, calls.transport.rank, calls.transport.size


def _content(error: BaseException, calls: CallComparison | None, transport: str) -> dict[str, Any]:
    """Return the content of a dump file; its seconds count from the creation of the store."""
    roster = None if calls is None else calls.roster
    store, rank, size = _identity(calls)
    now = 0.0 if roster is None else concurrency.monotonic() - roster.met
    of_store = {} if calls is None else _of_store(calls, now)
    return {
        "format": FORMAT,
        "store": store,
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "seconds": now,
        "time": concurrency.wall_time(),
        "error": {"type": type(error).__name__, "text": str(error)},
        **of_store,
        "stacks": _stacks(),
        "versions": _versions(transport),
        "variables": env.own_variables(),
    }


def _of_store(calls: CallComparison, now: float) -> dict[str, Any]:
    """Return this rank's calls, and the reports about other ranks."""
    left: dict[int, str] = {}
    with suppress(Exception):  # MPI may be gone
        left = dict(calls.transport.left_ranks())
        calls.receive()
    others = {each: calls.report(each, REPORT_CALLS) for each in calls.peers}
    members = [] if calls.roster is None else calls.roster.members
    return {
        "ranks": [{"host": member.host, "pid": member.pid} for member in members],
        **_of_rank(calls.recorder.read(calls.transport.rank), now),
        "others": {
            str(each): {
                **_of_rank(report, now),
                "state": calls.state(each),
                "left": left.get(each, ""),
            }
            for each, report in others.items()
            if report is not None or each in left
        },
    }


def _of_rank(report: Report | None, now: float) -> dict[str, Any]:
    """Return the fields of a dump file about one rank: its calls and its waits."""
    if report is None:
        return {"calls": [], "wait": None, "elsewhere": ""}
    calls = [
        {
            "number": call.call_index,
            "call": call.text,
            "alike": [call.code, call.keys],
            "seconds": now - call.age,
        }
        for call in report.calls
    ]
    wait = None
    if report.wait is not None:
        seconds, _, total, ranks, description = report.wait
        wait = {"ranks": ranks, "total": total, "waited": seconds, "what": description}
    other_wait = "" if report.other_wait is None else report.other_wait.description
    return {"calls": calls, "wait": wait, "elsewhere": other_wait}


def _stacks() -> dict[str, list[str]]:
    """Return the stack of each thread of Python, the innermost call last."""
    names = {thread.ident: thread.name for thread in concurrency.threads()}
    return {
        f"{names.get(thread, 'thread')} ({thread})": [
            f"{each.filename}:{each.lineno} in {each.name}"
            for each in traceback.extract_stack(frame)
        ]
        for thread, frame in sys._current_frames().items()
    }


def _versions(transport: str) -> dict[str, str]:
    """Return the versions of Python, the system and the packages."""
    from importlib import metadata  # slow to import, and needed by a failure alone

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, "transport": transport}
