"""All communicator cases by name, and which of them need a second rank."""

import pytest

# Before the imports, so that a failing assert in a case shows its values.
for _name in ("", "_flow", "_memory", "_failures"):
    pytest.register_assert_rewrite(f"tests.cases.communicator{_name}")

from tests.cases import (  # noqa: E402
    communicator_failures,
    communicator_flow,
    communicator_memory,
)
from tests.cases.communicator import CASES  # noqa: E402

FAILURES = {name for name, body in CASES.items() if body.__module__.endswith("_failures")}

__all__ = ["CASES", "FAILURES", "communicator_failures", "communicator_flow", "communicator_memory"]
