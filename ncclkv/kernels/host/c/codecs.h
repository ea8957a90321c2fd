/* Functions of Python for codes of few bits; ncclkv/kernels/host/_compiled.pyi documents them. */

#include "quantise.h"

#include "counts.h"

/* Read an argument that is a float; an error is set where it returns -1. */
static int read_float(PyObject *object, float *value)
{
    const double found = PyFloat_AsDouble(object);

    *value = (float)found;
    return found == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int is_flat(const Py_buffer *array, char format)
{
    return format_of(array) == format && PyBuffer_IsContiguous(array, 'C');
}

/* The count of residuals beyond the bound; -1: left to NumPy; -2: an error. */
static Py_ssize_t encode_of(const struct codec *codec, const Py_buffer *arrays, float threshold)
{
    const size_t count = (size_t)arrays[0].len / sizeof(float);
    PyThreadState *state;
    size_t beyond;

    if (real_of(&arrays[0]) != 'f' || real_of(&arrays[1]) != 'f' || !is_flat(&arrays[2], 'B'))
        return -1;
    if (check_length(&arrays[1], arrays[0].len, "residuals") < 0 ||
        check_length(&arrays[2], (Py_ssize_t)payload_bytes(codec, count), "a payload") < 0)
        return -2;
    state = release_lock(arrays[0].len);
    beyond = encode_all(codec, arrays[1].buf, arrays[0].buf, arrays[2].buf, threshold, count);
    restore_lock(state);
    return (Py_ssize_t)beyond;
}

static PyObject *encode(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[3];
    struct views views = {all, 0};
    const struct codec *codec;
    const char *name;
    float threshold;
    Py_ssize_t beyond = -2;

    (void)module;
    if (check_count("encode", given, 5) < 0 || (name = PyUnicode_AsUTF8(args[0])) == NULL ||
        read_float(args[4], &threshold) < 0)
        return NULL;
    codec = find_codec(name);
    if (codec == NULL)
        return PyLong_FromLong(-1);
    if (view(&views, args[1], READ_NUMBERS) == 0 && view(&views, args[2], WRITE_NUMBERS) == 0 &&
        view(&views, args[3], WRITE_NUMBERS) == 0)
        beyond = encode_of(codec, all, threshold);
    release(&views);
    return beyond == -2 ? NULL : PyLong_FromSsize_t(beyond);
}

/* Sum arrays[2 ...], payloads, into arrays[1] by the table in arrays[0]. */
static int count_levels_of(const Py_buffer *arrays, Py_ssize_t payload_count)
{
    const size_t count = (size_t)arrays[1].len / sizeof(uint16_t);
    const size_t row = 256 * sizeof(uint64_t), words = (size_t)arrays[0].len / row;
    PyThreadState *state;

    if (!is_flat(&arrays[0], 'H') || !is_flat(&arrays[1], 'H'))
        return 0;
    for (Py_ssize_t i = 0; i < payload_count; i++)
        if (!is_flat(&arrays[2 + i], 'B'))
            return 0;
    if ((words != 1 && words != 2) || (size_t)arrays[0].len != words * row) {
        PyErr_Format(PyExc_ValueError, "a table of %zd bytes", arrays[0].len);
        return -1;
    }
    for (Py_ssize_t i = 0; i < payload_count; i++)
        if ((size_t)arrays[2 + i].len * 4 * words < count) {
            PyErr_Format(PyExc_ValueError, "a payload of %zd bytes, for %zu elements",
                         arrays[2 + i].len, count);
            return -1;
        }
    state = release_lock(arrays[1].len);
    sum_payloads(arrays[1].buf, arrays + 2, (size_t)payload_count, arrays[0].buf, words, count);
    restore_lock(state);
    return 1;
}

static PyObject *count_levels(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct views views = {0};
    PyObject *payloads;
    Py_ssize_t payload_count;
    int done = -1;

    (void)module;
    if (check_count("count_levels", given, 3) < 0)
        return NULL;
    payloads = PySequence_Tuple(args[1]);
    if (payloads == NULL)
        return NULL;
    payload_count = PyTuple_GET_SIZE(payloads);
    views.all = PyMem_New(Py_buffer, (size_t)payload_count + 2);
    if (payload_count == 0)
        PyErr_SetString(PyExc_ValueError, "there are no payloads to sum");
    else if (views.all == NULL)
        PyErr_NoMemory();
    else if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[2], WRITE_NUMBERS) == 0 &&
             view_all(&views, payloads, READ_NUMBERS) == 0)
        done = count_levels_of(views.all, payload_count);
    Py_DECREF(payloads);
    payloads = outcome_of(&views, done);
    PyMem_Free(views.all);
    return payloads;
}

static int scale_of(const Py_buffer *arrays, float offset, float factor)
{
    const size_t count = (size_t)arrays[0].len / sizeof(uint16_t);
    PyThreadState *state;

    if (!is_flat(&arrays[0], 'H') || real_of(&arrays[1]) != 'f')
        return 0;
    if (check_length(&arrays[1], 2 * arrays[0].len, "an array for values") < 0)
        return -1;
    state = release_lock(arrays[1].len);
    scale_all(arrays[1].buf, arrays[0].buf, offset, factor, count);
    restore_lock(state);
    return 1;
}

static PyObject *scale_counts(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[2];
    struct views views = {all, 0};
    float offset, factor;
    int done = -1;

    (void)module;
    if (check_count("scale_counts", given, 4) < 0 || read_float(args[1], &offset) < 0 ||
        read_float(args[2], &factor) < 0)
        return NULL;
    if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[3], WRITE_NUMBERS) == 0)
        done = scale_of(all, offset, factor);
    return outcome_of(&views, done);
}

/* Pack arrays[0] into arrays[1], or unpack arrays[1] into arrays[0]. */
static int move_counts_of(const Py_buffer *arrays, long long width, int unpack)
{
    const size_t count = (size_t)arrays[0].len / sizeof(uint16_t);
    PyThreadState *state;

    if (!is_flat(&arrays[0], 'H') || !is_flat(&arrays[1], 'B'))
        return 0;
    if (width != 2 && width != 4 && width != 8) {
        PyErr_Format(PyExc_ValueError, "counts of %lld bits", width);
        return -1;
    }
    if (check_length(&arrays[1], (Py_ssize_t)((count * (size_t)width + 7) / 8), "packed counts") < 0)
        return -1;
    state = release_lock(arrays[0].len);
    move_counts(arrays[1].buf, arrays[0].buf, (int)width, count, unpack);
    restore_lock(state);
    return 1;
}

static PyObject *move_counts_between(const char *name, PyObject *const *args, Py_ssize_t given,
                                     int unpack)
{
    Py_buffer all[2];
    struct views views = {all, 0};
    long long width;
    int done = -1;

    if (check_count(name, given, 3) < 0 || read_integer(args[2], &width) < 0)
        return NULL;
    if (view(&views, args[unpack], unpack ? WRITE_NUMBERS : READ_NUMBERS) == 0 &&
        view(&views, args[!unpack], unpack ? READ_NUMBERS : WRITE_NUMBERS) == 0)
        done = move_counts_of(all, width, unpack);
    return outcome_of(&views, done);
}

static PyObject *pack_counts(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    return move_counts_between("pack_counts", args, given, 0);
}

static PyObject *unpack_counts(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    (void)module;
    return move_counts_between("unpack_counts", args, given, 1);
}
