"""The table of codecs, and what each of its rows must have."""

from __future__ import annotations

import pytest

from ncclkv.compress.parameters import complete_parameters
from ncclkv.compress.quantiser import Quantiser
from ncclkv.compress.registry import CODECS, codec_of
from tests.codecs import MODELS


@pytest.mark.parametrize("name", [*CODECS])
def test_a_codec_has_the_defaults_that_it_declares(name: str) -> None:
    parameters = complete_parameters({"type": name})
    codec = codec_of(parameters)
    assert codec.name == name
    assert codec.parameters == CODECS[name]().parameters == parameters
    assert repr(codec) == f"{type(codec).__name__}({parameters})"


@pytest.mark.parametrize("name", [*CODECS])
def test_every_codec_has_a_sender(name: str) -> None:
    assert (
        codec_of(complete_parameters({"type": name, "scope": "node"})).parameters["scope"] == "node"
    )


def test_every_codec_of_counts_has_a_model() -> None:
    assert [name for name, each in CODECS.items() if issubclass(each, Quantiser)] == [*MODELS]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_16_bits_have_a_residual_if_asked_for(name: str) -> None:
    kept = [codec_of(complete_parameters({"type": name, "error_feedback": each})).keeps_residual
            for each in (False, True)]  # fmt: skip
    assert kept == [False, True]


@pytest.mark.parametrize("name", ["1bit", "2bit", "topk", "powersgd"])
def test_others_have_a_residual(name: str) -> None:
    assert codec_of(complete_parameters({"type": name})).keeps_residual
