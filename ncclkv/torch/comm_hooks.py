"""Hooks of communication that torch has itself, translated to an argument `compress`.

torch.distributed may be absent from a build of torch, so hooks are recognised by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv.errors import NotSupported, UsageError

_FOLDER = "torch.distributed.algorithms.ddp_comm_hooks"
_POWER_SGD = (f"{_FOLDER}.powerSGD_hook", "powerSGD_hook")

_DEFAULT: dict[tuple[str, str], str | None] = {
    (f"{_FOLDER}.default_hooks", "allreduce_hook"): None,
    (f"{_FOLDER}.default_hooks", "fp16_compress_hook"): "fp16",
    (f"{_FOLDER}.default_hooks", "bf16_compress_hook"): "bf16",
}
"""The argument `compress` for each hook whose state is a process group, by module and name."""

_PARAMETERS = (
    "matrix_approximation_rank",
    "start_powerSGD_iter",
    "min_compression_rate",
    "use_error_feedback",
    "warm_start",
)
"""Attributes of torch's ``PowerSGDState`` that are parameters of powersgd."""

Compress = str | dict[str, Any] | None


def compress_of(state: Any, hook: Callable[..., Any], ranks: int) -> Compress:
    """Return the argument `compress` that has the effect of a hook of torch's.

    Parameters
    ----------
    state : object
        As the hook takes it.
    hook : callable
    ranks : int
        The count of ranks of the store.

    Raises
    ------
    NotSupported
        For any other hook, and for a process group of other ranks.
    UsageError
        When `hook` is not callable, or `state` is not a state of the hook.

    Examples
    --------
    >>> from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> compress_of(None, default_hooks.fp16_compress_hook, 4)
    'fp16'
    """
    if not callable(hook):
        raise UsageError(
            f"register_comm_hook: hook is a {type(hook).__name__}, which cannot be called; give a "
            f"hook such as fp16_compress_hook, or use DataParallel(..., compress='fp16')"
        )
    module, name = getattr(hook, "__module__", None), getattr(hook, "__qualname__", None)
    known = (str(module), str(name))
    if known == _POWER_SGD:
        return _power_sgd(state, ranks)
    if known in _DEFAULT:
        _check_group(state, known[1], ranks)
        return _DEFAULT[known]
    raise NotSupported(
        f"register_comm_hook: {name or type(hook).__name__} of {module} is not one of the hooks "
        f"that have their effect here, {', '.join(name for _, name in [*_DEFAULT, _POWER_SGD])}; "
        f"leave it out, and choose a compression by DataParallel(..., compress='fp16')"
    )


def _power_sgd(state: Any, ranks: int) -> dict[str, Any]:
    """Return the parameters of powersgd with the values of torch's ``PowerSGDState``."""
    kind = type(state)
    if (kind.__module__, kind.__qualname__) != (_POWER_SGD[0], "PowerSGDState"):
        raise UsageError(
            f"register_comm_hook: the state of powerSGD_hook is a {kind.__name__}; give a "
            f"PowerSGDState(None, matrix_approximation_rank=1)"
        )
    _check_group(state.process_group, _POWER_SGD[1], ranks)
    values = {name: getattr(state, name) for name in _PARAMETERS}
    # The state keeps its generator alone, whose first word is the seed until it has drawn.
    return {"type": "powersgd", **values, "random_seed": int(state.rng.get_state()[1][0])}


def _check_group(group: Any, name: str, ranks: int) -> None:
    """Refuse a process group of other ranks than the store's; None stands for all ranks."""
    if group is None:
        return
    size = getattr(group, "size", None)
    if not callable(size):
        raise UsageError(
            f"register_comm_hook: the state of {name} is a {type(group).__name__}; give None, or a "
            f"process group"
        )
    if size() != ranks:
        raise NotSupported(
            f"register_comm_hook: {name} was given a process group of {size()} ranks, and the "
            f"store has {ranks}; give None, and choose the ranks by "
            f"kvstore=ncclkv.create('dist', comm=comm)"
        )
