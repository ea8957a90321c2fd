"""Pages from the documents beside the README, which keep their places for GitHub."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = "https://github.com/ncclkv/ncclkv"
ROOT = Path(__file__).resolve().parents[2]
INCLUDE = "```{include} ../../%s\n:relative-docs: docs/\n```\n"


def pages() -> dict[str, str]:
    """Return a page for each document, in MyST."""
    documents = (path.name for path in ROOT.glob("*.md") if path.name != "README.md")
    return {name.lower(): INCLUDE % name for name in documents}
