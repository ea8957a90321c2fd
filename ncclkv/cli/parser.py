"""Parser of command lines, whose errors are a `LaunchError` with the next step."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from ncclkv.errors import LaunchError

_NO_VALUE = re.compile(r"argument ([^ /:]+)\S*: expected (?:one|\d+) arguments?")
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")
_OF_ARGUMENT = re.compile(r"argument ([^ /:]+)[^ :]*: ")


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises, and does not end the process by itself."""

    def error(self, message: str) -> NoReturn:
        """Raise a `LaunchError` in place of argparse's own text and exit.

        Raises
        ------
        LaunchError
            Always.
        """
        raise LaunchError(f"{self._plain(message)}; {self.prog} --help lists the options")

    def _plain(self, message: str) -> str:
        """Return a message of argparse as a sentence about the option."""
        if (found := _NO_VALUE.fullmatch(message)) is not None:
            return f"{found[1]} stands without its value"
        if (found := _UNKNOWN.match(message)) is not None:
            shown = [each for each in self._actions if each.help != argparse.SUPPRESS]
            names = [name for each in shown for name in each.option_strings]
            near = difflib.get_close_matches(found[1], names, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            return (
                f"{self.prog} has no option {found[1]}{meant}; options of the program stand "
                f"behind its name"
            )
        return _OF_ARGUMENT.sub(r"\1: ", message, count=1)
