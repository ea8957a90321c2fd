"""The table of codecs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclkv.compress.half import BF16, FP16
from ncclkv.compress.onebit import OneBit
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.compress.topk import TopK
from ncclkv.compress.twobit import TwoBit

AnyCodec = OneBit | TwoBit | FP16 | BF16 | TopK | PowerSGD

CODECS: Mapping[str, type[AnyCodec]] = {
    each.name: each for each in (OneBit, TwoBit, FP16, BF16, TopK, PowerSGD)
}
"""All codecs."""


def codec_of(parameters: Mapping[str, Any]) -> AnyCodec:
    """Return the codec of complete parameters.

    Examples
    --------
    >>> codec_of({"type": "2bit", "threshold": 2.0, "scope": "rank"})
    TwoBit({'type': '2bit', 'threshold': 2.0, 'scope': 'rank'})
    """
    given = dict(parameters)
    return CODECS[given.pop("type")](**given)
