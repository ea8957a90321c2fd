"""Lose packets that arrive at this machine, by a table of nftables, until told otherwise.

``packets.py ADDRESS...`` drops what these addresses send; ``packets.py --one-in N`` drops one
packet in N, drawn at random; ``packets.py`` alone drops nothing.  The kernel is told by netlink, so
neither nft nor iptables needs to be installed.  The output is the time at which the loss begins, in
seconds since the epoch.
"""

from __future__ import annotations

import argparse
import struct
import time
from contextlib import suppress
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.nftables.expressions import genex, ipv4addr, verdict
from pyroute2.nftables.main import NFTables

TABLE, CHAIN = "lab", "arrivals"
IPV4 = 2
DROP, ACCEPT = 0, 1
EQUAL = 0
RANDOM = 1


def drawn(one_in: int) -> list[dict[str, Any]]:
    """Build the nftables expressions that match one packet in `one_in`."""
    random_number = [("DREG", 1), ("MODULUS", one_in), ("TYPE", RANDOM), ("OFFSET", 0)]
    data = {"attrs": [(f"NFTA_NG_{name}", value) for name, value in random_number]}
    zero = {"attrs": [("NFTA_DATA_VALUE", struct.pack("=I", 0))]}
    return [
        {"attrs": [("NFTA_EXPR_NAME", "numgen"), ("NFTA_EXPR_DATA", data)]},
        genex("cmp", {"sreg": 1, "op": EQUAL, "data": zero}),
    ]


def main() -> None:
    """Replace this machine's table by what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="*")
    parser.add_argument("--one-in", type=int)
    given = parser.parse_args()
    nft = NFTables(nfgen_family=IPV4)
    with suppress(NetlinkError):  # without a table so far
        nft.table("del", name=TABLE)
    nft.table("add", name=TABLE)
    nft.chain("add", table=TABLE, name=CHAIN, hook="input", type="filter", policy=ACCEPT)
    meets = [ipv4addr(src=address) for address in given.address]
    if given.one_in:
        meets.append(drawn(given.one_in))
    print(time.time())
    for expressions in meets:
        nft.rule("add", table=TABLE, chain=CHAIN, expressions=(expressions, verdict(code=DROP)))


if __name__ == "__main__":
    main()
