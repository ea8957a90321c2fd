"""Files for ``ncclkv explain``: each rank writes one when its store breaks."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from weakref import WeakSet

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.diagnosis.mismatch import REPORT_CALLS, CallComparison
from ncclkv.comm.diagnosis.reports import Report

FORMAT = 1
"""The version of the files."""

BEFORE_A_STORE = "create"
"""The name in place of a store's, when its creation failed."""

_PACKAGES = ("ncclkv", "numpy", "mpi4py", "cupy-cuda12x", "cupy-cuda13x")

# Others that raise the same do so within this time, for the most part.
_OTHERS_SECONDS = 1.0
_LOOK_SECONDS = 0.01

# The stores and ranks of this process that have a file, and the errors that are in one.
_done: set[tuple[str, int]] = set()
_errors: WeakSet[BaseException] = WeakSet()


def write(error: BaseException, calls: CallComparison | None, transport: str = "") -> None:
    """Write the file of this rank, once a store, where ``NCCLKV_DUMP`` names a directory.

    It is written under another name and renamed.  Trouble is one line on stderr.

    Parameters
    ----------
    error : BaseException
        What breaks the store.
    calls : Calls or None
        Of the store; None when there is none yet.
    transport : str
        What the store's ranks exchange messages over, in words.
    """
    folder = env.dump()
    if not folder or error in _errors:
        return
    store, rank = _identity(calls)
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
    except Exception as trouble:  # the error counts, not what becomes of its file
        with suppress(Exception):
            reason = f"{type(trouble).__name__}: {trouble}"
            sys.stderr.write(f"ncclkv: NCCLKV_DUMP={folder!r}: nothing was written: {reason}\n")


def write_of(ranks: Communicator, error: BaseException) -> None:
    """Write the file of a store's ranks, while no other thread hears what they are told."""
    with ranks.lock:
        write(error, ranks.calls, ranks.name)


def _await_others(folder: Path, store: str, calls: CallComparison) -> None:
    """Wait a moment for the files of the others: an error that nobody catches ends all ranks."""
    ranks = {*range(calls.transport.size)} - {calls.transport.rank}
    limit = time.monotonic() + _OTHERS_SECONDS
    while time.monotonic() < limit:
        left = calls.transport.left_ranks()
        ranks = {
            rank
            for rank in ranks
            if rank not in left
            and not calls.state(rank)
            and not (folder / f"{store}-rank{rank}.json").exists()
        }
        if not ranks:
            break
        time.sleep(_LOOK_SECONDS)


def _identity(calls: CallComparison | None) -> tuple[str, int]:
    """Return the name of a store, the same on all its ranks, and the number of this rank."""
    if calls is None:
        return BEFORE_A_STORE, env.launched_rank() or 0
    return "store" if calls.roster is None else calls.roster.name, calls.transport.rank


def _content(error: BaseException, calls: CallComparison | None, transport: str) -> dict[str, Any]:
    """Return what the file holds; seconds count from the creation of the store."""
    roster = None if calls is None else calls.roster
    store, rank = _identity(calls)
    begin = time.monotonic() if roster is None else roster.met
    now = time.monotonic() - begin
    of_store = {} if calls is None else _of_store(calls, now)
    size = (env.launched_size() or 1) if calls is None else calls.transport.size
    return {
        "format": FORMAT,
        "store": store,
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "seconds": now,
        "time": time.time(),
        "error": {"type": type(error).__name__, "text": str(error)},
        **of_store,
        "stacks": _stacks(),
        "versions": _versions(transport),
        "variables": env.own_variables(),
    }


def _of_store(calls: CallComparison, now: float) -> dict[str, Any]:
    """Return this rank's calls, and what is known of the other ranks."""
    rank, size = calls.transport.rank, calls.transport.size
    with suppress(Exception):  # MPI may be gone
        calls.transport.left_ranks()
        calls.receive()
    others = {each: calls.report(each, REPORT_CALLS) for each in range(size) if each != rank}
    left: dict[int, str] = {}
    with suppress(Exception):
        left = dict(calls.transport.left_ranks())
    members = [] if calls.roster is None else calls.roster.members
    return {
        "ranks": [{"host": member.host, "pid": member.pid} for member in members],
        **_of_rank(calls.recorder.read(rank), now),
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
    """Return a report in plain objects."""
    if report is None:
        return {"calls": [], "wait": None, "elsewhere": ""}
    wait = report.wait
    return {
        "calls": [
            {
                "number": call.number,
                "call": call.text,
                "alike": [call.code, call.keys],
                "seconds": now - call.age,
            }
            for call in report.calls
        ],
        "wait": None
        if wait is None
        else {
            "ranks": wait.ranks,
            "total": wait.total,
            "waited": wait.seconds,
            "what": wait.description,
        },
        "elsewhere": "" if report.other_wait is None else report.other_wait.description,
    }


def _stacks() -> dict[str, list[str]]:
    """Return where each thread of Python stands, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, 'thread')} ({number})": [
            f"{each.filename}:{each.lineno} in {each.name}"
            for each in traceback.extract_stack(frame)
        ]
        for number, frame in sys._current_frames().items()
    }


def _versions(transport: str) -> dict[str, str]:
    """Return the versions of what takes part."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, "transport": transport}
