"""Frames of the program: the line that calls the package, for logged calls and for warnings."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from functools import lru_cache
from types import FrameType


def user_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame of the user's program."""
    while _is_own(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return frame


# Paths that begin so are not the user's program.  The package's path is as its code has it: it may
# lie behind a symbolic link, or in a folder of ``sys.path`` that is not absolute.
_own = [f"{os.path.dirname(user_frame.__code__.co_filename)}/", contextlib.__file__]


@lru_cache(1024)
def _is_own(path: str) -> bool:
    """Return whether a source file belongs to the package."""
    return path.startswith(tuple(_own))


def cell_of(path: str) -> str:
    """Return IPython's name of the cell with this code, such as ``Cell In[3]``, or an empty text.

    IPython compiles each cell under the name of a file that no reader knows.
    """
    shell_of = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(shell_of() if shell_of else None, "compile", None)
    name_of = getattr(compiler, "format_code_name", None)
    return " ".join((name_of(path) if name_of else None) or ())


def skip_frames(folder: str) -> None:
    """Leave a library's files out of call sites: it calls the package for the user's program."""
    _own.append(f"{folder}/")
    _is_own.cache_clear()


def warn(text: str) -> None:
    """Warn at the line of the program, whatever functions of the package lie between."""
    user = user_frame(sys._getframe())
    names = user.f_globals
    warnings.warn_explicit(
        text,
        UserWarning,
        user.f_code.co_filename,
        user.f_lineno,
        names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
    )
