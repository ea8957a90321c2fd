"""Faults in the kernels, in their arguments, and in the engine's calls of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

COPIES = "ncclkv/kernels/device/copies.py"
CUBINS = "ncclkv/kernels/device/cubins.py"
FLAGGED = "ncclkv/engine/nonfinite.py"
KERNELS = "ncclkv/kernels/device/kernels.py"
LAUNCH = "ncclkv/kernels/device/launch.py"
PEERS = "ncclkv/kernels/device/peer_copies.py"

CAPTURED = "ranks/test_gpu_capture.py"
STORE = "ranks/test_gpu_store.py"

MUTANTS = (
    Mutant(
        name="functions-of-any-device",
        file=LAUNCH,
        old="key = (cupy.cuda.runtime.getDevice(), program)",
        new="key = (0, program)",
        why="a function that is loaded on one GPU is launched on another",
        tests=(Selection("3", "nccl/test_kernel_cache.py", "each_device"),),
    ),
    Mutant(
        name="kernel-loaded-in-a-capture",
        file=LAUNCH,
        old="        if cupy.cuda.get_current_stream().is_capturing():\n",
        new="        if False:\n",
        why="the first use of a kernel in a capture spoils it, in CUDA's words",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "not_loaded_in_a_capture"),),
    ),
    Mutant(
        name="cubins-of-other-headers",
        file=CUBINS,
        old="        *map(repr, headers().items()),\n",
        new="",
        why="after an upgrade the kernels of the version before are launched",
        tests=(Selection("3", "nccl/test_kernel_cache.py", "the_key_has"),),
    ),
    Mutant(
        name="damaged-cubin-loaded",
        file=CUBINS,
        old="return code if hashlib.sha256(code).digest() == digest else None",
        new="return code",
        why="a file that was cut short breaks every later process",
        tests=(Selection("3", "nccl/test_kernel_cache.py", "damaged_file"),),
    ),
    Mutant(
        name="copies-across-devices-as-one-of-bytes",
        file=COPIES,
        old="            and self.device == other.device\n",
        new="",
        why="a kernel reads memory of another GPU, which it may not reach",
        tests=(Selection("3", "nccl/test_kernels_peers.py", "takes_each_value_the_way"),),
    ),
    Mutant(
        name="table-serves-other-dtypes",
        file=COPIES,
        old="            and self.dtype == other.dtype\n",
        new="",
        why="float16 is copied into float32 byte by byte",
        tests=(Selection("3", "nccl/test_kernels_tables.py", "leaves_alone"),),
    ),
    Mutant(
        name="peer-copy-before-its-source",
        file=PEERS,
        old="        stream.wait_event(made)\n",
        new="",
        why="a gradient of another GPU is copied while it is written",
        tests=(Selection("3", "nccl/test_kernels_peers.py", "another_device_is_packed"),),
    ),
    Mutant(
        name="peer-copy-s-source-freed",
        file=PEERS,
        old="        cuda.get_current_stream().wait_event(copied)\n",
        new="        pass\n",
        why="a gradient of another GPU is overwritten while it is copied",
        tests=(Selection("3", "nccl/test_kernels_peers.py", "another_device_is_packed"),),
    ),
    Mutant(
        name="first-device-for-every-rank",
        file="ncclkv/comm/nccl/start.py",
        old="        cupy.cuda.Device(device).use()\n",
        new="",
        why="arrays of every rank of a node lie on its first GPU",
        tests=(Selection("0", "nccl/test_device_discovery.py", "facts_are_those"),),
    ),
    Mutant(
        name="no-memory-in-cupy-s-words",
        file="ncclkv/kernels/device/memory.py",
        old='    with memory(f"{count * dtype.itemsize:,} bytes"):\n        return',
        new="    if True:\n        return",
        why="a GPU that is full breaks the store with an error that is none of ours",
        tests=(Selection("0", "nccl/test_nccl_cuda.py", "no_memory_for_an_array"),),
    ),
    Mutant(
        name="checksums-of-strided-arrays",
        file="ncclkv/kernels/device/checksums.py",
        old="        return cupy.ascontiguousarray(array)\n",
        new="        return array\n",
        why="values that are equal are told to differ, or the other way round",
        tests=(
            Selection("3b", "nccl/test_gpu_kernels.py", "TestChecksums and strides_and_in_host"),
        ),
    ),
    Mutant(
        name="sums-of-strided-arrays",
        file=KERNELS,
        old="        return cupy.ascontiguousarray(value)\n",
        new="        return value\n",
        why="a list of gradients that are not in C order is summed in the order of memory",
        tests=(
            Selection("3", "nccl/test_kernels_peers.py", "combined_on"),
            Selection("3b", "nccl/test_gpu_kernels.py", "TestCombine and strides_and_in_host"),
        ),
    ),
    Mutant(
        name="searched-past-the-end",
        file=KERNELS,
        old='        argument["size"] = array.size\n',
        new='        argument["size"] = array.nbytes\n',
        why="numbers behind an array, of another key or of nobody, are taken for its own",
        tests=(Selection("3", "nccl/test_kernels_as_cpp.py", "every_element_is_searched"),),
    ),
    Mutant(
        name="step-ignores-its-flag",
        file=KERNELS,
        old='            argument["skip"] = 0 if skip is None else skip.data.ptr\n',
        new='            argument["skip"] = 0\n',
        why="a step with NaN is made, and the weights are lost",
        tests=(Selection("3", "nccl/test_kernels_as_cpp.py", "skipped_as_memory_says"),),
    ),
    Mutant(
        name="flag-of-a-step-not-reset",
        file=KERNELS,
        old='            argument["skip"] = 0 if skip is None else skip.data.ptr\n',
        new='            if skip is not None:\n                argument["skip"] = skip.data.ptr\n',
        why="a step without a flag reads the flag of an earlier one, in memory that may be freed",
        tests=(Selection("3", "nccl/test_kernels_as_cpp.py", "step_without_a_flag"),),
    ),
    Mutant(
        name="scalars-of-the-first-launch",
        file=KERNELS,
        old='argument["scalars"] = _row(scalars, pieces.start)',
        new='argument["scalars"] = _row(scalars, 0)',
        why="keys beyond the 128th of a bucket are updated with the numbers of others",
        tests=(Selection("3", "nccl/test_kernels_as_cpp.py", "rows_of_their_own"),),
    ),
    Mutant(
        name="averages-not-divided",
        file=KERNELS,
        old='divisor=len(parts) if op == "avg" else 0',
        new="divisor=0",
        why="averages of a reproducible store are sums",
        tests=(Selection("3", "nccl/test_kernels_as_cpp.py", "averages"),),
    ),
    Mutant(
        name="push-into-what-flies",
        file="ncclkv/engine/engine.py",
        old="            state.complete()\n        stored.copy_in(",
        new="            pass\n        stored.copy_in(",
        why="a push overwrites gradients that a collective still reads",
        tests=(
            Selection("2", "nccl/test_standin_store.py", "every_optimizer_push and 3-root"),
            Selection("3b", STORE, "every_optimizer_push and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="scalars-baked-into-a-graph",
        file="ncclkv/optimizer/captured.py",
        old="(optimizer.counted or optimizer is not self._written):",
        new="self._written is None:",
        why="a replay goes on with the numbers of the first one",
        tests=(
            Selection("2", "nccl/test_capture_steps.py", "rate and every_rank and 3"),
            Selection("3b", CAPTURED, "a_learning_rate_that_changes and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="flag-of-a-flush-not-reset",
        file=FLAGGED,
        old="        kernels.fill(self._skip_flag, 0)\n",
        new="",
        why="after one NaN no step is made any more",
        tests=(
            Selection("2", "nccl/test_nonfinite.py", "raise_when_they_wait"),
            Selection("3b", STORE, "nan_raises_on_every_rank and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="flag-of-a-flush-not-agreed-on",
        file=FLAGGED,
        old="""\
        work = self._comm.allreduce(self._skip_flag, self._skip_flag, "max")
        work.label = "the check for NaN and infinity"
        work.wait()
""",
        new="",
        why="the rank with NaN leaves a step out, and the others make it",
        tests=(
            Selection("2", "nccl/test_nonfinite.py", "raise_when_they_wait"),
            Selection("3b", STORE, "nan_raises_on_every_rank and every_rank", ranks=2),
        ),
    ),
)
