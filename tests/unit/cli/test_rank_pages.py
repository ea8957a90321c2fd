"""Pages that a supervisor reads from the memory of a process, and their packed form."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ncclkv.cli import rank_pages
from ncclkv.cli.rank_pages import PageAddress


def test_pages_of_this_process_in_the_order_of_the_request() -> None:
    arrays = [np.arange(count, dtype=np.uint8) for count in (10, 200)]
    places = [PageAddress(os.getpid(), each.ctypes.data, each.nbytes) for each in arrays]
    clock, pages = rank_pages.unpack(rank_pages.pack("\n".join(map(str, places))))
    assert clock > 0
    assert pages == [each.tobytes() for each in arrays]


@pytest.mark.parametrize(
    "line",
    [
        f"{os.getpid()} 0 100",
        f"{os.getpid()} {1 << 63} 100",
        f"{os.getpid()} {1 << 80} 100",
        f"{os.getpid()} 4096 {1 << 40}",
        "4194999 4096 100",
        "no place at all",
        "",
    ],
)
def test_what_cannot_be_read_is_empty(line: str) -> None:
    _, pages = rank_pages.unpack(rank_pages.pack(f"{line}\n{line}\n"))
    assert pages == [b"", b""]


@pytest.mark.parametrize("data", [b"", b"no pages", rank_pages.zlib.compress(b"short")])
def test_other_data_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no pages"):
        rank_pages.unpack(data)


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "-1 2 3", "a b c"])
def test_texts_that_are_no_places(text: str) -> None:
    assert PageAddress.read(text) is None
