"""`Parameters`: the arrays that a trainer updates, with their gradients, in the program's forms."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ncclkv.errors import UsageError
from ncclkv.other_names import is_of_mxnet

Gradient = Callable[[], Any]
"""Function that returns the present gradient of a parameter; None if there is none."""


class Parameter(NamedTuple):
    """A parameter by name.

    Attributes
    ----------
    name : str
    value : array
        Written in place.
    gradient : callable
    """

    name: str
    value: Any
    gradient: Gradient


class Parameters:
    """Parameters in the order given.

    Parameters
    ----------
    given : torch.nn.Module, mapping, or iterable
        A module stands for its parameters that require a gradient.  A mapping has values by name.
        An iterable yields ``(name, value)`` or ``(name, value, gradient)``.

    Attributes
    ----------
    names : list of str
    values : list of arrays
    grads : dict
        Gradients by name, of values that have no gradient of their own; None until the program
        assigns one.

    Raises
    ------
    UsageError
        When `given` holds no parameters, a name or an array twice, a name that is not a str, or a
        parameter without a shape.
    """

    def __init__(self, given: Any) -> None:
        self.grads: dict[str, Any] = {}
        self._found = [self._parameter(item) for item in _items(given)]
        self.names = [each.name for each in self._found]
        self.values = [each.value for each in self._found]
        if not self.names:
            raise UsageError(
                "params: there are no parameters to train; give arrays by name, or a torch module "
                "with a parameter that requires a gradient"
            )
        if twice := [name for name, count in Counter(self.names).items() if count > 1]:
            raise UsageError(f"params: {twice[0]!r} is the name of two parameters; rename one")
        self._refuse_shared()

    def _parameter(self, item: Any) -> Parameter:
        """Return the parameter that an item of the program's parameters describes."""
        _refuse_gluon(item)
        if not isinstance(item, Sequence) or len(item) not in (2, 3):
            module = "; or give the torch module" if hasattr(item, "requires_grad") else ""
            raise UsageError(
                f"params: an item is a {type(item).__name__}; give (name, value) or (name, value, "
                f"gradient){module}"
            )
        name, value, *gradient = item
        _refuse_gluon(value)
        if not isinstance(name, str):
            raise UsageError(f"params: the name {name!r} is a {type(name).__name__}; give a str")
        if _is_lazy(value):
            raise UsageError(
                f"params: {name!r} of a lazy module has no shape yet; call the module with a batch "
                f"before you make the Trainer"
            )
        if gradient:
            return Parameter(name, value, lambda: gradient[0])
        if getattr(value, "requires_grad", False):
            return Parameter(name, value, lambda: value.grad)
        self.grads[name] = None
        return Parameter(name, value, lambda: self.grads[name])

    def _refuse_shared(self) -> None:
        """Refuse an array under two names: the update of a name would overwrite the other's."""
        names: dict[Any, str] = {}
        for name, value in zip(self.names, self.values, strict=True):
            other = names.setdefault(_place(value), name)
            if other != name:
                raise UsageError(
                    f"params: {other!r} and {name!r} are the same array; give it under one name, "
                    f"with the sum of its gradients"
                )

    def gradients(self, *, ignore_missing: bool) -> tuple[list[str], list[Any], list[Any]]:
        """Return names, gradients and values of the parameters that have a gradient.

        Parameters
        ----------
        ignore_missing : bool
            Whether parameters without a gradient are left out.

        Raises
        ------
        UsageError
            When a parameter has no gradient, unless `ignore_missing`.
        """
        if unknown := [name for name in self.grads if name not in self.names]:
            raise UsageError(
                f"grads has {unknown[0]!r}, which is no parameter of the trainer; its parameters "
                f"without a gradient of their own are {', '.join(map(repr, self.names))}"
            )
        found = [(each, each.gradient()) for each in self._found]
        missing = [each.name for each, gradient in found if gradient is None]
        if missing and not ignore_missing:
            raise UsageError(
                f"parameter {missing[0]!r} has no gradient ({len(missing)} of {len(found)} have "
                f"none); compute one before each step, or pass ignore_stale_grad=True"
            )
        present = [(each, gradient) for each, gradient in found if gradient is not None]
        return (
            [each.name for each, _ in present],
            [gradient for _, gradient in present],
            [each.value for each, _ in present],
        )

    def clear(self) -> None:
        """Forget the gradients that the program has assigned: each is used for one step."""
        self.grads.update(dict.fromkeys(self.grads))


def _is_lazy(value: Any) -> bool:
    """Return whether a value is a torch parameter without a shape, of a lazy module."""
    parameter = sys.modules.get("torch.nn.parameter")
    return parameter is not None and bool(parameter.is_lazy(value))


def _place(value: Any) -> Any:
    """Return the address and shape of an array; an array without elements has its identity."""
    interface: Any = None
    if callable(getattr(value, "data_ptr", None)):  # torch's
        address = value.data_ptr()
    else:
        for name in ("__array_interface__", "__cuda_array_interface__"):
            interface = interface or getattr(value, name, None)
        address = interface["data"][0] if interface else 0
    shape = tuple(getattr(value, "shape", ()))
    return (address, shape) if address and 0 not in shape else id(value)


def _refuse_gluon(given: Any) -> None:
    """Refuse parameters and networks of Gluon, which have arrays and gradients for each device."""
    if is_of_mxnet(given, "mxnet.gluon"):
        raise UsageError(
            f"params: MXNet's {type(given).__name__} is for Gluon's own trainer; after `import "
            f"ncclkv.mxnet` make mxnet.gluon.Trainer(params, ..., kvstore='ncclkv')"
        )


def _items(given: Any) -> Iterable[Any]:
    """Return the items of parameters in any form."""
    _refuse_gluon(given)
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    if module is not None and isinstance(given, module):
        return [item for item in given.named_parameters() if item[1].requires_grad]
    if isinstance(given, Mapping):
        return given.items()
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        return given
    raise UsageError(
        f"params is a {type(given).__name__}; give arrays by name, an iterable of (name, value, "
        f"gradient), or a torch module"
    )
