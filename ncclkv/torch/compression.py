"""Compression of a module's gradients: parameters are chosen by patterns of their names.

A rule is one call of `KVStore.set_gradient_compression`.  The last rule that matches a parameter
counts, as the last of such calls does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from ncclkv.arguments import nearest
from ncclkv.compress.base import Codec
from ncclkv.compress.parameters import complete_parameters
from ncclkv.compress.registry import codec_of
from ncclkv.errors import DTypeMismatch, UsageError
from ncclkv.store.kvstore import KVStore

_SHOWN = 4
"""Names of parameters that an error shows."""

Named = Mapping[str, torch.nn.Parameter]


class CodecRule(NamedTuple):
    """The codec of some parameters.

    Attributes
    ----------
    pattern : str or None
        A name, or a pattern as of `fnmatch`; None stands for all parameters.
    parameters : dict or None
        All parameters of the codec; None if gradients are sent whole.
    """

    pattern: str | None
    parameters: dict[str, Any] | None

    def matches(self, name: str) -> bool:
        """Return whether the rule is for a parameter."""
        pattern = self.pattern
        return pattern is None or pattern == name or fnmatchcase(name, pattern)

    @property
    def keys(self) -> list[str] | None:
        """Return the keys as the store takes them; None for all.

        A new parameter under the name of another has a key with a suffix (`ModuleParameters`).
        The rule is for this key, too.
        """
        if self.pattern is None:
            return None
        return [self.pattern, f"{self.pattern} (*)"]


def rules_of(compress: Any, parameters: Named, what: str = "compress") -> list[CodecRule]:
    """Return the rules of an argument `compress`, complete and checked.

    Parameters
    ----------
    compress : str, mapping or None
        A type, the parameters of a codec with their ``"type"``, or either of these by patterns of
        names.
    parameters : mapping of torch.nn.Parameter, by str
    what : str
        Name of the argument; the errors begin with it.

    Raises
    ------
    UsageError, UnknownArgument
        When a codec's parameter is unknown or out of range, a pattern matches no parameter, or a
        later pattern matches all of its parameters.
    DTypeMismatch
        When a codec compresses none of its parameters that require a gradient.

    Examples
    --------
    >>> weights = dict(torch.nn.Linear(2, 1).named_parameters())
    >>> for rule in rules_of({"*": {"type": "2bit", "threshold": 2.0}, "bias": None}, weights):
    ...     print(rule)
    CodecRule(pattern='*', parameters={'type': '2bit', 'threshold': 2.0, 'scope': 'rank'})
    CodecRule(pattern='bias', parameters=None)
    """
    if compress is None:
        return []
    if isinstance(compress, Mapping) and compress and "type" not in compress:
        rules = [*_by_pattern(compress, parameters, what)]
    else:
        rules = [CodecRule(None, _completed(compress, what))]
    names_of: dict[int, list[str]] = {}
    for name in parameters:
        last = max((at for at, rule in enumerate(rules) if rule.matches(name)), default=-1)
        names_of.setdefault(last, []).append(name)
    for at, rule in enumerate(rules):
        names = names_of.get(at)
        if not names:
            raise UsageError(
                f"{what}: {rule.pattern!r} has no effect, because later entries match all its "
                f"parameters, and the last entry that matches counts; move {rule.pattern!r} behind "
                f"the more general entries"
            )
        if rule.parameters is not None:
            trained = {name: parameters[name] for name in names if parameters[name].requires_grad}
            _check_dtypes(codec_of(rule.parameters), trained, what)
    return rules


def _completed(given: Any, what: str) -> dict[str, Any]:
    """Return all parameters of a codec, from its type or from some of them."""
    return complete_parameters({"type": given} if isinstance(given, str) else given, what)


def _by_pattern(compress: Mapping[Any, Any], parameters: Named, what: str) -> Iterator[CodecRule]:
    """Yield the rule of each pattern."""
    for pattern, given in compress.items():
        if not isinstance(pattern, str):
            raise UsageError(
                f"{what}: {pattern!r} is a {type(pattern).__name__}; give names of parameters, or "
                f"patterns such as '*.bias'"
            )
        rule = CodecRule(pattern, None)
        if not any(map(rule.matches, parameters)):
            raise UsageError(
                f"{what}: no parameter matches {pattern!r}; "
                f"{nearest(pattern, [*parameters, 'type'])}The names are {_some(parameters)}"
            )
        completed = None if given is None else _completed(given, f"{what}[{pattern!r}]")
        yield rule._replace(parameters=completed)


def _check_dtypes(codec: Codec, parameters: Named, what: str) -> None:
    """Refuse a codec that compresses none of its parameters: all of them would be sent whole."""
    dtypes: dict[str, str] = {}
    for name, each in parameters.items():
        dtypes.setdefault(str(each.dtype).removeprefix("torch."), name)
    if dtypes and dtypes.keys().isdisjoint(codec.dtypes):
        dtype, name = next(iter(dtypes.items()))
        raise DTypeMismatch(
            f"{what}: {codec.name} compresses {' and '.join(codec.dtypes)}, and the parameters "
            f"that it was given for have other dtypes, as {name!r} of {dtype}; leave them out, or "
            f"convert the module before you wrap it"
        )


def _some(names: Mapping[str, Any]) -> str:
    """Return a text of the first names."""
    shown = [*map(repr, names)][:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def compress_by(kv: KVStore, rules: list[CodecRule], *, owned: bool = False) -> None:
    """Put rules in force; collective.  A store that is `owned` is closed if it refuses a rule."""
    try:
        for rule in rules:
            kv.set_gradient_compression(rule.parameters, keys=rule.keys)
    except Exception as error:
        if owned:
            kv.__exit__(type(error), error, error.__traceback__)
        raise
