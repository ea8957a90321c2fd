"""Strict JSON: every value written can be read back, and malformed texts are refused."""

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
    """A checkpoint is damaged, incomplete, or of another format."""


def dumps(value: Any) -> bytes:
    """Return a value as JSON; `check` must have accepted it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def check(value: Any, what: str) -> None:
    """Refuse a value that JSON cannot represent; `what` names it in the error.

    Raises
    ------
    UsageError

    Examples
    --------
    >>> check({"epoch": 3, "order": [2, 0, 1]}, "extra")
    >>> check({"best": float("nan")}, "extra")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: extra['best'] is nan, which JSON cannot hold; give a finite number
    """
    try:
        _check(value, what)
    except RecursionError as error:
        raise UsageError(f"{what} is nested too deeply, or holds itself; give it flat") from error


def _check(value: Any, what: str) -> None:
    """Check a value; may raise RecursionError when it is nested too deeply."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{what} has the key {key!r}; JSON's are str: give str({key!r})")
            _check(item, f"{what}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check(item, f"{what}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{what} is {value!r}, which JSON cannot hold; give a finite number")
    elif isinstance(value, int) and value.bit_length() > 3 * _MOST_DIGITS:
        raise UsageError(f"{what} has more than {_MOST_DIGITS} digits or so; give it as a str")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise UsageError(
            f"{what} is a {type(value).__name__}, which JSON cannot hold; give numbers, str, "
            f"and lists and dicts of them, such as .tolist() of an array"
        )


class Limits(NamedTuple):
    """Limits of a JSON text; parsed, it may take up to 60 times its length in memory.

    Attributes
    ----------
    nbytes : int
        Length of the text.  For each `_BYTES_A_CONTAINER` bytes it may hold one list or object.
    """

    nbytes: int

    def check(self, blob: bytes) -> None:
        """Refuse a text that exceeds the limits.

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
    """Parse JSON; refuse repeated names and numbers that are not finite.

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
    """Turn off the garbage collector, which would scan the growing tree of objects repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; refuse a repeated name."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unsound("a name is twice in an object")
    return made


def _no_number(text: str) -> NoReturn:
    """Refuse NaN and infinities, which JSON does not have."""
    raise Unsound(f"{text} stands where a number should")


def _finite(text: str) -> float:
    """Parse a float; refuse a value beyond its range."""
    number = float(text)
    if not math.isfinite(number):
        raise Unsound(f"{text} is too large a number")
    return number


def _whole(text: str) -> int:
    """Parse an int; refuse very long ones, whose conversion takes quadratic time."""
    if len(text) > _MOST_DIGITS:
        raise Unsound(f"a number has {len(text):,} digits")
    return int(text)


class Fields:
    """An object of a JSON file; each method checks the type of the field that it returns.

    Parameters
    ----------
    made : Any
        Parsed value; an error if it is not an object.
    what : str
        Position in the file, for messages.
    """

    def __init__(self, made: Any, what: str) -> None:
        if type(made) is not dict:
            raise Unsound(f"{what} is a {type(made).__name__}, not an object")
        self._made = made
        self._what = what

    def all(self) -> dict[str, Any]:
        """Return all fields, of any type."""
        return self._made

    def any(self, name: str) -> Any:
        """Return a field of any type."""
        if name not in self._made:
            raise Unsound(f"{self._what} has no {name!r}")
        return self._made[name]

    def optional(self, name: str) -> Any:
        """Return a field of any type, or None if it is missing."""
        return self._made.get(name)

    def _of(self, name: str, kind: type) -> Any:
        """Return a field of one type; a bool is no int."""
        value = self.any(name)
        if type(value) is not kind:
            raise Unsound(
                f"{name!r} of {self._what} is a {type(value).__name__}, not a {kind.__name__}"
            )
        return value

    def text(self, name: str) -> str:
        """Return a field that is a str."""
        return str(self._of(name, str))

    def flag(self, name: str) -> bool:
        """Return a field that is a bool."""
        return bool(self._of(name, bool))

    def whole(self, name: str) -> int:
        """Return a field that is an int of 0 or more."""
        number = int(self._of(name, int))
        if number < 0:
            raise Unsound(f"{name!r} of {self._what} is {number}, less than 0")
        return number

    def items(self, name: str) -> list[Any]:
        """Return a field that is a list."""
        found: list[Any] = self._of(name, list)
        return found

    def objects(self, name: str) -> list[Fields]:
        """Return a field that is a list of objects."""
        return [Fields(item, f"{name}[{number}]") for number, item in enumerate(self.items(name))]

    def pairs(self, name: str) -> list[list[Any]]:
        """Return a field that is a list of pairs; the first items are unique ints or strs."""
        found = self.items(name)
        for pair in found:
            if type(pair) is not list or len(pair) != 2 or type(pair[0]) not in (int, str):
                raise Unsound(f"{name!r} of {self._what} is not a list of keys and what they have")
        if len({pair[0] for pair in found}) != len(found):
            raise Unsound(f"a key is twice in {name!r} of {self._what}")
        return found
