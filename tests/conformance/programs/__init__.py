"""Random programs, compared with a plain model.

A program is data (`plan`): stores, and operations on them.  `draw` makes programs, and `model`
predicts the contents of stores.  `play` runs a program on one rank and compares after every call.
`find_failure` searches for a program that fails.

The programs of an ordinary run are few and always the same.  For a long search, give a number of
programs a test; they are new ones each time, and the test has hours instead of a minute::

    PROGRAMS=5000 python -m pytest tests/threads/test_programs.py
    PROGRAMS=5000 launch/local.sh -n 3 -m pytest tests/ranks/test_programs.py
"""

from tests.conformance.programs.plan import Program
from tests.conformance.programs.play import play
from tests.conformance.programs.search import LIMIT, find_failure

__all__ = ["LIMIT", "Program", "find_failure", "play"]
