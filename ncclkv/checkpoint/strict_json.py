"""JSON, strictly: what is written can be read back, and what is read is as it was written."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from ncclkv.errors import CheckpointError, UsageError

_MOST_DIGITS = 1000
_BYTES_A_CONTAINER = 64


class Unsound(CheckpointError):
    """A checkpoint is damaged, foreign, or not there as a whole."""


def dumps(value: Any) -> bytes:
    """A value that `check` has seen, as JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def check(value: Any, what: str) -> None:
    """Refuse what JSON has no way to write; `what` names the value.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> check({"epoch": 3, "order": [2, 0, 1]}, "extra")
    >>> check({"best": float("nan")}, "extra")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: extra['best'] is nan, which JSON has no word for; give a finite number
    """
    try:
        _check(value, what)
    except RecursionError as error:
        raise UsageError(f"{what} is nested too deeply, or holds itself; give it flat") from error


def _check(value: Any, what: str) -> None:
    """As `check`, of a value that is not too deep."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{what} has the key {key!r}; JSON's are str: give str({key!r})")
            _check(item, f"{what}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check(item, f"{what}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{what} is {value!r}, which JSON has no word for; give a finite number")
    elif isinstance(value, int) and value.bit_length() > 3 * _MOST_DIGITS:
        raise UsageError(f"{what} has more than {_MOST_DIGITS} digits or so; give it as a str")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise UsageError(
            f"{what} is a {type(value).__name__}, which JSON has no word for; give numbers, str, "
            f"and lists and dicts of them, such as .tolist() of an array"
        )


class Limits(NamedTuple):
    """Limits of a text of JSON, which may take up to 60 times its length in memory.

    Attributes
    ----------
    nbytes : int
        Its length.  It may have a list or an object for each `_BYTES_A_CONTAINER` of that.
    """

    nbytes: int

    def check(self, blob: bytes) -> None:
        """Refuse a text that is beyond the limits.

        Raises
        ------
        Unsound
        """
        if len(blob) > self.nbytes:
            raise Unsound(f"it has {len(blob):,} bytes, and {self.nbytes:,} are the most")
        made, most = blob.count(b"[") + blob.count(b"{"), self.nbytes // _BYTES_A_CONTAINER
        if made > most:
            raise Unsound(f"it has {made:,} lists and objects, and {most:,} are the most")


def loads(blob: bytes, limits: Limits) -> Any:
    """What JSON says, without names that come twice and numbers that are not finite.

    Raises
    ------
    Unsound
    """
    limits.check(blob)
    try:
        with _without_collector():
            return json.loads(
                blob.decode("utf-8"),
                object_pairs_hook=_once,
                parse_constant=_no_number,
                parse_float=_finite,
                parse_int=_whole,
            )
    except RecursionError as error:
        raise Unsound("it is nested too deeply") from error
    except ValueError as error:
        raise Unsound(f"it is not JSON ({error})") from error


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from looking again and again at objects that are being made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with every name once."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unsound("a name is twice in an object")
    return made


def _no_number(text: str) -> NoReturn:
    """Refuse NaN and infinities, which JSON does not have."""
    raise Unsound(f"{text} stands where a number should")


def _finite(text: str) -> float:
    """A float that is not too large to be one."""
    number = float(text)
    if not math.isfinite(number):
        raise Unsound(f"{text} is too large a number")
    return number


def _whole(text: str) -> int:
    """An int; to read one of a million digits would take very long."""
    if len(text) > _MOST_DIGITS:
        raise Unsound(f"a number has {len(text):,} digits")
    return int(text)


class Fields:
    """An object of a JSON file, each field read as what it must be.

    Parameters
    ----------
    made : Any
        What the file has where an object should be.
    what : str
        Its place in the file, for messages.
    """

    def __init__(self, made: Any, what: str) -> None:
        if type(made) is not dict:
            raise Unsound(f"{what} is a {type(made).__name__}, not an object")
        self._made = made
        self._what = what

    def all(self) -> dict[str, Any]:
        """All fields, of any kind."""
        return self._made

    def any(self, name: str) -> Any:
        """A field of any kind."""
        if name not in self._made:
            raise Unsound(f"{self._what} has no {name!r}")
        return self._made[name]

    def optional(self, name: str) -> Any:
        """A field of any kind, or None where there is none."""
        return self._made.get(name)

    def _of(self, name: str, kind: type) -> Any:
        """A field of one kind; a bool is no int."""
        value = self.any(name)
        if type(value) is not kind:
            raise Unsound(
                f"{name!r} of {self._what} is a {type(value).__name__}, not a {kind.__name__}"
            )
        return value

    def text(self, name: str) -> str:
        """A field that is a str."""
        return str(self._of(name, str))

    def flag(self, name: str) -> bool:
        """A field that is a bool."""
        return bool(self._of(name, bool))

    def whole(self, name: str) -> int:
        """A field that is an int of 0 or more."""
        number = int(self._of(name, int))
        if number < 0:
            raise Unsound(f"{name!r} of {self._what} is {number}, less than 0")
        return number

    def items(self, name: str) -> list[Any]:
        """A field that is a list."""
        found: list[Any] = self._of(name, list)
        return found

    def objects(self, name: str) -> list[Fields]:
        """A field that is a list of objects."""
        return [Fields(item, f"{name}[{number}]") for number, item in enumerate(self.items(name))]

    def pairs(self, name: str) -> list[list[Any]]:
        """A field that is a list of pairs, the first of each an int or a str of its own."""
        found = self.items(name)
        for pair in found:
            if type(pair) is not list or len(pair) != 2 or type(pair[0]) not in (int, str):
                raise Unsound(f"{name!r} of {self._what} is not a list of keys and what they have")
        if len({pair[0] for pair in found}) != len(found):
            raise Unsound(f"a key is twice in {name!r} of {self._what}")
        return found
