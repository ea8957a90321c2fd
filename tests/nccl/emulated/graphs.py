"""Graphs for tests of the emulated runtime."""

from __future__ import annotations

from tests.nccl.emulated.calls import Log, Things, ok


def capture(things: Things, stream: int, *names: str, log: Log) -> int:
    """Return an executable graph of work in sequence."""
    ok("cudaStreamBeginCapture", stream, 0)
    for name in names:
        log.put(stream, name)
    return things.exec(things.captured(stream))


def branches(things: Things, log: Log, count: int) -> int:
    """Return an executable graph of `first`, then branches of two nodes each, then `last`."""
    stream = things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    log.put(stream, "first")
    begun = things.recorded(stream)
    for n in range(count):
        other = things.stream()
        ok("cudaStreamWaitEvent", other, begun, 0)
        log.put(other, f"{n} begins")
        log.put(other, f"{n} ends")
        ok("cudaStreamWaitEvent", stream, things.recorded(other), 0)
    log.put(stream, "last")
    return things.exec(things.captured(stream))


def launch(exec: int, stream: int) -> None:
    ok("cudaGraphLaunch", exec, stream)
    ok("cudaStreamSynchronize", stream)
