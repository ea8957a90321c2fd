"""`Factors`: factors of the learning rate or of the weight decay, by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ncclkv.arguments import check_length
from ncclkv.errors import UsageError
from ncclkv.optimizer.numbers import finite
from ncclkv.typing import Key

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _counted(method: _Method) -> _Method:
    """Make a method of dict count a change."""

    def change(self: Factors, *arguments: Any, **items: Any) -> Any:
        self.version += 1
        return method(self, *arguments, **items)

    return change  # type: ignore[return-value]


class Factors(dict[Key, float]):
    """A dict that counts its changes, so that a push need not read an unchanged dict.

    Attributes
    ----------
    version : int
        A number that grows with each change.
    """

    # On the class too: pickle puts the items in before it sets attributes.
    version = 0
    _frozen: tuple[int, Factors] | None = None

    __setitem__ = _counted(dict.__setitem__)
    __delitem__ = _counted(dict.__delitem__)
    __ior__ = _counted(dict.__ior__)
    clear = _counted(dict.clear)
    pop = _counted(dict.pop)
    popitem = _counted(dict.popitem)
    setdefault = _counted(dict.setdefault)
    update = _counted(dict.update)

    def frozen(self, name: str) -> Factors:
        """Return a copy of floats, the same object until the next change; callers only read it.

        Raises
        ------
        UsageError
            When a factor is not a finite number; `name` begins the error's text.
        """
        if self._frozen is None or self._frozen[0] != self.version:
            self._frozen = self.version, checked_factors(name, self)
        return self._frozen[1]


def checked_factors(name: str, factors: Mapping[Key, float]) -> Factors:
    """Return a copy of `factors` as floats.

    Raises
    ------
    UsageError
        When `factors` is not a mapping, or a factor is not a finite number.
    """
    if not isinstance(factors, Mapping):
        raise UsageError(f"{name} is a {type(factors).__name__}; give a dict of factors by key")
    for key in factors:
        check_length(f"a key of {name}", key)
    return Factors((key, finite(f"{name} of key {key!r}", x)) for key, x in factors.items())
