"""Random programs against a plain model.

A program is data (`plan`): stores, and what is done to them.  `draw` makes programs, `model` knows
what a store must answer, `play` runs a program on one rank and compares after every call, and
`hunt` looks for a program that fails.

The programs of an ordinary run are few and always the same.  For a long search, give a number of
programs a test; they are new ones each time, and the test has hours instead of a minute::

    PROGRAMS=5000 python -m pytest tests/threads/test_programs.py
    PROGRAMS=5000 launch/local.sh -n 3 -m pytest tests/ranks/test_programs.py
"""

from tests.conformance.programs.hunt import LIMIT, hunt
from tests.conformance.programs.plan import Program
from tests.conformance.programs.play import play

__all__ = ["LIMIT", "Program", "hunt", "play"]
