"""Extension of Sphinx: links from docstrings to public names, and from pages to the repository."""

from __future__ import annotations

import builtins
import re
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.util.nodes import make_refnode

from docs.pages.of_root import REPOSITORY


def setup(app: Any) -> dict[str, bool]:
    """Connect both, and show the block of imports in architecture.md as it is."""
    app.connect("missing-reference", resolve)
    app.connect("source-read", lead_to_repository)
    app.add_lexer("imports", TextLexer)
    return {"parallel_read_safe": True}


def resolve(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Return a link if the name ends one public name alone, such as `UsageError` in any module.

    A name in small letters is an argument or a value, and `Layout` is internal: both stay text.
    An ambiguous name gives None, and so a warning.
    """
    if node.get("refdomain") != "py" or node["reftype"] not in ("obj", "class", "exc"):
        return None
    name = node["reftarget"]
    if hasattr(builtins, name) or name.islower():
        return text
    found = env.get_domain("py").find_obj(env, None, None, name, None, searchmode=1)
    pages = [(full, entry) for full, entry in found if not entry.aliased]
    if len(pages) != 1:
        return None if pages else text
    full, entry = pages[0]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, text, full)


def lead_to_repository(app: Any, name: str, source: list[str]) -> None:
    """Replace links out of ``docs``, such as ``../train.py``: the site has no such page."""
    source[0] = re.sub(r"\]\(\.\./", f"]({REPOSITORY}/blob/main/", source[0])
