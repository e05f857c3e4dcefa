/* What a batch of rows adds to the rollups and to the rows of traces: what `count_rows` and `trace_rows` in rollup.py
   do, for rows whose numbers are of the ordinary kind. For any other batch both functions give None and have changed
   nothing, and the twin in Python does it, or says what is wrong. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The columns of a row (rows.py). */
enum { TRACE, SPAN, PARENT, NAME, KIND, START, END, STATUS, ERROR, AGENT, MODEL, PROVIDER, SESSION, CATEGORY, POLICY,
       TEMPLATE, INPUT_TOKENS, OUTPUT_TOKENS, COST, REWARD, OTEL_KIND, GROUP, BUCKET, SOURCE, COLUMNS = 29 };
/* The sums of a group (SUMS in rollup.py): whole numbers first, then the others, then where each stands in the list. */
enum { SPANS, DURATION, TOKENS_N, TOKENS_IN, TOKENS_OUT, COST_N, REWARD_N, WHOLE };
enum { COST_SUM, REWARD_SUM, REWARD_SUMSQ, BROKEN };
static const int whole_at[WHOLE] = {0, 1, 2, 3, 4, 5, 7}, broken_at[BROKEN] = {6, 8, 9};
#define STATUSES 8
#define SECOND 1000000000LL
#define LONGEST (1LL << 56) /* ns; see rollup.py */

typedef struct {
    int64_t key[3];
    int used;
    int64_t whole[WHOLE];
    double broken[BROKEN];
} Entry;

typedef struct { Entry *entries; size_t room, mask; } Table;

static int table_for(Table *table, size_t rows) {
    for (table->room = 16; table->room < 2 * rows; table->room *= 2) {}
    table->mask = table->room - 1;
    table->entries = PyMem_Calloc(table->room, sizeof(Entry));
    return table->entries != NULL;
}

static Entry *entry_of(Table *table, int64_t a, int64_t b, int64_t c) {
    uint64_t hash = ((uint64_t)a * 0x9E3779B97F4A7C15u) ^ ((uint64_t)b * 0xC2B2AE3D27D4EB4Fu) ^ ((uint64_t)c * 0x165667B19E3779F9u);
    for (size_t at = (size_t)(hash >> 32) & table->mask;; at = (at + 1) & table->mask) {
        Entry *entry = &table->entries[at];
        if (!entry->used) {
            *entry = (Entry){.key = {a, b, c}, .used = 1};
            return entry;
        }
        if (entry->key[0] == a && entry->key[1] == b && entry->key[2] == c) return entry;
    }
}

/* A whole number: 1; None: 0; anything else: -1. */
static int whole_of(PyObject *value, int64_t *found) {
    if (value == Py_None) return 0;
    int overflow;
    if (!PyLong_CheckExact(value)) return -1;
    *found = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? -1 : 1;
}

static int float_of(PyObject *value, double *found) {
    if (value == Py_None) return 0;
    if (!PyFloat_CheckExact(value)) return -1;
    *found = PyFloat_AS_DOUBLE(value);
    return 1;
}

static int add_to(int64_t *sum, int64_t more) { return !__builtin_add_overflow(*sum, more, sum); }

static int same_text(PyObject *one, PyObject *other) {
    return one == other || (PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other) && PyUnicode_Compare(one, other) == 0);
}

/* The number of a status, which is given one when it is first seen; -1 where there are too many. */
static int status_number(PyObject *seen[STATUSES], int *count, PyObject *status) {
    for (int i = 0; i < *count; i++)
        if (same_text(seen[i], status)) return i;
    if (*count == STATUSES) return -1;
    seen[*count] = status;
    return (*count)++;
}

static int is_row(PyObject *row) { return PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) == COLUMNS; }

/* One finished row into the three tables; 0 where it is not the ordinary case. */
static int count_row(PyObject *row, int status, int error, Table *hours, Table *durations, Table *minutes) {
    int64_t start, end, grp, bucket, in = 0, out = 0, took;
    double cost = 0, reward = 0;
    if (whole_of(PyTuple_GET_ITEM(row, START), &start) != 1 || whole_of(PyTuple_GET_ITEM(row, END), &end) != 1) return 0;
    if (whole_of(PyTuple_GET_ITEM(row, GROUP), &grp) != 1 || whole_of(PyTuple_GET_ITEM(row, BUCKET), &bucket) != 1) return 0;
    int has_in = whole_of(PyTuple_GET_ITEM(row, INPUT_TOKENS), &in), has_out = whole_of(PyTuple_GET_ITEM(row, OUTPUT_TOKENS), &out);
    int has_cost = float_of(PyTuple_GET_ITEM(row, COST), &cost), has_reward = float_of(PyTuple_GET_ITEM(row, REWARD), &reward);
    if (start < 0 || has_in < 0 || has_out < 0 || has_cost < 0 || has_reward < 0) return 0;
    if (__builtin_sub_overflow(end, start, &took)) return 0;
    if (took <= -LONGEST || took >= LONGEST) took = 0;
    Entry *hour = entry_of(hours, start / (3600 * SECOND), grp, status);
    hour->whole[SPANS]++;
    if (!add_to(&hour->whole[DURATION], took)) return 0;
    if (has_in || has_out) {
        hour->whole[TOKENS_N]++;
        if (!add_to(&hour->whole[TOKENS_IN], in) || !add_to(&hour->whole[TOKENS_OUT], out)) return 0;
    }
    if (has_cost) {
        hour->whole[COST_N]++;
        hour->broken[COST_SUM] += cost;
    }
    if (has_reward) {
        hour->whole[REWARD_N]++;
        hour->broken[REWARD_SUM] += reward;
        hour->broken[REWARD_SUMSQ] += reward * reward;
    }
    entry_of(durations, start / (86400 * SECOND), grp, bucket)->whole[SPANS]++;
    Entry *minute = entry_of(minutes, start / (60 * SECOND), 0, 0);
    minute->whole[SPANS]++;
    minute->whole[DURATION] += error;
    return 1;
}

/* Adds `more` to the number at `place` of a list, taking `more` over. */
static int add_item(PyObject *list, Py_ssize_t place, PyObject *more) {
    PyObject *sum = more == NULL ? NULL : PyNumber_Add(PyList_GET_ITEM(list, place), more);
    Py_XDECREF(more);
    return sum != NULL && PyList_SetItem(list, place, sum) == 0;
}

/* The list under a key, which is taken over: made of `zero` if it is new. Borrowed; NULL on an error. */
static PyObject *list_at(PyObject *dict, PyObject *key, Py_ssize_t size) {
    if (key == NULL) return NULL;
    PyObject *found = PyDict_GetItemWithError(dict, key);
    if (found == NULL && !PyErr_Occurred() && (found = PyList_New(size)) != NULL) {
        for (Py_ssize_t i = 0; i < size; i++) {
            int broken = size > 2 && (i == 6 || i > 7);
            PyList_SET_ITEM(found, i, broken ? PyFloat_FromDouble(0.0) : PyLong_FromLong(0));
        }
        int kept = PyDict_SetItem(dict, key, found) == 0;
        Py_DECREF(found); /* the dictionary holds it */
        if (!kept) found = NULL;
    }
    Py_DECREF(key);
    return found;
}

static int merge_hours(const Table *table, PyObject *seen[STATUSES], PyObject *dict) {
    for (size_t at = 0; at < table->room; at++) {
        const Entry *entry = &table->entries[at];
        if (!entry->used) continue;
        PyObject *sums = list_at(dict, Py_BuildValue("LLO", (long long)entry->key[0], (long long)entry->key[1], seen[entry->key[2]]), 10);
        if (sums == NULL) return 0;
        for (int i = 0; i < WHOLE; i++)
            if (entry->whole[i] && !add_item(sums, whole_at[i], PyLong_FromLongLong(entry->whole[i]))) return 0;
        for (int i = 0; i < BROKEN; i++)
            if (entry->broken[i] != 0 && !add_item(sums, broken_at[i], PyFloat_FromDouble(entry->broken[i]))) return 0;
    }
    return 1;
}

static int merge_minutes(const Table *table, PyObject *dict) {
    for (size_t at = 0; at < table->room; at++) {
        const Entry *entry = &table->entries[at];
        if (!entry->used) continue;
        PyObject *sums = list_at(dict, PyLong_FromLongLong(entry->key[0]), 2);
        if (sums == NULL || !add_item(sums, 0, PyLong_FromLongLong(entry->whole[SPANS]))) return 0;
        if (!add_item(sums, 1, PyLong_FromLongLong(entry->whole[DURATION]))) return 0;
    }
    return 1;
}

static int merge_durations(const Table *table, PyObject *dict) {
    for (size_t at = 0; at < table->room; at++) {
        const Entry *entry = &table->entries[at];
        if (!entry->used) continue;
        PyObject *key = Py_BuildValue("LLL", (long long)entry->key[0], (long long)entry->key[1], (long long)entry->key[2]);
        PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
        PyObject *more = key == NULL ? NULL : PyLong_FromLongLong(entry->whole[SPANS]);
        PyObject *sum = more == NULL ? NULL : known == NULL ? Py_NewRef(more) : PyNumber_Add(known, more);
        int good = sum != NULL && PyDict_SetItem(dict, key, sum) == 0;
        Py_XDECREF(key);
        Py_XDECREF(more);
        Py_XDECREF(sum);
        if (!good) return 0;
    }
    return 1;
}

/* Adds the finished rows to (hours, durations, minutes), three dictionaries. True, or None: not the ordinary case. */
PyObject *count(PyObject *rows, PyObject *sums) {
    Table hours = {0}, durations = {0}, minutes = {0};
    PyObject *seen[STATUSES], *result = NULL;
    int statuses = 0, ordinary = PyList_CheckExact(rows);
    size_t size = ordinary ? (size_t)PyList_GET_SIZE(rows) : 0;
    if (!table_for(&hours, size) || !table_for(&durations, size) || !table_for(&minutes, size)) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; ordinary && i < size; i++) {
        PyObject *row = PyList_GET_ITEM(rows, (Py_ssize_t)i), *status;
        if (!is_row(row) || !PyUnicode_CheckExact(status = PyTuple_GET_ITEM(row, STATUS))) ordinary = 0;
        else if (PyTuple_GET_ITEM(row, END) != Py_None) {
            int number = status_number(seen, &statuses, status), error = PyUnicode_CompareWithASCIIString(status, "error") == 0;
            ordinary = number >= 0 && count_row(row, number, error, &hours, &durations, &minutes);
        }
    }
    if (!ordinary) result = Py_NewRef(Py_None);
    else if (merge_hours(&hours, seen, PyTuple_GET_ITEM(sums, 0)) && merge_durations(&durations, PyTuple_GET_ITEM(sums, 1)) &&
             merge_minutes(&minutes, PyTuple_GET_ITEM(sums, 2))) result = Py_NewRef(Py_True);
end:
    PyMem_Free(hours.entries);
    PyMem_Free(durations.entries);
    PyMem_Free(minutes.entries);
    return result;
}

typedef struct {
    PyObject *id, *root, *session, *given; /* borrowed from the rows */
    int64_t start, end, in, out, spans, errors, unfinished;
    double cost;
    int ended, has_in, has_out, has_cost;
} Trace;

typedef struct { Trace *traces; size_t *slots, count, mask; } Traces;

static Trace *trace_of(Traces *all, PyObject *id) {
    if (all->count && all->traces[all->count - 1].id == id) return &all->traces[all->count - 1];
    Py_hash_t hash = PyObject_Hash(id);
    for (size_t at = (size_t)hash & all->mask;; at = (at + 1) & all->mask) {
        if (all->slots[at] == 0) {
            all->slots[at] = ++all->count;
            all->traces[all->count - 1] = (Trace){.id = id};
            return &all->traces[all->count - 1];
        }
        Trace *found = &all->traces[all->slots[at] - 1];
        if (same_text(found->id, id)) return found;
    }
}

static int gather_row(Traces *all, PyObject *row) {
    int64_t start, end = 0, number = 0;
    double cost = 0, reward;
    PyObject *id = PyTuple_GET_ITEM(row, TRACE), *status = PyTuple_GET_ITEM(row, STATUS), *kind = PyTuple_GET_ITEM(row, KIND);
    if (!PyUnicode_CheckExact(id) || !PyUnicode_CheckExact(status) || !PyUnicode_CheckExact(kind)) return 0;
    if (whole_of(PyTuple_GET_ITEM(row, START), &start) != 1) return 0;
    int ended = whole_of(PyTuple_GET_ITEM(row, END), &end);
    if (ended < 0) return 0;
    Trace *trace = trace_of(all, id);
    if (!trace->spans++ || start < trace->start) trace->start = start;
    if (!ended) trace->unfinished++;
    else if (!trace->ended || end > trace->end) {
        trace->end = end;
        trace->ended = 1;
    }
    trace->errors += PyUnicode_CompareWithASCIIString(status, "error") == 0;
    if (trace->root == NULL && PyTuple_GET_ITEM(row, PARENT) == Py_None) trace->root = row;
    if (trace->session == NULL && PyTuple_GET_ITEM(row, SESSION) != Py_None) trace->session = PyTuple_GET_ITEM(row, SESSION);
    if (PyUnicode_CompareWithASCIIString(kind, "model") == 0) {
        int has = whole_of(PyTuple_GET_ITEM(row, INPUT_TOKENS), &number);
        if (has < 0 || (has && !add_to(&trace->in, number))) return 0;
        trace->has_in |= has;
        if ((has = whole_of(PyTuple_GET_ITEM(row, OUTPUT_TOKENS), &number)) < 0 || (has && !add_to(&trace->out, number))) return 0;
        trace->has_out |= has;
        if ((has = float_of(PyTuple_GET_ITEM(row, COST), &cost)) < 0) return 0;
        if (has) trace->cost = trace->has_cost ? trace->cost + cost : cost;
        trace->has_cost |= has;
    } else if (PyUnicode_CompareWithASCIIString(kind, "reward") == 0) {
        int has = float_of(PyTuple_GET_ITEM(row, REWARD), &reward);
        if (has < 0) return 0;
        if (has) trace->given = PyTuple_GET_ITEM(row, REWARD);
    }
    return 1;
}

static PyObject *or_none(PyObject *value) { return Py_NewRef(value == NULL ? Py_None : value); }

/* The row of a trace, in the order of TRACE_COLUMNS in rollup.py. */
static PyObject *row_of(const Trace *trace) {
    static const int of_root[] = {NAME, KIND, STATUS, ERROR, AGENT, CATEGORY};
    PyObject *row = PyTuple_New(18);
    if (row == NULL) return NULL;
    PyTuple_SET_ITEM(row, 0, Py_NewRef(trace->id));
    PyTuple_SET_ITEM(row, 1, PyLong_FromLongLong(trace->start));
    PyTuple_SET_ITEM(row, 2, trace->ended ? PyLong_FromLongLong(trace->end) : Py_NewRef(Py_None));
    PyTuple_SET_ITEM(row, 3, PyLong_FromLongLong(trace->spans));
    PyTuple_SET_ITEM(row, 4, PyLong_FromLongLong(trace->errors));
    PyTuple_SET_ITEM(row, 5, PyLong_FromLongLong(trace->unfinished));
    for (int i = 0; i < 6; i++)
        PyTuple_SET_ITEM(row, 6 + i, or_none(trace->root == NULL ? NULL : PyTuple_GET_ITEM(trace->root, of_root[i])));
    PyTuple_SET_ITEM(row, 12, or_none(trace->session));
    PyTuple_SET_ITEM(row, 13, trace->has_in ? PyLong_FromLongLong(trace->in) : Py_NewRef(Py_None));
    PyTuple_SET_ITEM(row, 14, trace->has_out ? PyLong_FromLongLong(trace->out) : Py_NewRef(Py_None));
    PyTuple_SET_ITEM(row, 15, trace->has_cost ? PyFloat_FromDouble(trace->cost) : Py_NewRef(Py_None));
    PyTuple_SET_ITEM(row, 16, or_none(trace->root == NULL ? NULL : PyTuple_GET_ITEM(trace->root, REWARD)));
    PyTuple_SET_ITEM(row, 17, or_none(trace->given));
    for (Py_ssize_t i = 0; i < 18; i++)
        if (PyTuple_GET_ITEM(row, i) == NULL) {
            Py_DECREF(row);
            return NULL;
        }
    return row;
}

/* The rows of the traces that rows belong to, in the order of their ids, or None: not the ordinary case. */
PyObject *gather(PyObject *rows) {
    Traces all = {0};
    int ordinary = PyList_CheckExact(rows);
    size_t size = ordinary ? (size_t)PyList_GET_SIZE(rows) : 0, room = 16;
    while (room < 2 * size) room *= 2;
    all.mask = room - 1;
    all.traces = PyMem_Malloc((size + 1) * sizeof(Trace));
    all.slots = PyMem_Calloc(room, sizeof(size_t));
    PyObject *found = NULL;
    if (all.traces == NULL || all.slots == NULL) PyErr_NoMemory();
    else {
        for (size_t i = 0; ordinary && i < size; i++) {
            PyObject *row = PyList_GET_ITEM(rows, (Py_ssize_t)i);
            ordinary = is_row(row) && gather_row(&all, row);
        }
        found = ordinary ? PyList_New((Py_ssize_t)all.count) : Py_NewRef(Py_None);
        for (size_t i = 0; ordinary && found != NULL && i < all.count; i++) {
            PyObject *row = row_of(&all.traces[i]);
            if (row == NULL) Py_CLEAR(found);
            else PyList_SET_ITEM(found, (Py_ssize_t)i, row);
        }
        if (ordinary && found != NULL && PyList_Sort(found) < 0) Py_CLEAR(found);
    }
    PyMem_Free(all.traces);
    PyMem_Free(all.slots);
    return found;
}

/* The columns in which some row is not None, as bits, or None where the rows are not tuples of that size. */
PyObject *filled(PyObject *rows, PyObject *columns) {
    Py_ssize_t width = PyLong_AsSsize_t(columns);
    uint64_t found = 0;
    if (!PyList_CheckExact(rows) || width < 1 || width > 63) return Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != width) return Py_NewRef(Py_None);
        for (Py_ssize_t at = 0; at < width; at++) found |= (uint64_t)(PyTuple_GET_ITEM(row, at) != Py_None) << at;
    }
    return PyLong_FromUnsignedLongLong(found);
}
