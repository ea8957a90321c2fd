/* Notes of calls, as comm/diagnosis/call_log.py makes them in Python: one call of C for each, from the place in
   the user's program to the page that other processes read. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

#include <stdint.h>
#include <time.h>

/* As in comm/diagnosis/flight_recorder.py. */
enum { WORDS = 5 };

/* A power of two, four times the places that are known at once: a search ends soon. */
#define SLOTS 4096
#define MOST_KNOWN (SLOTS / 4)

#define MARK_MASK INT64_MAX

struct place {
    int64_t what, keys, text;
    PyObject *code;
    int instruction;
};

typedef struct {
    PyObject_HEAD
    Py_buffer page;
    int64_t *count, *calls;
    int64_t most;
    PyObject *own;
    size_t known;
    struct place *places; /* SLOTS of them, from the first that is learnt on */
} Notes;

static int instruction_of(PyFrameObject *frame)
{
#if PY_VERSION_HEX < 0x030B0000
    return frame->f_lasti;
#else
    return PyFrame_GetLasti(frame);
#endif
}

/* Whether a file is one of those whose calls are not the user's; -1 on an error. */
static int is_own(const Notes *self, PyObject *file)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->own); i++) {
        PyObject *prefix = PyTuple_GET_ITEM(self->own, i);
        Py_ssize_t found = PyUnicode_Tailmatch(file, prefix, 0, PY_SSIZE_T_MAX, -1);
        if (found != 0)
            return (int)found;
    }
    return 0;
}

/* The frame of the user's that a call came from, and its code; both new references. */
static PyFrameObject *user_frame(const Notes *self, PyFrameObject *frame, PyCodeObject **code)
{
    Py_INCREF(frame);
    for (;;) {
        PyFrameObject *back;
        int own;

        *code = PyFrame_GetCode(frame);
        own = is_own(self, (*code)->co_filename);
        back = own > 0 ? PyFrame_GetBack(frame) : NULL;
        if (own < 0 || (own > 0 && back == NULL && PyErr_Occurred())) {
            Py_DECREF(*code);
            Py_DECREF(frame);
            return NULL;
        }
        if (back == NULL)
            return frame;
        Py_DECREF(*code);
        Py_DECREF(frame);
        frame = back;
    }
}

/* The slot of a place, or the free one where it belongs. */
static struct place *slot_of(Notes *self, int64_t what, int64_t keys, PyObject *code, int lasti)
{
    uint64_t mixed = (uint64_t)what * 0xBF58476D1CE4E5B9u + (uint64_t)keys +
                     (uint64_t)(uintptr_t)code / 16 + (uint64_t)lasti * 0x9E3779B97F4A7C15u;

    for (size_t at = (mixed ^ mixed >> 32) % SLOTS;; at = (at + 1) % SLOTS) {
        struct place *slot = &self->places[at];
        if (slot->code == NULL || (slot->code == code && slot->instruction == lasti &&
                                   slot->what == what && slot->keys == keys))
            return slot;
    }
}

static void forget(Notes *self)
{
    for (size_t i = 0; self->places != NULL && i < SLOTS; i++)
        Py_CLEAR(self->places[i].code);
    self->known = 0;
}

static void write_call(Notes *self, int64_t what, int64_t keys, int64_t text)
{
    int64_t number = *self->count + 1;
    int64_t *call = self->calls + number % self->most * WORDS;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    /* The number first: who reads the call that was here before sees that it is going. */
    __atomic_store_n(&call[0], number, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    call[1] = what;
    call[2] = keys;
    call[3] = text;
    call[4] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    __atomic_store_n(self->count, number, __ATOMIC_RELEASE);
}

static int read_numbers(PyObject *const *args, size_t count, int64_t *numbers)
{
    for (size_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLongLong(args[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int check_frame(PyObject *object)
{
    if (PyFrame_Check(object))
        return 0;
    PyErr_SetString(PyExc_TypeError, "a frame is expected");
    return -1;
}

static PyObject *put(Notes *self, PyObject *const *args, Py_ssize_t given)
{
    int64_t n[3];
    PyFrameObject *frame;
    PyCodeObject *code;
    const struct place *slot;

    if (given != 4) {
        PyErr_SetString(PyExc_TypeError, "put takes what, keys, mark and a frame");
        return NULL;
    }
    if (read_numbers(args, 3, n) < 0 || check_frame(args[3]) < 0)
        return NULL;
    if (self->places == NULL)
        Py_RETURN_NONE;
    frame = user_frame(self, (PyFrameObject *)args[3], &code);
    if (frame == NULL)
        return NULL;
    slot = slot_of(self, n[0], n[1], (PyObject *)code, instruction_of(frame));
    Py_DECREF(code);
    Py_DECREF(frame);
    if (slot->code == NULL)
        Py_RETURN_NONE;
    write_call(self, n[0], n[1], slot->text);
    return PyLong_FromLongLong((int64_t)(((uint64_t)n[2] * 0x9E3779B97F4A7C15u +
                                          (uint64_t)n[0] * 0xBF58476D1CE4E5B9u + (uint64_t)n[1] +
                                          1) &
                                         MARK_MASK));
}

static PyObject *learn(Notes *self, PyObject *const *args, Py_ssize_t given)
{
    int64_t n[3];
    PyFrameObject *frame;
    PyCodeObject *code;
    struct place *slot;

    if (given != 4) {
        PyErr_SetString(PyExc_TypeError, "learn takes what, keys, a text and a frame");
        return NULL;
    }
    if (read_numbers(args, 3, n) < 0 || check_frame(args[3]) < 0)
        return NULL;
    if (self->places == NULL && (self->places = PyMem_Calloc(SLOTS, sizeof(struct place))) == NULL)
        return PyErr_NoMemory();
    if (self->known == MOST_KNOWN)
        forget(self);
    frame = user_frame(self, (PyFrameObject *)args[3], &code);
    if (frame == NULL)
        return NULL;
    slot = slot_of(self, n[0], n[1], (PyObject *)code, instruction_of(frame));
    self->known += slot->code == NULL;
    Py_XSETREF(slot->code, (PyObject *)code);
    slot->instruction = instruction_of(frame);
    slot->what = n[0];
    slot->keys = n[1];
    slot->text = n[2];
    Py_DECREF(frame);
    Py_RETURN_NONE;
}

static int notes_init(Notes *self, PyObject *args, PyObject *names)
{
    Py_ssize_t count, calls;
    long long most;

    if (names != NULL && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Notes takes no arguments by name");
        return -1;
    }
    if (self->page.obj != NULL) {
        PyErr_SetString(PyExc_TypeError, "Notes are made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "w*nnLO!", &self->page, &count, &calls, &most, &PyTuple_Type,
                          &self->own))
        return -1;
    Py_INCREF(self->own);
    if (most < 1 || count < 0 || calls < 0 || count % 8 || calls % 8 ||
        (uintptr_t)self->page.buf % 8 || count + 8 > self->page.len ||
        most > (self->page.len - calls) / (8 * WORDS)) {
        PyErr_SetString(PyExc_ValueError, "a page that does not hold the calls");
        return -1;
    }
    self->count = (int64_t *)((char *)self->page.buf + count);
    self->calls = (int64_t *)((char *)self->page.buf + calls);
    self->most = most;
    return 0;
}

static void notes_dealloc(Notes *self)
{
    PyTypeObject *type = Py_TYPE(self);

    forget(self);
    PyMem_Free(self->places);
    Py_CLEAR(self->own);
    if (self->page.obj != NULL)
        PyBuffer_Release(&self->page);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, NULL},
    {"learn", (PyCFunction)(void (*)(void))learn, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, notes_init},
    {Py_tp_dealloc, notes_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "ncclkv.comm._notes.Notes",
    .basicsize = sizeof(Notes),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&type_spec);
    int failed;

    if (type == NULL)
        return -1;
    failed = PyModule_AddObjectRef(module, "Notes", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_type}, {0}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_notes",
    .m_doc = "Notes of calls in C; ncclkv/comm/diagnosis/call_log.py says what they are.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__notes(void)
{
    return PyModuleDef_Init(&definition);
}
