"""Tracebacks of the package's errors, without the package's frames.

Each public function cuts the frames off that an error has passed, and raises it again.  So every
display shows the program's frames alone: Python's, Jupyter's, pytest's, a thread's.

An error is raised again by a bare ``raise``: from Python 3.11 on it does not add the function's own
frame again.  Functions are decorated by `public`, classes by `public_methods`, and blocks are a
`PublicBlock`.  The most frequent verbs have the same ``except`` clause themselves.  That clause
costs nothing without an exception, while a decorator costs a call.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FunctionType, TracebackType
from typing import ParamSpec, TypeVar

from ncclkv import env
from ncclkv.errors import KVStoreError, OrderMismatch, RankLost

P = ParamSpec("P")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)
Entered = TypeVar("Entered")

# Begin of the names of the package's modules and of mpi4py's.  Not of their files: a dataclass has
# a constructor without a file.
_INSIDE = (f"{__package__}.", "mpi4py.")

# A mismatch that another rank found; that rank reports it.
_RELAYED = re.compile(r"rank \d+ of \d+: rank \d+ (left with OrderMismatch|found): ")

_FROM_PROGRAM = "_ncclkv_from_program"
"""Attribute of an exception of the program's function, such as an updater."""

_SPECIAL = ("__exit__", "__reduce__", "_set_updater")
"""Methods that `public_methods` takes for public by other signs than their names."""

_HEADER = "Traceback (most recent call last):\n"
_LEFT_OUT = "  (without the frames inside ncclkv; NCCLKV_TRACEBACK=full shows them)\n"


def follows(error: BaseException | None) -> bool:
    """Return whether an error is only a consequence of another rank's failure."""
    relayed = isinstance(error, OrderMismatch) and _RELAYED.match(str(error))
    return bool(relayed) or isinstance(error, RankLost)


def public(function: Callable[P, Result]) -> Callable[P, Result]:
    """Make a function cut the package's frames off its errors.

    Functions for which a call more is too slow have the same ``except`` clause themselves.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            trim(error)
            raise

    return call


def public_init(made: Class) -> Class:
    """Make the constructor of a class `public`; a decorator for dataclasses."""
    made.__init__ = public(made.__init__)  # type: ignore[misc]
    return made


def public_methods(*but: str) -> Callable[[Class], Class]:
    """Make the methods of a class `public`, and the end of its ``with`` block.

    Parameters
    ----------
    *but : str
        Methods that have the ``except`` clause themselves.
    """

    def decorate(made: Class) -> Class:
        for name, member in [*vars(made).items()]:
            if name in but or (name.startswith("_") and name not in _SPECIAL):
                continue
            if isinstance(member, staticmethod):
                setattr(made, name, staticmethod(public(member.__func__)))
            elif isinstance(member, FunctionType):
                setattr(made, name, public(member))
        return made

    return decorate


class PublicBlock(AbstractContextManager[Entered]):
    """A ``with`` block that cuts the package's frames off errors of its begin and end."""

    def __init__(self, block: AbstractContextManager[Entered]) -> None:
        self._block = block

    def __enter__(self) -> Entered:
        try:
            return self._block.__enter__()
        except Exception as error:
            trim(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return self._block.__exit__(kind, error, trace)
        except Exception as raised:
            trim(raised)
            raise


def public_block(function: Callable[P, Iterator[Entered]]) -> Callable[P, PublicBlock[Entered]]:
    """Return what `contextlib.contextmanager` does, as a `PublicBlock`."""
    block = contextlib.contextmanager(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> PublicBlock[Entered]:
        return PublicBlock(block(*args, **kwargs))

    return call


def trim(error: BaseException) -> None:
    """Cut the package's frames off an error of the package, and off its causes.

    Called in the ``except`` clause of a public function, before a bare ``raise``.  A cause without
    frames of the program is removed.  Errors of others, such as a bug's TypeError, stay whole; with
    ``NCCLKV_TRACEBACK=full`` all do.
    """
    if _FROM_PROGRAM in error.__dict__:
        trim_begin(error)
    if not isinstance(error, KVStoreError) or env.full_traceback():
        return
    _replace(error, _users(error.__traceback__))
    each: BaseException | None = error
    seen = {id(None)}
    while each is not None:
        seen.add(id(each))
        if each is not error:
            each.__traceback__ = _users(each.__traceback__)
        earlier = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        while id(earlier) not in seen and earlier and _is_ours(earlier):
            seen.add(id(earlier))
            earlier = earlier.__cause__ or earlier.__context__
        earlier = None if id(earlier) in seen else earlier
        if earlier is not each.__context__ or each.__cause__ is not None:
            each.__cause__ = earlier
        each = earlier


def _is_ours(error: BaseException) -> bool:
    """Return whether an error has frames of the package alone, so that it explains nothing.

    An error without frames is the program's, given by ``raise ... from ValueError("...")``, unless
    its class is the package's: `trim` has cut the frames of those.
    """
    if error.__traceback__ is None:
        return isinstance(error, KVStoreError)
    return _users(error.__traceback__) is None


def mark_from_program(error: BaseException) -> None:
    """Let `trim` leave the frames of an error alone that a function of the program has raised."""
    error.__dict__[_FROM_PROGRAM] = True


def trim_begin(error: BaseException) -> None:
    """Cut the frames that come before those of the program off any error.

    For a function that only calls the program's; called as `trim`.
    """
    if not env.full_traceback():
        trace = error.__traceback__
        while trace is not None and _is_inside(trace):
            trace = trace.tb_next
        _replace(error, trace)


def _replace(error: BaseException, kept: TracebackType | None) -> None:
    """Replace the traceback with which a bare ``raise`` raises an error again."""
    if sys.version_info >= (3, 11):
        error.__traceback__ = kept
    elif error.__traceback__ is not None:
        # Python 3.10 raises with the traceback that the except clause began with, so the frame of
        # the public function itself stays.
        error.__traceback__.tb_next = kept


def text(error: BaseException) -> str:
    """Return the traceback text of an uncaught error."""
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    trimmed = isinstance(error, KVStoreError) and not env.full_traceback()
    return shown.replace(_HEADER, _HEADER + _LEFT_OUT) if trimmed else shown


def _module(trace: TracebackType) -> str:
    """Return the name of the module of a traceback's first frame."""
    return str(trace.tb_frame.f_globals.get("__name__"))


def _is_inside(trace: TracebackType) -> bool:
    """Return whether a traceback's first frame is the package's or mpi4py's."""
    return f"{_module(trace)}.".startswith(_INSIDE)


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback's frames outside the package and mpi4py; None if there are none."""
    frames: list[TracebackType] = []
    while trace is not None:
        if _is_inside(trace):
            # The package's own blocks; a block of the program is between frames of the program.
            while frames and _module(frames[-1]) == contextlib.__name__:
                frames.pop()
        else:
            frames.append(trace)
        trace = trace.tb_next
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made
