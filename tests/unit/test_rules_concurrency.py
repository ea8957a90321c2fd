"""Clocks, locks and threads of the package come from ``ncclkv/concurrency.py``, at each use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.source import PACKAGE, Module, modules

SEAM = f"{PACKAGE}.concurrency"
WORLD = {
    f"{PACKAGE}.testing.{name}" for name in ("batons", "installed", "primitives", "world_threads")
}
"""Modules that make the clocks and threads of a seeded world out of Python's."""

OWN = {"_thread", "threading", "time"}
"""Modules of Python that only the seam imports."""


def imports(module: Module) -> list[str]:
    """Describe imports of Python's clocks and threads, and of single names of the seam."""
    wrong = []
    for each in module.imports(set()):
        if each.name in OWN:
            wrong.append(f"{module.where(each.line)}: imports {each.name}; use {SEAM}")
        if each.name == SEAM:
            wrong.append(f"{module.where(each.line)}: write 'from {PACKAGE} import concurrency'")
    return wrong


def kept(module: Module) -> list[str]:
    """Describe functions and classes of the seam that a module keeps, as in a default argument.

    A world replaces them while it runs, so they must be looked up at each use.
    """
    used = {id(node) for each in module.nodes for node in _looked_up(each)}
    return [
        f"{module.where(node.lineno)}: keeps {ast.unparse(node)}"
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id == "concurrency"
        if id(node) not in used
    ]


def _looked_up(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that a node calls, inherits from or has as annotations."""
    if isinstance(node, ast.Call):
        yield node.func
    elif isinstance(node, ast.ClassDef):
        yield from node.bases
    elif isinstance(node, ast.FunctionDef) and node.returns is not None:
        yield from ast.walk(node.returns)
    elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield from ast.walk(node.annotation)


def breaches(module: Module) -> list[str]:
    allowed = module.name == SEAM or module.name in WORLD
    return [] if allowed else [*imports(module), *kept(module)]


def test_the_package_takes_clocks_and_threads_from_one_module() -> None:
    assert [breach for module in modules() for breach in breaches(module)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import time", 1),
        ("def f():\n    from threading import Lock", 1),
        ("if TYPE_CHECKING:\n    import threading", 1),
        ("from _thread import get_ident", 1),
        ("from ncclkv.concurrency import monotonic", 1),
        ("from ncclkv import concurrency\ndef f(clock=concurrency.monotonic): pass", 1),
        ("from ncclkv import concurrency\nnow = concurrency.monotonic", 1),
        ("from ncclkv import concurrency\nLOCK = concurrency.Lock()", 0),
        ("from ncclkv import concurrency\nclass A(concurrency.Thread): pass", 0),
        ("from ncclkv import concurrency\ndef f(a: list[concurrency.Lock]): pass", 0),
        ("import timeit", 0),
    ],
)
def test_breaches_are_found(tmp_path: Path, source: str, count: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert len(breaches(Module(path, f"{PACKAGE}.module"))) == count
