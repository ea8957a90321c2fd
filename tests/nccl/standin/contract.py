"""What the stand-in raises."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A call that NCCL, or a GPU's streams, would answer with a hang or with wrong numbers."""


class Died(Exception):
    """A fault script ends this rank here, as if its process were gone."""
