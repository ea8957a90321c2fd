"""Faults in the engine and the store: flushes, updates, publications and reads."""

from __future__ import annotations

from tests.mutants.matrix import NODES, RANKS, THREADS
from tests.mutants.mutant import Mutant, Selection

SHARDED = Selection("0", "threads/test_store_cases.py", "sharded")

AGREEMENT = "ncclkv/engine/flush_agreement.py"
BATCH = "ncclkv/engine/batch.py"
BUCKET = "ncclkv/table/bucket.py"
BUCKET_PUSH = "ncclkv/engine/bucket_push.py"
BUCKET_STATE = "ncclkv/engine/bucket_state.py"
ENGINE = "ncclkv/engine/engine.py"
FUSED = "ncclkv/engine/fused_rule.py"
GATHERED = "ncclkv/engine/gathered.py"
LAYOUT = "ncclkv/engine/layout.py"
OVERLAP = "ncclkv/engine/ordered_launch.py"
PLACEMENT = "ncclkv/engine/placement.py"
PLAN = "ncclkv/table/plan.py"
PUSHES = "ncclkv/engine/pushes.py"
REDUCER = "ncclkv/engine/reducer.py"
RESTORING = "ncclkv/store/restoring.py"
STORAGE = "ncclkv/engine/storage.py"
UPDATES = "ncclkv/engine/rules_in_force.py"
UPDATERS = "ncclkv/store/updater_choice.py"
VERIFY = "ncclkv/engine/verify.py"

TRAJECTORIES = Selection("0", "threads/test_store_cases.py", "trajectories")
_OVERLAPS = Selection("0", "threads/test_store_cases.py", "overlaps")

_SPARSE = Selection("0", "threads/test_store_cases.py", "sparse_lists")

MUTANTS = (
    Mutant(
        name="old-gradients-gathered",
        file=REDUCER,
        old="        gathered.fill()\n",
        new="",
        why="a push of keys between others sums what lies in the array",
        tests=(_SPARSE,),
    ),
    Mutant(
        name="sums-of-a-slice-updated-from-the-first-element",
        file=GATHERED,
        old="                    update(low, high)\n",
        new="                    update(0, copy.size)\n",
        why="two ranks update the same element of a short range",
        tests=(_SPARSE,),
    ),
    Mutant(
        name="owners-of-gathered-elements-by-whole-ranges",
        file=GATHERED,
        old=" + min(element, span.hi) - span.lo\n",
        new="\n",
        why="the sum of a range goes to a rank without its states",
        tests=(_SPARSE,),
    ),
    Mutant(
        name="states-of-another-owner",
        file=STORAGE,
        old="        return to.part(self._comm.rank, self.bucket.count)\n",
        new="        return to.part((self._comm.rank + 1) % self._comm.size, self.bucket.count)\n",
        why="a rank allocates the states of another slice than it updates",
        tests=(SHARDED,),
    ),
    Mutant(
        name="updates-counted-from-the-bucket",
        file=FUSED,
        old="update(span.lo - first)))",
        new="update(span.lo)))",
        why="a rank updates other elements than those of which it has the sums",
        tests=(SHARDED,),
    ),
    Mutant(
        name="slice-without-its-first-element",
        file=FUSED,
        old="rows.cut(kernels, start + lo, start + hi)",
        new="rows.cut(kernels, start + lo + (first + lo > 0), start + hi)",
        why="ranks that update later parts of a bucket leave an element as it was",
        tests=(TRAJECTORIES,),
    ),
    Mutant(
        name="rows-counted-from-the-bucket",
        file="ncclkv/optimizer/scalar_rows.py",
        old="[start - origin for start in (*starts, bucket.count)]\n",
        new="[*starts, bucket.count - origin]\n",
        why="an owner updates with the learning rates of other keys",
        tests=(SHARDED,),
    ),
    Mutant(
        name="slice-of-one-rank-too-long",
        file=PLACEMENT,
        old="        lo, hi = span.to.part(self._comm.rank, span.weights.size)\n",
        new="        lo, hi = 0, bounds[1]\n",
        why="a rank publishes the elements of another owner",
        tests=(SHARDED,),
    ),
    Mutant(
        name="functions-at-every-owner",
        file=UPDATES,
        old="                if not slot.state.updates_key(slot.entry):\n",
        new="                if False:\n",
        why="a function is called with sums that its rank has not received",
        tests=(SHARDED,),
    ),
    Mutant(
        name="new-rule-before-publication",
        file=ENGINE,
        old="        self.settle()\n        updates, before",
        new="        self.policy.flush()\n        updates, before",
        why="another owner updates an old value after the rule has changed",
        tests=(SHARDED,),
    ),
    Mutant(
        name="root-does-not-publish",
        file=REDUCER,
        old="        if placement.replicated:\n            return\n",
        new="        if placement.replicated or placement:\n            return\n",
        why="ranks other than the root pull values of before the updates",
        tests=(THREADS,),
    ),
    Mutant(
        name="only-the-last-update-is-published",
        file=PUSHES,
        old="            lo, hi = min(lo, self.stale[0]), max(hi, self.stale[1])\n",
        new="            pass\n",
        why="ranks other than the root pull some keys as they were",
        tests=(THREADS,),
    ),
    Mutant(
        name="overlap-launches-buckets-that-lack-keys",
        file=OVERLAP,
        old="            if self._waiting[state.bucket.index]:\n                return\n",
        new="",
        why="a bucket is reduced before all its keys are pushed",
        tests=(_OVERLAPS,),
    ),
    Mutant(
        name="overlap-launches-in-the-order-of-pushes",
        file=OVERLAP,
        old="            if self._waiting[state.bucket.index]:\n                return\n",
        new="            if self._waiting[state.bucket.index]:\n                continue\n",
        why="ranks that push in different orders reduce different buckets",
        tests=(_OVERLAPS,),
    ),
    Mutant(
        name="overlap-leaves-missing-keys-out",
        file=OVERLAP,
        old="            self._engine.layout[key].push_neutral(self._engine.kernels)\n",
        new="            pass\n",
        why="ranks that left out different keys reduce different ranges",
        tests=(_OVERLAPS,),
    ),
    Mutant(
        name="overlap-takes-a-key-twice",
        file=OVERLAP,
        old="            if key in self._threads:\n                raise UsageError(\n",
        new="            if False:\n                raise UsageError(\n",
        why="the second gradient of a key overwrites the first",
        tests=(_OVERLAPS,),
    ),
    Mutant(
        name="ranges-of-shared-weights-kept",
        file=BUCKET_STATE,
        old="        self._pushed_spans.clear()\n",
        new="        pass\n",
        why="an optimizer after a function updates only a part of each key on each rank",
        tests=(RANKS,),
    ),
    Mutant(
        name="average-over-ranks-that-have-left",
        file=REDUCER,
        old='            if span.reduction is None and senders is not None and op == "avg":\n',
        new="            if False:\n",
        why="averages of an uneven block are too small",
        tests=(THREADS,),
    ),
    Mutant(
        name="one-average-for-all-numbers-of-ranks",
        file=AGREEMENT,
        old="                self._reducer.launch(state, keys, some)\n",
        new="                self._reducer.launch(state, None, some)\n",
        why="all keys of a bucket are divided by the number of ranks of the first",
        tests=(THREADS,),
    ),
    Mutant(
        name="missing-key-sums-old-gradients",
        file=BUCKET_STATE,
        old="        kernels.fill(self.gradient, self.state.neutral)\n",
        new="        pass\n",
        why="a rank that did not push a key adds its last gradient again",
        tests=(THREADS,),
    ),
    Mutant(
        name="missing-key-is-a-zero-maximum",
        file=STORAGE,
        old='        return float("-inf") if op == "max" else float("inf")\n',
        new="        return 0.0\n",
        why="a rank that did not push a key bounds the maximum of the others",
        tests=(THREADS,),
    ),
    Mutant(
        name="missing-key-is-a-zero-factor",
        file=STORAGE,
        old='            return 1 if op == "prod" else 0\n',
        new="            return 0\n",
        why="a rank that did not push a key makes the product of the others 0",
        tests=(THREADS,),
    ),
    Mutant(
        name="missing-integer-is-a-zero-maximum",
        file=STORAGE,
        old='            return int(limits.min if op == "max" else limits.max)\n',
        new="            return 0\n",
        why="a rank that did not push a key bounds the maximum of the others",
        tests=(THREADS,),
    ),
    Mutant(
        name="filled-gradient-not-put-back",
        file=AGREEMENT,
        old="            self._kernels.pack(copy, gradient)\n",
        new="            pass\n",
        why="a gradient that the user accumulates is lost in another rank's flush",
        tests=(THREADS,),
    ),
    Mutant(
        name="nan-is-applied",
        file=AGREEMENT,
        old="            senders = {}\n",
        new="            pass\n",
        why="a step with NaN spoils the weights though it was to be skipped",
        tests=(THREADS,),
    ),
    Mutant(
        name="numbers-of-rank-0",
        file=AGREEMENT,
        old="key=lambda rank: (all_ranks[rank].role, rank != leader, rank)\n",
        new="key=lambda rank: (0, rank)\n",
        why="the learning rate of a rank that has left is that of all others",
        tests=(THREADS,),
    ),
    Mutant(
        name="updater-error-stays-on-the-root",
        file=UPDATES,
        old="        if self.placement.replicated or own is not None or first is None:\n",
        new="        if True:\n",
        why="ranks go on with values that were not updated",
        tests=(THREADS,),
    ),
    Mutant(
        name="updater-called-as-sets-are-ordered",
        file=REDUCER,
        old="        order = self.layout.registry.update_order(keys)\n",
        new="        order = [*reversed([*keys])]\n",
        why="updaters that share state see keys in another order than MXNet's",
        tests=(THREADS,),
    ),
    Mutant(
        name="first-value-for-a-shared-out",
        file=BATCH,
        old="index for index, same in enumerate(identities(outs))}\n",
        new="index for index, same in reversed([*enumerate(identities(outs))])}\n",
        why="an out that stands for several keys gets the first one's value",
        tests=(THREADS,),
    ),
    Mutant(
        name="numbers-with-gaps-as-a-range",
        file=BUCKET_PUSH,
        old="    return block if indices == list(block) else indices\n",
        new="    return block\n",
        why="a push takes another key's array",
        tests=(THREADS,),
    ),
    Mutant(
        name="first-of-several-values-alone",
        file=BUCKET_PUSH,
        old="            several = select(arrays, indices)\n",
        new="            several = select(arrays, indices)[:1]\n",
        why="the other values of a key are not added",
        tests=(THREADS,),
    ),
    Mutant(
        name="pull-into-values",
        file=LAYOUT,
        old="            if in_weights:\n",
        new="            if False:\n",
        why="a pull overwrites values of the store",
        tests=(THREADS,),
    ),
    Mutant(
        name="update-counted-from-the-range",
        file="ncclkv/engine/fused_rule.py",
        old="rows.cut(kernels, start + lo, start + hi)",
        new="rows.cut(kernels, lo, hi)",
        why="a push of some keys updates the first keys of their bucket",
        tests=(THREADS,),
    ),
    Mutant(
        name="fusion-with-bucket-bytes-0",
        file=BUCKET,
        old="spec.nbytes > bucket_bytes or bucket_bytes == 0 or",
        new="spec.nbytes > bucket_bytes or",
        why="empty keys share a bucket where none is to be shared",
        tests=(Selection("0", "unit/table/test_plan.py"),),
    ),
    Mutant(
        name="runs-over-keys-not-pushed",
        file=BUCKET,
        old="            if before is not None and index == before + 1:\n",
        new="            if before is not None:\n",
        why="keys that were not pushed change",
        tests=(THREADS,),
    ),
    Mutant(
        name="lowest-priority-first",
        file=PLAN,
        old="(-priorities[index], index)",
        new="(priorities[index], index)",
        why="what the user waits for comes last",
        tests=(Selection("0", "unit/table/test_plan.py"),),
    ),
    Mutant(
        name="optimizer-set-again-begins-a-rule",
        file=UPDATERS,
        old="        if not again:\n            self._engine.set_rule(rule, sealed)\n",
        new="        if True:\n            self._engine.set_rule(rule, sealed)\n",
        why="captured steps are dropped when a program sets its optimizer each epoch",
        tests=(THREADS,),
    ),
    Mutant(
        name="another-optimizer-of-a-class-forgets",
        file=UPDATERS,
        old="                return kept or rule, [",
        new="                return rule, [",
        why="momentum is lost when a program makes its optimizer anew with another rate",
        tests=(THREADS,),
    ),
    Mutant(
        name="load-keeps-old-momentum",
        file=RESTORING,
        old="                rule.reset(slot)\n",
        new="                pass\n",
        why="a checkpoint without momentum is continued with that of before",
        tests=(THREADS,),
    ),
    Mutant(
        name="uneven-leaver-misses-updates",
        file=AGREEMENT,
        old=" for index in indices]\n",
        new=" for index in ()]\n",
        why="ranks wait for each other in an uneven block on the root",
        tests=(THREADS,),
    ),
    Mutant(
        name="repair-mends-half",
        file=VERIFY,
        old="        return [value, *states.values()]\n",
        new="        return [value]\n",
        why="momentum stays different on ranks whose weights were mended",
        tests=(NODES,),
    ),
    Mutant(
        name="root-is-rank-0",
        file=PLACEMENT,
        old="    return _PLACEMENTS[update_on](comm, int(root))\n",
        new="    return _PLACEMENTS[update_on](comm, 0)\n",
        why="another root than rank 0 has not the memory it was chosen for",
        tests=(THREADS,),
    ),
    Mutant(
        name="one-rule-for-all-storages",
        file=REDUCER,
        old="        rule = updates.rules[state.bucket.storage]",
        new="        rule = updates.rule",
        why="keys of another storage are updated as if they were dense",
        tests=(Selection("0", "unit/engine/test_storage_table.py"),),
    ),
    Mutant(
        name="prepared-for-another-op",
        file=REDUCER,
        old="            if collective is None or span.prepared_for != wanted:\n",
        new="            if collective is None:\n",
        why="a sum goes where the last launch of the range wrote, by its op",
        tests=(THREADS,),
    ),
)
