/* Longest paths: the time of each slot of a graph in topological order. One function, for replays of millions of slots. */
#define Py_LIMITED_API 0x030B0000 /* one build for all Pythons from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

enum { NUM_INPUTS = 4 }; /* source and weight of the first edge, source and weight of the second */

/* Slot 0 is at time 0; every other one waits for earlier slots only. Returns the number of slots that obey this. */
static Py_ssize_t follow(const int64_t *const *inputs, Py_ssize_t count, int64_t *times) {
    const int64_t *source = inputs[0], *weight = inputs[1], *other = inputs[2], *more = inputs[3];
    if (count)
        times[0] = 0;
    for (Py_ssize_t slot = 1; slot < count; slot++) {
        if (source[slot] < 0 || source[slot] >= slot || other[slot] < 0 || other[slot] >= slot)
            return slot;
        int64_t first = times[source[slot]] + weight[slot], second = times[other[slot]] + more[slot];
        times[slot] = first > second ? first : second;
    }
    return count;
}

static PyObject *longest(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[NUM_INPUTS];
    if (!PyArg_ParseTuple(args, "y*y*y*y*", &buffers[0], &buffers[1], &buffers[2], &buffers[3]))
        return NULL;
    const int64_t *inputs[NUM_INPUTS];
    Py_ssize_t size = buffers[0].len, reached = 0, count = size / (Py_ssize_t)sizeof(int64_t);
    PyObject *times = NULL;
    int is_even = 1;
    for (int i = 0; i < NUM_INPUTS; i++) {
        inputs[i] = buffers[i].buf;
        is_even = is_even && buffers[i].len == size;
    }
    if (is_even && (times = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t)))) {
        int64_t *to = (int64_t *)PyBytes_AsString(times);
        Py_BEGIN_ALLOW_THREADS
        reached = follow(inputs, count, to);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < NUM_INPUTS; i++)
        PyBuffer_Release(&buffers[i]);
    if (!is_even || (times && reached < count)) {
        Py_CLEAR(times);
        PyErr_SetString(PyExc_ValueError, is_even ? "a slot waits for a later one" : "the inputs differ in length");
    }
    return times;
}

static PyMethodDef methods[] = {
    {"longest", longest, METH_VARARGS, "Times of all slots, from four arrays of int64, as bytes of int64."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_longest",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__longest(void) {
    return PyModule_Create(&module_definition);
}
