"""A program that runs several times in one process: ``python in_turn.py PROGRAM OPTIONS...``.

Each of OPTIONS holds the options of one run, as in a shell.  Imports are done once.
"""

from __future__ import annotations

import runpy
import shlex
import sys

program, *runs = sys.argv[1:]
for options in runs:
    sys.argv = [program, *shlex.split(options)]
    runpy.run_path(program, run_name="__main__")
