"""Faults in the training of torch modules, and in the trainer."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

BUFFERS = "ncclkv/torch/module_buffers.py"
COMPRESSION = "ncclkv/torch/compression.py"
COPIES = "ncclkv/trainer/stored_values.py"
DEVICES = "ncclkv/torch/pass_devices.py"
GRADIENTS = "ncclkv/torch/module_gradients.py"
NODES = "ncclkv/torch/hooks.py"
PASSES = "ncclkv/torch/passes.py"
SLOTS = "ncclkv/torch/slots.py"
WRAPPER = "ncclkv/torch/data_parallel.py"
LOCAL = "ncclkv/trainer/local_updates.py"
PARAMETERS = "ncclkv/trainer/parameters.py"
SESSION = "ncclkv/store/session.py"
TRAINER = "ncclkv/trainer/trainer.py"

HOOKS = "ranks/test_data_parallel_hooks.py"
JOINED = "ranks/test_data_parallel_join.py"
MODULES = "ranks/test_data_parallel.py"
OF_PASSES = "ranks/test_data_parallel_local.py"
OF_BUFFERS = "ranks/test_data_parallel_buffers.py"
PROGRAMS = "ranks/test_data_parallel_programs.py"
COMPRESSED = "unit/torch/test_compression.py"

MUTANTS = (
    Mutant(
        name="buffers-of-all-ranks-added",
        file=BUFFERS,
        old="            torch._foreach_zero_(self._bytes)\n",
        new="            self._fill(tensors)\n",
        why="statistics of BatchNorm grow with the number of ranks",
        tests=(Selection("0", MODULES, "buffers_follow_rank_0", ranks=3),),
    ),
    Mutant(
        name="buffers-written-noticed",
        file=BUFFERS,
        old="        with torch.autograd._unsafe_preserve_version_counter(tensor):\n",
        new="        if True:\n",
        why="backward refuses a graph of two forward passes through BatchNorm",
        tests=(Selection("0", OF_BUFFERS, "notices_no_write", ranks=3),),
    ),
    Mutant(
        name="buffers-follow-a-rank-that-has-left",
        file=WRAPPER,
        old="            self._is_uneven = True\n",
        new="            self._is_uneven = False\n",
        why="buffers become zeros once rank 0 has no batch left",
        tests=(Selection("0", JOINED, "buffers_follow_the_lowest", ranks=3),),
    ),
    Mutant(
        name="buffers-stale-on-some-ranks",
        file=WRAPPER,
        old="        self._followed = gradients.reductions  # also of ranks without a pass\n",
        new="",
        why="a pass after an uneven block waits for ranks that trained on no batch",
        tests=(Selection("0", JOINED, "ranks_without_any_batch", ranks=3),),
    ),
    Mutant(
        name="weights-of-rank-0-at-the-end-of-uneven-inputs",
        file=WRAPPER,
        old="source=int(made.argmax())",
        new="source=0",
        why="the last steps of the ranks with the most batches are lost",
        tests=(Selection("0", JOINED, "averages_divide", ranks=3),),
    ),
    Mutant(
        name="uneven-averages-by-the-ranks-that-train",
        file=GRADIENTS,
        old="                bucket.multiply(ranks / self._kv.num_workers)\n",
        new="                pass\n",
        why="the last samples of the longest rank count more than the others",
        tests=(Selection("0", JOINED, "averages_divide", ranks=3),),
    ),
    Mutant(
        name="skips-of-other-passes-counted",
        file=GRADIENTS,
        old="        self._skipped = self._kv.skipped\n        block",
        new="        block",
        why="a rank drops gradients that the others use, so weights differ",
        tests=(Selection("0", JOINED, "skipped", ranks=3),),
    ),
    Mutant(
        name="first-buckets-for-first-parameters",
        file=GRADIENTS,
        old="reversed(names)",
        new="list(names)",
        why="every bucket waits for the end of backward",
        tests=(Selection("0", MODULES, "reductions_start", ranks=3),),
    ),
    Mutant(
        name="accumulation-is-reduced",
        file=NODES,
        old="            if not left and present.reduces:\n",
        new="            if not left:\n",
        why="no_sync reduces each time, at the cost of all passes",
        tests=(Selection("0", MODULES, "no_sync", ranks=3),),
    ),
    Mutant(
        name="passes-of-the-module-alone-reduced",
        file=PASSES,
        old="        self._announced = False\n        self._last_task",
        new="        self._last_task",
        why="a pass that one rank makes of the wrapped module waits for the other ranks",
        tests=(Selection("0", OF_PASSES, "rank_may_make_a_local_pass", ranks=3),),
    ),
    Mutant(
        name="passes-end-with-a-checkpoint",
        file=PASSES,
        old="                each.grad_fn.register_prehook(_Hook(reducer))\n",
        new="",
        why="a reentrant checkpoint of the last layer ends the reduction of all others",
        tests=(Selection("0", OF_PASSES, "also_of_the_last_layer", ranks=3),),
    ),
    Mutant(
        name="all-buckets-pushed-at-the-end",
        file=GRADIENTS,
        old="        for bucket in rest:\n            self._push(bucket)\n",
        new="        for bucket in self._buckets:\n            self._push(bucket)\n",
        why="a bucket is pushed twice in a pass",
        tests=(Selection("0", MODULES, "backward_twice", ranks=3),),
    ),
    Mutant(
        name="use-before-the-last-pass-forgotten",
        file=GRADIENTS,
        old="            self._touched |= bucket.given\n",
        new="",
        why="a gradient accumulated in no_sync alone is not reduced",
        tests=(Selection("0", MODULES, "use_in_no_sync", ranks=3),),
    ),
    Mutant(
        name="unused-parameters-get-zeros",
        file=SLOTS,
        old="            if key in unused:\n",
        new="            if False:\n",
        why="momentum and weight decay move weights that no rank has used",
        tests=(Selection("0", MODULES, "some_ranks_or_no_rank", ranks=3),),
    ),
    Mutant(
        name="blocks-of-failed-passes-stay-open",
        file=GRADIENTS,
        old="                self.drop()\n        self._note_use()\n",
        new="                pass\n        self._note_use()\n",
        why="after an exception in backward no pass can reduce",
        tests=(Selection("0", PROGRAMS, "exception_in_the_pass_before", ranks=3),),
    ),
    Mutant(
        name="layouts-not-compared",
        file=GRADIENTS,
        old="            alike = len({*kv.allgather(layouts).tolist()}) == 1\n",
        new="            kv.allgather(layouts)\n            alike = True\n",
        why="ranks add gradients of other elements if their layouts differ",
        tests=(Selection("0", PROGRAMS, "other_layouts", ranks=3),),
    ),
    Mutant(
        name="gradients-in-another-layout",
        file=SLOTS,
        old="        if alike and torch",
        new="        if False and torch",
        why="torch warns, and optimizers are slow with parameters in channels last",
        tests=(Selection("0", PROGRAMS, "channels", ranks=3),),
    ),
    Mutant(
        name="pushes-before-hooks-of-the-program",
        file=GRADIENTS,
        old="self._nodes[name].register_hook(",
        new="self._slots[name].parameter.register_post_accumulate_grad_hook(",
        why="a hook that clips gradients writes into a bucket that is being reduced",
        tests=(Selection("0", HOOKS, "sees_the_ranks_own", ranks=3),),
    ),
    Mutant(
        name="added-parameters-unseen",
        file=GRADIENTS,
        old="        if self.parameters.have_changed():\n",
        new="        if False:\n",
        why="ranks train adapters or a new head on their own batches alone, and diverge",
        tests=(Selection("0", "ranks/test_data_parallel_added.py", "keeps_its_key", ranks=3),),
    ),
    Mutant(
        name="held-gradients-overwritten",
        file=SLOTS,
        old="    held = max(map(getrefcount, views)) > slots[0].references + 1",
        new="    held = False",
        why="gradients of several losses, kept to be compared, become the last of them",
        tests=(Selection("0", "ranks/test_data_parallel_held.py", "keeps_its_numbers", ranks=3),),
    ),
    Mutant(
        name="prefix-of-ddp-kept-in-a-parent",
        file=WRAPPER,
        old="        if self._is_of_ddp(state_dict, prefix):\n",
        new="        if False:\n",
        why="a state of DDP cannot be loaded into a module that holds wrapped parts",
        tests=(Selection("0", "ranks/test_data_parallel_states.py", "states_of_ddp", ranks=3),),
    ),
    Mutant(
        name="hooks-keep-the-store",
        file=GRADIENTS,
        old="_hook(ref(self), ",
        new="_hook(lambda: self, ",
        why="a store lives as long as a loss that its module has computed",
        tests=(Selection("0", "unit/torch/test_data_parallel_freed.py", "outlives"),),
    ),
    Mutant(
        name="hooks-after-close",
        file=NODES,
        old="        hook.remove()\n",
        new="        pass\n",
        why="a module cannot be trained any more after its wrapper is closed",
        tests=(Selection("0", "unit/torch/test_data_parallel.py", "after_close"),),
    ),
    Mutant(
        name="hooks-on-another-stream",
        file=DEVICES,
        old="        with deputized(self._kv), self.calls():\n",
        new="        with deputized(self._kv):\n",
        why="a collective on a GPU reads gradients before they are computed",
        tests=(Selection("2", "nccl/test_standin_modules.py", "ordered_by_streams"),),
    ),
    Mutant(
        name="host-waits-in-backward",
        file=GRADIENTS,
        old="            settle(self._kv, self._keys)\n",
        new="            self._kv.wait(self._keys)\n",
        why="the host prepares no step while the GPU computes",
        tests=(Selection("2", "nccl/test_standin_modules.py", "ordered_by_streams"),),
    ),
    Mutant(
        name="deputy-for-ever",
        file=SESSION,
        old="            self.deputy = before\n",
        new="            pass\n",
        why="two threads call one store at the same time",
        tests=(Selection("0", "unit/store/test_deputy.py", "ends_with_the_block"),),
    ),
    Mutant(
        name="residuals-of-unused-parameters-changed",
        file=GRADIENTS,
        old="            kept[name].residuals.restore()\n",
        new="            pass\n",
        why="a part of the gradient is lost with the sum that no rank uses",
        tests=(Selection("0", COMPRESSED, "leaves_its_residual"),),
    ),
    Mutant(
        name="patterns-leave-out-replaced-parameters",
        file=COMPRESSION,
        old='[self.pattern, f"{self.pattern} (*)"]',
        new="[self.pattern]",
        why="the gradient of a parameter is sent whole after its layer was replaced",
        tests=(Selection("0", COMPRESSED, "replaces_another"),),
    ),
    Mutant(
        name="entries-without-effect",
        file=COMPRESSION,
        old="        if not names:\n",
        new="        if False:\n",
        why="biases are compressed although an entry that stands too early excludes them",
        tests=(Selection("0", COMPRESSED, "wrong_argument"),),
    ),
    Mutant(
        name="refused-compression-keeps-the-store",
        file=COMPRESSION,
        old="        if owned:\n",
        new="        if False:\n",
        why="a store that nobody can close keeps its memory",
        tests=(Selection("0", COMPRESSED, "is_closed"),),
    ),
    Mutant(
        name="hooks-of-communication-late",
        file=GRADIENTS,
        old="        self.called = True\n",
        new="        pass\n",
        why="a hook that ranks register in other steps changes the bits of some passes",
        tests=(Selection("0", "unit/torch/test_comm_hooks.py", "after_a_forward"),),
    ),
    Mutant(
        name="compression-of-no-parameter",
        file=TRAINER,
        old="            _check_compressed(store, params.names, compression_params)\n",
        new="            pass\n",
        why="a trainer of float64 sends whole gradients although it was given a compression",
        tests=(Selection("0", "unit/trainer/test_trainer.py", "of_no_parameter"),),
    ),
    Mutant(
        name="batch-size-of-the-first-step",
        file=TRAINER,
        old="        if self.optimizer.rescale_grad != factor:\n",
        new="        if self.optimizer.rescale_grad == self._scale:\n",
        why="a last batch that is smaller counts too little",
        tests=(Selection("0", "unit/trainer/test_trainer.py"),),
    ),
    Mutant(
        name="trainer-starts-from-own-values",
        file=COPIES,
        old="store.broadcast(self._names, self._values, self._values)\n",
        new="store.broadcast(self._names, self._values, [v + 0 for v in values])\n",
        why="ranks train different weights",
        tests=(Selection("0", "unit/trainer/test_trainer.py", "values_of_rank_0"),),
    ),
    Mutant(
        name="gradients-used-twice",
        file=PARAMETERS,
        old="        self.grads.update(dict.fromkeys(self.grads))\n",
        new="",
        why="a step without a new gradient repeats the last one, without an error",
        tests=(Selection("0", "unit/trainer/test_trainer.py"),),
    ),
    Mutant(
        name="frozen-parameters-trained",
        file=PARAMETERS,
        old="given.named_parameters() if item[1].requires_grad]",
        new="given.named_parameters()]",
        why="a module with a frozen layer cannot be trained",
        tests=(Selection("0", "unit/trainer/test_parameters.py", "stands_for_its_trained"),),
    ),
    Mutant(
        name="states-written-by-all-ranks",
        file=LOCAL,
        old="        if ranks is None or ranks.rank == 0:\n",
        new="        if True:\n",
        why="ranks write one checkpoint at the same time",
        tests=(Selection("0", "unit/trainer/test_local_updates.py", "failure_of_rank_0"),),
    ),
)
