"""The table of codecs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclkv.compress.base import Codec
from ncclkv.compress.onebit import OneBit
from ncclkv.compress.quantiser import Quantiser
from ncclkv.compress.twobit import TwoBit

CODECS: Mapping[str, type[Quantiser]] = {each.name: each for each in (OneBit, TwoBit)}


def codec_of(parameters: Mapping[str, Any]) -> Codec:
    """Return the codec of complete parameters.

    Examples
    --------
    >>> codec_of({"type": "2bit", "threshold": 2.0, "scope": "rank"})
    TwoBit({'type': '2bit', 'threshold': 2.0, 'scope': 'rank'})
    """
    given = dict(parameters)
    return CODECS[given.pop("type")](**given)
