"""Parameters of compression: the dict that a user gives, completed and checked.

The names, defaults and checks are those that each codec declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclkv.arguments import check_known, nearest
from ncclkv.compress.declared import Parameter
from ncclkv.compress.registry import CODECS
from ncclkv.errors import UnknownArgument, UsageError

_OTHER_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("top-k", "top_k"), "topk"),
    **dict.fromkeys(("power_sgd", "power-sgd"), "powersgd"),
}
"""Types by other names, for the error."""


def complete_parameters(given: Any, what: str = "compression_params") -> dict[str, Any]:
    """Return all parameters of a codec, in the order of their declaration.

    Parameters
    ----------
    given : mapping of str to Any
        The type, and parameters whose value is not the default.
    what : str
        Name of the argument; the errors begin with it.

    Raises
    ------
    UsageError
        For anything but a dict, without a type, and for an unknown type or a wrong value.
    UnknownArgument
        For a parameter that the codec does not have; MXNet ignores such a parameter.

    Examples
    --------
    >>> complete_parameters({"type": "2bit", "threshold": "2.0"})
    {'type': '2bit', 'threshold': 2.0, 'scope': 'rank'}
    >>> complete_parameters({"type": "2bit", "treshold": 2.0})
    Traceback (most recent call last):
        ...
    ncclkv.errors.UnknownArgument: compression_params: 2bit has no parameter 'treshold'; \
did you mean 'threshold'? Valid: threshold, scope
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"{what}={given!r} is not a dict; give one such as {_example(given)}")
    if "type" not in given:
        raise UsageError(
            f"{what} has no 'type'; give one such as {_example()}, or one of {', '.join(CODECS)}"
        )
    name = given["type"]
    check_known(f"{what}: type", name, CODECS, _OTHER_TYPES)
    declared = CODECS[name].declared
    where = f"{what}: {name}"
    _check_names(where, [key for key in given if key != "type"], declared)
    return {"type": str(name), **dict(_values(where, given, declared))}


def _example(given: Any = None) -> str:
    """Return a dict as an example, of the type that was given without one."""
    name = given if isinstance(given, str) and given in CODECS else "2bit"
    return f'{{"type": "{name}"}}'


def _check_names(where: str, names: Sequence[Any], declared: Sequence[Parameter]) -> None:
    """Refuse a name that no parameter has, as its name or its alias."""
    known = [each.name for each in declared]
    aliases = [each.alias for each in declared if each.alias]
    for name in names:
        if not (isinstance(name, str) and name in (*known, *aliases)):
            raise UnknownArgument(
                f"{where} has no parameter {name!r}; {nearest(name, (*known, *aliases))}"
                f"Valid: {', '.join((*known, *aliases))}"
            )


def _values(
    where: str, given: Mapping[str, Any], declared: Sequence[Parameter]
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each parameter."""
    for each in declared:
        names = [name for name in (each.name, each.alias) if name and name in given]
        if len(names) == 2:
            raise UsageError(
                f"{where}: {each.alias!r} and {each.name!r} are one parameter; give one of them"
            )
        if names:
            yield each.name, each.check(f"{where}: {names[0]}", given[names[0]])
        else:
            yield each.name, each.default
