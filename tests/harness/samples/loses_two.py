"""Five tests, of which one ends its process at its limit and one at once."""

import os
import time

import pytest


def test_before():
    pass


@pytest.mark.limit(1)
def test_that_never_ends():
    time.sleep(60)


def test_between():
    pass


def test_that_crashes():
    os._exit(3)


def test_that_fails_after_both():
    raise AssertionError("reached")
