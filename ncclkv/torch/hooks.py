"""Hooks of autograd's nodes that accumulate gradients: each counts a parameter's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch

from ncclkv.errors import UsageError
from ncclkv.torch.passes import Pass
from ncclkv.torch.slots import SlotGroup
from ncclkv.tracebacks import trim


def accumulation_of(parameter: torch.nn.Parameter) -> torch.autograd.graph.Node:
    """Return the node of autograd's that accumulates the gradient of a parameter.

    Its hooks run after all hooks of the parameter.  A program may register such a hook later, and
    that would write into a bucket that is being reduced.
    """
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]


def counting_hook(
    gradients: ref[Any], present: Pass, bucket: SlotGroup, name: str
) -> Callable[..., None]:
    """Return the hook of a parameter, which counts its gradient.

    torch's graphs keep hooks where Python's garbage collector does not look.  A hook that kept the
    store would keep it as long as the program keeps a loss, or the module.  A pass calls all hooks,
    so a hook is one function, which calls others only at the ends of passes and buckets.
    """
    left, undefined = bucket.left, bucket.undefined

    def count(_: object, outputs: Sequence[torch.Tensor | None]) -> None:
        try:
            if present.ending() is None:
                owner = gradients()
                if owner is None:
                    return
                owner.begin()
            if outputs[0] is None:
                undefined.add(name)
            if name in left:
                left.remove(name)
            elif present.reduces:
                raise UsageError(
                    f"backward gave two gradients to parameter {name!r}, one after another, as for "
                    f"a checkpointed part that is used twice; give checkpoint() use_reentrant=False"
                )
            if not left and present.reduces:
                owner = gradients()
                if owner is not None:
                    owner.on_full_bucket(name)
        except Exception as error:
            trim(error)
            raise

    return count


def remove(hooks: dict[str, torch.utils.hooks.RemovableHandle]) -> None:
    """Remove hooks from the graph."""
    for hook in hooks.values():
        hook.remove()
    hooks.clear()
