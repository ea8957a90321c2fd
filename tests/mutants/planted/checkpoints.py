"""Faults in checkpoints that several ranks write, and in their loads."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

ALL_RANKS = "ncclkv/store/all_ranks.py"
CHECKPOINTS = "ncclkv/store/checkpoints.py"
ENGINE = "ncclkv/engine/engine.py"
FILES = "ncclkv/checkpoint/files.py"
OWN_PARTS = "ncclkv/store/own_parts.py"
READ = "ncclkv/checkpoint/read.py"
RESIDUAL_STATES = "ncclkv/store/residual_states.py"
RESTORING = "ncclkv/store/restoring.py"
SAVING = "ncclkv/store/saving.py"
UPDATER_STATES = "ncclkv/store/updater_states.py"
WRITE = "ncclkv/checkpoint/write.py"

_THREADS = Selection("0", "threads/test_store_cases.py", "checkpoints and 3")
_DIVIDED = Selection("0", "threads/test_store_cases.py", "checkpoints_divided and 3")
_SAVING = Selection("0", "unit/store/test_saving.py")
_RESIDUALS = Selection("0", "unit/store/test_residual_states.py")
_COMPRESSED = Selection("0", "threads/test_store_cases.py", "checkpoints_compressed and not long")

MUTANTS = (
    Mutant(
        name="part-recorded-as-the-first-elements",
        file=OWN_PARTS,
        old="yield Piece(tensor, lo + start, lo + start + piece.size), piece",
        new="yield Piece(tensor, start, start + piece.size), piece",
        why="no rank can load the checkpoint: its pieces overlap",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="values-of-another-owner-saved",
        file=OWN_PARTS,
        old="slot.weight[lo:hi], lo)",
        new="slot.weight[: hi - lo], lo)",
        why="a checkpoint has the values of other elements",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="empty-values-not-saved",
        file=OWN_PARTS,
        old="            if lo == hi and not (leads and spec.size == 0):\n",
        new="            if lo == hi:\n",
        why="no rank can load a checkpoint with a key without elements",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="parts-of-the-leader-alone",
        file=SAVING,
        old="        return owned, [file for files in written for file in files]\n",
        new="        return owned, written[0]\n",
        why="the manifest lacks the files of the other ranks",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="states-of-the-leader-saved",
        file=SAVING,
        old="            work = self._comm.allgatherv(own, wholes[name], counts)\n",
        new="            work = self._comm.allgatherv(own * 0, wholes[name], counts)\n",
        why="a checkpoint has no states of ranks on other hosts",
        tests=(_SAVING,),
    ),
    Mutant(
        name="every-directory-taken-for-shared",
        file=SAVING,
        old="return has_mark(folder, mark), forms(items)",
        new="return True, forms(items)",
        why="ranks of other hosts write to their own disks",
        tests=(_SAVING,),
    ),
    Mutant(
        name="save-with-keys-sealed-on-one-rank",
        file=CHECKPOINTS,
        old="        layout.seal_on_all(verb, sealed)\n",
        new="        sealed.clear()\n",
        why="a key is saved whole by one rank, and in parts by others",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="failure-of-another-rank-ignored",
        file=ALL_RANKS,
        old="                if state == FAILED:\n",
        new="                if state == FAILED and rank == comm.rank:\n",
        why="the ranks wait for the rank whose disk is full",
        tests=(Selection("0", "unit/store/test_all_ranks.py"),),
    ),
    Mutant(
        name="ranks-write-on-after-a-rank-has-ended",
        file=ALL_RANKS,
        old="        while len(results) < comm.size:\n",
        new="        while message[0] == RUNNING:\n",
        why="the leader writes the manifest before all files are complete",
        tests=(Selection("0", "unit/store/test_all_ranks.py"),),
    ),
    Mutant(
        name="name-before-the-manifest",
        file=WRITE,
        old="            _write_manifest(hidden, manifest, files, author)\n"
        "            os.rename(hidden, path)\n",
        new="            os.rename(hidden, path)\n"
        "            _write_manifest(path, manifest, files, author)\n",
        why="a killed save leaves a checkpoint without a manifest under its final name",
        tests=(Selection("0", "unit/checkpoint/test_write_killed.py", "two_ranks"),),
    ),
    Mutant(
        name="gaps-between-pieces-accepted",
        file=FILES,
        old="            if lo != end or hi > size:\n",
        new="            if lo < end or hi > size:\n",
        why="a load gives the weights elements of uninitialised memory",
        tests=(Selection("0", "unit/checkpoint/test_files.py", "gaps"),),
    ),
    Mutant(
        name="updater-state-of-the-first-rank",
        file=UPDATER_STATES,
        old="                if merges or rank == self._comm.rank:\n",
        new="                if merges or rank == 0:\n",
        why="an updater continues with the state of other keys",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="other-owners-accepted",
        file=UPDATER_STATES,
        old="            if owner is not None and owner != now[spec.key]:\n",
        new="            if owner is None:\n",
        why="an updater has no state of the keys that it updates from now on",
        tests=(_DIVIDED,),
    ),
    Mutant(
        name="states-loaded-from-the-first-element",
        file=RESTORING,
        old="array.reshape(-1)[lo:hi]",
        new="array.reshape(-1)[: hi - lo]",
        why="a rank continues with the states of other elements",
        tests=(_THREADS,),
    ),
    Mutant(
        name="residuals-of-all-senders-on-the-first-rank",
        file=RESIDUAL_STATES,
        old="        here = sender % self._senders[index][1]\n",
        new="        here = 0\n",
        why="a resumed run sends other gradients than the run without a stop",
        tests=(_COMPRESSED, _RESIDUALS),
    ),
    Mutant(
        name="residual-of-the-last-sender-alone",
        file=RESIDUAL_STATES,
        old="if self._first.setdefault((index, position), sender) == sender:",
        new="if self._first.setdefault((index, position), sender) >= 0:",
        why="gradients are lost when fewer ranks resume",
        tests=(_RESIDUALS,),
    ),
    Mutant(
        name="residual-of-the-first-array-saved-for-all",
        file=RESIDUAL_STATES,
        old="own = reductions.residuals.of(spec, position)\n",
        new="own = reductions.residuals.of(spec)\n",
        why="a run of several devices resumes with the residuals of the first",
        tests=(_COMPRESSED,),
    ),
    Mutant(
        name="residuals-of-other-disks-not-sent",
        file=RESIDUAL_STATES,
        old="            sent[leader] = self._engine.reductions.residuals.of(spec)\n",
        new="            sent[leader] = comm.kernels.zeros(spec.size, _FLOAT32)\n",
        why="a checkpoint has no residuals of ranks on other hosts",
        tests=(_RESIDUALS,),
    ),
    Mutant(
        name="residuals-of-another-codec-taken",
        file=RESIDUAL_STATES,
        old="            if self._codec(spec) != (each.codec, each.scope):\n",
        new="            if self._codec(spec) is None:\n",
        why="a residual of 2bit, which may be any number, is added to the gradients of 1bit",
        tests=(_COMPRESSED,),
    ),
    Mutant(
        name="residuals-kept-by-a-load",
        file=ENGINE,
        old="            if reset_states:\n                self.reductions.reset(key)\n",
        new="",
        why="gradients of other weights are added after a load",
        tests=(_COMPRESSED,),
    ),
    Mutant(
        name="senders-in-the-order-of-their-names",
        file=READ,
        old="key=lambda part: (parse_name(part[0].tensor), part[0].lo)",
        new="key=lambda part: part[0]",
        why="sender 10 is added before sender 2: residuals have other bits",
        tests=(Selection("0", "unit/checkpoint/test_residuals.py", "order_of_senders"),),
    ),
)
