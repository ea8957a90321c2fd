"""Points at every line of chosen files, by `sys.settrace`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from ncclkv.testing.turns import Turns


@contextmanager
def each_line(turns: Turns, files: Sequence[str]) -> Iterator[None]:
    """Give a turn before each line of these files that the ``with`` block's thread runs.

    Parameters
    ----------
    turns : Turns
    files : sequence of str
        Ends of paths, as ``diagnosis/hang.py``.
    """
    chosen: dict[CodeType, bool] = {}

    def in_function(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not turns.ended:
            turns.point(f"line {frame.f_lineno}")
        return in_function

    def at_call(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code not in chosen:
            chosen[code] = code.co_filename.endswith(tuple(files))
        return in_function if chosen[code] else None

    before = sys.gettrace()
    sys.settrace(at_call if files else before)
    try:
        yield
    finally:
        sys.settrace(before)
