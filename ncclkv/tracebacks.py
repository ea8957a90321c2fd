"""Tracebacks of the package's errors, without the frames inside the package."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType

from ncclkv import env
from ncclkv.errors import KVStoreError, OrderMismatch, RankLost

# The second is what the frames of mpi4py's compiled code begin with.
_INSIDE = (str(Path(__file__).parent) + "/", "src/mpi4py/")

# The mismatch was found by another rank, which reports it itself.
_RELAYED = re.compile(r"rank \d+ of \d+: rank \d+ (left with OrderMismatch|found): ")

_HEADER = "Traceback (most recent call last):\n"
_LEFT_OUT = "  (without the frames inside ncclkv; NCCLKV_TRACEBACK=full shows them)\n"


def follows(error: BaseException | None) -> bool:
    """Return whether an error only reports that another rank has failed."""
    relayed = isinstance(error, OrderMismatch) and _RELAYED.match(str(error))
    return bool(relayed) or isinstance(error, RankLost)


def trim(error: BaseException) -> bool:
    """Drop the package's frames from an error of the package, and from those it came from.

    An error that no code of the program's was part of is dropped whole.

    Returns
    -------
    bool
        False where all is kept: for other errors, and with ``NCCLKV_TRACEBACK=full``.
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
    """Return what Python prints of an uncaught error, trimmed where it is one of the package's."""
    trimmed = trim(error)
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return shown.replace(_HEADER, _HEADER + _LEFT_OUT) if trimmed else shown


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the frames of a traceback that are neither the package's nor mpi4py's, if any."""
    frames = []
    each = trace
    while each is not None:
        if not each.tb_frame.f_code.co_filename.startswith(_INSIDE):
            frames.append(each)
        each = each.tb_next
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made
