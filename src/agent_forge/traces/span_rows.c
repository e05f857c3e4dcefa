/* Spans as rows of the store: what `to_row` in rows.py does, for spans that hold only what JSON has a form for.

   `rows` gives every other span (a NaN, a lone surrogate, a value that is no JSON, inputs that the attributes may hold
   already) to `to_row` itself, so there is one place that knows what becomes of them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <string.h>

#include "json_text.h"

#define DEPTH 60 /* of a value; `to_json` cuts deeper ones at 64 */

enum { TRACE, SPAN, NAME, KIND, PARENT, START, END, STATUS, ERROR, INPUTS, OUTPUTS, ATTRIBUTES, LINKS, EVENTS, AGENT,
       MODEL, SESSION, CLOCK, RARE, SLOTS };
enum { PROVIDER, CATEGORY, POLICY, TEMPLATE, INPUT_TOKENS, OUTPUT_TOKENS, COST, REWARD, OTEL_KIND, SOME };

static int add_string(Text *text, PyObject *value) {
    Py_ssize_t size;
    const char *from = PyUnicode_AsUTF8AndSize(value, &size); /* fails for lone surrogates */
    return from != NULL && add_json_string(text, from, (size_t)size);
}

static int add_number(Text *text, PyObject *value) {
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    char digits[24];
    return !overflow && add(text, digits, (size_t)PyOS_snprintf(digits, sizeof digits, "%lld", number));
}

static int add_float(Text *text, double value) {
    if (!isfinite(value)) return 0;
    char *digits = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    int good = digits != NULL && add(text, digits, strlen(digits));
    PyMem_Free(digits);
    return good;
}

static int add_value(Text *text, PyObject *value, int depth) {
    if (depth > DEPTH) return 0;
    if (PyUnicode_CheckExact(value)) return add_string(text, value);
    if (value == Py_None) return add(text, "null", 4);
    if (value == Py_True) return add(text, "true", 4);
    if (value == Py_False) return add(text, "false", 5);
    if (PyLong_CheckExact(value)) return add_number(text, value);
    if (PyFloat_CheckExact(value)) return add_float(text, PyFloat_AS_DOUBLE(value));
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
        for (Py_ssize_t i = 0; i < size; i++)
            if (!add(text, i ? "," : "[", 1) || !add_value(text, PySequence_Fast_GET_ITEM(value, i), depth + 1)) return 0;
        return size ? add(text, "]", 1) : add(text, "[]", 2);
    }
    if (!PyDict_CheckExact(value)) return 0;
    PyObject *key, *item;
    Py_ssize_t at = 0;
    int first = 1;
    while (PyDict_Next(value, &at, &key, &item)) {
        if (!PyUnicode_CheckExact(key) || !add(text, first ? "{" : ",", 1) || !add_string(text, key)) return 0;
        if (!add(text, ":", 1) || !add_value(text, item, depth + 1)) return 0;
        first = 0;
    }
    return first ? add(text, "{}", 2) : add(text, "}", 1);
}

/* JSON text, NULL where this is not the ordinary case. */
static PyObject *json(Text *text, PyObject *value) {
    text->size = 0;
    return add_value(text, value, 0) ? PyUnicode_DecodeUTF8(text->at, (Py_ssize_t)text->size, NULL) : NULL;
}

typedef struct {
    PyTypeObject *type;
    Py_ssize_t offset[SLOTS];
    PyObject *some;      /* names of the rare fields that have columns */
    PyObject *rest;      /* names of those that share one */
    PyObject *payloads;  /* attribute names that may hold inputs or outputs */
    PyObject *prefixes;  /* and what such names may begin with */
    PyObject *to_row;
} Plan;

static PyObject *get(const Plan *plan, PyObject *span, int slot) {
    return *(PyObject **)((char *)span + plan->offset[slot]);
}

/* Text that a database takes, or None: 1. What `storable` would have to look at: 0. */
static int is_storable(PyObject *value) {
    if (value == Py_None) return 1;
    if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_ASCII(value)) return 0;
    return memchr(PyUnicode_1BYTE_DATA(value), 0, (size_t)PyUnicode_GET_LENGTH(value)) == NULL;
}

static int is_finite(PyObject *value) {
    if (value == Py_None) return 1;
    return PyFloat_CheckExact(value) && fabs(PyFloat_AS_DOUBLE(value)) < 1e300;
}

/* As `countable` in values.py has it. */
static int is_countable(PyObject *value) {
    if (value == Py_None) return 1;
    int overflow;
    if (!PyLong_CheckExact(value)) return 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && number > -(1LL << 40) && number < 1LL << 40;
}

/* Whether the attributes might hold the inputs or outputs already. -1 on an error. */
static int tells_payloads(const Plan *plan, PyObject *attributes) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes, &at, &key, &value)) {
        int found = PySet_Contains(plan->payloads, key);
        if (found || !PyUnicode_CheckExact(key)) return found ? found : 1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan->prefixes); i++)
            if (PyUnicode_Tailmatch(key, PyTuple_GET_ITEM(plan->prefixes, i), 0, PY_SSIZE_T_MAX, -1)) return 1;
    }
    return 0;
}

static PyObject *bucket_of(PyObject *start, PyObject *end) {
    if (end == Py_None) return Py_NewRef(Py_None);
    if (!PyLong_CheckExact(start) || !PyLong_CheckExact(end)) return NULL;
    long long from = PyLong_AsLongLong(start), to = PyLong_AsLongLong(end);
    if (PyErr_Occurred() || from < 0 || to < 0) return NULL;
    return PyLong_FromLong(to > from ? (long)(4 * log2((double)(to - from))) : 0);
}

/* One row; NULL where it is not the ordinary case. */
static PyObject *row_of(const Plan *plan, PyObject *span, PyObject *grp, PyObject *source, Text *text) {
    static const int storable[] = {NAME, ERROR, AGENT, MODEL, SESSION};
    PyObject *attributes, *rare, *some[SOME], *made[5] = {NULL}, *row = NULL;
    for (int slot = 0; slot < SLOTS; slot++)
        if (slot != CLOCK && get(plan, span, slot) == NULL) return NULL;
    attributes = get(plan, span, ATTRIBUTES);
    rare = get(plan, span, RARE);
    if (!PyDict_CheckExact(attributes) || !PyList_CheckExact(get(plan, span, LINKS))) return NULL;
    PyObject *events = get(plan, span, EVENTS), *inputs = get(plan, span, INPUTS), *outputs = get(plan, span, OUTPUTS);
    if (!PyList_CheckExact(events) || PyList_GET_SIZE(events)) return NULL;
    for (size_t i = 0; i < sizeof storable / sizeof *storable; i++)
        if (!is_storable(get(plan, span, storable[i]))) return NULL;
    for (int i = 0; i < SOME; i++) some[i] = Py_None;
    if (rare != Py_None) {
        if (!PyDict_CheckExact(rare)) return NULL;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan->rest); i++)
            if (PyDict_GetItemWithError(rare, PyTuple_GET_ITEM(plan->rest, i)) != NULL) return NULL;
        for (int i = 0; i < SOME; i++) {
            PyObject *value = PyDict_GetItemWithError(rare, PyTuple_GET_ITEM(plan->some, i));
            if (value != NULL) some[i] = value;
        }
        for (int i = PROVIDER; i <= TEMPLATE; i++)
            if (!is_storable(some[i])) return NULL;
        if (!is_finite(some[COST]) || !is_finite(some[REWARD])) return NULL;
        if (!is_countable(some[INPUT_TOKENS]) || !is_countable(some[OUTPUT_TOKENS])) return NULL;
    }
    if (PyDict_GET_SIZE(attributes) && (inputs != Py_None || outputs != Py_None) && tells_payloads(plan, attributes))
        return NULL;
    PyObject *links = get(plan, span, LINKS);
    made[0] = bucket_of(get(plan, span, START), get(plan, span, END));
    made[1] = inputs == Py_None ? Py_NewRef(Py_None) : json(text, inputs);
    made[2] = outputs == Py_None ? Py_NewRef(Py_None) : json(text, outputs);
    made[3] = PyDict_GET_SIZE(attributes) ? json(text, attributes) : Py_NewRef(Py_None);
    made[4] = PyList_GET_SIZE(links) ? json(text, links) : Py_NewRef(Py_None);
    if (made[0] && made[1] && made[2] && made[3] && made[4])
        row = PyTuple_Pack(
            29, get(plan, span, TRACE), get(plan, span, SPAN), get(plan, span, PARENT), get(plan, span, NAME),
            get(plan, span, KIND), get(plan, span, START), get(plan, span, END), get(plan, span, STATUS),
            get(plan, span, ERROR), get(plan, span, AGENT), get(plan, span, MODEL), some[PROVIDER],
            get(plan, span, SESSION), some[CATEGORY], some[POLICY], some[TEMPLATE], some[INPUT_TOKENS],
            some[OUTPUT_TOKENS], some[COST], some[REWARD], some[OTEL_KIND], grp, made[0], source, made[1], made[2],
            made[3], made[4], Py_None);
    for (int i = 0; i < 5; i++) Py_XDECREF(made[i]);
    return row;
}

/* The rows of spans; `numbers` has each one's group and source. `tables` is (Span, slot names, names with columns,
   names without, payload names, payload prefixes, to_row). */
PyObject *rows(PyObject *spans, PyObject *numbers, PyObject *tables) {
    Plan plan = {.type = (PyTypeObject *)PyTuple_GET_ITEM(tables, 0), .some = PyTuple_GET_ITEM(tables, 2),
                 .rest = PyTuple_GET_ITEM(tables, 3), .payloads = PyTuple_GET_ITEM(tables, 4),
                 .prefixes = PyTuple_GET_ITEM(tables, 5), .to_row = PyTuple_GET_ITEM(tables, 6)};
    PyObject *names = PyTuple_GET_ITEM(tables, 1);
    if (!PyList_CheckExact(spans) || !PyList_CheckExact(numbers) || PyTuple_GET_SIZE(names) != SLOTS ||
        PyTuple_GET_SIZE(plan.some) != SOME || PyList_GET_SIZE(spans) != PyList_GET_SIZE(numbers)) {
        PyErr_SetString(PyExc_TypeError, "rows: not what it takes");
        return NULL;
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        PyObject *place = PyObject_GetAttr((PyObject *)plan.type, PyTuple_GET_ITEM(names, slot));
        int known = place != NULL && Py_IS_TYPE(place, &PyMemberDescr_Type);
        if (known) plan.offset[slot] = ((PyMemberDescrObject *)place)->d_member->offset;
        Py_XDECREF(place);
        if (!known) {
            PyErr_SetString(PyExc_TypeError, "rows: the span has other slots");
            return NULL;
        }
    }
    Text text = {PyMem_Malloc(4096), 0, 4096};
    PyObject *found = text.at == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(spans) && i < PyList_GET_SIZE(numbers); i++) {
        PyObject *span = Py_NewRef(PyList_GET_ITEM(spans, i)), *pair = Py_NewRef(PyList_GET_ITEM(numbers, i));
        PyObject *grp = PyTuple_GET_ITEM(pair, 0), *source = PyTuple_GET_ITEM(pair, 1), *row = NULL;
        if (Py_IS_TYPE(span, plan.type)) row = row_of(&plan, span, grp, source, &text);
        if (row == NULL) {
            PyErr_Clear();
            row = PyObject_CallFunctionObjArgs(plan.to_row, span, grp, source, NULL);
        }
        Py_DECREF(span);
        Py_DECREF(pair);
        if (row == NULL || PyList_Append(found, row) < 0) Py_CLEAR(found);
        Py_XDECREF(row);
    }
    PyMem_Free(text.at);
    return found;
}
