"""Files of tensors: their names, and their rows in ``checkpoint.json``.

A file holds whole tensors, and pieces of tensors that several ranks have written.  A whole tensor
is stored under its name, a piece under a name such as ``value.3[0:512]``.  The row of a file lists
its pieces alone: a whole tensor may be in any file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ncclkv.checkpoint.strict_json import ANY, DamagedCheckpoint, check_form
from ncclkv.checkpoint.tensors import Array, Tensor

_FORM = {"name": str, "bytes": int, "sha256": str, "pieces": [ANY]}

_NAME = re.compile(r"tensors-[0-9]{4,}(-of-rank-[0-9]+)?\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Piece(NamedTuple):
    """Elements ``[lo, hi)`` of a tensor, in C order.

    Attributes
    ----------
    tensor : str
        Name of the tensor.
    lo, hi : int
    """

    tensor: str
    lo: int
    hi: int

    @property
    def name(self) -> str:
        """The name of the piece in its file."""
        return f"{self.tensor}[{self.lo}:{self.hi}]"


class File(NamedTuple):
    """Row of ``checkpoint.json`` for a file of tensors.

    Attributes
    ----------
    name : str
    nbytes : int
    sha256 : str
    pieces : tuple of Piece
        Without the whole tensors of the file.
    """

    name: str
    nbytes: int
    sha256: str
    pieces: tuple[Piece, ...] = ()


def file_name(index: int, rank: int | None = None) -> str:
    """Return the name of a file; `rank` is the writer if several ranks write."""
    writer = "" if rank is None else f"-of-rank-{rank}"
    return f"tensors-{index:04}{writer}.safetensors"


def rows(files: Iterable[File]) -> list[dict[str, Any]]:
    """Convert files to JSON values."""
    return [
        {"name": file.name, "bytes": file.nbytes, "sha256": file.sha256, "pieces": file.pieces}
        for file in files
    ]


def from_rows(made: Mapping[str, Any]) -> list[File]:
    """Return the files that the field ``files`` describes.

    Parameters
    ----------
    made : mapping
        Content of ``checkpoint.json``.

    Raises
    ------
    DamagedCheckpoint
        When the rows describe no files, or files outside the checkpoint's directory.
    """
    check_form(made, {"files": [_FORM]})
    files = [
        File(row["name"], row["bytes"], row["sha256"], tuple(map(_piece, row["pieces"])))
        for row in made["files"]
    ]
    for file in files:
        if not _NAME.fullmatch(file.name) or not _SHA256.fullmatch(file.sha256):
            raise DamagedCheckpoint(
                f"{file.name!r:.60} with SHA-256 {file.sha256!r:.70} is not a file of a checkpoint"
            )
    if len({file.name for file in files}) != len(files):
        raise DamagedCheckpoint("it lists a file twice")
    return files


def _piece(given: Any) -> Piece:
    """Return the piece of a row."""
    if (
        type(given) is not list
        or [type(item) for item in given] != [str, int, int]
        or not 0 <= given[1] < given[2]
    ):
        raise DamagedCheckpoint(f"{given!r:.60} is not a piece of a tensor")
    return Piece(*given)


def check_pieces(files: Iterable[File], wanted: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tensors in pieces; each element must be in one piece.

    Raises
    ------
    DamagedCheckpoint
        When pieces overlap or leave a gap, or their tensor is unknown.
    """
    pieces = sorted(piece for file in files for piece in file.pieces)
    names = set()
    for name, of_tensor in groupby(pieces, key=lambda piece: piece.tensor):
        if name not in wanted:
            raise DamagedCheckpoint(f"it has a piece of {name!r:.60}, which is none of its tensors")
        names.add(name)
        end, size = 0, wanted[name].size
        for _, lo, hi in of_tensor:
            if lo != end or hi > size:
                raise DamagedCheckpoint(
                    f"the pieces of tensor {name} have elements up to {end:,} and then [{lo:,}, "
                    f"{hi:,}), and the tensor has {size:,} elements"
                )
            end = hi
        if end != size:
            raise DamagedCheckpoint(
                f"the pieces of tensor {name} have {end:,} of its {size:,} elements"
            )
    return names


class Assembly:
    """The tensors of a checkpoint, put together from its files.

    Parameters
    ----------
    files : iterable of File
    wanted : mapping of Tensor by name
        All tensors of the checkpoint.
    passing : collection of str
        Names of tensors that are not kept in memory: their files are read again.

    Attributes
    ----------
    arrays : dict of ndarray
        The tensors by name; those in pieces may be incomplete until all files are added.
    passed : list of File
        The files with passing tensors.

    Raises
    ------
    DamagedCheckpoint
        As for `check_pieces`.
    """

    def __init__(
        self,
        files: Iterable[File],
        wanted: Mapping[str, Tensor],
        passing: Collection[str] = (),
    ) -> None:
        self.arrays: dict[str, Array] = {}
        self.passed: list[File] = []
        self._wanted = wanted
        self._passing = passing
        self._found: set[str] = set()
        divided = check_pieces(files, wanted)
        self._whole = {name: form for name, form in wanted.items() if name not in divided}

    def stored(self, file: File) -> dict[str, Tensor]:
        """Return the tensors that a file may hold, as they are stored."""
        pieces = {
            piece.name: Tensor((piece.hi - piece.lo,), self._wanted[piece.tensor].dtype)
            for piece in file.pieces
        }
        return {**self._whole, **pieces}

    def add(self, file: File, found: Mapping[str, Array]) -> None:
        """Add the arrays of a file.

        Raises
        ------
        DamagedCheckpoint
            When the file lacks a piece, or has a tensor of an earlier file.
        """
        rest = dict(found)
        for piece in file.pieces:
            if piece.name not in rest:
                raise DamagedCheckpoint(f"it lacks {piece.name}, which checkpoint.json lists")
            array = rest.pop(piece.name)
            if piece.tensor in self._passing:
                continue
            if piece.tensor not in self.arrays:
                self.arrays[piece.tensor] = np.empty(*self._wanted[piece.tensor])
            self.arrays[piece.tensor].reshape(-1)[piece.lo : piece.hi] = array
        if not self._found.isdisjoint(rest):
            twice = min(self._found & rest.keys())
            raise DamagedCheckpoint(f"it has the tensor {twice}, which an earlier file has")
        self._found.update(rest, (piece.tensor for piece in file.pieces))
        self.arrays.update((name, rest[name]) for name in rest if name not in self._passing)
        if self.passing(file, found):
            self.passed.append(file)

    def passing(self, file: File, found: Mapping[str, Array]) -> list[tuple[Piece, Array]]:
        """Return the passing tensors of a file, flat, whole or in pieces."""
        pieces = [(piece, found[piece.name]) for piece in file.pieces]
        wholes = [(Piece(name, 0, array.size), array) for name, array in found.items()]
        return [
            (piece, array.reshape(-1))
            for piece, array in [*pieces, *wholes]
            if piece.tensor in self._passing
        ]

    def complete(self) -> dict[str, Array]:
        """Return all tensors but the passing ones.

        Raises
        ------
        DamagedCheckpoint
            When no file has a tensor.
        """
        if self._found != self._wanted.keys():
            missing = min(self._wanted.keys() - self._found)
            raise DamagedCheckpoint(f"none of its files has the tensor {missing}")
        return self.arrays
