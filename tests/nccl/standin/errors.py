"""Errors of the stand-in."""

from __future__ import annotations


class RefusedByStandIn(AssertionError):
    """Error of a call that would hang NCCL or a GPU's streams, or give wrong numbers."""


class Died(Exception):
    """The scripted death of a rank's process."""
