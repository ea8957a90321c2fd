"""Strict JSON: every value written can be read back, and malformed texts are refused."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from ncclkv.errors import CheckpointError, UsageError

_DIGITS = 1000
_BYTES_A_CONTAINER = 64

ANY = object
"""Form of any value."""

Form: TypeAlias = type | list[Any] | dict[str, Any]
_KINDS = {int: "an int", str: "a str", bool: "a bool", list: "a list", dict: "an object"}


class DamagedCheckpoint(CheckpointError):
    """A checkpoint is damaged, incomplete, or has another format."""


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
        raise UsageError(
            f"{what} is nested too deeply, or contains itself; give a flat value"
        ) from error


def _check(value: Any, what: str) -> None:
    """Check a value; may raise RecursionError when it is nested too deeply."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(
                    f"{what} has the key {key!r}, which is not a str; give str({key!r})"
                )
            _check(item, f"{what}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{what}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{what} is {value!r}, which JSON cannot hold; give a finite number")
    elif isinstance(value, int) and value.bit_length() > 3 * _DIGITS:
        raise UsageError(f"{what} is an int of more than {_DIGITS} digits; give it as a str")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise UsageError(
            f"{what} is a {type(value).__name__}, which JSON cannot hold; give numbers, str, and "
            f"lists and dicts of these, such as .tolist() of an array"
        )


def check_size(blob: bytes, limit: int) -> None:
    """Refuse a text that would take too much memory: up to 60 times its length when parsed.

    Parameters
    ----------
    blob : bytes
    limit : int
        Maximum bytes of the text.  The text may hold one list or object for each
        `_BYTES_A_CONTAINER` bytes of the limit.

    Raises
    ------
    DamagedCheckpoint
    """
    if len(blob) > limit:
        raise DamagedCheckpoint(f"it has {len(blob):,} bytes; the limit is {limit:,}")
    count, allowed = blob.count(b"[") + blob.count(b"{"), limit // _BYTES_A_CONTAINER
    if count > allowed:
        raise DamagedCheckpoint(f"it has {count:,} lists and objects; the limit is {allowed:,}")


def loads(blob: bytes, limit: int) -> Any:
    """Parse JSON of at most `limit` bytes; refuse repeated names, and scalars that are not finite.

    Raises
    ------
    DamagedCheckpoint
    """
    check_size(blob, limit)
    collects = gc.isenabled()
    gc.disable()  # the collector would scan the growing tree of objects repeatedly
    try:
        return json.loads(
            blob.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except RecursionError as error:
        raise DamagedCheckpoint("it is nested too deeply") from error
    except ValueError as error:
        raise DamagedCheckpoint(f"it is not JSON ({error})") from error
    finally:
        if collects:
            gc.enable()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; refuse a repeated name."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise DamagedCheckpoint("an object has a name twice")
    return made


def _refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and infinities, which JSON does not have."""
    raise DamagedCheckpoint(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    """Parse a float; refuse a value beyond its range."""
    value = float(text)
    if not math.isfinite(value):
        raise DamagedCheckpoint(f"{text} is beyond the range of a float")
    return value


def _whole(text: str) -> int:
    """Parse an int; refuse very long ones, whose conversion takes quadratic time."""
    if len(text) > _DIGITS:
        raise DamagedCheckpoint(f"a number has {len(text):,} digits")
    return int(text)


def check_form(value: Any, form: Form, *path: str | int) -> None:
    """Refuse a parsed value that has not the given form.

    Parameters
    ----------
    value : Any
    form : type, list or dict
        ``int`` stands for an int of 0 or more; a bool is no int.  ``[form]`` is a list of values of
        that form.  A dict has the form of each required field.
    *path : str or int
        Names and indices that lead from the whole text to the value, for messages.

    Raises
    ------
    DamagedCheckpoint

    Examples
    --------
    >>> check_form({"files": [{"bytes": True}]}, {"files": [{"bytes": int}]})
    Traceback (most recent call last):
        ...
    ncclkv.checkpoint.strict_json.DamagedCheckpoint: files[0].bytes is a bool, not an int
    """
    kind = form if isinstance(form, type) else type(form)
    if kind is not ANY and type(value) is not kind:
        raise DamagedCheckpoint(f"{_place(path)} is a {type(value).__name__}, not {_KINDS[kind]}")
    if kind is int and value < 0:
        raise DamagedCheckpoint(f"{_place(path)} is {value}, less than 0")
    if isinstance(form, list):
        for index, item in enumerate(value):
            check_form(item, form[0], *path, index)
    if isinstance(form, dict):
        for name, inner in form.items():
            if name not in value:
                raise DamagedCheckpoint(f"{_place(path)} has no {name!r}")
            check_form(value[name], inner, *path, name)


def _place(path: Sequence[str | int]) -> str:
    """Return the place of a value in the text; "it" for the whole text."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).lstrip(".") or "it"


def by_key(pairs: Any, what: str) -> dict[int | str, Any]:
    """Return the items of a list of pairs by their keys, which are ints or strs.

    Raises
    ------
    DamagedCheckpoint
        When `pairs` is anything else, or a key is in it twice.
    """
    if type(pairs) is not list or not all(
        type(pair) is list and len(pair) == 2 and type(pair[0]) in (int, str) for pair in pairs
    ):
        raise DamagedCheckpoint(f"{what} is not a list of pairs that begin with an int or a str")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DamagedCheckpoint(f"{what} has a key twice")
    return found
