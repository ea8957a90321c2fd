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

/* Maximum number of states of a weight. */
#define MAX_STATES 4

typedef void update_function(void *weights, const void *gradients, void *const *states,
                             const double *row, size_t count);

typedef void measure_function(const void *weights, const void *gradients, void *const *states,
                              const double *row, size_t count, double *sums);

#include "sums.h"

#include "narrow.h"

/* A program for one number of states.  The last three members are 0 without norms. */
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

#include "programs.h"

#include "short.h"

#include "checksum.h"

/* Maximum number of ranks in a short sum. */
#define MAX_RANKS 64

/* Release Python's lock during long work. */
static PyThreadState *release_lock(Py_ssize_t bytes)
{
    return bytes >= LONG_BYTES ? PyEval_SaveThread() : NULL;
}

static void restore_lock(PyThreadState *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

/* Kinds of buffers.  Some dtypes have no format, so that copies must not request it. */
enum {
    READ = PyBUF_STRIDES,
    WRITE = PyBUF_STRIDES | PyBUF_WRITABLE,
    READ_NUMBERS = READ | PyBUF_FORMAT,
    WRITE_NUMBERS = WRITE | PyBUF_FORMAT,
};

/* A call's arrays, released together. */
struct views {
    Py_buffer *all;
    Py_ssize_t count;
};

/* View one more array; an error is set where it returns -1. */
static int view(struct views *views, PyObject *array, int kind)
{
    if (PyObject_GetBuffer(array, &views->all[views->count], kind) < 0)
        return -1;
    views->count++;
    return 0;
}

static void release(struct views *views)
{
    while (views->count > 0)
        PyBuffer_Release(&views->all[--views->count]);
}

/* The only character of a format in the machine's byte order and size, else 0. */
static char format_of(const Py_buffer *array)
{
    const char *format = array->format == NULL ? "B" : array->format;

    /* "=": of standard size, which NumPy writes of arrays at odd addresses. */
    if (*format == '=' || *format == '@')
        format++;
    return format[0] != '\0' && format[1] == '\0' ? format[0] : 0;
}

/* 'f' or 'd' for a flat array of float32 or float64, else 0. */
static char real_of(const Py_buffer *array)
{
    const char format = format_of(array);
    const size_t size = format == 'f' ? sizeof(float) : format == 'd' ? sizeof(double) : 0;

    if (size == 0 || (size_t)array->itemsize != size)
        return 0;
    return PyBuffer_IsContiguous(array, 'C') ? format : 0;
}

static int check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, and was given %zd", name, wanted, given);
    return -1;
}

static int check_length(const Py_buffer *array, Py_ssize_t wanted, const char *what)
{
    if (array->len == wanted)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s of %zd bytes, where %zd are expected", what, array->len,
                 wanted);
    return -1;
}

/* 'f' or 'd' if all arrays are of that kind and as long as the first; 0: left to NumPy; -1: an
   error, which names the second array or the others. */
static int common_real(const Py_buffer *arrays, Py_ssize_t count, const char *second,
                       const char *others)
{
    const char real = real_of(&arrays[0]);

    for (Py_ssize_t i = 1; i < count && real != 0; i++)
        if (real_of(&arrays[i]) != real)
            return 0;
    for (Py_ssize_t i = 1; i < count && real != 0; i++)
        if (check_length(&arrays[i], arrays[0].len, i == 1 ? second : others) < 0)
            return -1;
    return real;
}

/* View all arrays of a tuple. */
static int view_all(struct views *views, PyObject *arrays, int kind)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arrays); i++)
        if (view(views, PyTuple_GET_ITEM(arrays, i), kind) < 0)
            return -1;
    return 0;
}

/* Release a call's arrays; return its outcome.  1: done; 0: left to NumPy; -1: an error. */
static PyObject *outcome_of(struct views *views, int done)
{
    release(views);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Sum arrays[1 ...] into arrays[0]. */
static int total_of(const Py_buffer *arrays, Py_ssize_t parts, int average, int stream)
{
    const int real = common_real(arrays, parts + 1, "a part", "a part");
    const size_t count = (size_t)(arrays[0].len / (real == 'f' ? sizeof(float) : sizeof(double)));
    PyThreadState *state;

    if (real <= 0)
        return real;
    state = release_lock(arrays[0].len);
    if (real == 'f')
        total_float(arrays + 1, (size_t)parts, arrays[0].buf, count, average, stream);
    else
        total_double(arrays + 1, (size_t)parts, arrays[0].buf, count, average, stream);
    settle(stream);
    restore_lock(state);
    return 1;
}

static PyObject *total(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct views views = {0};
    PyObject *parts;
    Py_ssize_t number;
    int average, stream, done = -1;

    (void)module;
    if (check_count("total", given, 4) < 0 || (average = PyObject_IsTrue(args[2])) < 0 ||
        (stream = PyObject_IsTrue(args[3])) < 0)
        return NULL;
    /* A tuple of our own, or the caller's: no other thread changes it during the work. */
    parts = PySequence_Tuple(args[0]);
    if (parts == NULL)
        return NULL;
    number = PyTuple_GET_SIZE(parts);
    views.all = PyMem_New(Py_buffer, (size_t)number + 1);
    if (number == 0)
        PyErr_SetString(PyExc_ValueError, "there are no parts to sum");
    else if (views.all == NULL)
        PyErr_NoMemory();
    else if (view(&views, args[1], WRITE_NUMBERS) == 0 && view_all(&views, parts, READ_NUMBERS) == 0)
        done = total_of(views.all, number, average, stream);
    Py_DECREF(parts);
    parts = outcome_of(&views, done);
    PyMem_Free(views.all);
    return parts;
}

/* The program of a name for so many states, or NULL with an error. */
static const struct program *find_program(const char *name, Py_ssize_t states)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strcmp(programs[i].name, name) == 0 && programs[i].states == states)
            return &programs[i];
    PyErr_Format(PyExc_ValueError, "there is no program %s of %zd states in C", name, states);
    return NULL;
}

/* Check that bounds are int64 offsets of segments, in order and inside the weights. */
static int check_bounds(const Py_buffer *bounds, const Py_buffer *weights)
{
    const int64_t *bound = bounds->buf;
    const Py_ssize_t number = bounds->len / (Py_ssize_t)sizeof(int64_t);
    const Py_ssize_t count = weights->len / weights->itemsize;
    const char format = format_of(bounds);

    if ((format != 'l' && format != 'q') || bounds->itemsize != (Py_ssize_t)sizeof(int64_t) ||
        number < 1 || bound[0] < 0 || bound[number - 1] > count) {
        PyErr_Format(PyExc_ValueError, "bounds of segments that are not in %zd elements", count);
        return -1;
    }
    for (Py_ssize_t i = 1; i < number; i++)
        if (bound[i - 1] > bound[i]) {
            PyErr_Format(PyExc_ValueError, "segment %zd ends before it begins", i - 1);
            return -1;
        }
    return 0;
}

/* Check that scalars are a row of float64 for each segment. */
static int check_scalars(const Py_buffer *scalars, Py_ssize_t rows, int columns)
{
    if (real_of(scalars) == 'd' && scalars->len == rows * columns * (Py_ssize_t)sizeof(double))
        return 0;
    PyErr_Format(PyExc_ValueError, "scalars that are not %zd rows of %d float64", rows, columns);
    return -1;
}

/* The type of a flat array of 16-bit floats: float16, or bfloat16 as words; else NULL. */
static const struct narrow *narrow_of(const Py_buffer *array)
{
    const char format = format_of(array);

    if (array->itemsize != sizeof(uint16_t) || !PyBuffer_IsContiguous(array, 'C'))
        return NULL;
    return format == 'e' ? &float16 : format == 'H' ? &bfloat16 : NULL;
}

/* Check arrays of an update of 16-bit weights.  1: they fit; 0: left to NumPy; -1: an error. */
static int check_narrow(const Py_buffer *arrays, int number)
{
    if (narrow_of(&arrays[1]) != narrow_of(&arrays[0]))
        return 0;
    for (int i = 2; i < number; i++)
        if (real_of(&arrays[i]) != 'f')
            return 0;
    if (check_length(&arrays[1], arrays[0].len, "gradients") < 0)
        return -1;
    for (int i = 2; i < number; i++)
        if (check_length(&arrays[i], 2 * arrays[0].len, "a state") < 0)
            return -1;
    return 1;
}

/* Update segment by segment: weights, gradients, states, and the master if weights have one. */
static void update_segments(const struct program *program, const Py_buffer *arrays, int number,
                            const int64_t *bound, const double *row, Py_ssize_t rows)
{
    const struct narrow *narrow = narrow_of(&arrays[0]);
    update_function *function = narrow != NULL || real_of(&arrays[0]) == 'f'
                                    ? program->update_float
                                    : program->update_double;
    void *at[3 + MAX_STATES] = {NULL};

    for (Py_ssize_t i = 0; i < rows; i++, row += program->scalars) {
        const size_t count = (size_t)(bound[i + 1] - bound[i]);
        for (int k = 0; k < number; k++)
            at[k] = (char *)arrays[k].buf + bound[i] * arrays[k].itemsize;
        if (narrow != NULL)
            update_narrow(narrow, function, at[0], at[1], at[2 + program->states], at + 2,
                          program->states, row, count);
        else
            function(at[0], at[1], at + 2, row, count);
    }
}

/* Check arrays of a program.  1: they fit; 0: left to NumPy; -1: an error. */
static int check_arrays(const Py_buffer *arrays, int number, int has_master)
{
    if (narrow_of(&arrays[0]) != NULL)
        return check_narrow(arrays, number);
    return has_master ? 0 : common_real(arrays, number, "gradients", "a state");
}

/* Update by scalars, bounds, and the arrays of `update_segments`. */
static int update_of(const struct program *program, const Py_buffer *all, int has_master)
{
    const Py_buffer *scalars = &all[0], *bounds = &all[1], *arrays = &all[2];
    const Py_ssize_t rows = bounds->len / (Py_ssize_t)sizeof(int64_t) - 1;
    const int number = 2 + program->states + has_master;
    const int fit = check_arrays(arrays, number, has_master);
    PyThreadState *state;

    if (fit <= 0)
        return fit;
    if (check_bounds(bounds, &arrays[0]) < 0 ||
        check_scalars(scalars, rows, program->scalars) < 0)
        return -1;
    state = release_lock(arrays[0].len);
    update_segments(program, arrays, number, bounds->buf, scalars->buf, rows);
    restore_lock(state);
    return 1;
}

static PyObject *update(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[5 + MAX_STATES];
    struct views views = {all, 0};
    const struct program *program;
    const char *name;
    PyObject *states;
    int done = -1;

    (void)module;
    if (check_count("update", given, 7) < 0 || (name = PyUnicode_AsUTF8(args[0])) == NULL ||
        (states = PySequence_Tuple(args[3])) == NULL)
        return NULL;
    program = find_program(name, PyTuple_GET_SIZE(states));
    if (program != NULL && view(&views, args[4], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
        view(&views, args[5], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
        view(&views, args[1], WRITE_NUMBERS) == 0 && view(&views, args[2], READ_NUMBERS) == 0 &&
        view_all(&views, states, WRITE_NUMBERS) == 0 &&
        (args[6] == Py_None || view(&views, args[6], WRITE_NUMBERS) == 0))
        done = update_of(program, all, args[6] != Py_None);
    Py_DECREF(states);
    return outcome_of(&views, done);
}

/* Add sums of squares segment by segment; arrays as of `update_segments`. */
static void measure_segments(const struct program *program, const Py_buffer *arrays, int number,
                             const int64_t *bound, const double *row, Py_ssize_t rows, double *sums)
{
    const struct narrow *narrow = narrow_of(&arrays[0]);
    measure_function *function = narrow != NULL || real_of(&arrays[0]) == 'f'
                                     ? program->measure_float
                                     : program->measure_double;
    void *at[3 + MAX_STATES] = {NULL};

    for (Py_ssize_t i = 0; i < rows; i++, row += program->scalars, sums += program->norms) {
        const size_t count = (size_t)(bound[i + 1] - bound[i]);
        for (int k = 0; k < number; k++)
            at[k] = (char *)arrays[k].buf + bound[i] * arrays[k].itemsize;
        if (narrow != NULL)
            measure_narrow(narrow, function, at[0], at[1], at[2 + program->states], at + 2,
                           program->states, row, count, sums);
        else
            function(at[0], at[1], at + 2, row, count, sums);
    }
}

/* Measure by scalars, bounds, sums, and the arrays of `update_segments`. */
static int measure_of(const struct program *program, const Py_buffer *all, int has_master)
{
    const Py_buffer *scalars = &all[0], *bounds = &all[1], *sums = &all[2], *arrays = &all[3];
    const Py_ssize_t rows = bounds->len / (Py_ssize_t)sizeof(int64_t) - 1;
    const int number = 2 + program->states + has_master;
    const int fit = check_arrays(arrays, number, has_master);
    PyThreadState *state;

    if (fit <= 0)
        return fit;
    if (check_bounds(bounds, &arrays[0]) < 0 ||
        check_scalars(scalars, rows, program->scalars) < 0 ||
        check_scalars(sums, rows, program->norms) < 0)
        return -1;
    state = release_lock(arrays[0].len);
    measure_segments(program, arrays, number, bounds->buf, scalars->buf, rows, sums->buf);
    restore_lock(state);
    return 1;
}

static PyObject *measure(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    const int numbers = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    Py_buffer all[6 + MAX_STATES];
    struct views views = {all, 0};
    const struct program *program;
    const char *name;
    PyObject *states;
    int done = -1;

    (void)module;
    if (check_count("measure", given, 8) < 0 || (name = PyUnicode_AsUTF8(args[0])) == NULL ||
        (states = PySequence_Tuple(args[3])) == NULL)
        return NULL;
    program = find_program(name, PyTuple_GET_SIZE(states));
    if (program != NULL && program->norms == 0)
        PyErr_Format(PyExc_ValueError, "program %s has no norms", name);
    else if (program != NULL && view(&views, args[4], numbers) == 0 &&
             view(&views, args[5], numbers) == 0 &&
             view(&views, args[6], numbers | PyBUF_WRITABLE) == 0 &&
             view(&views, args[1], READ_NUMBERS) == 0 && view(&views, args[2], READ_NUMBERS) == 0 &&
             view_all(&views, states, WRITE_NUMBERS) == 0 &&
             (args[7] == Py_None || view(&views, args[7], READ_NUMBERS) == 0))
        done = measure_of(program, all, args[7] != Py_None);
    Py_DECREF(states);
    return outcome_of(&views, done);
}

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

/* Read an argument that is an integer of 64 bits; an error is set where it returns -1. */
static int read_integer(PyObject *object, long long *number)
{
    *number = PyLong_AsLongLong(object);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
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

/* Sum the copies of all ranks into `receive`, and publish that this rank is done. */
static void sum_copies(const struct rank_memory *ranks, size_t number, size_t rank,
                       const struct slot *slot, const Py_buffer *receive, int average)
{
    Py_buffer parts[MAX_RANKS];
    const size_t count = (size_t)(receive->len / receive->itemsize);

    for (size_t i = 0; i < number; i++)
        parts[i].buf = ranks[i].copy;
    if (real_of(receive) == 'f')
        total_float(parts, number, receive->buf, count, average, 0);
    else
        total_double(parts, number, receive->buf, count, average, 0);
    publish(&ranks[rank], slot->flag, slot->done);
}

/* Check that the arguments of a short sum fit each other. */
static int check_sum(const Py_buffer *arrays, size_t number, long long rank)
{
    if (number > MAX_RANKS || rank < 0 || (size_t)rank >= number) {
        PyErr_Format(PyExc_ValueError, "rank %lld of %zu, where %d are the most", rank, number,
                     MAX_RANKS);
        return -1;
    }
    if (real_of(&arrays[0]) == 0 || real_of(&arrays[0]) != real_of(&arrays[1])) {
        PyErr_SetString(PyExc_TypeError, "arrays that are not both flat float32 or flat float64");
        return -1;
    }
    return check_length(&arrays[1], arrays[0].len, "an array for the sum");
}

static PyObject *short_sum(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *const *rest = args + 2 + SLOT_NUMBERS;
    Py_buffer all[3];
    struct views views = {all, 0};
    struct slot slot;
    long long rank;
    int average, outcome = -1;

    (void)module;
    if (check_count("short_sum", given, 5 + SLOT_NUMBERS) < 0 || read_integer(args[1], &rank) < 0 ||
        (average = PyObject_IsTrue(rest[2])) < 0)
        return NULL;
    for (size_t i = 0; i < SLOT_NUMBERS; i++)
        if (read_integer(args[2 + i], (long long *)&slot + i) < 0)
            return NULL;
    if (view(&views, rest[0], READ_NUMBERS) == 0 && view(&views, rest[1], WRITE_NUMBERS) == 0 &&
        view(&views, args[0], PyBUF_SIMPLE) == 0) {
        const struct rank_memory *ranks = all[2].buf;
        const size_t number = (size_t)all[2].len / sizeof(struct rank_memory);
        if (check_sum(all, number, rank) == 0)
            outcome = (int)enter(ranks, number, (size_t)rank, &slot, &all[0]);
        if (outcome == COMPLETE)
            sum_copies(ranks, number, (size_t)rank, &slot, &all[1], average);
    }
    release(&views);
    return outcome < 0 ? NULL : PyLong_FromLong(outcome);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {FUNCTION(total), FUNCTION(update), FUNCTION(measure),
                                  FUNCTION(copy), FUNCTION(short_sum), FUNCTION(checksum), {0}};

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
