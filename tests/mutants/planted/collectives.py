"""Faults in calls of NCCL: functions, numbers, the order of sums, settings, devices."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

BINDING = "ncclkv/comm/nccl/binding.py"
COMMUNICATOR = "ncclkv/comm/nccl/communicator.py"
CTYPES_BINDING = "ncclkv/comm/nccl/ctypes_binding.py"
DISCOVERY = "ncclkv/comm/nccl/discovery.py"
MESSAGES = "ncclkv/comm/nccl/messages.py"
TWO_STEP = "ncclkv/comm/two_step.py"
DTYPES = "ncclkv/comm/nccl/dtypes.py"
WORK = "ncclkv/comm/nccl/work.py"

STORE = "ranks/test_gpu_store.py"

MUTANTS = (
    Mutant(
        name="empty-parts-compare-nothing",
        file="ncclkv/comm/host/communicator.py",
        old="lambda channel: algorithms.gather(channel, send, parts), call)",
        new="lambda channel: Gather(send, parts).steps(channel, None), call)",
        why="ranks with other counts wait for each other, or leave a message behind",
        tests=(Selection("0", "unit/comm/test_gather.py", "parts_are_empty"),),
    ),
    Mutant(
        name="one-part-a-node-crosses",
        file="ncclkv/comm/gather.py",
        old="place % len(ranks) == index",
        new="place == index",
        why="on the smaller of two nodes a part of the larger does not arrive",
        tests=(Selection("0", "unit/comm/test_gather.py"),),
    ),
    Mutant(
        name="shared-gather-leaves-early",
        file="ncclkv/comm/gather.py",
        old="            wire.share_result()\n",
        new="            pass\n",
        why="a rank reads parts of other nodes before its neighbours have received them",
        tests=(Selection("0", "unit/comm/test_gather.py"),),
    ),
    Mutant(
        name="a-program-ends-before-its-readers",
        file="ncclkv/comm/shm/node_wire.py",
        old="            yield self._slot.stragglers(DONE)\n",
        new="            yield []\n",
        why="an array is written while neighbours read it",
        tests=(Selection("0", "unit/comm/shm/test_node_wire.py"),),
    ),
    Mutant(
        name="a-shared-result-is-read-too-early",
        file="ncclkv/comm/shm/node_wire.py",
        old="        self._shares_result = True\n",
        new="        pass\n",
        why="a rank reads weights that its neighbours have not written",
        tests=(Selection("0", "unit/comm/shm/test_node_wire.py", "shared_result"),),
    ),
    Mutant(
        name="copies-of-a-program-are-lent-while-read",
        file="ncclkv/comm/shm/copies.py",
        old="        if self._used and self._used[0][1].is_complete():\n",
        new="        if self._used:\n",
        why="a later program writes what neighbours still read",
        tests=(Selection("0", "unit/comm/shm/test_node_wire.py"),),
    ),
    Mutant(
        name="wait-of-a-work-does-nothing",
        file=WORK,
        old="                self._streams.wait(self._streams.current(), event)\n",
        new="                pass\n",
        why="what the caller puts on its stream next does not find the result",
        tests=(
            Selection("2", "nccl/test_nccl_buffers.py", "waits_for_the_current_stream"),
            Selection("3b", STORE, "groups and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="broadcast-from-rank-0",
        file=COMMUNICATOR,
        old="\n            self._binding.broadcast(handle, *arguments, root, stream)",
        new="\n            self._binding.broadcast(handle, *arguments, 0, stream)",
        why="every rank gets another rank's value",
        tests=(Selection("2", "nccl/test_standin_communicator.py", "broadcast"),),
    ),
    Mutant(
        name="room-not-kept",
        file=COMMUNICATOR,
        old="(send, receive, scratch), update)",
        new="(send, receive), update)",
        why="a replay of sums in rank order works in memory that has been freed",
        tests=(Selection("2", "nccl/test_in_flight.py", "keeps_the_room"),),
    ),
    Mutant(
        name="complex-numbers-counted-once",
        file=DTYPES,
        old="    count *= nccl_type.factor\n",
        new="",
        why="half of an array of complex numbers is not reduced",
        tests=(Selection("2", "nccl/test_nccl_buffers.py", "bools_and_complex"),),
    ),
    Mutant(
        name="close-does-not-wait",
        file=COMMUNICATOR,
        old='        self.synchronize()\n        try:\n            self.control.barrier("close")',
        new='        try:\n            self.control.barrier("close")',
        why="NCCL destroys a communicator whose collectives still run",
        tests=(Selection("2", "nccl/test_nccl_end.py", "close_ends_all"),),
    ),
    Mutant(
        name="child-forgets-the-order",
        file=COMMUNICATOR,
        old="        made.reproducible = self.reproducible\n",
        new="",
        why="a store made from a reproducible communicator is not reproducible",
        tests=(Selection("2", "nccl/test_standin_rank_order.py", "splits_and_duplicates"),),
    ),
    Mutant(
        name="messages-without-a-group",
        file=BINDING,
        old="""\
    binding.group_start()
    try:
        yield
    finally:
        binding.group_end()
""",
        new="    yield\n",
        why="every rank waits in its first message for one that another rank has yet to send",
        tests=(
            Selection("2", "nccl/test_standin_rank_order.py", "every_length_to_all and 3-True"),
            Selection("2", "nccl/test_standin_communicator.py", "all_to_all_of and lazy"),
            Selection("3b", STORE, "float32_is_summed_in_rank_order and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="steps-off-their-stream",
        file=MESSAGES,
        old="            with lifetime.streams.on(stream):\n                deque(steps",
        new="            if stream:\n                deque(steps",
        why="parts are added up before they have come",
        tests=(
            Selection("2", "nccl/test_standin_rank_order.py", "every_length_to_all and 3-True"),
            Selection("2", "nccl/test_standin_communicator.py", "all_to_all_of and lazy"),
            Selection("3b", STORE, "float32_is_summed_in_rank_order and every_rank", ranks=2),
        ),
    ),
    Mutant(
        name="parts-in-one-place",
        file=TWO_STEP,
        old="arriving[peer] = rows = space[start:stop]",
        new="arriving[peer] = rows = space[:count]",
        why="sums of three ranks and more are wrong",
        tests=(
            Selection("2", "nccl/test_standin_rank_order.py", "every_length_to_all and 3-True"),
            Selection("2", "nccl/test_standin_communicator.py", "all_to_all_of and lazy"),
            Selection("3b", STORE, "float32_is_summed_in_rank_order and every_rank", ranks=3),
        ),
    ),
    Mutant(
        name="parts-of-owners-from-rank-0",
        file=COMMUNICATOR,
        old="self._binding.reduce(handle, *each[root], root, stream)",
        new="self._binding.reduce(handle, *each[root], 0, stream)",
        why="rank 0 receives the sums of all ranks",
        tests=(Selection("2", "nccl/test_standin_communicator.py", "owners_receive"),),
    ),
    Mutant(
        name="gathered-parts-not-sent",
        file=COMMUNICATOR,
        old="source = send if root == self.rank else part",
        new="source = part",
        why="a rank sends what its array for the parts held before",
        tests=(Selection("2", "nccl/test_standin_communicator.py", "allgatherv_of"),),
    ),
    Mutant(
        name="number-of-another-dtype-of-16-bits",
        file="ncclkv/arrays/dtype_table.py",
        old='        "__half",\n        6,\n',
        new='        "__half",\n        9,\n',
        why="NCCL adds float16 as if it were bfloat16",
        tests=(Selection("3", "nccl/test_library.py", "numbers_are"),),
    ),
    Mutant(
        name="largest-and-smallest-swapped",
        file=BINDING,
        old='"max": 2, "min": 3',
        new='"max": 3, "min": 2',
        why="a maximum is a minimum",
        tests=(Selection("3", "nccl/test_library.py", "numbers_are"),),
    ),
    Mutant(
        name="bools-added-as-bytes",
        file=DTYPES,
        old='_OPS_OF_BOOL = {"sum": "max"',
        new='_OPS_OF_BOOL = {"sum": "sum"',
        why="the sum of two trues is a byte of 2, and of 256 trues it is false",
        tests=(Selection("2", "nccl/test_nccl_buffers.py", "bools_and_complex"),),
    ),
    Mutant(
        name="communicator-on-another-device",
        file=CTYPES_BINDING,
        old="cupy.cuda.Device(self._device).use()",
        new="cupy.cuda.Device(0).use()",
        why="every rank of a node makes its communicator on the first GPU",
        tests=(Selection("0", "nccl/test_ctypes_binding.py", "joins_on_its_own"),),
    ),
    Mutant(
        name="connects-in-the-first-collective",
        file=DISCOVERY,
        old='        "NCCL_RUNTIME_CONNECT": "0",\n',
        new="",
        why="NCCL waits for a missing rank in a call without a deadline",
        tests=(Selection("0", "nccl/test_discovery.py", "needs_few_settings"),),
    ),
    Mutant(
        name="buffers-of-captures-registered",
        file=DISCOVERY,
        old='        "NCCL_GRAPH_REGISTER": "0",\n',
        new="",
        why="a capture spins for ever where one rank of a node has left the block",
        tests=(Selection("0", "nccl/test_discovery.py", "needs_few_settings"),),
    ),
)
