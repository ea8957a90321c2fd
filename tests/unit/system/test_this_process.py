"""The number of this process, in this process and in a fork of it."""

from __future__ import annotations

import os

import pytest

from ncclkv.system.this_process import this_process


def test_it_is_the_number_of_the_system() -> None:
    assert this_process.pid == os.getpid()


@pytest.mark.limit(10)
def test_a_fork_has_a_number_of_its_own() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(this_process.pid).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert answer.read() == str(child)
    os.waitpid(child, 0)
    assert this_process.pid == os.getpid() != child
