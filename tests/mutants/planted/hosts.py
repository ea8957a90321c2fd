"""Faults in sums on hosts: kernels, messages and shared memory."""

from __future__ import annotations

from tests.mutants.matrix import COMM, COMM_NODES, COMM_ON_NODES, NODES, PLAIN, RANKS, THREADS
from tests.mutants.mutant import Mutant, Selection

ALLOCATOR = "ncclkv/comm/shm/allocator.py"
ALLREDUCE = "ncclkv/comm/shm/allreduce.py"
BROADCAST = "ncclkv/comm/shm/broadcast.py"
CHUNKS = "ncclkv/kernels/host/chunks.py"
DESTINATIONS = "ncclkv/comm/destinations.py"
FRAMING = "ncclkv/comm/messages/framing.py"
GATHER = "ncclkv/comm/shm/reduce_scatter.py"
HEADER = "ncclkv/comm/shm/header.py"
HIERARCHICAL = "ncclkv/comm/shm/hierarchical.py"
KERNELS_REDUCE = "ncclkv/kernels/host/reduce.py"
OPTIMIZER = "ncclkv/optimizer/base.py"
PROGRESS = "ncclkv/comm/messages/progress.py"
SMALL = "ncclkv/comm/shm/small_allreduce.py"
TWO_STEP = "ncclkv/comm/two_step.py"

MUTANTS = (
    Mutant(
        name="integers-average-downwards",
        file=KERNELS_REDUCE,
        old="    wide -= np.fmod(wide, divisor)\n",
        new="    pass\n",
        why="negative averages are one too small",
        tests=(THREADS,),
    ),
    Mutant(
        name="complex-divided-as-complex",
        file=KERNELS_REDUCE,
        old=('    if total.dtype.kind == "c":\n        # Complex'),
        new=("    if False:\n        # Complex"),
        why="an infinite part of an average becomes NaN",
        tests=(
            THREADS,
            COMM,
        ),
    ),
    Mutant(
        name="half-precision-summed-in-half",
        file=CHUNKS,
        old="        return working\n",
        new="        return dtype\n",
        why="16-bit sums are rounded at every rank",
        tests=(THREADS,),
    ),
    Mutant(
        name="averages-of-integers-wrap",
        file=CHUNKS,
        old='    return _AVERAGED_IN.get(dtype.kind, dtype) if op == "avg" else dtype\n',
        new="    return dtype\n",
        why="the sum of an average does not fit the dtype",
        tests=(THREADS,),
    ),
    Mutant(
        name="nan-loses-a-minimum",
        file=KERNELS_REDUCE,
        old='    "min": np.minimum,\n',
        new='    "min": np.fmin,\n',
        why="NaN on one rank is not seen by the others",
        tests=(THREADS,),
    ),
    Mutant(
        name="parts-folded-backwards",
        file=KERNELS_REDUCE,
        old="    first, *between, last = parts\n",
        new="    last, *between, first = parts\n",
        why="sums in rank order have other bits without the kernels in C",
        tests=(PLAIN,),
    ),
    Mutant(
        name="no-clipping-without-c",
        file="ncclkv/kernels/programs/gradient.py",
        old="return gradients if clip < 0 else",
        new="return gradients if clip < 9e9 else",
        why="gradients are not clipped where there is no compiler",
        tests=(PLAIN,),
    ),
    Mutant(
        name="learning-rate-factors-left-out",
        file=OPTIMIZER,
        old="self.learning_rate * self.factors_of(key)[0]",
        new="self.learning_rate",
        why="every key has the same learning rate",
        tests=(THREADS,),
    ),
    Mutant(
        name="weight-decay-factors-left-out",
        file=OPTIMIZER,
        old="self.wd * self.factors_of(key)[1]",
        new="self.wd",
        why="biases decay",
        tests=(Selection("0", "unit/engine/test_fused_rule.py"),),
    ),
    Mutant(
        name="short-messages-folded-backwards",
        file=TWO_STEP,
        old="for position in sorted(placed)], out",
        new="for position in sorted(placed)[::-1]], out",
        why="sums between nodes have other bits",
        tests=(COMM,),
    ),
    Mutant(
        name="update-of-later-chunks-at-the-beginning",
        file=TWO_STEP,
        old="            yield Exchange(slices(hi - lo, size, unit, lo), True)\n",
        new="            yield Exchange(slices(hi - lo, size, unit), True)\n",
        why="long arrays are updated at their beginning alone",
        tests=(COMM,),
    ),
    Mutant(
        name="own-slice-alone-is-updated",
        file=TWO_STEP,
        old="            yield [message]\n            self._update(theirs)\n",
        new="            yield [message]\n",
        why="most of a long array is not updated",
        tests=(COMM,),
    ),
    Mutant(
        name="other-calls-between-nodes-unseen",
        file=FRAMING,
        old=".view(np.int64)[0] != self._digest:\n",
        new=".view(np.int64)[0] != self._digest and False:\n",
        why="ranks of several nodes add up different keys",
        tests=(Selection("0", "unit/comm/messages/test_framing.py"), NODES),
    ),
    Mutant(
        name="update-of-whole-weights-left-out",
        file=ALLREDUCE,
        old="        if self._apply is not None and not self._plan.sharded_update:\n",
        new="        if False:\n",
        why="weights that ranks have each for themselves stay as they are",
        tests=(
            COMM,
            RANKS,
        ),
    ),
    Mutant(
        name="average-of-averages",
        file=HIERARCHICAL,
        old='        summed = "sum" if op == "avg" else op\n',
        new="        summed = op\n",
        why="averages over several nodes are too small",
        tests=(COMM_ON_NODES,),
    ),
    Mutant(
        name="sums-of-nodes-rounded",
        file=HIERARCHICAL,
        old="np.empty(count, working_dtype(dtype, op))\n",
        new="np.empty(count, dtype)\n",
        why="16-bit sums are rounded once a node",
        tests=(COMM_NODES,),
    ),
    Mutant(
        name="average-over-nodes",
        file=HIERARCHICAL,
        old="        self._size = channel.size\n",
        new="        self._size = len(node.nodes)\n",
        why="averages over several nodes are too large",
        tests=(COMM_ON_NODES,),
    ),
    Mutant(
        name="parts-of-nodes-in-their-order",
        file=TWO_STEP,
        old="placed[position] for position in sorted(placed)",
        new="placed[position] for position in placed",
        why="reproducible sums depend on the nodes",
        tests=(COMM_NODES,),
    ),
    Mutant(
        name="short-sum-without-its-update",
        file=SMALL,
        old="        if self._apply is not None and self._small.is_local:\n",
        new="        if False:\n",
        why="small weights are not updated",
        tests=(THREADS,),
    ),
    Mutant(
        name="broadcast-from-the-first-of-the-node",
        file=BROADCAST,
        old="[call.root if call.root in each else each[0] for each in node.nodes]\n",
        new="[each[0] for each in node.nodes]\n",
        why="every rank gets another rank's value",
        tests=(THREADS,),
    ),
    Mutant(
        name="rows-behind-the-own-not-shown",
        file=GATHER,
        old="            if row not in self.reads:\n",
        new="            if row < self.reads[0]:\n",
        why="parts of ranks without shared memory are garbage",
        tests=(COMM,),
    ),
    Mutant(
        name="reused-memory-not-zeroed",
        file=ALLOCATOR,
        old="                    extent[lo : lo + nbytes] = 0\n",
        new="                    pass\n",
        why="a new key's padding holds what another key had",
        tests=(Selection("0", "unit/comm/shm/test_allocator.py"),),
    ),
    Mutant(
        name="other-calls-on-a-node-unseen",
        file=HEADER,
        old="    if theirs == call and words[0] == digest:\n",
        new="    if theirs == call:\n",
        why="ranks add up different keys of the same size",
        tests=(THREADS,),
    ),
    Mutant(
        name="sum-over-the-other-nodes-kept-here",
        file=DESTINATIONS,
        old="        return self\n\n    def check(self, count: int, size: int) -> None: ...\n",
        new="        return Root(0)\n\n    def check(self, count: int, size: int) -> None: ...\n",
        why="nodes other than the first have only their own sums",
        tests=(NODES,),
    ),
    Mutant(
        name="other-parts-on-a-node-unseen",
        file=HEADER,
        old="    parts = _checksum(np.diff(bounds))\n",
        new="    parts = -1\n",
        why="ranks that cut an array differently add up each other's parts",
        tests=(COMM,),
    ),
    Mutant(
        name="lengths-of-parts-unseen",
        file=HEADER,
        old="check(call._replace(nbytes=nbytes[index]), local[0], node.rank, peer, words)",
        new="pass",
        why="a rank reads more of a neighbour's array than there is",
        tests=(COMM,),
    ),
    Mutant(
        name="reads-that-do-not-wait-for-messages",
        file="ncclkv/comm/wire.py",
        old="        yield parts.exchange(self.peers, self.peers, self.scratch)\n",
        new="        parts.exchange(self.peers, self.peers, self.scratch)\n        yield []\n",
        why="a program uses parts of other ranks that are not complete",
        tests=(COMM,),
    ),
    Mutant(
        name="sums-of-owners-kept-between-nodes",
        file=GATHER,
        old="            total.finish(block, 0, hi - lo)\n",
        new="            pass\n",
        why="parts of owners on several nodes stay as they were",
        tests=(COMM_ON_NODES, COMM_NODES),
    ),
    Mutant(
        name="own-part-updated-at-the-beginning",
        file=GATHER,
        old="            apply(first + lo, first + hi)\n",
        new="            apply(lo, hi)\n",
        why="every owner updates the first part",
        tests=(COMM,),
    ),
    Mutant(
        name="sums-of-owners-sent-on",
        file=TWO_STEP,
        old="            yield Exchange(owned, sends_on=False)\n",
        new="            yield Exchange(owned, sends_on=True)\n",
        why="a part is written over by those of other ranks",
        tests=(COMM,),
    ),
    Mutant(
        name="own-sums-not-counted-as-sent",
        file=TWO_STEP,
        old="                sent += own[1] - own[0]\n",
        new="                pass\n",
        why="a rank reports half of the bytes that it sends",
        tests=(Selection("0", "unit/comm/test_two_step.py"),),
    ),
)
