"""Faults in views of other libraries' arrays, and in the cache of earlier calls."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Selection

CUPY = "ncclkv/arrays/cupy.py"
DEVICE = "ncclkv/arrays/device.py"
DLPACK = "ncclkv/arrays/dlpack.py"
RECENT = "ncclkv/store/kept_calls.py"
TORCH = "ncclkv/arrays/torch.py"
TRANSFERS = "ncclkv/store/transfers.py"

MUTANTS = (
    Mutant(
        name="call-found-again-by-its-shape",
        file=RECENT,
        old="        attributes = [_dtype_of, _axes_of if flat else _shape_of]\n",
        new="        attributes = [_axes_of if flat else _shape_of]\n",
        why="an array whose dtype has changed is read as what it was",
        tests=(Selection("0", "unit/store/test_call_cache_stores.py"),),
    ),
    Mutant(
        name="one-call-found-again-by-its-shape",
        file=RECENT,
        old="            and array.dtype is self._dtype\n",
        new="",
        why="an array whose dtype has changed is read as what it was",
        tests=(Selection("0", "unit/store/test_call_cache_stores.py"),),
    ),
    Mutant(
        name="new-arrays-taken-by-their-dtype",
        file=RECENT,
        old="    getters = _flags_of, _dtype_of, _shape_of\n",
        new="    getters = _flags_of, _dtype_of\n",
        why="a new array of another shape is copied into the gradient of a key",
        tests=(Selection("0", "unit/store/test_kept_calls_new_arrays.py"),),
    ),
    Mutant(
        name="new-outs-not-compared-with-each-other",
        file=TRANSFERS,
        old="        if begins is None or not lie_apart(arrays, begins):\n",
        new="        if begins is None:\n",
        why="two new arrays that share memory are both written, and one value is lost",
        tests=(Selection("0", "unit/store/test_kept_calls_new_arrays.py"),),
    ),
    Mutant(
        name="new-arrays-not-compared-with-buckets",
        file=TRANSFERS,
        old="        return begins is not None and self._engine.layout.lie_outside(begins)\n",
        new="        return begins is not None\n",
        why="a push of crossed gradient views reads what it has overwritten",
        tests=(Selection("0", "unit/store/test_kept_calls_new_arrays.py"),),
    ),
    Mutant(
        name="new-outs-not-compared-with-buckets",
        file=TRANSFERS,
        old="        return self._engine.layout.lie_outside(begins)\n",
        new="        return True\n",
        why="a pull writes into a gradient that the store still needs",
        tests=(Selection("0", "unit/store/test_kept_calls_new_arrays.py"),),
    ),
    Mutant(
        name="push-in-place-served-to-other-arrays",
        file=TRANSFERS,
        old=", serves_others=not push.in_place)",
        new=")",
        why="new arrays are never copied into the bucket",
        tests=(Selection("0", "unit/store/test_kept_calls_new_arrays.py"),),
    ),
    Mutant(
        name="stream-of-torch-not-looked-at",
        file=CUPY,
        old="    if _cupy().cuda.get_current_stream(device_id).ptr != stream:\n",
        new="    if False:\n",
        why="a gradient of torch's is read while torch still writes it",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "have_to_be_the_same"),),
    ),
    Mutant(
        name="stream-of-torch-on-the-current-device",
        file=CUPY,
        old="cuda.current_stream(device_id).cuda_stream",
        new="cuda.current_stream(0).cuda_stream",
        why="a tensor of the second GPU is compared with the stream of the first",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "any_gpu_is_viewed"),),
    ),
    Mutant(
        name="conjugate-of-torch-not-carried-out",
        file=TORCH,
        old="x.detach().resolve_conj().resolve_neg()",
        new="x.detach()",
        why="a lazily negated gradient is refused, or taken with the wrong sign",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "lazily"),),
    ),
    Mutant(
        name="lazy-tensors-as-outs",
        file=TORCH,
        old="    if x.is_conj() or x.is_neg():\n",
        new="    if False:\n",
        why="a pull into a negated view gives a value of the wrong sign",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "lazily"),),
    ),
    Mutant(
        name="read-only-arrays-as-outs",
        file=CUPY,
        old='        if x.__cuda_array_interface__["data"][1]:\n',
        new="        if False:\n",
        why="a pull changes an array that its library takes for constant",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "may_not_be_written"),),
    ),
    Mutant(
        name="jax-arrays-as-outs",
        file=DLPACK,
        old='in ("jax", "jaxlib")',
        new="in ()",
        why="a pull changes an array of JAX's under programs that it has compiled",
        tests=(Selection("0", "nccl/test_arrays_gpus.py", "jax"),),
    ),
    Mutant(
        name="device-memory-taken-for-the-host-s",
        file=DLPACK,
        old="_HOST_DEVICES = (1, 3, 11)",
        new="_HOST_DEVICES = (1, 2, 3, 11)",
        why="a store on hosts does not say how to copy an array from the GPU",
        tests=(Selection("0", "unit/arrays/test_dlpack.py", "device_memory_is_refused"),),
    ),
    Mutant(
        name="no-word-for-arrays-of-a-gpu",
        file=DEVICE,
        old='    return hasattr(x, "__cuda_array_interface__")\n',
        new="    return False\n",
        why="a store on hosts calls an array of numba's no array",
        tests=(Selection("0", "unit/arrays/test_dlpack.py", "names_the_copy_to_the_host"),),
    ),
)
