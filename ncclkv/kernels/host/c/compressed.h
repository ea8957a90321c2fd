/* Functions of Python for gradients in 16 bits, for the largest of them, and for narrow matrices;
   ncclkv/kernels/host/_compiled.pyi documents them. */

#include "largest.h"

#include "low_rank.h"

/* residual -= sent, and 0 where what is sent is not finite. */
CLONES static void keep_rest(float_any *restrict residual, const float *restrict sent, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int32_t size = bits_of(sent[i]) & 0x7fffffff;
        residual[i] = float_of(choose(size < 255 << 23, bits_of(residual[i] - sent[i]), 0));
    }
}

static void narrow_all_with_rest(const struct narrow *type, uint16_any *words,
                                 const float_any *gradients, float_any *residual, size_t count)
{
    float sent[NARROW_TILE];

    for (size_t from = 0; from < count; from += NARROW_TILE) {
        const size_t length = count - from < NARROW_TILE ? count - from : NARROW_TILE;
        add_gradients(residual + from, gradients + from, length);
        type->narrow(words + from, residual + from, length);
        type->widen(sent, words + from, length);
        keep_rest(residual + from, sent, length);
    }
}

/* Round the sums of arrays[0] and arrays[1] to arrays[2]; the rest stays in arrays[1]. */
static int narrow_with_rest_of(const Py_buffer *arrays)
{
    const struct narrow *type = narrow_of(&arrays[2]);
    PyThreadState *state;

    if (real_of(&arrays[0]) != 'f' || real_of(&arrays[1]) != 'f' || type == NULL)
        return 0;
    if (check_length(&arrays[1], arrays[0].len, "residuals") < 0 ||
        check_length(&arrays[2], arrays[0].len / 2, "a payload") < 0)
        return -1;
    state = release_lock(arrays[0].len);
    narrow_all_with_rest(type, arrays[2].buf, arrays[0].buf, arrays[1].buf,
                         (size_t)arrays[0].len / sizeof(float));
    restore_lock(state);
    return 1;
}

static PyObject *narrow_with_rest(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[3];
    struct views views = {all, 0};
    int done = -1;

    (void)module;
    if (check_count("narrow_with_rest", given, 3) < 0)
        return NULL;
    if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[1], WRITE_NUMBERS) == 0 &&
        view(&views, args[2], WRITE_NUMBERS) == 0)
        done = narrow_with_rest_of(all);
    return outcome_of(&views, done);
}

/* Move the largest sums of arrays[0] and arrays[1] to the payload, arrays[2]. */
static int take_largest_of(const Py_buffer *arrays)
{
    const size_t count = (size_t)arrays[0].len / sizeof(float);
    const size_t wanted = (size_t)arrays[2].len / 8;
    PyThreadState *state;
    int done;

    if (real_of(&arrays[0]) != 'f' || real_of(&arrays[1]) != 'f' || !is_flat(&arrays[2], 'B'))
        return 0;
    if (check_length(&arrays[1], arrays[0].len, "residuals") < 0)
        return -1;
    if (arrays[2].len % 8 != 0 || wanted > count || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a payload of %zd bytes, for %zu elements", arrays[2].len,
                     count);
        return -1;
    }
    if (wanted == 0)
        return 1;
    state = release_lock(arrays[0].len);
    done = take_all(arrays[1].buf, arrays[0].buf, arrays[2].buf,
                    (float_any *)((char *)arrays[2].buf + 4 * wanted), count, wanted);
    restore_lock(state);
    if (done < 0)
        PyErr_NoMemory();
    return done < 0 ? -1 : 1;
}

static PyObject *take_largest(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[3];
    struct views views = {all, 0};
    int done = -1;

    (void)module;
    if (check_count("take_largest", given, 3) < 0)
        return NULL;
    if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[1], WRITE_NUMBERS) == 0 &&
        view(&views, args[2], WRITE_NUMBERS) == 0)
        done = take_largest_of(all);
    return outcome_of(&views, done);
}

/* Add the payload, arrays[0], to the sums, arrays[1]. */
static int add_largest_of(const Py_buffer *arrays)
{
    const size_t taken = (size_t)arrays[0].len / 8, count = (size_t)arrays[1].len / sizeof(float);
    PyThreadState *state;
    int64_t wrong;

    if (!is_flat(&arrays[0], 'B') || real_of(&arrays[1]) != 'f')
        return 0;
    if (check_length(&arrays[0], (Py_ssize_t)(8 * taken), "a payload") < 0)
        return -1;
    state = release_lock(arrays[0].len);
    wrong = add_at(arrays[1].buf, arrays[0].buf,
                   (const float_any *)((const char *)arrays[0].buf + 4 * taken), taken, count);
    restore_lock(state);
    if (wrong < 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "a payload has index %lld, of %zu elements", (long long)wrong,
                 count);
    return -1;
}

static PyObject *add_largest(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[2];
    struct views views = {all, 0};
    int done = -1;

    (void)module;
    if (check_count("add_largest", given, 2) < 0)
        return NULL;
    if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[1], WRITE_NUMBERS) == 0)
        done = add_largest_of(all);
    return outcome_of(&views, done);
}

/* Make arrays[0], rows one behind another, orthonormal. */
static int orthonormalise_of(const Py_buffer *arrays, long long row_count)
{
    const size_t count = (size_t)arrays[0].len / sizeof(float);
    PyThreadState *state;
    int done;

    if (real_of(&arrays[0]) != 'f')
        return 0;
    if (row_count < 1 || count % (size_t)row_count != 0) {
        PyErr_Format(PyExc_ValueError, "%lld rows of %zu elements", row_count, count);
        return -1;
    }
    state = release_lock(arrays[0].len);
    done = orthonormalise_all(arrays[0].buf, (size_t)row_count, count / (size_t)row_count);
    restore_lock(state);
    if (done < 0)
        PyErr_NoMemory();
    return done < 0 ? -1 : 1;
}

static PyObject *orthonormalise(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[1];
    struct views views = {all, 0};
    long long row_count;
    int done = -1;

    (void)module;
    if (check_count("orthonormalise", given, 2) < 0 || read_integer(args[1], &row_count) < 0)
        return NULL;
    if (view(&views, args[0], WRITE_NUMBERS) == 0)
        done = orthonormalise_of(all, row_count);
    return outcome_of(&views, done);
}

/* Set arrays[2], and arrays[3] if there are 4, from arrays[0] and arrays[1]. */
static int multiply_of(const Py_buffer *arrays, Py_ssize_t array_count, long long rank,
                       float senders, int average)
{
    const size_t left = (size_t)arrays[0].len / sizeof(float);
    const size_t right = (size_t)arrays[1].len / sizeof(float);
    PyThreadState *state;

    for (Py_ssize_t i = 0; i < array_count; i++)
        if (real_of(&arrays[i]) != 'f')
            return 0;
    if (rank < 1 || left % (size_t)rank != 0 || right % (size_t)rank != 0) {
        PyErr_Format(PyExc_ValueError, "matrices of %zu and %zu elements, and of rank %lld", left,
                     right, rank);
        return -1;
    }
    for (Py_ssize_t i = 2; i < array_count; i++)
        if (check_length(&arrays[i],
                         (Py_ssize_t)(left / (size_t)rank * (right / (size_t)rank) * sizeof(float)),
                         i == 2 ? "a product" : "residuals") < 0)
            return -1;
    state = release_lock(arrays[2].len);
    multiply_all(arrays[2].buf, array_count == 4 ? arrays[3].buf : NULL, arrays[0].buf,
                 arrays[1].buf, (size_t)rank, left / (size_t)rank, right / (size_t)rank, senders,
                 average);
    restore_lock(state);
    return 1;
}

static PyObject *multiply(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[4];
    struct views views = {all, 0};
    long long rank;
    float senders;
    int average, done = -1;

    (void)module;
    if (check_count("multiply", given, 7) < 0 || read_integer(args[2], &rank) < 0 ||
        read_float(args[5], &senders) < 0 || (average = PyObject_IsTrue(args[6])) < 0)
        return NULL;
    if (view(&views, args[0], READ_NUMBERS) == 0 && view(&views, args[1], READ_NUMBERS) == 0 &&
        view(&views, args[3], WRITE_NUMBERS) == 0 &&
        (args[4] == Py_None || view(&views, args[4], WRITE_NUMBERS) == 0))
        done = multiply_of(all, views.count, rank, senders, average);
    return outcome_of(&views, done);
}
