"""Stores of the stand-in that only the test closes, and the state of their graphs."""

from __future__ import annotations

from typing import Any

from tests.conformance.captures_all import Ready
from tests.nccl.standin import Seat
from tests.nccl.standin.stores import SeatStores


def graphs_of(seat: Seat) -> set[str]:
    """Return the graphs that hold any communicator."""
    return set().union(*(handle.graphs for handle in seat.binding._handles))


def opened(seat: Seat, update_on: str = "every_rank", **options: Any) -> Ready:
    """Open a store that only the test closes."""

    def create(**more: Any) -> Any:
        return SeatStores(seat, update_on).open(update_on=update_on, **options, **more)

    return Ready(create)  # type: ignore[arg-type]


def ends(seat: Seat) -> list[str]:
    """Return the end of each communicator, and the graphs that existed before it."""
    return [line.split()[0] for line in seat.log.lines if line.startswith(("destroy", "abort"))]
