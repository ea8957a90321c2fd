/* Sums, updates and copies with the bits of the kernels in NumPy.

   NumPy makes one pass over an array for each operation, and reads each line that it overwrites
   from memory first.  Here a tile of the result is made in the first-level cache, and a long result
   is written with non-temporal stores.

   Lengths and kinds of arguments are checked.  Arrays that are not flat or of another dtype are no
   error: the call does nothing and returns False, and NumPy does the work. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#include "copies.h"

#if !defined(__GNUC__)
#error "arrays at any address need an attribute of GCC and Clang"
#endif

/* Versions of a loop for several processors; the loader chooses when it loads the module. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* Short, so that the addresses that are read in turn lie close together: the fastest of 512 bytes
   to 16 KiB. */
#define TILE_BYTES 1024
/* Work on as many bytes lets other threads of Python run. */
#define LONG_BYTES (64 * 1024)

typedef float float_any __attribute__((aligned(1), may_alias));
typedef double double_any __attribute__((aligned(1), may_alias));

#define REAL float
#define ANY float_any
#define NAME(x) x##_float
#include "elements.h"

#define REAL double
#define ANY double_any
#define NAME(x) x##_double
#include "elements.h"

/* Maximum count of states of a weight. */
#define MAX_STATES 4

typedef void update_function(void *weights, const void *gradients, void *const *states,
                             const double *row, size_t count);

typedef void measure_function(const void *weights, const void *gradients, void *const *states,
                              const double *row, size_t count, double *sums);

#include "sums.h"

#include "narrow.h"

/* A program for one count of states.  The last three members are 0 without norms. */
struct program {
    const char *name;
    int states, scalars;
    update_function *update_float, *update_double;
    int norms;
    measure_function *measure_float, *measure_double;
};

#define MEMBERS(name, states)                                                                      \
    #name, states, count_of_##name##_##states##_scalars, update_##name##_##states##_float,         \
        update_##name##_##states##_double
#define ROW(name, states) {MEMBERS(name, states), 0, NULL, NULL}
#define NORM_ROW(name, states)                                                                     \
    {                                                                                              \
        MEMBERS(name, states), count_of_##name##_##states##_norms,                                 \
            measure_all_##name##_##states##_float, measure_all_##name##_##states##_double          \
    }

/* Made by setup.py, from kernels/programs. */
#include "programs.h"

#include "clock.h"

#include "short.h"

#include "calls.h"

#include "checksum.h"

#include "arguments.h"

/* Maximum count of ranks in a short sum. */
#define MAX_RANKS 64

/* Sum arrays[1 ...] of 16-bit floats into arrays[0], which is of their type or of float32. */
static int narrow_total_of(const Py_buffer *arrays, Py_ssize_t part_count, int average, int stream)
{
    const struct narrow *type = narrow_of(&arrays[1]);
    const int wide = real_of(&arrays[0]) == 'f';
    PyThreadState *state;

    for (Py_ssize_t i = wide; i <= part_count; i++)
        if (narrow_of(&arrays[i]) != type)
            return 0;
    for (Py_ssize_t i = 1; i <= part_count; i++)
        if (check_length(&arrays[i], wide ? arrays[0].len / 2 : arrays[0].len, "a part") < 0)
            return -1;
    state = release_lock(arrays[0].len);
    total_narrow(type, arrays + 1, (size_t)part_count, arrays[0].buf, wide,
                 (size_t)arrays[1].len / sizeof(uint16_t), average, stream);
    settle(stream);
    restore_lock(state);
    return 1;
}

/* Sum arrays[1 ...] of float32 or float64 into arrays[0]. */
static int real_total_of(const Py_buffer *arrays, Py_ssize_t part_count, int average, int stream)
{
    const int real = common_real(arrays, part_count + 1, "a part", "a part");
    const size_t count = (size_t)(arrays[0].len / (real == 'f' ? sizeof(float) : sizeof(double)));
    PyThreadState *state;

    if (real <= 0)
        return real;
    state = release_lock(arrays[0].len);
    if (real == 'f')
        total_float(arrays + 1, (size_t)part_count, arrays[0].buf, count, average, stream);
    else
        total_double(arrays + 1, (size_t)part_count, arrays[0].buf, count, average, stream);
    settle(stream);
    restore_lock(state);
    return 1;
}

static PyObject *total(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct views views = {0};
    PyObject *parts;
    Py_ssize_t part_count;
    int average, stream, done = -1;

    (void)module;
    if (check_count("total", given, 4) < 0 || (average = PyObject_IsTrue(args[2])) < 0 ||
        (stream = PyObject_IsTrue(args[3])) < 0)
        return NULL;
    /* A tuple of our own, or the caller's: no other thread changes it during the work. */
    parts = PySequence_Tuple(args[0]);
    if (parts == NULL)
        return NULL;
    part_count = PyTuple_GET_SIZE(parts);
    views.all = PyMem_New(Py_buffer, (size_t)part_count + 1);
    if (part_count == 0)
        PyErr_SetString(PyExc_ValueError, "there are no parts to sum");
    else if (views.all == NULL)
        PyErr_NoMemory();
    else if (view(&views, args[1], WRITE_NUMBERS) == 0 && view_all(&views, parts, READ_NUMBERS) == 0)
        done = narrow_of(&views.all[1]) == NULL
                   ? real_total_of(views.all, part_count, average, stream)
                   : narrow_total_of(views.all, part_count, average, stream);
    Py_DECREF(parts);
    parts = outcome_of(&views, done);
    PyMem_Free(views.all);
    return parts;
}

#include "updates.h"

/* Copy arrays[1] to arrays[0]. */
static int copy_of(const Py_buffer *arrays, int stream)
{
    PyThreadState *state;

    if (!PyBuffer_IsContiguous(&arrays[0], 'C') || !PyBuffer_IsContiguous(&arrays[1], 'C'))
        return 0;
    if (check_length(&arrays[1], arrays[0].len, "a source") < 0)
        return -1;
    state = release_lock(arrays[0].len);
    if (stream)
        stream_bytes(arrays[0].buf, arrays[1].buf, (size_t)arrays[0].len);
    else
        memmove(arrays[0].buf, arrays[1].buf, (size_t)arrays[0].len);
    settle(stream);
    restore_lock(state);
    return 1;
}

static PyObject *copy(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[2];
    struct views views = {all, 0};
    int stream, done = -1;

    (void)module;
    if (check_count("copy", given, 3) < 0 || (stream = PyObject_IsTrue(args[2])) < 0)
        return NULL;
    if (view(&views, args[0], WRITE) == 0 && view(&views, args[1], READ) == 0)
        done = copy_of(all, stream);
    return outcome_of(&views, done);
}

/* Convert arrays[1] to arrays[0], one of float32 and the other of 16 bits. */
static int cast_of(const Py_buffer *arrays)
{
    const struct narrow *from = narrow_of(&arrays[1]), *to = narrow_of(&arrays[0]);
    const Py_buffer *wide = from == NULL ? &arrays[1] : &arrays[0];
    const size_t count = (size_t)wide->len / sizeof(float);
    PyThreadState *state;

    if ((from == NULL) == (to == NULL) || real_of(wide) != 'f')
        return 0;
    if (check_length(&arrays[1], from == NULL ? 2 * arrays[0].len : arrays[0].len / 2, "a source") < 0)
        return -1;
    state = release_lock(arrays[0].len);
    if (from == NULL)
        to->narrow(arrays[0].buf, arrays[1].buf, count);
    else
        from->widen(arrays[0].buf, arrays[1].buf, count);
    restore_lock(state);
    return 1;
}

static PyObject *cast(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[2];
    struct views views = {all, 0};
    int done = -1;

    (void)module;
    if (check_count("cast", given, 2) < 0)
        return NULL;
    if (view(&views, args[0], WRITE_NUMBERS) == 0 && view(&views, args[1], READ_NUMBERS) == 0)
        done = cast_of(all);
    return outcome_of(&views, done);
}

/* Read an argument that is an integer of 64 bits; an error is set where it returns -1. */
static int read_integer(PyObject *object, long long *value)
{
    *value = PyLong_AsLongLong(object);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *checksum(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyThreadState *state;
    Py_buffer array;
    long long block;
    uint64_t sum;

    (void)module;
    if (check_count("checksum", given, 2) < 0 || read_integer(args[1], &block) < 0)
        return NULL;
    if (block < 8 || block % 8 != 0)
        return PyErr_Format(PyExc_ValueError, "blocks of %lld bytes", block);
    if (PyObject_GetBuffer(args[0], &array, PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    state = release_lock(array.len);
    sum = sum_bytes(array.buf, (size_t)array.len, (size_t)block);
    restore_lock(state);
    PyBuffer_Release(&array);
    return PyLong_FromUnsignedLongLong(sum);
}

#include "codecs.h"

#include "compressed.h"

/* Sum the copies of all ranks into `receive`, and publish that this rank is done. */
static void sum_copies(const struct rank_memory *ranks, size_t size, size_t rank,
                       struct slot slot, const Py_buffer *receive, int average)
{
    Py_buffer parts[MAX_RANKS];
    const size_t count = (size_t)(receive->len / receive->itemsize);

    const struct narrow *narrow = narrow_of(receive);

    for (size_t i = 0; i < size; i++)
        parts[i].buf = ranks[i].copy;
    if (narrow != NULL)
        total_narrow(narrow, parts, size, receive->buf, 0, count, average, 0);
    else if (real_of(receive) == 'f')
        total_float(parts, size, receive->buf, count, average, 0);
    else
        total_double(parts, size, receive->buf, count, average, 0);
    publish(&ranks[rank], slot.flag, slot.done);
}

/* Check that the arguments of a short sum fit each other. */
static int check_sum(const Py_buffer *arrays, size_t size, long long rank)
{
    if (size > MAX_RANKS || rank < 0 || (size_t)rank >= size) {
        PyErr_Format(PyExc_ValueError, "rank %lld of %zu, where %d are the most", rank, size,
                     MAX_RANKS);
        return -1;
    }
    if ((real_of(&arrays[0]) == 0 && narrow_of(&arrays[0]) == NULL) ||
        real_of(&arrays[0]) != real_of(&arrays[1]) ||
        narrow_of(&arrays[0]) != narrow_of(&arrays[1])) {
        PyErr_SetString(PyExc_TypeError, "arrays that are not both flat, and of one type of floats");
        return -1;
    }
    return check_length(&arrays[1], arrays[0].len, "an array for the sum");
}

static PyObject *short_sum(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *const *rest = args + 2 + COLLECTIVE_INTEGERS;
    Py_buffer all[3];
    struct views views = {all, 0};
    struct collective call;
    long long rank;
    int average, outcome = -1;

    (void)module;
    if (check_count("short_sum", given, 5 + COLLECTIVE_INTEGERS) < 0 ||
        read_integer(args[1], &rank) < 0 || (average = PyObject_IsTrue(rest[2])) < 0)
        return NULL;
    for (size_t i = 0; i < COLLECTIVE_INTEGERS; i++)
        if (read_integer(args[2 + i], (long long *)&call + i) < 0)
            return NULL;
    if (view(&views, rest[0], READ_NUMBERS) == 0 && view(&views, rest[1], WRITE_NUMBERS) == 0 &&
        view(&views, args[0], PyBUF_SIMPLE) == 0) {
        const struct rank_memory *ranks = all[2].buf;
        const size_t size = (size_t)all[2].len / sizeof(struct rank_memory);
        if (check_sum(all, size, rank) == 0)
            outcome = (int)enter(ranks, size, (size_t)rank, &call, &all[0]);
        if (outcome == COMPLETE)
            sum_copies(ranks, size, (size_t)rank, slot_of(call.index), &all[1], average);
    }
    release(&views);
    return outcome < 0 ? NULL : PyLong_FromLong(outcome);
}

static PyObject *append_call(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long integers[4];
    unsigned long long digest;
    Py_buffer page;

    (void)module;
    if (check_count("append_call", given, 5) < 0)
        return NULL;
    for (int i = 0; i < 4; i++)
        if (read_integer(args[1 + i], &integers[i]) < 0)
            return NULL;
    if (integers[0] < 1)
        return PyErr_Format(PyExc_ValueError, "a call of index %lld", integers[0]);
    if (PyObject_GetBuffer(args[0], &page, PyBUF_WRITABLE) < 0)
        return NULL;
    if (page.len < (Py_ssize_t)sizeof(struct calls) || (uintptr_t)page.buf % sizeof(int64_t) != 0) {
        PyBuffer_Release(&page);
        PyErr_SetString(PyExc_ValueError, "a page that is too short, or at an odd address");
        return NULL;
    }
    append(page.buf, integers[0], integers[1]);
    PyBuffer_Release(&page);
    digest = (unsigned long long)integers[3] * DIGEST_FACTOR + (unsigned long long)integers[2];
    return PyLong_FromUnsignedLongLong(digest & DIGEST_MASK);
}

static PyObject *set_clock(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    long long time = NOT_SET;

    (void)module;
    if (check_count("set_clock", given, 1) < 0)
        return NULL;
    if (args[0] != Py_None) {
        if (read_integer(args[0], &time) < 0)
            return NULL;
        if (time < 0)
            return PyErr_Format(PyExc_ValueError, "a clock of %lld nanoseconds", time);
    }
    set_time = time;
    Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(total),       FUNCTION(update),       FUNCTION(measure),     FUNCTION(copy),
    FUNCTION(cast),        FUNCTION(short_sum),    FUNCTION(checksum),    FUNCTION(append_call),
    FUNCTION(set_clock),   FUNCTION(encode),       FUNCTION(count_levels), FUNCTION(scale_counts),
    FUNCTION(pack_counts), FUNCTION(unpack_counts), FUNCTION(take_largest), FUNCTION(add_largest),
    FUNCTION(multiply),    FUNCTION(orthonormalise), FUNCTION(narrow_with_rest), {0}};

static int prepare(PyObject *module)
{
    choose_conversions();
    if (PyModule_AddIntConstant(module, "COMPLETE", COMPLETE) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "MAX_RANKS", MAX_RANKS);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "Kernels in C; ncclkv/kernels/host/_compiled.pyi documents them.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}
