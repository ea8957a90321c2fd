/* Calls from Python that update arrays by a program, or measure them. */

/* The program of a name for so many states, or NULL with an error. */
static const struct program *find_program(const char *name, Py_ssize_t states)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strcmp(programs[i].name, name) == 0 && programs[i].states == states)
            return &programs[i];
    PyErr_Format(PyExc_ValueError,
                 "there is no program %s of %zd states in C; list it in "
                 "ncclkv/kernels/programs/__init__.py, and build: pip install -e .",
                 name, states);
    return NULL;
}

/* Check that bounds are int64 offsets of segments, in order and inside the weights. */
static int check_bounds(const Py_buffer *bounds, const Py_buffer *weights)
{
    const int64_t *bound = bounds->buf;
    const Py_ssize_t bound_count = bounds->len / (Py_ssize_t)sizeof(int64_t);
    const Py_ssize_t count = weights->len / weights->itemsize;
    const char format = format_of(bounds);

    if ((format != 'l' && format != 'q') || bounds->itemsize != (Py_ssize_t)sizeof(int64_t) ||
        bound_count < 1 || bound[0] < 0 || bound[bound_count - 1] > count) {
        PyErr_Format(PyExc_ValueError, "bounds of segments that are not in %zd elements", count);
        return -1;
    }
    for (Py_ssize_t i = 1; i < bound_count; i++)
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

/* Check arrays of an update of 16-bit weights.  1: they fit; 0: left to NumPy; -1: an error. */
static int check_narrow(const Py_buffer *arrays, int array_count)
{
    if (narrow_of(&arrays[1]) != narrow_of(&arrays[0]))
        return 0;
    for (int i = 2; i < array_count; i++)
        if (real_of(&arrays[i]) != 'f')
            return 0;
    if (check_length(&arrays[1], arrays[0].len, "gradients") < 0)
        return -1;
    for (int i = 2; i < array_count; i++)
        if (check_length(&arrays[i], 2 * arrays[0].len, "a state") < 0)
            return -1;
    return 1;
}

/* Check arrays of a program.  1: they fit; 0: left to NumPy; -1: an error. */
static int check_arrays(const Py_buffer *arrays, int array_count, int has_master)
{
    if (narrow_of(&arrays[0]) != NULL)
        return check_narrow(arrays, array_count);
    return has_master ? 0 : common_real(arrays, array_count, "gradients", "a state");
}

/* A pass of a program over segments of arrays: weights, gradients, states, and the master if the
   weights have one.  Each segment has a row of scalars. */
struct pass {
    const struct program *program;
    const Py_buffer *scalars, *bounds, *arrays;
    const struct narrow *narrow; /* NULL for weights of 32 and 64 bits */
    Py_ssize_t rows;
    int array_count;
};

/* Check the arrays that a call has viewed, scalars and bounds first.  1: they fit; 0: left to NumPy;
   -1: an error. */
static int pass_of(struct pass *pass, const struct program *program, const struct views *views,
                   int has_master)
{
    const Py_buffer *all = views->all;
    const int array_count = 2 + program->states + has_master;
    const int fit = check_arrays(all + 2, array_count, has_master);

    if (fit <= 0)
        return fit;
    *pass = (struct pass){program,           &all[0], &all[1], all + 2, narrow_of(all + 2),
                          all[1].len / (Py_ssize_t)sizeof(int64_t) - 1, array_count};
    if (check_bounds(pass->bounds, pass->arrays) < 0)
        return -1;
    return check_scalars(pass->scalars, pass->rows, program->scalars) < 0 ? -1 : 1;
}

/* A segment of a pass: the addresses of its first elements, its length, and its scalars. */
struct segment {
    void *at[3 + MAX_STATES];
    size_t count;
    const double *row;
};

static struct segment segment_of(const struct pass *pass, Py_ssize_t index)
{
    const int64_t *bound = (const int64_t *)pass->bounds->buf + index;
    struct segment segment = {{NULL}, (size_t)(bound[1] - bound[0]), pass->scalars->buf};

    segment.row += index * pass->program->scalars;
    for (int k = 0; k < pass->array_count; k++)
        segment.at[k] = (char *)pass->arrays[k].buf + bound[0] * pass->arrays[k].itemsize;
    return segment;
}

/* Return whether a pass calculates in float32. */
static int in_float(const struct pass *pass)
{
    return pass->narrow != NULL || real_of(&pass->arrays[0]) == 'f';
}

static void update_segments(const struct pass *pass)
{
    const struct program *program = pass->program;
    update_function *function = in_float(pass) ? program->update_float : program->update_double;

    for (Py_ssize_t i = 0; i < pass->rows; i++) {
        struct segment segment = segment_of(pass, i);
        void **at = segment.at;
        if (pass->narrow != NULL)
            update_narrow(pass->narrow, function, at[0], at[1], at[2 + program->states], at + 2,
                          program->states, segment.row, segment.count);
        else
            function(at[0], at[1], at + 2, segment.row, segment.count);
    }
}

/* Add sums of squares, one row for each segment. */
static void measure_segments(const struct pass *pass, double *sums)
{
    const struct program *program = pass->program;
    measure_function *function = in_float(pass) ? program->measure_float : program->measure_double;

    for (Py_ssize_t i = 0; i < pass->rows; i++, sums += program->norms) {
        struct segment segment = segment_of(pass, i);
        void **at = segment.at;
        if (pass->narrow != NULL)
            measure_narrow(pass->narrow, function, at[0], at[1], at[2 + program->states], at + 2,
                           program->states, segment.row, segment.count, sums);
        else
            function(at[0], at[1], at + 2, segment.row, segment.count, sums);
    }
}

/* View scalars, bounds, weights, gradients, states and master, given in the order of `update`; the
   weights and the master are read, or written, as `kind` says. */
static int view_pass(struct views *views, PyObject *const *args, PyObject *states,
                     PyObject *master, int kind)
{
    const int read = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;

    if (view(views, args[4], read) < 0 || view(views, args[5], read) < 0 ||
        view(views, args[1], kind) < 0 || view(views, args[2], READ_NUMBERS) < 0 ||
        view_all(views, states, WRITE_NUMBERS) < 0)
        return -1;
    return master == Py_None ? 0 : view(views, master, kind);
}

/* Return the program of a call, and its states as a new tuple; NULL with an error. */
static const struct program *program_of(const char *function, PyObject *const *args,
                                        Py_ssize_t given, Py_ssize_t wanted, PyObject **states)
{
    const char *name;

    *states = NULL;
    if (check_count(function, given, wanted) < 0 || (name = PyUnicode_AsUTF8(args[0])) == NULL ||
        (*states = PySequence_Tuple(args[3])) == NULL)
        return NULL;
    return find_program(name, PyTuple_GET_SIZE(*states));
}

static PyObject *update(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[5 + MAX_STATES];
    struct views views = {all, 0};
    PyObject *states;
    const struct program *program = program_of("update", args, given, 7, &states);
    struct pass pass;
    int done = -1;

    (void)module;
    if (program != NULL && view_pass(&views, args, states, args[6], WRITE_NUMBERS) == 0)
        done = pass_of(&pass, program, &views, args[6] != Py_None);
    if (done > 0) {
        PyThreadState *state = release_lock(pass.arrays[0].len);
        update_segments(&pass);
        restore_lock(state);
    }
    Py_XDECREF(states);
    return outcome_of(&views, done);
}

static PyObject *measure(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer all[5 + MAX_STATES], sums = {0};
    struct views views = {all, 0};
    PyObject *states;
    const struct program *program = program_of("measure", args, given, 8, &states);
    struct pass pass;
    int done = -1;

    (void)module;
    if (program != NULL && program->norms == 0)
        PyErr_Format(PyExc_ValueError, "program %s has no norms", program->name);
    else if (program != NULL && view_pass(&views, args, states, args[7], READ_NUMBERS) == 0 &&
             PyObject_GetBuffer(args[6], &sums, PyBUF_CONTIG | PyBUF_FORMAT) == 0)
        done = pass_of(&pass, program, &views, args[7] != Py_None);
    if (done > 0 && check_scalars(&sums, pass.rows, program->norms) < 0)
        done = -1;
    if (done > 0) {
        PyThreadState *state = release_lock(pass.arrays[0].len);
        measure_segments(&pass, sums.buf);
        restore_lock(state);
    }
    PyBuffer_Release(&sums);
    Py_XDECREF(states);
    return outcome_of(&views, done);
}
