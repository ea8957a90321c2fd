"""The factor that stretches the limits of tests on a slow or busy machine.

``NCCLKV_TEST_SLOW=4`` gives every test four times its limit. A limit that is itself a promise, such
as the seconds between a deadline and its error, is stretched, too: its test then shows less.
"""

from __future__ import annotations

import os

VARIABLE = "NCCLKV_TEST_SLOW"


def stretched(seconds: float) -> float:
    """Return a limit in seconds, times the factor that the environment gives."""
    return seconds * factor()


def factor() -> float:
    """Return the factor: 1 unless ``NCCLKV_TEST_SLOW`` gives another of at least 1."""
    text = os.environ.get(VARIABLE, "") or "1"
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not 1 <= given <= 100:
        raise SystemExit(f"{VARIABLE}={text!r} is not a factor; set a number from 1 to 100")
    return given
