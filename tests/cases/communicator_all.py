"""All communicator cases by name, and which of them need a second rank."""

import pytest

# Before the imports, so that a failing assert in a case shows its values.
for _name in ("communicator", "communicator_flow", "communicator_failures"):
    pytest.register_assert_rewrite(f"tests.cases.{_name}")

from tests.cases import communicator_failures, communicator_flow  # noqa: E402
from tests.cases.communicator import CASES  # noqa: E402

FAILURES = {name for name, body in CASES.items() if body.__module__.endswith("_failures")}

__all__ = ["CASES", "FAILURES", "communicator_failures", "communicator_flow"]
