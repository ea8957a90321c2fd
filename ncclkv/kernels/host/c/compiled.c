/* Sums, updates and copies, with the bits that the kernels in NumPy give.

   NumPy goes through an array once an operation, and fills each line of it that it writes from
   memory first.  Here a tile of the result is made in the first-level cache, and a long result is
   written past the caches.

   A call is checked as far as memory goes.  Arrays that are no flat float32 or float64 are not an
   error: the call returns False, has done nothing, and leaves them to NumPy. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#include "copies.h"

#if !defined(__GNUC__)
#error "arrays at any address need an attribute of GCC's and Clang's"
#endif

/* Several versions of a loop, of which the processor's own is taken when the module is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* Short, so that the places that are read at a time lie close together: of 512 bytes to 16 KiB this
   was the quickest. */
#define TILE_BYTES 1024
/* From here on other threads of Python may go on in the meantime. */
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

/* States of a weight at most. */
#define MOST_STATES 4

typedef void update_function(void *weights, const void *gradients, void *const *states,
                             const double *row, size_t count);

/* A program for one number of states. */
struct program {
    const char *name;
    int states, scalars;
    update_function *update_float, *update_double;
};

#define ROW(name, states)                                                                          \
    {                                                                                              \
        #name, states, count_of_##name##_##states##_scalars, update_##name##_##states##_float,     \
            update_##name##_##states##_double                                                      \
    }
#include "programs.h"

#include "short.h"

#include "checksum.h"

/* Ranks whose parts a short sum has room for. */
#define MOST_RANKS 64
/* Numbers of a meeting. */
enum { MEETING = 11 };

/* Let other threads run during work on so many bytes, if it takes long enough. */
static PyThreadState *let_go(Py_ssize_t bytes)
{
    return bytes >= LONG_BYTES ? PyEval_SaveThread() : NULL;
}

static void come_back(PyThreadState *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

/* What of an array is asked for; the format only where it matters: some dtypes have none. */
enum { READ = PyBUF_STRIDES, WRITE = PyBUF_STRIDES | PyBUF_WRITABLE };

/* 'f' or 'd' for flat numbers of the machine's byte order, else 0. */
static char real_of(const Py_buffer *view)
{
    const char *format = view->format == NULL ? "B" : view->format;

    /* "=": of standard size, which NumPy writes of arrays at odd addresses. */
    if (*format == '=' || *format == '@')
        format++;
    if ((*format != 'f' && *format != 'd') || format[1] != '\0')
        return 0;
    if (view->itemsize != (*format == 'f' ? (Py_ssize_t)sizeof(float) : (Py_ssize_t)sizeof(double)))
        return 0;
    return PyBuffer_IsContiguous(view, 'C') ? *format : 0;
}

static void release(Py_buffer *views, Py_ssize_t number)
{
    while (number > 0)
        PyBuffer_Release(&views[--number]);
}

static int check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, and was given %zd", name, wanted, given);
    return -1;
}

static int check_length(const Py_buffer *view, const Py_buffer *wanted, const char *what)
{
    if (view->len == wanted->len)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s of %zd bytes, where %zd are expected", what, view->len,
                 wanted->len);
    return -1;
}

/* Sum views[1 ...] into views[0].  1: done; 0: left to NumPy; -1: an error. */
static int total_of(const Py_buffer *views, Py_ssize_t number, int average, int stream)
{
    char real = real_of(&views[0]);
    size_t count;
    PyThreadState *state;

    if (real == 0)
        return 0;
    for (Py_ssize_t i = 1; i <= number; i++)
        if (real_of(&views[i]) != real)
            return 0;
    for (Py_ssize_t i = 1; i <= number; i++)
        if (check_length(&views[i], &views[0], "a part") < 0)
            return -1;

    count = (size_t)(views[0].len / views[0].itemsize);
    state = let_go(views[0].len);
    if (real == 'f')
        total_float(views + 1, (size_t)number, views[0].buf, count, average, stream);
    else
        total_double(views + 1, (size_t)number, views[0].buf, count, average, stream);
    settle(stream);
    come_back(state);
    return 1;
}

static PyObject *total(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *parts = NULL;
    Py_buffer *views = NULL;
    Py_ssize_t number, held = 0;
    int average, stream, done = -1;

    (void)module;
    if (check_count("total", given, 4) < 0)
        return NULL;
    average = PyObject_IsTrue(args[2]);
    stream = PyObject_IsTrue(args[3]);
    if (average < 0 || stream < 0)
        return NULL;
    /* A tuple of our own, or the caller's: nobody changes it while other threads run. */
    parts = PySequence_Tuple(args[0]);
    if (parts == NULL)
        return NULL;
    number = PyTuple_GET_SIZE(parts);
    if (number == 0) {
        PyErr_SetString(PyExc_ValueError, "there are no parts to sum");
        goto end;
    }
    views = PyMem_New(Py_buffer, (size_t)number + 1);
    if (views == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    if (PyObject_GetBuffer(args[1], &views[0], WRITE | PyBUF_FORMAT) < 0)
        goto end;
    for (held = 1; held <= number; held++)
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(parts, held - 1), &views[held],
                               READ | PyBUF_FORMAT) < 0)
            goto end;
    done = total_of(views, number, average, stream);
end:
    release(views, held);
    PyMem_Free(views);
    Py_DECREF(parts);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* The program of that name for so many states, or NULL. */
static const struct program *find_program(const char *name, Py_ssize_t states)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strcmp(programs[i].name, name) == 0 && programs[i].states == states)
            return &programs[i];
    return NULL;
}

/* Whether an array holds int64 in the machine's byte order. */
static int is_int64(const Py_buffer *view)
{
    const char *format = view->format == NULL ? "B" : view->format;

    if (*format == '=' || *format == '@')
        format++;
    return (*format == 'l' || *format == 'q') && format[1] == '\0' &&
           view->itemsize == (Py_ssize_t)sizeof(int64_t);
}

/* Check that bounds are offsets of that many segments, in order and inside the weights. */
static int check_bounds(const Py_buffer *bounds, const Py_buffer *weights)
{
    const int64_t *bound = bounds->buf;
    const Py_ssize_t number = bounds->len / (Py_ssize_t)sizeof(int64_t);
    const Py_ssize_t count = weights->len / weights->itemsize;

    if (!is_int64(bounds) || number < 1 || bound[0] < 0 || bound[number - 1] > count) {
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

/* Update the segments of one array after another. */
static void update_segments(const struct program *program, char real, const Py_buffer *views,
                            const Py_buffer *scalars, const Py_buffer *bounds)
{
    const int64_t *bound = bounds->buf;
    const Py_ssize_t segments = bounds->len / (Py_ssize_t)sizeof(int64_t) - 1;
    update_function *update = real == 'f' ? program->update_float : program->update_double;

    for (Py_ssize_t i = 0; i < segments; i++) {
        const Py_ssize_t from = bound[i] * views[0].itemsize;
        void *states[MOST_STATES];
        for (int k = 0; k < program->states; k++)
            states[k] = (char *)views[2 + k].buf + from;
        update((char *)views[0].buf + from, (const char *)views[1].buf + from, states,
               (const double *)scalars->buf + i * program->scalars, (size_t)(bound[i + 1] - bound[i]));
    }
}

/* Update views[0] by views[1] and the states in views[2 ...]; returns as `total_of`. */
static int update_of(const struct program *program, const Py_buffer *views,
                     const Py_buffer *scalars, const Py_buffer *bounds)
{
    const char real = real_of(&views[0]);
    const Py_ssize_t rows = bounds->len / (Py_ssize_t)sizeof(int64_t) - 1;
    PyThreadState *state;

    if (real == 0)
        return 0;
    for (int i = 1; i < 2 + program->states; i++)
        if (real_of(&views[i]) != real)
            return 0;
    for (int i = 1; i < 2 + program->states; i++)
        if (check_length(&views[i], &views[0], i == 1 ? "gradients" : "a state") < 0)
            return -1;
    if (check_bounds(bounds, &views[0]) < 0)
        return -1;
    if (real_of(scalars) != 'd' ||
        scalars->len != rows * program->scalars * (Py_ssize_t)sizeof(double)) {
        PyErr_Format(PyExc_ValueError, "scalars that are not %zd rows of %d float64", rows,
                     program->scalars);
        return -1;
    }
    state = let_go(views[0].len);
    update_segments(program, real, views, scalars, bounds);
    come_back(state);
    return 1;
}

static PyObject *update(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *states;
    Py_buffer views[2 + MOST_STATES], scalars = {0}, bounds = {0};
    const struct program *program;
    const char *name;
    Py_ssize_t held = 0;
    int done = -1;

    (void)module;
    if (check_count("update", given, 6) < 0 || (name = PyUnicode_AsUTF8(args[0])) == NULL ||
        (states = PySequence_Tuple(args[3])) == NULL)
        return NULL;
    program = find_program(name, PyTuple_GET_SIZE(states));
    if (program == NULL) {
        PyErr_Format(PyExc_ValueError, "there is no program %s of %zd states in C", name,
                     PyTuple_GET_SIZE(states));
        goto end;
    }
    for (; held < 2 + program->states; held++) {
        PyObject *array = held < 2 ? args[1 + held] : PyTuple_GET_ITEM(states, held - 2);
        if (PyObject_GetBuffer(array, &views[held], (held == 1 ? READ : WRITE) | PyBUF_FORMAT) < 0)
            goto end;
    }
    if (PyObject_GetBuffer(args[4], &scalars, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0 ||
        PyObject_GetBuffer(args[5], &bounds, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
        goto end;
    done = update_of(program, views, &scalars, &bounds);
end:
    release(views, held);
    PyBuffer_Release(&scalars);
    PyBuffer_Release(&bounds);
    Py_DECREF(states);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Copy views[1] to views[0]; returns as `total_of`. */
static int copy_of(const Py_buffer *views, int stream)
{
    PyThreadState *state;

    if (!PyBuffer_IsContiguous(&views[0], 'C') || !PyBuffer_IsContiguous(&views[1], 'C'))
        return 0;
    if (check_length(&views[1], &views[0], "a source") < 0)
        return -1;
    state = let_go(views[0].len);
    if (stream)
        stream_bytes(views[0].buf, views[1].buf, (size_t)views[0].len);
    else
        memmove(views[0].buf, views[1].buf, (size_t)views[0].len);
    settle(stream);
    come_back(state);
    return 1;
}

static PyObject *copy(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    const int flags[] = {WRITE, READ};
    Py_buffer views[2];
    Py_ssize_t held = 0;
    int stream, done = -1;

    (void)module;
    if (check_count("copy", given, 3) < 0 || (stream = PyObject_IsTrue(args[2])) < 0)
        return NULL;
    for (; held < 2; held++)
        if (PyObject_GetBuffer(args[held], &views[held], flags[held]) < 0)
            goto end;
    done = copy_of(views, stream);
end:
    release(views, held);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Whether an argument is a number of 64 bits, which is then in *number. */
static int read_whole(PyObject *object, long long *number)
{
    *number = PyLong_AsLongLong(object);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *checksum(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyThreadState *state;
    Py_buffer view;
    long long block;
    uint64_t sum;

    (void)module;
    if (check_count("checksum", given, 2) < 0 || read_whole(args[1], &block) < 0)
        return NULL;
    if (block < 8 || block % 8 != 0)
        return PyErr_Format(PyExc_ValueError, "blocks of %lld bytes", block);
    if (PyObject_GetBuffer(args[0], &view, PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    state = let_go(view.len);
    sum = sum_bytes(view.buf, (size_t)view.len, (size_t)block);
    come_back(state);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(sum);
}

static int read_meeting(PyObject *const *numbers, struct meeting *m)
{
    long long *const all[] = {&m->place,  &m->note, &m->entered, &m->done,  &m->free,  &m->before,
                              &m->over, &m->mark, &m->first, &m->second, &m->looks};

    for (size_t i = 0; i < MEETING; i++)
        if (read_whole(numbers[i], all[i]) < 0)
            return -1;
    return 0;
}

/* Sum the copies of all ranks into `receive`, and tell. */
static void add_up(const struct shared *ranks, size_t number, size_t own, const struct meeting *m,
                   const Py_buffer *receive, int average)
{
    Py_buffer parts[MOST_RANKS];
    size_t count = (size_t)(receive->len / receive->itemsize);

    for (size_t i = 0; i < number; i++)
        parts[i].buf = ranks[i].copy;
    if (real_of(receive) == 'f')
        total_float(parts, number, receive->buf, count, average, 0);
    else
        total_double(parts, number, receive->buf, count, average, 0);
    tell(&ranks[own], m->place, m->done);
}

/* Whether the arguments of a short sum fit each other; else an error says what does not. */
static int check_sum(const Py_buffer *views, size_t number, long long own)
{
    if (number > MOST_RANKS || own < 0 || (size_t)own >= number) {
        PyErr_Format(PyExc_ValueError, "rank %lld of %zu, where %d are the most", own, number,
                     MOST_RANKS);
        return -1;
    }
    if (real_of(&views[0]) == 0 || real_of(&views[0]) != real_of(&views[1])) {
        PyErr_SetString(PyExc_TypeError, "arrays that are not both flat float32 or flat float64");
        return -1;
    }
    return check_length(&views[1], &views[0], "an array for the sum");
}

static PyObject *short_sum(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    const int flags[] = {READ | PyBUF_FORMAT, WRITE | PyBUF_FORMAT};
    PyObject *const *arrays = args + 2 + MEETING;
    Py_buffer views[2], table;
    Py_ssize_t held = 0;
    struct meeting m;
    long long own;
    int average, outcome = -1;

    (void)module;
    if (check_count("short_sum", given, 5 + MEETING) < 0 || read_whole(args[1], &own) < 0 ||
        read_meeting(args + 2, &m) < 0 || (average = PyObject_IsTrue(arrays[2])) < 0 ||
        PyObject_GetBuffer(args[0], &table, PyBUF_SIMPLE) < 0)
        return NULL;
    for (; held < 2; held++)
        if (PyObject_GetBuffer(arrays[held], &views[held], flags[held]) < 0)
            goto end;
    size_t number = (size_t)table.len / sizeof(struct shared);
    if (check_sum(views, number, own) < 0)
        goto end;
    outcome = come(table.buf, number, (size_t)own, &m, &views[0]);
    if (outcome == COMPLETE)
        add_up(table.buf, number, (size_t)own, &m, &views[1], average);
end:
    release(views, held);
    PyBuffer_Release(&table);
    return outcome < 0 ? NULL : PyLong_FromLong(outcome);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {FUNCTION(total), FUNCTION(update), FUNCTION(copy),
                                  FUNCTION(short_sum), FUNCTION(checksum), {0}};

static int add_numbers(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "COMPLETE", COMPLETE) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "MOST_RANKS", MOST_RANKS);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_numbers}, {0}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "Kernels in C; ncclkv/kernels/host/_compiled.pyi says what they do.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}
