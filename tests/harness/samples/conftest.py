"""The samples run as the tests of `tests/ranks` do."""

from tests.ranks.conftest import comm_world, pytest_configure

__all__ = ["comm_world", "pytest_configure"]
