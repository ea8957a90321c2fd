"""Layer 3b: host functions and callbacks on streams."""

from __future__ import annotations

from tests.nccl.emulated.calls import CALLBACK, Error, Log, Things, code, function, ok, put


def test_a_host_function_runs_in_the_stream_s_order(things: Things) -> None:
    stream, log = things.stream(), Log()
    gate = things.gate(stream)
    ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
    log.put(stream, "device")
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["host", "device"]
    assert code("cudaLaunchHostFunc", stream, None, None) == Error.INVALID_VALUE


def test_a_host_function_may_not_call_cuda(things: Things) -> None:
    stream, codes = things.stream(), list[int]()
    other, event = things.stream(), things.event()

    def calls() -> None:
        codes.append(code("cudaStreamQuery", other))
        codes.append(code("cudaEventRecord", event, other))

    ok("cudaLaunchHostFunc", stream, function(calls), None)
    ok("cudaStreamSynchronize", stream)
    assert codes == [Error.NOT_PERMITTED] * 2
    assert put(stream, lambda: codes.append(code("cudaStreamQuery", other))) == 0
    ok("cudaStreamSynchronize", stream)
    assert codes[2:] == [0]


def test_a_callback_gets_the_stream_and_its_state(things: Things) -> None:
    stream, got = things.stream(), list[tuple[int | None, int, int | None]]()
    call = CALLBACK(lambda *arguments: got.append(arguments))
    ok("cudaStreamAddCallback", stream, call, 7, 0)
    ok("cudaStreamSynchronize", stream)
    assert got == [(stream, 0, 7)]
    assert code("cudaStreamAddCallback", stream, call, 7, 1) == Error.INVALID_VALUE
    assert code("cudaStreamAddCallback", stream, None, 7, 0) == Error.INVALID_VALUE
