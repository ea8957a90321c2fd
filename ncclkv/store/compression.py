"""Compression: chooses the keys whose gradients are encoded before they are sent."""

from __future__ import annotations

from typing import Any

from ncclkv.compress.base import Codec
from ncclkv.compress.parameters import complete_parameters
from ncclkv.compress.registry import codec_of
from ncclkv.engine.codec_rules import CodecRule
from ncclkv.engine.reductions import Reductions
from ncclkv.errors import DTypeMismatch, NotSupported
from ncclkv.store.agreement import propose
from ncclkv.store.context import Component
from ncclkv.store.keys import key_list, one_key
from ncclkv.table.registry import DENSE, KeySpec

_VERB = "set_gradient_compression"


class Compression(Component):
    """Sets the codecs of keys, the same on all ranks."""

    # Verbs

    def set_codec(self, parameters: Any, keys: Any) -> None:
        """Encode gradients of keys from now on, or do so no more; collective."""
        with self._session.verb(_VERB):
            self._calls.record(_VERB)
            rule, _ = propose(self._comm, _VERB, lambda: self._proposed(parameters, keys))
            specs = [
                spec
                for spec in self._engine.layout.registry
                if rule.matches(spec.key) and self._engine.reductions.encodes(rule, spec)
            ]
            if rule.codec is not None:
                self._context.memory_check.check_codec(_VERB, specs, rule.codec)
            self._engine.add_codec_rule(rule)

    def parameters_of(self, key: Any) -> dict[str, Any] | None:
        """Return the parameters of the codec of a key, and the share of its residuals beyond."""
        with self._session.prefixing_rank():
            spec = self._engine.layout.registry[one_key(key)]
        reductions = self._engine.reductions
        rule = reductions.rule(spec.key)
        if rule is None or rule.codec is None or not rule.encodes(spec):
            return None
        share = reductions.saturation.share(spec.key, spec.size)
        return {**rule.codec.parameters, "saturated": share}

    def _proposed(self, parameters: Any, keys: Any) -> tuple[CodecRule, list[str]]:
        """Return the rule, and what other ranks compare of it."""
        names = None if keys is None else key_list(keys)
        made, codec = None, None
        if parameters is not None:
            made = complete_parameters(parameters)
            codec = codec_of(made)
            _check_codec(codec, self._engine.reductions)
        rule = CodecRule(names, codec)
        for spec in self._engine.layout.registry:
            check_named(rule, spec)
        return rule, [f"compression_params={made}", f"keys={keys!r}"]


def check_named(rule: CodecRule | None, spec: KeySpec) -> None:
    """Refuse a rule that names a key which its codec does not encode.

    Raises
    ------
    DTypeMismatch, NotSupported
    """
    if rule is None or rule.codec is None or rule.encodes(spec) or not rule.names(spec.key):
        return
    codec = rule.codec
    advice = "leave it out of keys=, or choose keys by a pattern, which passes it over"
    if spec.storage != DENSE:
        raise NotSupported(
            f"key {spec.key!r} has the storage {spec.storage!r}, whose pushes are not compressed; "
            f"{advice}",
            key=spec.key,
        )
    if spec.dtype.name not in codec.dtypes:
        raise DTypeMismatch(
            f"key {spec.key!r} is {spec.dtype}, and {codec.name} compresses "
            f"{' and '.join(codec.dtypes)}; {advice}",
            key=spec.key,
        )
    raise NotSupported(
        f"key {spec.key!r} has the op {spec.op}, and {codec.name} compresses "
        f"{', '.join(codec.ops)}; {advice}",
        key=spec.key,
    )


def _check_codec(codec: Codec, reductions: Reductions) -> None:
    """Refuse a codec that this store cannot use.

    Raises
    ------
    NotSupported
    """
    senders = reductions.senders(codec)
    if senders > codec.most_senders:
        raise NotSupported(
            f"{_VERB}: {codec.name} sums the codes of at most {codec.most_senders:,} senders, and "
            f"there are {senders:,}; use fp16"
        )
