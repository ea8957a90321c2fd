"""Parameters: the tensors that a module trains now, which may be others than at its wrapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter, is_

import torch

from ncclkv.torch.views import check_tensor


def ignored_names(module: torch.nn.Module) -> set[str]:
    """Return the names of parameters and buffers that stay each rank's own.

    The attribute of the module is that of DDP, which writes names of the outermost module with a
    leading dot.
    """
    names = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return {name.removeprefix(".") for name in names}


class ModuleParameters:
    """The parameters of a module by key: the name that a parameter had when it was first found.

    Attributes
    ----------
    by_key : dict of torch.nn.Parameter, by str
        All parameters but the ignored, frozen parameters included.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._ignored = ignored_names(module)
        self._parts = [*module.modules()]
        self._seen = [*_held(self._parts)]
        self._kinds: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.by_key = self._found()

    def _found(self) -> dict[str, torch.nn.Parameter]:
        """Return the present parameters by their present names."""
        named = self._module.named_parameters()
        return {name: each for name, each in named if name not in self._ignored}

    def have_changed(self) -> bool:
        """Return whether the module holds other parameters than before, in any place."""
        present = [*_held(self._parts)]
        return len(present) != len(self._seen) or not all(map(is_, present, self._seen))

    def follow(
        self, check: Callable[[Mapping[str, torch.nn.Parameter]], None]
    ) -> tuple[dict[str, torch.nn.Parameter], set[str]]:
        """Follow the module; return the parameters that are new, by key, and the keys now unused.

        A parameter that has moved to another name keeps its key.  A new parameter has the key of a
        parameter that is gone, if it replaces a tensor of the same shape and dtype.

        Parameters
        ----------
        check : callable
            Raises to refuse new parameters; the next call then finds them again.
        """
        parts, found = [*self._module.modules()], self._found()
        for key, each in self.by_key.items():
            self._kinds[key] = each.shape, each.dtype
        keys = {id(each): key for key, each in self.by_key.items()}
        present = {id(each) for each in found.values()}
        gone = {key for key, each in self.by_key.items() if id(each) not in present}
        used = {*self.by_key} - gone
        new: dict[str, torch.nn.Parameter] = {}
        by_key: dict[str, torch.nn.Parameter] = {}
        for name, parameter in found.items():
            if id(parameter) not in keys:
                check_tensor(name, parameter)
                keys[id(parameter)] = key = self._key(name, parameter, {*used, *new})
                new[key] = parameter
            by_key[keys[id(parameter)]] = parameter
        check(new)
        self.by_key, self._parts, self._seen = by_key, parts, [*_held(parts)]
        return new, gone

    def _key(self, name: str, parameter: torch.nn.Parameter, used: set[str]) -> str:
        """Return a key for a parameter: its name, with a suffix if another tensor had the name."""
        kind = parameter.shape, parameter.dtype
        key, suffix = name, 1
        while key in used or self._kinds.get(key, kind) != kind:
            suffix += 1
            key = f"{name} ({suffix})"
        return key


_parameters_of, _modules_of = attrgetter("_parameters"), attrgetter("_modules")


def _held(parts: Iterable[torch.nn.Module]) -> Iterable[object]:
    """Return all that modules hold in their places of parameters and modules.

    Each forward pass makes this loop, so it runs in C.
    """
    places = chain(map(_parameters_of, parts), map(_modules_of, parts))
    return chain.from_iterable(map(dict.values, places))
