"""Pages of the site that are made from the package at each build, in ``docs/reference``."""

from __future__ import annotations

from pathlib import Path

from docs.pages import commands, environment, of_root, reference


def texts() -> dict[str, str]:
    """Return the text of each generated page, by its file in ``docs/reference``."""
    return {
        "environment.rst": environment.page(),
        "command-line.rst": commands.page(),
        **{f"{name}.rst": text for name, text in reference.pages().items()},
        **of_root.pages(),
    }


def write(folder: Path) -> None:
    """Write all pages; a file that has its text already is left as it is, and not read anew."""
    folder.mkdir(exist_ok=True)
    for name, text in texts().items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
