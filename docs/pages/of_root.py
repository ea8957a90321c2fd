"""Pages from the documents beside the README, which keep their places for GitHub."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = "https://github.com/ncclkv/ncclkv"
ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[str, str]:
    """Return a page for each document, in Markdown, with links that work from its place."""
    paths = (path for path in ROOT.glob("*.md") if path.name != "README.md")
    return {path.name.lower(): relinked(path.read_text()) for path in paths}


def relinked(text: str) -> str:
    """Return a document's text with its links as seen from ``docs/reference``."""

    def link(found: re.Match[str]) -> str:
        target = found[1]
        if re.match(r"\w+:|#", target):
            return found[0]
        if target.startswith("docs/"):
            return f"](../{target.removeprefix('docs/')})"
        if re.fullmatch(r"(?!README)\w+\.md(#.*)?", target):
            return f"]({target.lower()})"
        return f"]({REPOSITORY}/blob/main/{target})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)
