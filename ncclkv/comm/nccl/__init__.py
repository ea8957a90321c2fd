"""Collectives on GPUs, by NCCL; imported when a store first requests a GPU.

**Launch.**  The communication stream waits for the work that the current stream has now.  Then it
runs the collective and the update, and records an event.  `Work.wait` makes the current stream wait
for that event.

**Current stream.**  Every verb calls `Communicator.sync_stream`: if another stream was current at
the last verb, the present one waits for that stream.  A function as updater runs on the
communication stream (``on_comm_stream``).  No verb changes the thread's current stream, device or
allocator (``tests/ranks/test_gpu_current.py``).

**Waits of the host.**  The host waits for the GPU in ``synchronize`` alone.  The calls are pulls
into host memory, ``wait``, ``barrier``, ``close``, ``save``, the begin of a capture, comparisons by
``verify_every``, and flushes that exchange NaN.  ``synchronize`` checks the deadline, NCCL's errors
and the farewells of ranks.  Agreements, barriers and farewells use MPI.

**Watcher.**  The program may also wait in CuPy, outside of ncclkv.  So a thread of the process
(`ncclkv.comm.nccl.watcher`) polls the works in flight every 100 ms, by the ``Diagnosis`` that
``synchronize`` uses.  On an error the watcher aborts NCCL, and the next verb raises the error.
Each call that launches, exchanges or checks holds the communicator's ``lock``.  The watcher skips a
communicator whose lock is held, and one that captures.  The watcher does not check during a fork,
and ends before the interpreter.

**Deadlines.**  Each call that puts a collective on a stream is inside a
`ncclkv.system.watchdog.Alarm`, also in a capture.  Setting ``reproducible=True`` connects all pairs
of ranks for messages, with the communicator's own timeout.

**Environment.**  The settings of `ncclkv.comm.nccl.discovery.settings` are in the environment only
while NCCL reads them.  NCCL reads at creations, at a communicator's first launch, and at captured
launches, and keeps each value for the whole process.  So another library that uses the same
libnccl, such as torch, may share the value.  From 2.29.7 on ``NCCL_NO_CACHE`` prevents that for two
settings, unless the other library has read them first.  Ranks that share a GPU need more settings,
which such a library shares too.

**Last error.**  A query of an event that is not complete may leave cudaErrorNotReady as the last
error of the thread, in the CUDA runtime of CuPy.  CuPy cannot clear the error.  CuPy's wheels have
a runtime of their own, so torch does not read the error.  Builds of CuPy and torch that share one
libcudart, such as those of conda-forge, have not been tested.
"""
