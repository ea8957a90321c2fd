"""All cases of captured steps by name: of those that do, and of those that are refused."""

import pytest

_MISUSES = ("captures_misuse", "captures_misuse_updates", "captures_misuse_blocks")

# Before the imports, so that a failing assert in a case shows its values.
for _name in ("captures", "captures_around", *_MISUSES):
    pytest.register_assert_rewrite(f"tests.conformance.{_name}")

from tests.conformance import captures_around, captures_misuse_blocks, captures_misuse_updates  # noqa: E402
from tests.conformance.captures import CAPTURES  # noqa: E402
from tests.conformance.captures_misuse import MISUSES, Ready  # noqa: E402

__all__ = [
    "CAPTURES",
    "MISUSES",
    "Ready",
    "captures_around",
    "captures_misuse_blocks",
    "captures_misuse_updates",
]
