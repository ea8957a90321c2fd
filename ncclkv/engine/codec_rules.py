"""`CodecRule`: the codec of keys that a call has named, or chosen by a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ncclkv.compress.base import Codec
from ncclkv.table.registry import DENSE, Key, KeySpec


class CodecRule:
    """The codec of some keys, present and future ones.

    Parameters
    ----------
    keys : sequence of keys, or None
        Keys, and patterns of str keys as of `fnmatch`; None stands for all keys.
    codec : Codec or None
        None: the keys are not encoded.

    Attributes
    ----------
    for_all : bool
        Whether the rule is for all keys.

    Examples
    --------
    >>> rule = CodecRule(["layer*", "bias"], None)
    >>> rule.matches("layer1"), rule.matches("bias"), rule.matches("b")
    (True, True, False)
    >>> rule.names("layer1"), rule.names("bias")
    (False, True)
    """

    def __init__(self, keys: Sequence[Key] | None, codec: Codec | None) -> None:
        self.codec = codec
        self.for_all = keys is None
        self._keys = keys

    def matches(self, key: Key) -> bool:
        """Return whether the rule is for a key."""
        return self._keys is None or any(each == key or _fits(key, each) for each in self._keys)

    def names(self, key: Key) -> bool:
        """Return whether the rule names a key itself, not by a pattern."""
        return self._keys is not None and key in self._keys

    def encodes(self, spec: KeySpec) -> bool:
        """Return whether the codec of the rule encodes the gradients of a key."""
        codec = self.codec
        if codec is None or spec.storage != DENSE:
            return False
        return spec.dtype.name in codec.dtypes and spec.op in codec.ops


def _fits(key: Key, pattern: Key) -> bool:
    """Return whether a key matches a pattern; both are str then."""
    return isinstance(key, str) and isinstance(pattern, str) and fnmatchcase(key, pattern)
