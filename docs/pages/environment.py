"""The page of environment variables, from the table in the docstring of ``ncclkv.env``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from ncclkv import env, launchers

INTRODUCTION = """\
Environment variables
=====================

*Read this page to set a default for all ranks of a job, or to find out what a variable in a script
does.*

.. code-block:: bash

   NCCLKV_TIMEOUT=60 NCCLKV_DUMP=reports mpirun -n 4 python train.py

.. currentmodule:: ncclkv

"""

LIMITS = """\
Wrong values
------------

A wrong value raises a `LaunchError <ncclkv.errors.LaunchError>` when a store is created.  The error
has the allowed values.  An unknown name that begins with ``NCCLKV_`` gives a warning, with the
nearest known name.

Variables of launchers
----------------------

A launcher gives each process its number in variables.  A process whose launcher started several,
and whose MPI has one rank, would train alone: ``create`` raises a `LaunchError
<ncclkv.errors.LaunchError>` there.

"""

HEADER = ("launcher", "processes", "this process", "recognised by")

_ROW = re.compile(r"``(\w+)``\s+(.*)")


def page() -> str:
    """Return the page as reStructuredText."""
    variables = "".join(
        f".. envvar:: {name}\n\n   {text[:1].upper()}{text[1:]}.\n\n"
        for name, text in table().items()
    )
    tables = _launchers("Of MPI", launchers.OF_MPI) + _launchers("Others", launchers.OTHERS)
    return INTRODUCTION + variables + LIMITS + tables


def table() -> dict[str, str]:
    """Return the text of each variable, from the docstring of ``ncclkv.env``."""
    _, lines, _ = re.split(r"^=+  =+\n?", str(inspect.getdoc(env)), flags=re.MULTILINE)
    rows: dict[str, str] = {}
    name = ""
    for line in lines.splitlines():
        if (row := _ROW.fullmatch(line)) is not None:
            name, rows[row[1]] = row[1], row[2]
        elif line.startswith(" ") and name:
            rows[name] += f" {line.strip()}"
        else:
            name = ""  # the row of the launchers, whose variables are in tables of `launchers`
    return rows


def _launchers(title: str, rows: Sequence[launchers.Launcher]) -> str:
    """Return a table of launchers with their variables."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for first, *others in (HEADER, *map(_cells, rows)):
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return "\n".join([*lines, "", ""])


def _cells(row: launchers.Launcher) -> tuple[str, ...]:
    variables = (f"``{name}``" if name else "" for name in (row.size, row.rank, row.mark))
    return (row.name.rstrip(","), *variables)
