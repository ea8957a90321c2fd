"""The Python blocks of all documents are run, and print what the next block shows.

A block of language `text` that follows a program holds its output.  If the first line of the output
is ``$ mpirun -n 4 python ...``, the program runs on 4 ranks, here threads, whose lines may come in
any order.  A program that makes a store of all ranks, and shows no output, runs on one rank and on
three.

A comment before a block changes this:

``<!-- not run: REASON -->``
    The block is compiled and not run, such as a fragment, or a program that needs a GPU.
``<!-- from FILE -->``
    The block holds lines of a file, in their order; ``...`` stands for the lines between.
"""

from __future__ import annotations

import ast
import doctest
import io
import re
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ncclkv
from tests.harness.pages import PAGES, Block, blocks, parse
from tests.harness.source import ROOT

ALL = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in ALL if block.language == "python"]
FROM, NOT_RUN = re.compile(r"from (\S+)"), re.compile(r"not run: \w+ .*")
ON_RANKS = re.compile(r"\$ mpirun -n (\d+) python .*\n")
OPTIONAL = ("torch", "mxnet", "cupy", "jax")
"""Libraries that a program may import, and that need not be installed."""

ranks = partial(ncclkv.testing.run_ranks, timeout=30)


def run(block: Block, **names: Any) -> None:
    """Run a program as Python does; `names` are names that it finds."""
    for library in OPTIONAL:
        used = re.search(rf"^\s*(import|from) {library}\b", block.text, re.MULTILINE)
        if used and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    # Lines of errors and of reports are then those of the document.
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    exec(code, {"__name__": "__main__", **names})


def printed(block: Block) -> str:
    """Return what a program prints on one rank."""
    output = io.StringIO()
    with redirect_stdout(output):
        run(block)
    return output.getvalue()


def printed_on_ranks(block: Block, number: int) -> list[str]:
    """Return the sorted lines that a program prints on ranks."""

    def program() -> str:
        output = io.StringIO()
        run(block, print=partial(print, file=output))
        return output.getvalue()

    return sorted("".join(ranks(number, program)).splitlines())


def check(block: Block) -> None:
    """Run a program on the ranks that its output asks for, and compare what it prints."""
    if (head := ON_RANKS.match(block.output)) is not None:
        shown = sorted(block.output[head.end() :].splitlines())
        assert printed_on_ranks(block, int(head[1])) == shown
        return
    output = printed(block)
    if block.output:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not doctest.OutputChecker().check_output(block.output, output, flags):
            pytest.fail(f"{block} prints\n{output}and its page shows\n{block.output}")
    elif 'create("dist' in block.text and "run_ranks" not in block.text:
        printed_on_ranks(block, 3)


def check_lines(block: Block, source: str) -> None:
    """Check that the block has lines of a file, in order; indentation may differ as a whole."""
    rest = iter(source.splitlines())
    wanted = [line for line in block.text.splitlines() if line.strip() not in ("", "...")]
    absent = next((line for line in wanted if not any(line.strip() == x.strip() for x in rest)), "")
    assert not absent, f"{block}: this line is not in the file, or not in this order: {absent}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_program_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if (source := FROM.fullmatch(block.comment)) is not None:
        check_lines(block, (ROOT / source[1]).read_text())
    elif NOT_RUN.fullmatch(block.comment):
        compile(block.text, str(block), "exec")
    else:
        assert not block.comment, f"{block}: write 'not run: REASON' or 'from FILE'"
        check(block)


def is_python(text: str) -> bool:
    """Return whether a text is Python, and more than words: it assigns, calls or imports."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    kinds = ast.Call | ast.Assign | ast.Import | ast.ImportFrom
    return any(isinstance(node, kinds) for node in ast.walk(tree))


@pytest.mark.parametrize("block", [each for each in ALL if each.language == ""], ids=str)
def test_no_program_hides_in_a_block_without_a_language(block: Block) -> None:
    assert not is_python(block.text), f"{block}: write ```python, after <!-- not run: ... -->"


def block_of(text: str) -> Block:
    return parse(ROOT / "page.md", text)[0]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        '```python\nimport ncclkv\nprint(ncclkv.create("dist").rank)\n```\n'
        "```text\n$ mpirun -n 2 python first.py | sort\n0\n2\n```\n",
        '```python\nimport ncclkv\nkv = ncclkv.create("dist")\nassert kv.num_workers == 1\n```\n',
        "```python\nx = undefined\n```\n",
    ],
)
def test_a_wrong_program_is_found(text: str) -> None:
    with pytest.raises((AssertionError, NameError, pytest.fail.Exception)):
        check(block_of(text))


def test_lines_of_a_file_are_compared() -> None:
    source = "a = 1\nfor x in y:\n    b = 2\n    c = 3\n"
    check_lines(block_of("```python\na = 1\n...\nc = 3\n```\n"), source)
    with pytest.raises(AssertionError, match="a = 1"):
        check_lines(block_of("```python\nc = 3\na = 1\n```\n"), source)


def test_python_is_told_from_commands() -> None:
    assert is_python("x = 1\n")
    assert is_python("kv.push('w', x)   # a push\n")
    assert not is_python("mpirun -n 4 python train.py\n")
    assert not is_python("make\n")
