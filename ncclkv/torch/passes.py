"""Pass: the begin and the end of each backward pass of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol
from weakref import WeakMethod, ref

import torch
from torch.autograd import Variable

from ncclkv.errors import UsageError
from ncclkv.frames import warn
from ncclkv.tracebacks import public

_REENTRANT = "give checkpoint() use_reentrant=False"

_BARE = (
    "DataParallel: this backward pass gave gradients to the wrapped module, but the wrapper "
    "was never called: these gradients are not reduced, and the ranks differ after a step; call "
    "the wrapper, and give the wrapper to a trainer, not the module"
)


class PassReducer(Protocol):
    """The object that passes through outputs are reduced by."""

    def on_output(self) -> None:
        """Begin a backward pass that reduces, if it has not begun."""


class _Hook:
    """The hook of an output, which does not keep the reducer: torch's graphs keep hooks."""

    def __init__(self, reducer: ref[PassReducer]) -> None:
        self._reducer = reducer

    @public
    def __call__(self, *_: object) -> None:
        """Announce the pass, unless the wrapper was dropped."""
        reducer = self._reducer()
        if reducer is not None:
            reducer.on_output()


class Pass:
    """The present backward pass of a module.

    torch runs a pass as a task.  A reentrant checkpoint runs a task inside another task, and only
    the outer task ends the pass.  The outputs of the module belong to the outer task, so the pass
    begins there, before the first gradient of a parameter.

    Parameters
    ----------
    end : callable
        A method, called at the end of each pass.
    bare : bool
        Whether a pass of the module warns until the wrapper is called.

    Attributes
    ----------
    reduces : bool
        Whether the pass reduces; if not, it accumulates on this rank.
    bare : bool
        As given, and false once the wrapper was called or has warned.
    ending : callable
        Returns None unless a pass has begun, and neither ended nor been left by an exception.
    """

    def __init__(self, end: Callable[[], object], *, bare: bool) -> None:
        self.reduces = False
        self.bare = bare
        self._end = WeakMethod(end)
        self.ending: Callable[[], object] = lambda: None
        self._announced = False
        self._forward_task = self._task = self._last_task = -1
        self._seen_outputs = False

    @property
    def advice(self) -> str:
        """Return what may help when a pass lacks gradients, for the end of an error's text."""
        return "" if self._seen_outputs else f", or, if a part is checkpointed, {_REENTRANT}"

    def announce(self, *, reduces: bool) -> None:
        """Let the next pass reduce, or accumulate; a forward pass in a pass begins another."""
        self.ending = lambda: None
        self.bare = False
        self._announced = reduces
        self._forward_task = torch._C._current_graph_task_id()
        self._seen_outputs = False

    def watch(self, outputs: Any, reducer: ref[Any]) -> None:
        """Call `reducer` at the begin of each pass through outputs of a forward pass."""
        for each in _tensors(outputs):
            if each.grad_fn is not None:
                each.grad_fn.register_prehook(_Hook(reducer))
                self._seen_outputs = True

    def begin(self) -> None:
        """Begin a pass, in a hook of it.

        Raises
        ------
        UsageError
            When the pass before has ended too early, with a task inside the present task.
        """
        self._task = torch._C._current_graph_task_id()
        if self.bare:
            self.bare = False
            warn(_BARE)
        if self._forward_task != self._task < self._last_task:
            raise UsageError(
                f"backward gave gradients after a reentrant checkpoint, whose end has ended the "
                f"reduction; {_REENTRANT}, or return the module's tensors in a list, tuple, "
                f"mapping or dataclass"
            )
        self.reduces = self._announced
        # torch calls it at the end of the task that calls the present hook, and only releases it
        # when an exception ends the task: the next pass must not push into the block of this pass.
        end = self._end()  # this very object, which only torch keeps
        self.ending = ref(end)
        Variable._execution_engine.queue_callback(end)

    def finish(self) -> None:
        """End a pass that has reduced; later passes of the module alone are local."""
        self._announced = False
        self._last_task = self._task


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of a result that may be nested."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
        return
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        outputs = vars(outputs).values()
    elif not isinstance(outputs, (list, tuple)):
        return
    for each in outputs:
        yield from _tensors(each)
