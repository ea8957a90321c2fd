"""Faults in sums of encoded gradients: which keys are encoded, who sends, and what stays owed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

STORE = "threads/test_store_cases.py"
RANKS = "ranks/test_store_cases.py"
PRODUCTS = "unit/comm/programs/test_low_rank_sum.py"
SUMS = "unit/comm/programs/test_coded_sum.py"

MUTANTS = (
    Mutant(
        name="ranks-that-rest-send",
        file="ncclkv/engine/coded_reduction.py",
        old=" if comm.rank in ranks else None\n",
        new="\n",
        why="the residual of a rank without a push is encoded, and lost",
        tests=(Selection("0", STORE, "a_drained_rank_sends_nothing"),),
    ),
    Mutant(
        name="two-codecs-in-one-range",
        file="ncclkv/engine/bucket_state.py",
        old="            groups.setdefault(self.coded.get(key), set()).add(key)\n",
        new="            groups.setdefault(next(iter(self.coded.values())), set()).add(key)\n",
        why="keys that are to be sent whole are encoded with their neighbours",
        tests=(Selection("0", "unit/engine/test_reductions.py"),),
    ),
    Mutant(
        name="residual-of-another-type-is-kept",
        file="ncclkv/engine/reductions.py",
        old="kind_of(before) != kind_of(codec)",
        new="False",
        why="what one type owes is sent by another, which never saw the gradients",
        tests=(Selection("0", STORE, "another_type_does_not"),),
    ),
    Mutant(
        name="dropped-arrays-are-encoded-later",
        file="ncclkv/engine/bucket_state.py",
        old="        self.reductions.drop_staged(self.waiting if keys is None else keys)\n",
        new="",
        why="the arrays of a group that raised are sent with the next push of the key",
        tests=(Selection("0", STORE, "a_dropped_push_leaves_residuals"),),
    ),
    Mutant(
        name="averages-of-codes-over-all-ranks",
        file="ncclkv/comm/programs/coded_sum.py",
        old="        divisor = senders if self.divides else None\n",
        new="        divisor = wire.size if self.divides else None\n",
        why="averages of an uneven block are too small",
        tests=(Selection("0", SUMS, "ranks_that_rest"),),
    ),
    Mutant(
        name="padding-of-codes-is-not-cleared",
        file="ncclkv/compress/entries.py",
        old="            out[lo:hi] = 0\n",
        new="            pass\n",
        why="norms of a bucket count numbers between the keys, which 1bit decodes to -1",
        tests=(Selection("0", SUMS, "every_destination"),),
    ),
    Mutant(
        name="one-process-encodes-straight-into-values",
        file="ncclkv/engine/engine.py",
        old="(policy.flushes_everything or self.reductions.rules)",
        new="policy.flushes_everything",
        why="a push of a rank alone is not compressed",
        tests=(Selection("0", STORE, "test_one_rank and sums_and_residuals"),),
    ),
    Mutant(
        name="reset-keeps-residuals",
        file="ncclkv/engine/reductions.py",
        old="        self.residuals.reset(key)\n",
        new="",
        why="a new value gets what gradients of the old one owe",
        tests=(Selection("0", STORE, "another_type_does_not"),),
    ),
    Mutant(
        name="checked-pushes-are-encoded-at-once",
        file="ncclkv/engine/flush.py",
        old="    launches_full = False\n",
        new="    launches_full = True\n",
        why="NaN is looked for in gradients that were never written",
        tests=(Selection("0", "unit/engine/test_bucket_push.py", "other_pushes"),),
    ),
    Mutant(
        name="reset-keeps-the-basis",
        file="ncclkv/engine/reductions.py",
        old="        self.bases.reset(key)\n",
        new="",
        why="a new value begins with the directions of the old one",
        tests=(Selection("0", STORE, "a_reset_matrix"),),
    ),
    Mutant(
        name="products-change-a-sum-that-is-read",
        file="ncclkv/comm/programs/low_rank_sum.py",
        old="[each.p.copy() for each in factors]",
        new="[each.p for each in factors]",
        why="a slow neighbour reads the orthonormal P in place of the sum of all P",
        tests=(Selection("0", PRODUCTS, "products_stand_for_sums"),),
    ),
    Mutant(
        name="updates-change-a-sum-that-is-read",
        file="ncclkv/comm/programs/low_rank_sum.py",
        old="            yield from wire.read(self.gradients[:0], lambda reader, owner: None)\n",
        new="            yield from ()\n",
        why="a slow neighbour reads gradients that an update has changed",
        tests=(Selection("0", PRODUCTS, "an_update_may_write"),),
    ),
    Mutant(
        name="ranks-that-rest-owe-products",
        file="ncclkv/comm/programs/low_rank_sum.py",
        old="residual if sends else None)",
        new="residual)",
        why="a rank without a push owes a share of what the others sent",
        tests=(Selection("0", PRODUCTS, "products_stand_for_sums"),),
    ),
    Mutant(
        name="short-keys-in-ranges-of-their-own",
        file="ncclkv/engine/reductions.py",
        old="        found.update(self._short_keys(bucket, made))\n",
        new="",
        why="powersgd cuts a bucket at each bias, and makes as many sums",
        tests=(Selection("0", "unit/engine/test_reductions.py", "short_keys"),),
    ),
    Mutant(
        name="residuals-of-nodes-outside-their-slices",
        file="ncclkv/store/residual_states.py",
        old="                reduction.deal_residual(slot.entry)\n",
        new="                pass\n",
        why="what a checkpoint gives to a rank without that slice is never sent",
        tests=(
            Selection(
                "0",
                RANKS,
                "residuals_of_nodes_go",
                ranks=4,
                environment=("NCCLKV_RANKS_PER_NODE=2",),
            ),
        ),
    ),
    Mutant(
        name="slices-of-the-range-pushed",
        file="ncclkv/engine/node_reduction.py",
        old="    owned = slices(hi if span.bucket is None else span.bucket.count, owners, unit)\n",
        new="    owned = slices(hi - lo, owners, unit, lo)\n",
        why="an element moves to another rank of its node, which does not owe what was kept",
        tests=(
            Selection(
                "0", RANKS, "one_sender_a_node", ranks=4, environment=("NCCLKV_RANKS_PER_NODE=2",)
            ),
        ),
    ),
    Mutant(
        name="averages-of-nodes-over-nodes",
        file="ncclkv/engine/node_coders.py",
        old="        divisor = len(form.senders) if op",
        new="        divisor = len(form.sending) if op",
        why="averages are too large by the count of ranks of a node",
        tests=(
            Selection(
                "0",
                RANKS,
                "a_node_of_drained",
                ranks=4,
                environment=("NCCLKV_RANKS_PER_NODE=2",),
            ),
        ),
    ),
    Mutant(
        name="averages-of-nodes-rounded-before-the-division",
        file="ncclkv/engine/node_coders.py",
        old="                self._kernels.divide(summed, ranks)\n",
        new="                self._kernels.divide(summed, len(arrays))\n",
        why="averages of 16 bits are too large by the count of nodes",
        tests=(
            Selection(
                "0",
                RANKS,
                "nodes_round_their_sums",
                ranks=4,
                environment=("NCCLKV_RANKS_PER_NODE=2",),
            ),
        ),
    ),
    Mutant(
        name="parts-of-the-largest-at-wrong-places",
        file="ncclkv/compress/coding.py",
        old="    places = indices.astype(np.int64) + shift\n",
        new="    places = indices.astype(np.int64)\n",
        why="a rank that decodes a part of a key adds numbers to other elements",
        tests=(Selection("0", "unit/comm/programs/test_top_sum.py"),),
    ),
    Mutant(
        name="residuals-of-a-step-that-a-device-skips",
        file="ncclkv/engine/nonfinite.py",
        old="        residuals.skip = self._skip_flag\n",
        new="",
        why="NaN stays in the residual for ever, although the device skips the update",
        tests=(Selection("0", "nccl/test_standin_store.py", "a_skipped_flush_leaves_residuals"),),
    ),
    Mutant(
        name="replays-under-another-codec",
        file="ncclkv/engine/capture.py",
        old="        if [*codecs] != self._codecs:\n",
        new="        if False:\n",
        why="a captured step goes on encoding, into residuals that the store has dropped",
        tests=(Selection("0", "nccl/test_capture_misuse.py", "another_codec"),),
    ),
    Mutant(
        name="device-adds-parts-of-the-largest-at-wrong-places",
        file="ncclkv/kernels/device/largest.py",
        old="[lo - first for lo, _ in entries[pieces]]",
        new="[lo for lo, _ in entries[pieces]]",
        why="a rank that decodes a part of a bucket adds numbers to other elements",
        tests=(Selection("0", "nccl/test_kernels_as_cpp.py", "added_at_their_indices"),),
    ),
    Mutant(
        name="device-clears-other-elements-than-padding",
        file="ncclkv/kernels/device/coding.py",
        old="self._begins[pieces] + address",
        new="address",
        why="only the first elements are cleared, and 1bit leaves -1 between the keys of a bucket",
        tests=(Selection("0", "nccl/test_kernels_as_cpp.py", "padding_is_cleared"),),
    ),
)
