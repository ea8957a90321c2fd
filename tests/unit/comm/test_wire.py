"""Reads over messages in memory: each rank has what it wants, and no other byte is sent."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import LEAST
from ncclkv.comm.types import ALIGNMENT, Apply, Buffer
from ncclkv.comm.wire import Range, Wire, aligned
from ncclkv.errors import UsageError
from tests.unit.comm.memory_wire import MemoryWire, Network, run

Found = dict[int, list[Buffer | None]]


def reads(
    wire: Wire,
    own: Buffer,
    wanted: dict[tuple[int, int], Range | None],
    found: Found,
    into: list[Buffer | None],
) -> Steps:
    """Read once, and keep what is found."""
    found[wire.rank] = yield from wire.read(own, lambda *pair: wanted[pair], into)


def drawn(rng: np.random.Generator, count: int) -> Range | None:
    """Return a range, which may be empty, or None."""
    lo, hi = sorted(rng.integers(0, count + 1, 2).tolist())
    return None if rng.random() < 0.2 else (lo, hi)


@pytest.mark.parametrize("seed", range(40))
def test_each_rank_reads_what_it_wants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, dtype = int(rng.integers(1, 6)), rng.choice(np.array(["u1", "i2", "f8"]))
    arrays = [
        rng.integers(0, 99, int(rng.choice([0, 1, 7, 300]))).astype(dtype) for _ in range(size)
    ]
    pairs = [(reader, owner) for reader in range(size) for owner in range(size)]
    wanted = {(reader, owner): drawn(rng, arrays[owner].size) for reader, owner in pairs}
    places: list[list[Buffer | None]] = [[] for _ in arrays]
    if rng.random() < 0.7:
        for reader, owner in pairs:
            each = wanted[reader, owner]
            placed = each is not None and rng.random() < 0.5
            places[reader].append(np.zeros(each[1] - each[0], dtype) if each and placed else None)
    network, found = Network(size), Found()
    wires = [MemoryWire(network, rank, LEAST) for rank in range(size)]
    run(wires, [reads(wires[r], arrays[r], wanted, found, places[r]) for r in range(size)])
    for reader, owner in pairs:
        each, got = wanted[reader, owner], found[reader][owner]
        if each is None:
            assert got is None
            continue
        np.testing.assert_array_equal(got, arrays[owner][slice(*each)], strict=True)
        place = places[reader][owner] if places[reader] else None
        assert place is None or got is place
    for owner in range(size):
        leaving = [wanted[reader, owner] or (0, 0) for reader in range(size) if reader != owner]
        nbytes = sum(hi - lo for lo, hi in leaving) * arrays[owner].itemsize
        assert network.sent.get(owner, 0) == nbytes


def test_parts_in_scratch_memory_are_aligned() -> None:
    network, found = Network(3), Found()
    wires = [MemoryWire(network, rank, LEAST) for rank in range(3)]
    own = np.zeros(5, np.uint8)
    wanted: dict[tuple[int, int], Range | None] = {
        (r, o): (0, 5) for r in range(3) for o in range(3)
    }
    run(wires, [reads(wire, own, wanted, found, []) for wire in wires])
    parts = [found[0][owner].ctypes.data for owner in (1, 2)]
    assert abs(parts[0] - parts[1]) == ALIGNMENT == aligned(5)
    assert wires[0].most_scratch == 2 * ALIGNMENT


def test_a_part_of_this_rank_is_a_view() -> None:
    network, found, own = Network(1), Found(), np.arange(9)
    wire = MemoryWire(network, 0, LEAST)
    run([wire], [reads(wire, own, {(0, 0): (2, 5)}, found, [])])
    part = found[0][0]
    assert part is not None
    assert part.base is own


def test_a_rank_that_is_alone_has_no_messages() -> None:
    comm = SoloCommunicator(10)

    def sends(wire: Wire, apply: Apply | None) -> Steps:
        yield [wire.send(wire.scratch(3), 1)]

    def receives(wire: Wire, apply: Apply | None) -> Steps:
        yield [wire.receive(wire.scratch(3), 1)]

    for steps in (sends, receives):
        with pytest.raises(UsageError, match="rank 0 of 1: .* there is no peer"):
            comm.program(steps, what="a test").launch()


def test_a_program_of_a_closed_communicator_is_refused() -> None:
    comm = SoloCommunicator(10)
    program = comm.program(lambda wire, apply: iter(()), what="a test")  # type: ignore[arg-type,return-value]
    program.launch().wait()
    comm.close()
    with pytest.raises(UsageError, match="is closed"):
        program.launch()
