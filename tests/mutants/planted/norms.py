"""Faults in norms of whole keys, and in the updates that wait for them."""

from __future__ import annotations

from dataclasses import replace

from tests.mutants import matrix
from tests.mutants.mutant import Mutant, Selection

NORMS = "ncclkv/engine/norms.py"
FLUSH = "ncclkv/engine/flush.py"
MEASURE = "ncclkv/kernels/host/measure.py"
PUSHES = "ncclkv/engine/pushes.py"

RANKS = replace(matrix.RANKS, keyword="norms")
NODES = replace(matrix.NODES, keyword="norms")
THREADS = replace(matrix.THREADS, keyword="norms")
UNIT = Selection("0", "unit/kernels/host/test_measure.py")
UNIT_NORMS = Selection("0", "unit/engine/test_norms.py")

MUTANTS = (
    Mutant(
        name="norms-of-one-part",
        file=NORMS,
        old="            if comm.size > 1:\n                work = comm.allreduce(sums, sums)\n",
        new="            if False:\n                work = comm.allreduce(sums, sums)\n",
        why="each rank adapts its part of a key to the norm of the part",
        tests=(RANKS,),
    ),
    Mutant(
        name="one-rank-measures-too-little",
        file=NORMS,
        old="                self._measure(launch, start + lo, start + hi)\n",
        new="                self._measure(launch, start + lo, start + hi - (start + lo > 0))\n",
        why="a rank leaves out the last element of each of its ranges but the first",
        tests=(RANKS,),
    ),
    Mutant(
        name="every-node-measures",
        file=NORMS,
        old="    return not comm.first_node and not launch",
        new="    return False and not launch",
        why="on several nodes that share weights, norms are too large",
        tests=(NODES,),
    ),
    Mutant(
        name="owners-of-one-node-measure",
        file=NORMS,
        old="    return not comm.first_node and not launch.state.to.divided\n",
        new="    return not comm.first_node\n",
        why="on several nodes the parts of some owners are in no norm",
        tests=(NODES,),
    ),
    Mutant(
        name="whole-buckets-counted-by-all",
        file=NORMS,
        old="else comm.rank == 0 or not divided\n",
        new="else True\n",
        why="small buckets beside shared weights count once a rank in the norm of all gradients",
        tests=(RANKS,),
    ),
    Mutant(
        name="no-barrier-after-an-update",
        file=NORMS,
        old="        if not all(launch.state.to.divided for launch in divided):\n",
        new="        if False:\n",
        why="a rank reads shared weights before another rank has updated its part",
        tests=(Selection("0", "ranks/test_norms.py", ranks=3),),
    ),
    Mutant(
        name="total-in-the-order-of-arrival",
        file=NORMS,
        old=(
            "            if not self.clips:\n"
            "                self._measure(launch, start + lo, start + hi)\n"
        ),
        new=(
            "            measure = self._measure_gradients if self.clips else self._measure\n"
            "            measure(launch, start + lo, start + hi)\n"
        ),
        why="the norm of all gradients counts squares twice, and depends on the time",
        tests=(UNIT_NORMS,),
    ),
    Mutant(
        name="sums-of-the-flush-before",
        file=NORMS,
        old="                kernels.fill(self._sums[index], 0)\n",
        new="                pass\n",
        why="norms grow from flush to flush",
        tests=(THREADS,),
    ),
    Mutant(
        name="total-of-the-flush-before",
        file=NORMS,
        old="            kernels.fill(self._total[:1], 0)\n",
        new="            pass\n",
        why="the norm of all gradients grows from flush to flush",
        tests=(THREADS,),
    ),
    Mutant(
        name="buckets-clipped-apart",
        file="ncclkv/engine/norm_flush.py",
        old="        if norms is not None and norms.clips:\n",
        new="        if False:\n",
        why="each bucket has a norm of its own",
        tests=(THREADS,),
    ),
    Mutant(
        name="refilled-before-its-update",
        file=PUSHES,
        old="        if self._deferred:\n            return True\n",
        new="",
        why="a push overwrites gradients that an update still needs",
        tests=(THREADS,),
    ),
    Mutant(
        name="one-norm-of-two-steps",
        file=FLUSH,
        old="        if any(state.step != step for state in waiting):\n",
        new="        if False:\n",
        why="the layout of buckets decides which pushes a changed number leaves in one norm",
        tests=(THREADS,),
    ),
    Mutant(
        name="parts-launched-by-blocks",
        file="ncclkv/engine/norm_flush.py",
        old="        super().packed(state)\n",
        new="        super().packed(state, last=last)\n",
        why="a push after an overlap block has a norm of its own, if it shares the block's bucket",
        tests=(THREADS,),
    ),
    Mutant(
        name="gradients-lent-before-their-update",
        file=PUSHES,
        old="        return key in self._waiting or bool(self._deferred)\n",
        new="        return key in self._waiting\n",
        why="a program overwrites gradients that an update still needs",
        tests=(THREADS,),
    ),
    Mutant(
        name="global-norm-without-rescaling",
        file="ncclkv/kernels/programs/gradient.py",
        old="    scale = total[1] / (np.sqrt(total[0]) * np.abs(rescale) + EPSILON)\n",
        new="    scale = total[1] / (np.sqrt(total[0]) + EPSILON)\n",
        why="gradients are clipped by the norm that they have before they are rescaled",
        tests=(THREADS,),
    ),
    Mutant(
        name="lanes-in-pairs",
        file=MEASURE,
        old="    found = lanes[:, 0].copy()\n    for lane in lanes.T[1:]:\n        found += lane\n",
        new="    found = lanes.sum(axis=1)\n",
        why="NumPy and C make other bits",
        tests=(UNIT,),
    ),
)
