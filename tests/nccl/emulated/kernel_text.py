"""Kernels in CUDA C++ text, found and prepared for g++.

The text has passed the preprocessor, where prelude.h has replaced CUDA's keywords by attributes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

BEGIN = "typedef void emulated_source_begins;"
"""Text between the prelude and the source."""

# A function after __global__, on either side of `void`.
_KERNEL = re.compile(
    r"__attribute__\(\(emulated_kernel\)\)"
    r"(?:\s|\bvoid\b|\binline\b|\bstatic\b|__attribute__\(\((?:[^()]|\([^()]*\))*\)\))*"
    r"(\w+)\s*\("
)
_SHARED = r"static thread_local __attribute__\(\(aligned\(16\)\)\)"
_DYNAMIC = re.compile(rf"\bextern\b([^;{{}}]*?){_SHARED}([^;{{}}]*?)\b(\w+)\s*\[\s*\]\s*;")
_C_BLOCK = re.compile(r'extern\s*"C"\s*\{')
_BRACE_OR_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[{}]')


def kernels(source: str) -> list[str]:
    """Return the names of the kernels with C linkage, by which CUDA finds them."""
    blocks = list(_c_blocks(source))
    begins = [begin for begin, _ in blocks]
    names: dict[str, None] = {}
    for found in _KERNEL.finditer(source):
        before = source[: found.start()]
        declaration = before[max(before.rfind(mark) for mark in ";{}") + 1 :]
        block = bisect_right(begins, found.start()) - 1
        if re.search(r'extern\s*"C"', declaration) or (
            block >= 0 and found.start() < blocks[block][1] and "template" not in declaration
        ):
            names[found[1]] = None
    return list(names)


def _c_blocks(source: str) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each ``extern "C"`` block."""
    for found in _C_BLOCK.finditer(source):
        depth = 1
        end = len(source)
        for token in _BRACE_OR_QUOTED.finditer(source, found.end()):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if depth == 0:
                end = token.start()
                break
        yield found.start(), end


def with_dynamic_shared(source: str) -> str:
    """Return a source whose dynamic shared arrays are pointers to the block's memory."""
    return _DYNAMIC.sub(r"static thread_local \1\2* const \3 = emulated::DynamicShared();", source)


def renamed(source: str, names: Collection[str]) -> str:
    """Return a source whose kernels have names that the C library lacks.

    Only declarations of kernels change: no other code can call a kernel.
    """

    def rename(found: re.Match[str]) -> str:
        begin, name = found[0][: found.start(1) - found.start()], found[1]
        return f"{begin}{own_name(name, names)}("

    return _KERNEL.sub(rename, source)


def own_name(expression: str, names: Collection[str]) -> str:
    """Return the C++ expression of a kernel after `renamed`."""
    return f"kernel_{expression}" if expression in names else expression


def entry_points(functions: Iterable[tuple[str, str, str]], flushes: bool) -> str:
    """Return the text of the functions of kernel.h.

    Parameters
    ----------
    functions : iterable of (str, str, str)
        Symbol, name in messages, and C++ expression of each kernel.
    flushes : bool
        Subnormal numbers of single precision are zeros.
    """
    export = 'extern "C" __attribute__((visibility("default")))'
    return "".join(
        f"{export} const auto emulated_arguments_{name} = emulated::sizes({kernel});\n"
        f"{export} int emulated_run_{name}"
        "(const emulated::Launch* launch, void** arguments, const char** words) {\n"
        f'    return emulated::launch("{shown}", {kernel}, {str(flushes).lower()}, '
        "launch, arguments, words);\n}\n"
        for name, shown, kernel in functions
    )
