"""DataParallel: a torch module whose gradients are averaged over the ranks of a store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from ncclkv.arguments import known_arguments
from ncclkv.errors import NotSupported, UsageError
from ncclkv.store.kvstore import KVStore
from ncclkv.store.sums import keep_sums
from ncclkv.torch import ddp
from ncclkv.torch.comm_hooks import compress_of
from ncclkv.torch.compression import compress_by, rules_of
from ncclkv.torch.module_buffers import ModuleBuffers, follow_once
from ncclkv.torch.module_checks import checked, store_of
from ncclkv.torch.module_gradients import ModuleGradients
from ncclkv.torch.module_parameters import ignored_names
from ncclkv.torch.pass_devices import device_of
from ncclkv.tracebacks import public, public_block

if TYPE_CHECKING:
    from typing_extensions import Unpack  # every torch brings it

_SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_load_state_dict_post_hooks",
)
"""Attributes that the wrapper has in common with the wrapped module."""


class _SignedForward:
    """The method ``forward`` of wrappers, with the signature of the wrapped module's.

    Trainers of other libraries read the signature, and drop columns of a batch that it lacks.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, wrapper: DataParallel | None, owner: type) -> Any:
        if wrapper is None:
            return self._function
        bound: Any = partial(self._function, wrapper)
        bound.__wrapped__ = wrapper.module.forward
        return bound


class DataParallel(torch.nn.Module):  # type: ignore[misc]
    """A module that is trained by data parallelism, as by torch's DDP.

    Every rank wraps the same module, and passes its own part of each batch.  All parameters and
    buffers take rank 0's values first.  A backward pass averages the gradients over the ranks,
    while it runs.  `.grad` then holds the average, so every optimizer of torch works unchanged.

    Parameters
    ----------
    module : torch.nn.Module
        At least one parameter must require a gradient.
    kvstore : str or KVStore
        Name of a new store, or a store without keys, which then serves this module alone.
        ``"dist"`` means ``"dist_sync"`` for a module in host memory, and ``"nccl"`` for a module on
        a GPU, which must be the store's.  Its ranks are those of the job.  For other ranks give a
        store of ``ncclkv.create("dist", comm=comm)``.
    average : bool
        Whether gradients are divided by the count of ranks.  If not, set gradients to zero or None
        before each backward pass that reduces: a sum would be summed again.
    broadcast_buffers : bool, optional
        Whether buffers, such as those of BatchNorm, follow rank 0.  They do so at the first forward
        pass after each backward pass that reduces.  Every bit is copied, and autograd does not
        notice the writes.  By default they follow.
    find_unused_parameters : bool
        Whether a backward pass may leave out parameters.  A parameter that a rank has not used
        counts as zeros there.  If no rank has used it since the last reduction, its `.grad` stays
        as it was, None included.
    gradient_as_view : bool
        Whether `.grad` becomes a view of a bucket of the store, which saves a copy and memory.  A
        gradient that the program holds over ``zero_grad()`` keeps its values: the next pass copies
        it to memory of its own.  The wrapper does not see arrays that share a gradient's memory,
        such as ``.grad.view(-1)`` or ``.grad.numpy()``.  The next pass overwrites these: clone
        them, or give False.
    bucket_bytes : int or "auto", optional
        Limit of a bucket, for a store that is made here; as for `ncclkv.create`.
    compress : str or dict, optional
        The compression of gradients, as for `KVStore.set_gradient_compression`, such as ``{"type":
        "2bit", "threshold": 0.5}``; ``"fp16"`` stands for ``{"type": "fp16"}``.  Or a dict of
        these by names of parameters, or by patterns of names, as ``{"*": "fp16", "*.bias": None}``.
        The last entry that matches a parameter counts.  None, as without an entry: the gradient is
        sent whole.

    Other Parameters
    ----------------
    device_ids, output_device : optional
        As in DDP, at most the module's own device, such as ``device_ids=[local_rank]`` for a
        module that is on this GPU.
    init_sync : bool
        Whether parameters take rank 0's values first.  If not, the program makes them equal.
    bucket_cap_mb : float, optional
        `bucket_bytes` in MiB.
    forward_sync_buffers : bool, optional
        Another name of `broadcast_buffers`, which it overrides.
    gradient_as_bucket_view : bool
        Ignored: `gradient_as_view` chooses.
    static_graph, skip_all_reduce_unused_params : bool
        Ignored.  A module with unused parameters needs `find_unused_parameters`.
    batched_grad_copy : bool
        Ignored: the gradients of a bucket are always copied at once.
    check_reduction, dim
        Ignored, as by DDP itself.
    process_group, device_mesh, mixed_precision, bucket_cap_mb_list : None
    delay_all_reduce_named_params, param_to_hook_all_reduce : None
        Refused unless None.  The error has the way to go instead.

    Attributes
    ----------
    module : torch.nn.Module
        The wrapped module.
    kvstore : KVStore
        Its store, which `close` closes.  ``kvstore.rank``, ``kvstore.num_workers`` and
        ``kvstore.local_rank`` are this rank, the count of ranks, and this rank's index on its
        node.  In torch.distributed these are ``get_rank()``, ``get_world_size()`` and
        ``LOCAL_RANK``.
    device : torch.device
        The device of the module.
    device_ids : list of int or None
        The index of the module's GPU in a list, as in DDP; None in host memory.
    output_device : int or None
        The index of the module's GPU.

    Raises
    ------
    UsageError
        When no parameter requires a gradient, another wrapper that is not closed has a parameter
        of the module, or `kvstore` is not a store for gradients.  Also when an argument is unknown,
        or names another device than the module's, or `compress` has a pattern without a parameter.
    NotSupported
        When a parameter or buffer is not a dense tensor in host memory or on a GPU of CUDA, or a
        part is a SyncBatchNorm and torch.distributed is not initialized.  Also for arguments of DDP
        whose effect this class does not have, and for a compression that the store does not have.
    SpecMismatch
        On every rank, when ranks wrap different modules.

    Notes
    -----
    ``state_dict``, ``load_state_dict``, ``named_parameters``, ``get_submodule`` and the like are
    those of the wrapped module: names have no prefix.  A part that is set on the wrapper becomes a
    part of the wrapped module.  States of DDP can be loaded.

    Modules on a GPU have not run on a real GPU yet.  There, backward returns before the gradients
    are reduced, and later work on its current stream waits for them.

    All ranks make the same passes.  Forward and backward run in the thread that created the store.
    The first backward pass after a forward pass reduces, and so does each later pass through its
    outputs.  These are tensors, alone or in lists, tuples, mappings and dataclasses.  Backward from
    several outputs, in turn, needs `find_unused_parameters`, for each of these passes reduces.

    Local, as in DDP, are the gradients of passes in `no_sync`, and of later passes of the wrapped
    module itself.  A pass of the module before the first call of the wrapper warns, on several
    ranks: the program may train the module by mistake.  The next pass that reduces adds the
    averages of local gradients.  A gradient that the program assigns to `.grad` after the pass is
    local, too.  An optimizer that steps with local gradients makes the ranks differ.

    The next forward pass follows changes of ``requires_grad``, and takes in parameters that were
    added or replaced, with rank 0's values.  All ranks make such changes alike.  Buffers that are
    added stay each rank's own.  Parameters and buffers that the module names in
    ``_ddp_params_and_buffers_to_ignore`` are left alone, as by DDP.

    Parts of a module may be checkpointed.  A part that is used twice needs ``use_reentrant=False``.
    After ``backward(create_graph=True)``, which warns, `.grad` holds averages without a graph.
    ``torch.compile`` takes the wrapped module, or the wrapper.  Of a compiled wrapper only the
    first pass after a forward pass reduces.

    Examples
    --------
    >>> import torch, ncclkv
    >>> def work():
    ...     model = DataParallel(torch.nn.Linear(2, 1, bias=False), "threads")
    ...     rank = model.kvstore.rank
    ...     model(torch.full((1, 2), rank + 1.0)).sum().backward()
    ...     gradient = model.module.weight.grad.tolist()
    ...     model.close()
    ...     return gradient
    >>> ncclkv.testing.run_ranks(2, work)
    [[[1.5, 1.5]], [[1.5, 1.5]]]
    """

    module: torch.nn.Module

    @known_arguments("DataParallel", tuple(ddp.DdpArguments.__annotations__))
    def __init__(
        self,
        module: torch.nn.Module,
        kvstore: str | KVStore = "dist",
        average: bool = True,
        broadcast_buffers: bool | None = None,
        find_unused_parameters: bool = False,
        gradient_as_view: bool = True,
        bucket_bytes: int | Literal["auto"] | None = None,
        compress: str | Mapping[str, Any] | None = None,
        **given: Unpack[ddp.DdpArguments],
    ) -> None:
        super().__init__()
        parameters, buffers = checked(module)
        first = next(iter(parameters.by_key.values()))
        ddp.check(given, first.device)
        rules = rules_of(compress, parameters.by_key)
        self._share(module)
        self.kvstore = kv = store_of(kvstore, first.device, ddp.bucket_bytes(bucket_bytes, given))
        compress_by(kv, rules, owned=kv is not kvstore)
        keep_sums(kv)
        self._placed, self._device = first.device, device_of(kv, first)
        follows = ddp.sync_buffers(broadcast_buffers, given)
        with self._device.calls():
            self._following = ModuleBuffers(kv, module, buffers) if follows else None
            # Before the values: ranks that wrap different modules find it by their keys.
            self._gradients = ModuleGradients(
                kv,
                self._device,
                parameters,
                "avg" if average else "sum",
                find_unused=find_unused_parameters,
                as_view=gradient_as_view,
            )
            others = [] if follows else buffers.values()
            if given.get("init_sync", True):
                follow_once(kv, [*parameters.by_key.values(), *others])
        self._averages, self._chosen = average, bool(rules)
        self._reduces, self._is_uneven = True, False
        self._followed = 0  # count of reductions at the last time that buffers followed

    def _share(self, module: torch.nn.Module) -> None:
        """Share the module's parts, whose names get no prefix: the module is no submodule."""
        self.__dict__["module"] = module
        # torch finds parts by these: a parent that loads its state, get_submodule, functional_call.
        self.__dict__.update((name, vars(module)[name]) for name in _SHARED if name in vars(module))
        self.training = module.training

    # Passes

    @_SignedForward
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Pass the arguments to the wrapped module, and return its result."""
        # Without the `except` of public functions, because torch.compile skips a function with it.
        with self._device.calls():
            if self._following is not None and self._followed != self._gradients.reductions:
                self._following.follow(uneven=self._is_uneven)
                self._followed = self._gradients.reductions
            if torch.is_grad_enabled():
                self._gradients.prepare(reduces=self._reduces)
            else:
                self._gradients.evaluate()
        outputs = self.module(*inputs, **named)
        # torch.compile would trace the outputs.
        if self._reduces and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._gradients.watch(outputs)
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank in a ``with`` block, without a reduction.

        The first pass after the block reduces the accumulated gradients, too.  Both forward and
        backward must be in the block.

        Examples
        --------
        >>> model = DataParallel(torch.nn.Linear(1, 1), "local")
        >>> with model.no_sync():
        ...     model(torch.ones(1, 1)).sum().backward()
        >>> model(torch.ones(1, 1)).sum().backward()
        >>> model.module.weight.grad
        tensor([[2.]])
        >>> model.close()
        """
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    @public_block
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let ranks train on different numbers of batches in a ``with`` block, as `DDP.join`.

        Ranks at the end of the block contribute zeros to the other ranks' reductions, until all
        ranks have arrived.  All ranks leave the block with the parameters, and with
        `broadcast_buffers` the buffers, of the rank that has made the most steps.  Of several such
        ranks the lowest counts.

        Gradients are reduced at the end of backward in the block, not while it runs.  Buffers
        follow the lowest rank that still trains.  A parameter that has never required a gradient
        cannot begin to in the block.  An exception that leaves the block breaks the store.  Only
        one module at a time can be in such a block: put modules that train together, as those of a
        GAN, into one module.

        Parameters
        ----------
        divide_by_initial_world_size : bool
            Whether averages divide by all ranks, so that each sample has the same weight.  If not,
            averages divide by the count of ranks that still train.
        enable : bool
            Whether ranks may leave at different times; if not, the block does nothing.
        throw_on_early_termination : bool
            Refused if true, by `NotSupported`.

        Notes
        -----
        Optimizers of torch are on each rank: at a rank that ended early, states such as momentum
        lack the other ranks' last steps.  For training that goes on, load the states of the rank
        that has made all steps, or make new optimizers.

        Examples
        --------
        >>> import ncclkv
        >>> def work():
        ...     model = DataParallel(torch.nn.Linear(1, 1, bias=False), "threads")
        ...     torch.nn.init.zeros_(model.module.weight)
        ...     sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        ...     with model.join():
        ...         for batch in range(1 + model.kvstore.rank):
        ...             sgd.zero_grad()
        ...             model(torch.ones(1, 1)).sum().backward()
        ...             sgd.step()
        ...     model.close()
        ...     return model.module.weight.item()
        >>> ncclkv.testing.run_ranks(2, work)
        [-1.5, -1.5]
        """
        if throw_on_early_termination:
            raise NotSupported(
                "DataParallel.join does not have DDP's argument 'throw_on_early_termination'; "
                "compare the numbers of batches first: model.kvstore.allgather(len(batches))"
            )
        if not enable:
            yield
            return
        gradients, kv = self._gradients, self.kvstore
        before = gradients.reductions
        with kv.uneven():
            self._is_uneven = True
            gradients.divides_by_all = self._averages and divide_by_initial_world_size
            try:
                yield
            finally:
                self._is_uneven = gradients.divides_by_all = False
        with self._device.calls():
            made = kv.allgather(gradients.reductions - before)
            parameters = gradients.parameters.by_key.values()
            buffers = [] if self._following is None else self._following.tensors()
            follow_once(kv, [*parameters, *buffers], source=int(made.argmax()))
        self._followed = gradients.reductions  # also of ranks without a pass

    @public
    def close(self) -> None:
        """Close the store; collective.  Later passes of the wrapped module are its own alone."""
        self._gradients.close()
        self.kvstore.close()

    # The wrapped module's names and state

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the state of the wrapped module, as its own ``state_dict``."""
        return self.module.state_dict(*arguments, **named)

    @public
    def load_state_dict(self, state_dict: Any, *arguments: Any, **named: Any) -> Any:
        """Load the state of the wrapped module, the same on all ranks; ``assign`` is refused.

        The names may have the prefix ``module.``, as those of DDP.
        """
        if named.get("assign") or any(arguments[1:]):
            raise UsageError(_ASSIGN)
        if self._is_of_ddp(state_dict):
            metadata = getattr(state_dict, "_metadata", None)
            state_dict = OrderedDict(state_dict)  # the caller's keeps its names
            if metadata is not None:
                state_dict._metadata = OrderedDict(metadata)
            consume_prefix_in_state_dict_if_present(state_dict, "module.")
        return self.module.load_state_dict(state_dict, *arguments, **named)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *arguments: Any
    ) -> None:
        """Load what the wrapped module itself holds, for a parent; torch then loads its parts."""
        if local_metadata.get("assign_to_params_buffers"):
            raise UsageError(_ASSIGN)
        if self._is_of_ddp(state_dict, prefix):
            begin = f"{prefix}module."
            for name in [name for name in state_dict if name.startswith(begin)]:
                state_dict[prefix + name.removeprefix(begin)] = state_dict.pop(name)
        self.module._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)

    def _is_of_ddp(self, names: Iterable[str], prefix: str = "") -> bool:
        """Return whether names have DDP's prefix."""
        has_own = "module" in self._modules
        return not has_own and any(name.startswith(f"{prefix}module.") for name in names)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Flag that the next passes reduce, as in DDP; `no_sync` clears it for a block."""
        return self._reduces

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, reduces: bool) -> None:
        self._reduces = reduces

    # DDP's attributes

    @property
    def find_unused_parameters(self) -> bool:
        """Flag that passes may leave out parameters; set it on all ranks alike."""
        return self._gradients.find_unused

    @find_unused_parameters.setter
    def find_unused_parameters(self, finds: bool) -> None:
        self._gradients.find_unused = finds

    @property
    def broadcast_buffers(self) -> bool:
        """Flag that buffers follow rank 0."""
        return self._following is not None

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self._placed

    @property
    def output_device(self) -> int | None:
        """The index of the module's GPU; None in host memory."""
        device_id: int | None = self._placed.index
        return device_id

    @property
    def device_ids(self) -> list[int] | None:
        """The index of the module's GPU in a list; None in host memory."""
        return None if self.output_device is None else [self.output_device]

    @public
    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Compress gradients as a hook of torch's own does; collective.

        `hook` may be ``allreduce_hook``, ``fp16_compress_hook``, ``bf16_compress_hook`` or
        ``powerSGD_hook``.  The store has the effect of the hook, as by the argument `compress`, and
        never calls the hook.

        Parameters
        ----------
        state : object
            As for the hook: None, a process group of all ranks, or a ``PowerSGDState``.  Of the
            state the attributes are read, but for ``orthogonalization_epsilon``.
        hook : callable
            A 16-bit sum is rounded once here; torch rounds each addition.

        Raises
        ------
        UsageError
            After the first forward pass, after another call, or if `compress` was given.
        NotSupported
            For any other hook, and for a hook whose compression the store does not have.

        Examples
        --------
        >>> from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        >>> model = DataParallel(torch.nn.Linear(2, 1), "local")
        >>> model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        >>> model.kvstore.gradient_compression("bias")["type"]
        'fp16'
        >>> model.close()
        """
        if self._chosen or self._gradients.called:
            when = "after a forward pass" if self._gradients.called else "again, or with compress="
            raise UsageError(
                f"register_comm_hook was called {when}; call it once, before the first forward "
                f"pass, or use DataParallel(..., compress='fp16') alone"
            )
        kv, parameters = self.kvstore, self._gradients.parameters.by_key
        compress = compress_of(state, hook, kv.num_workers)
        with self._device.calls():
            compress_by(kv, rules_of(compress, parameters, "register_comm_hook"))
        self._chosen = True

    def __getattr__(self, name: str) -> Any:
        """Return a part of the wrapped module; name what stands for an attribute of DDP."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            advice, module = ddp.ABSENT.get(name), self.__dict__.get("module")
            # Without a call of the module's properties, which may raise.
            if hasattr(type(module), name) or name in getattr(module, "__dict__", ()):
                advice = f"the wrapped module has it: use .module.{name}"
            if advice is None:
                raise
            raise AttributeError(f"DataParallel has no attribute {name!r}; {advice}") from None

    def named_parameters(self, *arguments: Any, **named: Any) -> Any:
        """Return the parameters of the wrapped module by name, without a prefix."""
        return self.module.named_parameters(*arguments, **named)

    def named_buffers(self, *arguments: Any, **named: Any) -> Any:
        """Return the buffers of the wrapped module by name, without a prefix."""
        return self.module.named_buffers(*arguments, **named)

    def named_modules(self, *arguments: Any, **named: Any) -> Any:
        """Return the wrapped module and its submodules by name, without a prefix."""
        return self.module.named_modules(*arguments, **named)

    def named_children(self) -> Any:
        """Return the children of the wrapped module by name."""
        return self.module.named_children()

    def train(self, mode: bool = True) -> DataParallel:
        """Set training mode in the wrapped module."""
        self.training = mode
        self.module.train(mode)
        return self

    def __repr__(self) -> str:
        return f"DataParallel({self.module!r})"

    @public
    def __getstate__(self) -> NoReturn:
        """Refuse to pickle or copy the wrapper."""
        raise UsageError(
            "DataParallel cannot be pickled or copied: the connections of its store belong to this "
            "process; save or copy model.module, or its state_dict()"
        )

    @public
    def _apply(self, convert: Callable[..., Any], recurse: bool = True) -> DataParallel:
        """Convert the wrapped module, as ``to`` does; refuse another dtype or device."""
        ignored = ignored_names(self.module)
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            if name in ignored:
                continue
            probe = tensor.detach().reshape(-1)[:0]
            made = convert(probe)
            if (made.dtype, made.device) != (probe.dtype, probe.device):
                raise UsageError(
                    f"DataParallel: {name!r} would become {made.dtype} on {made.device}, and its "
                    f"bucket holds {probe.dtype} on {probe.device}; convert the module before you "
                    f"wrap it"
                )
        self.module._apply(convert, recurse)
        return self


_ASSIGN = (
    "DataParallel.load_state_dict: assign=True would replace the parameters whose gradients are "
    "reduced; load without it, or load before you wrap the module"
)
