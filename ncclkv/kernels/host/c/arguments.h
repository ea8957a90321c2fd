/* Arguments of calls from Python: views of arrays, their checks, and the lock of Python. */

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

/* The type of a flat array of 16-bit floats: float16, or bfloat16 as words; else NULL. */
static const struct narrow *narrow_of(const Py_buffer *array)
{
    const char format = format_of(array);

    if (array->itemsize != sizeof(uint16_t) || !PyBuffer_IsContiguous(array, 'C'))
        return NULL;
    return format == 'e' ? &float16 : format == 'H' ? &bfloat16 : NULL;
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
