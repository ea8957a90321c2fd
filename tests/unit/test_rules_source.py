"""Rules for the package's source: sizes, words, and operations limited to certain files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import pytest

from tests.harness.source import PACKAGE, Module, code_lines, length, modules

LONGEST_FILE = 400
"""Lines of code; docstrings, comments and blank lines do not count."""

LONGEST_FUNCTION = 40
"""Lines of code; the docstring does not count."""

ALLOWED_LONG: dict[str, str] = {}
"""Files and functions that may be longer, as "module" or "module.function", with the reason."""

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
VAGUE = re.compile(r"manager|handler|helper|utils?(_|$)", re.IGNORECASE)
GENERIC_ERRORS = {"Exception", "BaseException", "RuntimeError", "SystemError"}

Rule = Callable[[Module], list[str]]


def long_files(module: Module) -> list[str]:
    lines = code_lines(module)
    if lines <= LONGEST_FILE or module.name in ALLOWED_LONG:
        return []
    return [f"{module.path}: {lines} lines of code, and {LONGEST_FILE} are allowed"]


def long_functions(module: Module) -> list[str]:
    return [
        f"{module.where(each.lineno)}: {each.name} has {length(each)} lines, and "
        f"{LONGEST_FUNCTION} are allowed"
        for each in module.functions()
        if length(each) > LONGEST_FUNCTION and f"{module.name}.{each.name}" not in ALLOWED_LONG
    ]


def unfinished_work(module: Module) -> list[str]:
    return [
        f"{module.where(number)}: {line.strip()}"
        for number, line in enumerate(module.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def vague_names(module: Module) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = [(node.name, node.lineno) for node in module.nodes if isinstance(node, kinds)]
    named.append((module.name.rpartition(".")[2], 1))
    return [f"{module.where(line)}: {name}" for name, line in named if VAGUE.search(name)]


def asserts(module: Module) -> list[str]:
    """Find asserts: ``python -O`` removes them, and they name neither key nor rank."""
    return [
        f"{module.where(node.lineno)}: an assert"
        for node in module.nodes
        if isinstance(node, ast.Assert)
    ]


def generic_errors(module: Module) -> list[str]:
    wrong = []
    for node in module.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if ast.unparse(raised) in GENERIC_ERRORS:
                wrong.append(f"{module.where(node.lineno)}: raises {ast.unparse(raised)}")
    return wrong


def reads_of_the_environment(module: Module) -> list[str]:
    if module.name == f"{PACKAGE}.env":
        return []
    return [
        f"{module.where(node.lineno)}: {ast.unparse(node)}; only env.py reads the environment"
        for node in module.nodes
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"))
        or (isinstance(node, ast.alias) and node.name in ("environ", "getenv"))
    ]


RULES: dict[Rule, str] = {
    long_files: "pass\n" * (LONGEST_FILE + 1),
    long_functions: "def f():\n    'Say.'\n" + "    pass\n" * LONGEST_FUNCTION,
    unfinished_work: "x = 1  # TO" + "DO: y",
    vague_names: "class KeyManager: pass",
    asserts: "assert x",
    generic_errors: "raise RuntimeError('no')",
    reads_of_the_environment: "import os\nos.environ['HOME']",
}
"""Each rule, with a source that breaks it."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule):
    assert [breach for module in modules() for breach in rule(module)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_a_breach(rule, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(RULES[rule])
    assert len(rule(Module(path, f"{PACKAGE}.module"))) == 1


COUNTED = """
'Say.'

# Why.
x = '''a
b'''


def f():
    '''Say.

    More.
    '''
    return 1  # Why.
"""


def test_only_code_counts(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(COUNTED)
    assert code_lines(Module(path, f"{PACKAGE}.module")) == 4


def test_docstrings_do_not_count(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("def f():\n    '''Say.\n" + "\n" * 50 + "    '''\n    return 1\n")
    assert long_functions(Module(path, f"{PACKAGE}.module")) == []
