"""The README's first program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

README = Path(__file__).resolve().parents[2] / "README.md"


def programs() -> list[str]:
    """Return the texts of all programs, which run as they stand."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def first_program() -> str:
    """Return the program's text."""
    return programs()[0]


def run_first_program() -> list[tuple[Any, ...]]:
    """Run the program on this rank; return the arguments of its prints."""
    printed: list[tuple[Any, ...]] = []
    program = compile(first_program(), str(README), "exec")
    exec(program, {"print": lambda *words: printed.append(words)})
    return printed


def check_first_program(rank: int, size: int) -> None:
    """Check the program's two lines, for any number of ranks."""
    total = size * (size + 1) / 2
    first, second = run_first_program()
    assert first[0] == second[0] == rank
    assert np.array_equal(first[1], np.full(3, total))
    assert np.array_equal(second[1], np.full(3, total - 0.5 * size))
