"""Module of ours in the place of ``cupy.cuda.cub``, which contains the vendor's runtime.

CuPy imports it with itself and links one of its functions, so the import cannot be refused.  With
``CUPY_ACCELERATORS=`` CuPy calls none of them.
"""

from cupy._core.core cimport _ndarray_base

available = False


cdef refuse():
    raise ImportError(
        "layer 3b, CuPy on an emulated device: cupy.cuda.cub is refused, since it contains the "
        "vendor's runtime; CUPY_ACCELERATORS must be set and empty"
    )


cpdef cub_reduction(_ndarray_base arr, op, axis=None, dtype=None,
                    _ndarray_base out=None, keepdims=False):
    refuse()


cpdef cub_scan(_ndarray_base arr, op):
    refuse()


cpdef bint _cub_device_segmented_reduce_axis_compatible(
        tuple cub_axis, Py_ssize_t ndim, str order) except -1:
    refuse()
