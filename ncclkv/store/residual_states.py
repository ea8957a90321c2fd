"""`ResidualStates`: saves the residuals of gradients that are compressed, and restores them.

A residual belongs to a key and a sender: a rank, or an array of a push in one process.  A store of
M senders gives the residual of sender s to its sender s % M, which adds what it gets in the order
of s.  So the sum of a key's residuals, the gradients that are still to be sent, is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ncclkv.checkpoint.files import Piece
from ncclkv.checkpoint.manifest import Manifest
from ncclkv.checkpoint.residuals import (
    ARRAYS,
    RANKS,
    CompressionManifest,
    EncodedKey,
    SavedBasis,
    basis_name,
    check_residual_count,
    parse_name,
    residual_name,
)
from ncclkv.checkpoint.tensors import Array, batches
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer
from ncclkv.compress.powersgd import PowerSGD, matrix_shape
from ncclkv.engine.node_reduction import NodeReduction
from ncclkv.engine.reductions import Reductions
from ncclkv.errors import CheckpointError
from ncclkv.store.agreement import from_rank
from ncclkv.store.context import Component
from ncclkv.store.own_parts import pieces
from ncclkv.store.single_rank import request_assistance, run_on_one_rank
from ncclkv.table.registry import Key, KeySpec

_log = logging.getLogger("ncclkv")

_FLOAT32 = np.dtype(np.float32)

_BATCH_BYTES = 64 * 1024 * 1024
"""Size of the residuals that are sent at a time; a larger tensor is sent by itself."""

PieceArrays = list[tuple[Piece, Array]]
"""The residuals in a file: whole tensors, and pieces."""


class ResidualStates(Component):
    """Reads the residuals of this rank's senders for a save, and replaces them in a load."""

    def _codec(self, spec: KeySpec) -> tuple[str, str] | None:
        """Return the type and the scope of a key's codec; None for a key without residuals."""
        codec = self._engine.reductions.codec(spec)
        if codec is None or not codec.keeps_residual:
            return None
        return codec.name, codec.parameters["scope"]

    # Saving

    def form(self) -> CompressionManifest | None:
        """Return the keys with residuals or a basis, equal on all ranks; None without any."""
        reductions, keys, bases = self._engine.reductions, list[EncodedKey](), list[SavedBasis]()
        for spec in self._engine.layout.registry:
            basis = reductions.bases.find(spec.key)
            if basis is not None and basis.launches:
                columns = len(basis.q) if basis.has_sum else 0
                bases.append(SavedBasis(spec.index, basis.launches, columns))
            codec, here = self._codec(spec), len(reductions.residuals.all_of(spec.key))
            if codec is not None and here:
                senders = here if reductions.each_array_sends else self._comm.size
                keys.append(EncodedKey(spec.index, *codec, senders))
        check_residual_count(keys)
        each = ARRAYS if reductions.each_array_sends else RANKS
        return CompressionManifest(each, (*keys,), (*bases,)) if keys or bases else None

    def own(self, form: CompressionManifest | None) -> Iterator[tuple[str | Piece, Array]]:
        """Yield the residuals of this rank's senders, in host memory, whole or in pieces."""
        reductions, specs = self._engine.reductions, [*self._engine.layout.registry]
        for key in form.keys if form is not None else ():
            spec = specs[key.key_index]
            senders = range(key.senders) if reductions.each_array_sends else [self._comm.rank]
            for position, sender in enumerate(senders):
                own = reductions.residuals.of(spec, position)
                yield from pieces(self._comm, spec, residual_name(spec.index, sender), own)

    def bases(self, form: CompressionManifest | None) -> Iterator[tuple[str, Array]]:
        """Yield the bases of keys, which all ranks have."""
        specs = [*self._engine.layout.registry]
        for saved in form.bases if form is not None else ():
            if saved.columns:
                q = self._engine.reductions.bases.of(specs[saved.key_index]).q
                yield basis_name(saved.key_index), self._comm.to_host(q)

    def gather(self, key: Key, rank: int) -> Array:
        """Return the residual of a key on a rank, flat, to the leader; collective."""
        comm, leader = self._comm, self._engine.placement.leader
        spec = self._engine.layout.registry[key]
        sent, received = _nothing(comm), _nothing(comm)
        if comm.rank == rank:
            sent[leader] = self._engine.reductions.residuals.of(spec)
        if comm.rank == leader:
            received[rank] = comm.kernels.empty((spec.size,), _FLOAT32)
        _exchange(comm, sent, received, f"the residual of key {key!r} of rank {rank}")
        return received[rank]

    # Loading

    def install(self, verb: str, manifest: Manifest, files: Iterable[PieceArrays]) -> None:
        """Add the saved residuals to those of the store, which are zero; collective.

        Parameters
        ----------
        verb : str
        manifest : Manifest
        files : iterable of list
            The residuals in each file, in the order of their senders; read on the leader alone.

        Raises
        ------
        CheckpointError
            On every rank, when the leader fails to read a file again.
        """
        leader = self._engine.placement.leader
        senders = self._senders(verb, manifest)
        if not senders:
            return
        deal = _Deal(self._comm, self._engine.reductions, leader, senders)
        try:
            run_on_one_rank(self._comm, leader, verb, deal.run(verb, files), assist=deal.take)
        except CheckpointError as error:
            for spec, _ in senders.values():
                self._engine.reductions.residuals.reset(spec.key)
            raise CheckpointError(
                f"{error}; the values are those of the checkpoint, and the residuals are zero: "
                f"load a checkpoint again"
            ) from error
        self._deal_in_nodes([spec for spec, _ in senders.values()])

    def install_bases(self, manifest: Manifest, arrays: Mapping[str, Array]) -> None:
        """Set the bases of keys on all ranks to those that the leader has; collective."""
        saved, reductions = manifest.compression, self._engine.reductions
        for each in saved.bases if saved is not None else ():
            spec = self._engine.layout.registry[manifest.keys[each.key_index].spec.key]
            codec = reductions.codec(spec)
            if not isinstance(codec, PowerSGD):
                continue
            reductions.follow(spec)
            basis = reductions.bases.of(spec)
            basis.launches = each.launches
            if each.columns:
                shape = each.columns, matrix_shape(spec.shape)[1]
                given = arrays.get(basis_name(each.key_index), np.zeros(shape, _FLOAT32))
                (found,) = from_rank(self._comm, [given], self._engine.placement.leader)
                basis.restore(codec, found)

    def _deal_in_nodes(self, specs: Sequence[KeySpec]) -> None:
        """Give residuals of nodes to the ranks that send them; collective."""
        sent_by_nodes = [spec for spec in specs if (self._codec(spec) or ("", ""))[1] == "node"]
        for spec in sent_by_nodes:
            slot = self._engine.layout[spec.key]
            reduction = slot.state.coded[spec.key]
            if isinstance(reduction, NodeReduction):
                reduction.deal_residual(slot.entry)

    def _senders(self, verb: str, manifest: Manifest) -> dict[int, tuple[KeySpec, int]]:
        """Return the key and its count of senders here, by the saved index, and log the rest."""
        saved, reductions = manifest.compression, self._engine.reductions
        senders, dropped = dict[int, tuple[KeySpec, int]](), []
        for each in saved.keys if saved is not None else ():
            spec = self._engine.layout.registry[manifest.keys[each.key_index].spec.key]
            if self._codec(spec) != (each.codec, each.scope):
                dropped.append((spec, each.codec))
                continue
            count = self._comm.size
            if reductions.each_array_sends and saved is not None:
                here = len(reductions.residuals.all_of(spec.key))
                count = max(1, here, each.senders if saved.each == ARRAYS else 1)
            senders[each.key_index] = spec, count
            reductions.follow(spec)
            # A residual of zero, too, so that all ranks save the same keys.
            reductions.residuals.of(spec, count - 1 if reductions.each_array_sends else 0)
        if dropped and self._comm.rank == self._engine.placement.leader:
            spec, codec = dropped[0]
            now = reductions.codec(spec)
            _log.info(
                "%s: the residuals of %d keys are dropped: key %r was saved with the codec %s, and "
                "its codec is %s",
                verb,
                len(dropped),
                spec.key,
                codec,
                None if now is None else dict(now.parameters),
            )
        return senders


class _Deal:
    """The way of saved residuals from the leader to the ranks whose senders get them.

    Parameters
    ----------
    comm : Communicator
    reductions : Reductions
    leader : int
    senders : mapping of (KeySpec, int) by int
        The key and its count of senders here, by its index in the checkpoint.
    """

    def __init__(
        self,
        comm: Communicator,
        reductions: Reductions,
        leader: int,
        senders: Mapping[int, tuple[KeySpec, int]],
    ) -> None:
        self._comm = comm
        self._reductions = reductions
        self._leader = leader
        self._senders = senders
        self._first: dict[tuple[int, int], int] = {}

    def run(self, verb: str, files: Iterable[PieceArrays]) -> Generator[None, None, None]:
        """Send the residuals of each file, and yield after each file; run on the leader.

        The other ranks wait in `run_on_one_rank` with `take`.
        """
        for found in files:
            wanted = [each for each in found if parse_name(each[0].tensor)[0] in self._senders]
            for batch in batches(wanted, lambda each: each[1].nbytes, _BATCH_BYTES):
                names = [piece for piece, _ in batch]
                request_assistance(self._comm, self._leader, verb, names)
                self.take(names, [array for _, array in batch])
            yield

    def take(self, names: Sequence[Piece], arrays: Sequence[Array] = ()) -> None:
        """Send pieces to their ranks, and add those for this rank; collective.

        `arrays` are their elements, on the leader alone.
        """
        places: list[list[int]] = [[] for _ in range(self._comm.size)]
        for place, piece in enumerate(names):
            places[self._target(piece)[0]].append(place)
        sent, received = _nothing(self._comm), _nothing(self._comm)
        mine = places[self._comm.rank]
        received[self._leader] = self._joined([names[place] for place in mine])
        if self._comm.rank == self._leader:
            for rank, of_rank in enumerate(places):
                sent[rank] = self._joined([names[place] for place in of_rank])
                for place, elements in self._split(names, of_rank, sent[rank]):
                    self._comm.kernels.pack(arrays[place], elements)
        _exchange(self._comm, sent, received, "residuals of a checkpoint")
        for place, elements in self._split(names, mine, received[self._leader]):
            self._add(names[place], elements)

    def _target(self, piece: Piece) -> tuple[int, int]:
        """Return the rank that gets a piece, and the position of the sender there."""
        index, sender = parse_name(piece.tensor)
        here = sender % self._senders[index][1]
        return (0, here) if self._reductions.each_array_sends else (here, 0)

    def _joined(self, pieces: Sequence[Piece]) -> Buffer:
        """Return memory for the elements of pieces, one after another."""
        return self._comm.kernels.empty((sum(each.hi - each.lo for each in pieces),), _FLOAT32)

    @staticmethod
    def _split(
        names: Sequence[Piece], places: Sequence[int], joined: Buffer
    ) -> Iterator[tuple[int, Buffer]]:
        """Yield the places of pieces in `names`, each with its elements in `joined`."""
        start = 0
        for place in places:
            count = names[place].hi - names[place].lo
            yield place, joined[start : start + count]
            start += count

    def _add(self, piece: Piece, elements: Buffer) -> None:
        """Add a piece of a saved residual to the residual of a sender of this rank."""
        index, sender = parse_name(piece.tensor)
        _, position = self._target(piece)
        spec, _ = self._senders[index]
        own = self._reductions.residuals.of(spec, position)[piece.lo : piece.hi]
        # A sum with zero would turn a negative zero into a positive one.
        if self._first.setdefault((index, position), sender) == sender:
            self._comm.kernels.pack(elements, own)
        else:
            self._comm.kernels.reduce([own, elements], own, "sum")


def _nothing(comm: Communicator) -> list[Buffer]:
    """Return an empty buffer for each rank."""
    return [comm.kernels.empty((0,), _FLOAT32)] * comm.size


def _exchange(
    comm: Communicator, sent: Sequence[Buffer], received: Sequence[Buffer], what: str
) -> None:
    """Send a buffer to each rank, and wait for those of all ranks; collective."""
    work = comm.all_to_all(sent, received)
    work.label = what
    work.wait()
