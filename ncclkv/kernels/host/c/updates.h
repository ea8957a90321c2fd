/* Calls from Python that update arrays by a program, or measure them. */

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
