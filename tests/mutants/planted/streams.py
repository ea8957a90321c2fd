"""Faults in calls of CUDA: streams, events, memory and captures of one device."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

CUPY = "ncclkv/arrays/cupy.py"
STREAMS = "ncclkv/comm/nccl/streams.py"

CURRENT = "ranks/test_gpu_current.py"
STAGING = "ncclkv/kernels/device/staging.py"

MUTANTS = (
    Mutant(
        name="event-error-taken-for-not-ready",
        file=STREAMS,
        old="return event_is_complete(self.ptr, self._runtime)",
        new="return bool(self._runtime.eventQuery(self.ptr) == 0)",
        why="after an illegal address a wait lasts to its deadline and blames the other ranks",
        tests=(
            Selection("0", "nccl/test_nccl_cuda.py", "any_other_code"),
            Selection("3b", "nccl/test_gpu_errors.py", "illegal_address"),
        ),
    ),
    Mutant(
        name="text-of-cuda-swallowed",
        file=STREAMS,
        old="CUDA reports at {what}: {error}; the device",
        new="CUDA reports at {what}; the device",
        why="a user reads that CUDA failed, and not why",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "errors_of_cuda"),),
    ),
    Mutant(
        name="one-stream-seen",
        file=STREAMS,
        old="deque(maxlen=2)",
        new="deque(maxlen=1)",
        why="an event is recorded on a stream that its owner has dropped",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "stream_before"),),
    ),
    Mutant(
        name="stream-entered-on-another-device",
        file=CUPY,
        old="    with device:\n        before",
        new="    if True:\n        before",
        why="CuPy refuses the store's stream while another device is current",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "made_current"),),
    ),
    Mutant(
        name="device-of-a-thread-taken-away",
        file=STREAMS,
        old="return partial(runtime.setDevice, own) if has_used else None",
        new="return None",
        why="a thread's next arrays are on the store's GPU after a push in an overlap block",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "gets_back"),),
    ),
    Mutant(
        name="context-on-a-gpu-of-others",
        file=STREAMS,
        old="return partial(runtime.setDevice, own) if has_used else None",
        new="return partial(runtime.setDevice, own)",
        why="a pushing thread of each rank takes memory of GPU 0",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "no_context"),),
    ),
    Mutant(
        name="default-streams-of-threads-taken-for-one",
        file="ncclkv/comm/nccl/progress.py",
        old="if PER_THREAD in (current, self._last) and",
        new="if False and",
        why="pushes of threads with default streams of their own give wrong sums",
        tests=(Selection("2", "nccl/test_standin_streams.py", "default_stream_of_its_own"),),
    ),
    Mutant(
        name="chosen-stream-taken-away",
        file=CUPY,
        old="        if cuda.get_current_stream(device_id) is not before:\n",
        new="        if False:\n",
        why="a program's kernels after a push run before those that it launched earlier",
        tests=(
            Selection("0", "nccl/test_cuda_devices.py", "chosen_by_use or of_torch"),
            Selection("3b", CURRENT, "every_rank and use", ranks=2),
        ),
    ),
    Mutant(
        name="buckets-on-the-current-device",
        file=STREAMS,
        old='        with self._cuda.Device(self._device), memory(f"{nbytes:,} bytes"):\n',
        new='        with memory(f"{nbytes:,} bytes"):\n',
        why="buckets lie on another GPU than the communicator",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "memory_is_of_its_device"),),
    ),
    Mutant(
        name="capture-stream-on-the-current-device",
        file=STREAMS,
        old="""\
                with self._cuda.Device(self._device):
                    # Non-b""",
        new="""\
                with suppress():
                    # Non-b""",
        why="a capture on another GPU than the communicator's",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "of_its_device"),),
    ),
    Mutant(
        name="stream-that-waits-for-the-default-stream",
        file=STREAMS,
        old="self._cuda.Stream(non_blocking=True, priority=_HIGHEST)",
        new="self._cuda.Stream(priority=_HIGHEST)",
        why="collectives stand behind all work of the default stream, in no order of ours",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "non_blocking"),),
    ),
    Mutant(
        name="capture-of-all-threads",
        file=STREAMS,
        old="streamCaptureModeThreadLocal",
        new="streamCaptureModeGlobal",
        why="a look of the watcher's spoils the capture of the program",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "capture_is_of_this_thread"),),
    ),
    Mutant(
        name="looks-spoil-captures",
        file=STREAMS,
        old="_RELAXED = 2",
        new="_RELAXED = 0",
        why="a look of the watcher's spoils a capture of another library's",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "minds_no_capture"),),
    ),
    Mutant(
        name="another-device-accepted",
        file=STREAMS,
        old="        if current != self._device:\n",
        new="        if False:\n",
        why="the store's kernels go to another GPU than its buckets",
        tests=(
            Selection("0", "nccl/test_nccl_cuda.py", "refused_in_words"),
            Selection("3b", "nccl/test_gpu_several.py", "not_used_from_another"),
        ),
    ),
    Mutant(
        name="pinned-memory-not-held",
        file=STAGING,
        old="        self._busy.append((event, memory))\n",
        new="        self._busy.append((event, None))\n",
        why="a push from NumPy sends what the next push has put there",
        tests=(
            Selection("0", "nccl/test_cuda_devices.py", "held_until"),
            Selection("3b", "nccl/test_gpu_kernels.py", "held_until"),
        ),
    ),
    Mutant(
        name="pinned-memory-held-to-an-event-before-its-copy",
        file=STAGING,
        old="""\
        slot.data.copy_from_host_async(staged.ctypes.data, slot.nbytes)
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
""",
        new="""\
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
        slot.data.copy_from_host_async(staged.ctypes.data, slot.nbytes)
""",
        why="a push from NumPy sends, now and then, what the next push has put there",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "behind_its_event"),),
    ),
    Mutant(
        name="pinned-memory-never-given-back",
        file=STAGING,
        old=" if not event_is_complete(each[0].ptr, runtime)]",
        new="]",
        why="pushes from NumPy take more and more page-locked memory",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "given_back"),),
    ),
    Mutant(
        name="error-of-staged-memory-taken-for-not-ready",
        file=STAGING,
        old="if not event_is_complete(each[0].ptr, runtime)]",
        new="if runtime.eventQuery(each[0].ptr)]",
        why="a device that is lost is noticed by a later call, or by none",
        tests=(Selection("0", "nccl/test_cuda_devices.py", "staged_memory"),),
    ),
    Mutant(
        name="pull-to-the-host-not-waited-for",
        file=STAGING,
        old="slot.reshape(-1).get(out=out.reshape(-1))",
        new="slot.reshape(-1).get(out=out.reshape(-1), blocking=False)",
        why="a pull into page-locked memory returns before the value is there",
        tests=(Selection("3b", "nccl/test_gpu_kernels.py", "page_locked"),),
    ),
    Mutant(
        name="pull-to-the-host-without-a-cast",
        file=STAGING,
        old="    if out.dtype == slot.dtype and out.flags.c_contiguous:\n",
        new="    if out.flags.c_contiguous:\n",
        why="a pull into NumPy of another dtype writes raw bytes, or beyond the array",
        tests=(Selection("3b", "nccl/test_gpu_kernels.py", "unpack_casts and host"),),
    ),
)
