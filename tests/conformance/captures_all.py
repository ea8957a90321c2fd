"""All cases of captured steps by name: accepted ones and refused ones."""

from tests.conformance import (
    captures_between_calls,
    captures_misuse_blocks,
    captures_misuse_updates,
)
from tests.conformance.captures import CAPTURES
from tests.conformance.captures_misuse import MISUSES, Ready

__all__ = [
    "CAPTURES",
    "MISUSES",
    "Ready",
    "captures_between_calls",
    "captures_misuse_blocks",
    "captures_misuse_updates",
]
