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


def files() -> set[str]:
    """Return the files of ``docs/reference``: the pages here, and autosummary's, one a name."""
    modules = reference.modules()
    return {
        *texts(),
        *(f"{module}.{name}.rst" for module in modules for name in reference.own(module)),
    }


def write(folder: Path) -> None:
    """Write all pages, and remove those of names that are gone.

    A file that has its text already is left as it is: Sphinx would read it anew.
    """
    folder.mkdir(exist_ok=True)
    made = files()
    for path in folder.iterdir():
        if path.name not in made:
            path.unlink()
    for name, text in texts().items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
