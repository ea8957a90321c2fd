"""Tracebacks of the package's errors, without the package's frames."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType

from ncclkv import env
from ncclkv.errors import KVStoreError, OrderMismatch, RankLost

# Paths of the package's frames, and of mpi4py's compiled code.
_INSIDE = (str(Path(__file__).parent) + "/", "src/mpi4py/")

# A mismatch that another rank found; that rank reports it.
_RELAYED = re.compile(r"rank \d+ of \d+: rank \d+ (left with OrderMismatch|found): ")

_HEADER = "Traceback (most recent call last):\n"
_LEFT_OUT = "  (without the frames inside ncclkv; NCCLKV_TRACEBACK=full shows them)\n"


def follows(error: BaseException | None) -> bool:
    """Return whether an error is only a consequence of another rank's failure."""
    relayed = isinstance(error, OrderMismatch) and _RELAYED.match(str(error))
    return bool(relayed) or isinstance(error, RankLost)


def trim(error: BaseException) -> bool:
    """Remove the package's frames from an error of the package and from its causes.

    A cause without frames of the program is removed.

    Returns
    -------
    bool
        False if nothing was removed: for other errors, and with ``NCCLKV_TRACEBACK=full``.
    """
    if not isinstance(error, KVStoreError) or env.full_traceback():
        return False
    each: BaseException | None = error
    seen = {id(None)}
    while each is not None:
        seen.add(id(each))
        each.__traceback__ = _users(each.__traceback__) or each.__traceback__
        earlier = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        while id(earlier) not in seen and earlier and _users(earlier.__traceback__) is None:
            seen.add(id(earlier))
            earlier = earlier.__cause__ or earlier.__context__
        earlier = None if id(earlier) in seen else earlier
        if earlier is not each.__context__ or each.__cause__ is not None:
            each.__cause__ = earlier
        each = earlier
    return True


def text(error: BaseException) -> str:
    """Return the traceback text of an uncaught error; `trim` shortens errors of the package."""
    trimmed = trim(error)
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return shown.replace(_HEADER, _HEADER + _LEFT_OUT) if trimmed else shown


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback's frames outside the package and mpi4py; None if there are none."""
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_INSIDE):
            frames.append(trace)
        trace = trace.tb_next
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made
