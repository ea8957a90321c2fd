"""The pages of the public names: a page for each module, and a page for each name in it.

The names are read from the sources, so that no optional library has to be imported.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "ncclkv"
OPTIONAL = ("torch", "mxnet")
"""Public modules that are not in ``ncclkv.__all__``, because they import another library."""

INDEX = """\
Reference
=========

*Read these pages to look up a public name: its arguments, results and errors.*

>>> import ncclkv
>>> help(ncclkv.KVStore)  # doctest: +SKIP

Only these names are public.  All other modules may change in any version.

.. toctree::
   :maxdepth: 1

"""


def pages() -> dict[str, str]:
    """Return the index and the pages of modules, as reStructuredText; autosummary adds the rest."""
    index = INDEX + "".join(f"   {name}\n" for name in modules())
    return {"index": index, **{name: _page(name) for name in modules()}}


def modules() -> list[str]:
    """Return the full names of the public modules."""
    inner = [name for name in _listed("") if _is_module(name)]
    return ["ncclkv", *(f"ncclkv.{name}" for name in (*inner, *OPTIONAL))]


def names(module: str) -> list[str]:
    """Return the public names of a module, without the modules among them."""
    found = _listed(_inner(module))
    return found if _inner(module) else [name for name in found if not _is_module(name)]


def own(module: str) -> list[str]:
    """Return the names of a module that get a page of their own."""
    aliases = _aliases(_body(_inner(module)))
    return [name for name in names(module) if name not in {*_others(module), *aliases}]


def _page(module: str) -> str:
    """Return the page of a module: its docstring, and its names."""
    listed, elsewhere = names(module), _others(module)
    aliases = _aliases(_body(_inner(module)))
    others = [elsewhere[name] for name in listed if name in elsewhere]
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:", ""]
    lines += [f".. currentmodule:: {module}", ""]
    for option, rows in (("   :toctree:", own(module)), ("", others)):
        if rows:
            lines += [".. autosummary::", "   :nosignatures:", option, ""]
            lines += [*(f"   {name}" for name in rows), ""]
    return "\n".join(lines + [aliases[name] for name in listed if name in aliases])


def _others(module: str) -> dict[str, str]:
    """Return the names that another public module has, too, and where their pages are."""
    origins = _origins(module)
    return {
        name: f"{_inner(public)}.{name}"
        for public in modules()[1:]
        if public != module
        for name in names(public)
        if name in origins and origins[name] in (public, _origins(public).get(name))
    }


def _origins(module: str) -> dict[str, str]:
    """Return the module from which each name is imported, also for type checkers alone."""
    return {
        alias.name: str(node.module)
        for statement in _body(_inner(module))
        for node in ast.walk(statement)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _aliases(body: list[ast.stmt]) -> dict[str, str]:
    """Return the description of each alias of types and of each type variable."""
    found = {}
    for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        value = getattr(following, "value", None)
        text = str(value.value) if isinstance(value, ast.Constant) else ""
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            name = ast.unparse(node.target)
            found[name] = f".. py:type:: {name}\n   :canonical: {ast.unparse(node.value)}\n"
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar("):
            name = ast.unparse(node.targets[0])
            found[name] = f".. py:data:: {name}\n   :value: {ast.unparse(node.value)}\n"
        else:
            continue
        found[name] += f"\n   {text}\n" if text else ""
    return found


def _inner(module: str) -> str:
    """Return the name of a module without that of the package."""
    return module.removeprefix("ncclkv").removeprefix(".")


def _is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _body(inner: str) -> list[ast.stmt]:
    """Return the statements of a module, whose name is given without that of the package."""
    path = PACKAGE / inner
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text()).body


def _listed(inner: str) -> list[str]:
    """Return the names in ``__all__`` of a module; without this list, the names of its classes."""
    body = _body(inner)
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return [node.name for node in body if isinstance(node, ast.ClassDef)]
