"""Source text of the package: modules, imports and functions."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "ncclkv"
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Import:
    """An imported module, as its full name, and the line of the import."""

    name: str
    line: int
    at_import: bool
    """True if the import runs as soon as its module is imported."""


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    path: Path
    name: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree: to walk it takes longer than to parse the text."""
        return list(ast.walk(self.tree))

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def imports(self, known: set[str]) -> Iterator[Import]:
        """Yield every import, at any level of nesting; `known` has all modules."""
        later = {id(node) for block in self._carried_out_later() for node in ast.walk(block)}
        for node in self.nodes:
            at_import = id(node) not in later
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, at_import)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    yield Import(full if full in known else base, node.lineno, at_import)

    def _carried_out_later(self) -> Iterator[ast.AST]:
        """Yield functions, and the blocks for type checkers alone."""
        yield from self.functions()
        for node in self.nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                yield node

    def _base(self, node: ast.ImportFrom) -> str:
        """Return the module that a ``from`` names, with leading dots resolved."""
        if node.level == 0:
            return node.module or ""
        is_package = self.path.name == "__init__.py"
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, node.module] if node.module else parts)


@cache
def modules() -> tuple[Module, ...]:
    """Return all files of the package, by name; each is read and parsed once."""
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(path, name))
    return tuple(found)


def code_lines(module: Module) -> int:
    """Return the count of lines with code: no docstrings, comments or blank lines."""
    docstrings = {
        line
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type not in NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines
