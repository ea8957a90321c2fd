"""The search for a program that fails."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings

from tests.conformance.programs.draw import programs
from tests.conformance.programs.plan import Program

SHRINKING = 40.0
"""Seconds after the first failure in which the search tries smaller programs."""

_SOAK = int(os.environ.get("PROGRAMS", "0"))

LIMIT = 24 * 3600 if _SOAK else 120
"""Seconds that a test may take."""


class Failed(Exception):
    """Error of a program that fails."""


class Found(BaseException):
    """The smallest failing program; no Exception, so that the search for smaller ones ends."""


def find_failure(run: Callable[[Program], None], examples: int) -> None:
    """Run `examples` programs, or as many as the environment says.

    `run` raises what it finds wrong with a program.  Raises `Failed` with the smallest program that
    fails, or `Found` with the smallest so far when the search for it takes too long.
    """
    began = 0.0
    smallest: list[tuple[str, str]] = []

    @settings(
        max_examples=_SOAK or examples,
        derandomize=not _SOAK,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def check(program: Program) -> None:
        nonlocal began
        text = _fault(run, program)
        if not text:
            return
        began = began or time.monotonic()
        smallest[:] = [min([*smallest, (repr(program), text)], key=lambda pair: len(pair[0]))]
        if time.monotonic() - began > SHRINKING:
            raise Found("\n".join(smallest[0]))
        raise Failed(text)

    check()


def _fault(run: Callable[[Program], None], program: Program) -> str:
    """Describe a program's failure by one kind of text, in whichever way it ends."""
    try:
        run(program)
    except Exception:
        return traceback.format_exc()
    return ""
