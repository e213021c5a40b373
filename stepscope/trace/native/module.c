/* Python module of the scanner: one type, Scanner(categories, frame_prefixes, num_read), with one method, scan(text).
 * Python frames whose names begin with the first num_read prefixes are read, those with the others are not. */
#define Py_LIMITED_API 0x030B0000 /* one build for all Pythons from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "scan.h"

enum { NUM_TABLES = 4 }; /* tracks, names, shapes, launches */

typedef struct {
    PyObject_HEAD
    Scanner scanner;
    PyObject *frame_prefixes;
    size_t num_returned[NUM_TABLES]; /* texts of each table that Python has got */
    bool is_busy;                /* the GIL is released while scanning */
} ScannerObject;

static int span_of(PyObject *bytes, Span *span) {
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return -1;
    *span = (Span){(const uint8_t *)text, (size_t)size};
    return 0;
}

static int scanner_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    ScannerObject *self = (ScannerObject *)object;
    PyObject *categories, *prefixes, *name, *reads;
    Py_ssize_t position = 0, num_read;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Scanner() takes no keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O!O!n", &PyDict_Type, &categories, &PyTuple_Type, &prefixes, &num_read))
        return -1;
    if (self->frame_prefixes) {
        PyErr_SetString(PyExc_RuntimeError, "a Scanner is set up once");
        return -1;
    }
    scanner_set_up(&self->scanner);
    self->frame_prefixes = Py_NewRef(prefixes);
    Py_ssize_t num_prefixes = PyTuple_Size(prefixes);
    if (num_prefixes > MAX_FRAME_PREFIXES || num_read < 0 || num_read > num_prefixes) {
        PyErr_SetString(PyExc_ValueError, "wrong number of prefixes of frames");
        return -1;
    }
    for (Py_ssize_t i = 0; i < num_prefixes; i++)
        if (span_of(PyTuple_GetItem(prefixes, i), &self->scanner.frame_prefixes[i]) < 0)
            return -1;
    self->scanner.num_read_prefixes = (size_t)num_read;
    self->scanner.num_frame_prefixes = (size_t)num_prefixes;
    while (PyDict_Next(categories, &position, &name, &reads)) {
        Span span;
        long bits = PyLong_AsLong(reads);
        if ((bits == -1 && PyErr_Occurred()) || span_of(name, &span) < 0)
            return -1;
        if (scanner_add_category(&self->scanner, span, (uint8_t)bits) != SCANNED) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static void scanner_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    scanner_free(&((ScannerObject *)object)->scanner);
    Py_XDECREF(((ScannerObject *)object)->frame_prefixes);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* The texts interned since the last call. */
static PyObject *new_texts(const Interned *table, size_t *num_returned) {
    PyObject *texts = PyList_New((Py_ssize_t)(table->count - *num_returned));
    for (Py_ssize_t i = 0; texts && *num_returned < table->count; i++, ++*num_returned) {
        Span span = interned(table, *num_returned);
        PyObject *text = PyBytes_FromStringAndSize((const char *)span.at, (Py_ssize_t)span.size);
        if (!text || PyList_SetItem(texts, i, text) < 0)
            Py_CLEAR(texts);
    }
    return texts;
}

/* A column as bytes, in the smallest integers that hold it. */
static PyObject *column_bytes(const Scanner *scanner, int column) {
    int width = scanner_width(scanner, column);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(scanner->num_rows * (size_t)width));
    if (bytes)
        scanner_write(scanner, column, width, PyBytes_AsString(bytes));
    return bytes;
}

/* (number of events, number of rows, columns, calls, new texts of each table) */
static PyObject *describe(ScannerObject *self) {
    const Scanner *scanner = &self->scanner;
    const Interned *tables[NUM_TABLES] = {&scanner->tracks, &scanner->names, &scanner->shapes, &scanner->launches};
    PyObject *columns = PyTuple_New(NUM_COLUMNS), *texts = PyTuple_New(NUM_TABLES), *result = NULL;
    for (int i = 0; columns && i < NUM_COLUMNS; i++) {
        PyObject *column = column_bytes(scanner, i);
        if (!column || PyTuple_SetItem(columns, i, column) < 0)
            Py_CLEAR(columns);
    }
    for (int i = 0; texts && i < NUM_TABLES; i++) {
        PyObject *of_table = new_texts(tables[i], &self->num_returned[i]);
        if (!of_table || PyTuple_SetItem(texts, i, of_table) < 0)
            Py_CLEAR(texts);
    }
    if (columns && texts) {
        const char *calls = scanner->calls.count ? (const char *)scanner->calls.cells : "";
        Py_ssize_t num_bytes = (Py_ssize_t)(scanner->calls.count * sizeof(int64_t));
        Py_ssize_t num_events = (Py_ssize_t)scanner->num_events, num_rows = (Py_ssize_t)scanner->num_rows;
        result = Py_BuildValue("(nnOy#O)", num_events, num_rows, columns, calls, num_bytes, texts);
    }
    Py_XDECREF(columns);
    Py_XDECREF(texts);
    return result;
}

static PyObject *scan_buffer(ScannerObject *self, const Py_buffer *buffer) {
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = scan(&self->scanner, buffer->buf, (size_t)buffer->len);
    Py_END_ALLOW_THREADS
    if (status == REFUSED)
        Py_RETURN_NONE;
    return status == SCANNED ? describe(self) : PyErr_NoMemory();
}

static PyObject *scanner_scan(PyObject *object, PyObject *text) {
    ScannerObject *self = (ScannerObject *)object;
    Py_buffer buffer;
    if (!self->frame_prefixes) {
        PyErr_SetString(PyExc_RuntimeError, "a Scanner is set up first");
        return NULL;
    }
    if (self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "a Scanner scans one text at a time");
        return NULL;
    }
    if (PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    self->is_busy = true;
    PyObject *result = scan_buffer(self, &buffer);
    self->is_busy = false;
    PyBuffer_Release(&buffer);
    return result;
}

static PyMethodDef scanner_methods[] = {
    {"scan", scanner_scan, METH_O, "Rows of comma-separated events, or None when the text is not certainly clean."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, "Scans the event text of one trace, block by block."},
    {Py_tp_init, scanner_init},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    .name = "stepscope.trace._scan.Scanner",
    .basicsize = sizeof(ScannerObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scanner_slots,
};

static int module_exec(PyObject *module) {
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"READS_SHAPES", READS_SHAPES},
        {"READS_LAUNCH", READS_LAUNCH},
        {"READS_BYTES", READS_BYTES},
        {"READS_NAMED", READS_NAMED},
        {"ON_DEVICE", ON_DEVICE},
        {"IGNORED", IGNORED},
        {"IGNORED_BY_NAME", IGNORED_BY_NAME},
        {"UNSUPPORTED", UNSUPPORTED},
        {"VERSION", 5}, /* of scan()'s arguments and result; the reader refuses other versions */
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    /* in the order of the columns in scan.h */
    const char *columns = "track name start_ns duration_ns correlation external_id shapes launch num_bytes";
    if (PyModule_AddStringConstant(module, "COLUMNS", columns) < 0)
        return -1;
    PyObject *type = PyType_FromSpec(&scanner_spec);
    if (!type)
        return -1;
    int status = PyModule_AddObjectRef(module, "Scanner", type);
    Py_DECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_scan",
    .m_doc = "Scanner of Kineto's events in clean JSON text. Optional: the reader gives the same result without it.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__scan(void) {
    return PyModuleDef_Init(&module_definition);
}
