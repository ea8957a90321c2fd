"""The page of the command ``ncclkv``, from its parsers."""

from __future__ import annotations

import argparse

from ncclkv.cli import make_parsers

INTRODUCTION = """\
Command line
============

*Read this page to look up a command and its options.  In a clone that is not installed, type*
``python -m ncclkv`` *in place of* ``ncclkv``.

.. code-block:: bash

   ncclkv run -n 4 --max-restarts 3 --checkpoint saved -- python train.py

"""


def page() -> str:
    """Return the page as reStructuredText."""
    _, parsers = make_parsers()
    return INTRODUCTION + "".join(map(section, parsers.values()))


def section(parser: argparse.ArgumentParser) -> str:
    """Return the section of a subcommand: its purpose, usage and options."""
    title = parser.prog
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    usage = parser.format_usage().removeprefix("usage: ").strip()
    lines = [title, "-" * len(title), "", f".. program:: {title}", "", str(parser.description), ""]
    lines += [".. code-block:: text", "", *(f"   {each}" for each in usage.splitlines()), ""]
    for action in shown:
        lines += [f".. option:: {signature(action)}", "", f"   {about(action)}", ""]
    if parser.epilog:
        lines += [parser.epilog.replace("Example: ", "Example::\n\n   "), ""]
    return "\n".join([*lines, ""])


def signature(action: argparse.Action) -> str:
    """Return an option with its names and its value, or a positional argument."""
    value = action.metavar or (action.dest if action.nargs != 0 else "")
    names = [f"{name} {value}".strip() for name in action.option_strings]
    return ", ".join(names) or str(value)


def about(action: argparse.Action) -> str:
    """Return the help of an option, as a sentence."""
    text = str(action.help)
    return f"{text[:1].upper()}{text[1:]}."
