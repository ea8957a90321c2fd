"""``python -m ncclkv``: the command ``ncclkv`` without its installed script."""

from __future__ import annotations

import sys

from ncclkv.cli import main

if __name__ == "__main__":
    sys.exit(main())
