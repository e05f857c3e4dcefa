/* OTLP trace requests, in protobuf and in JSON, straight to rows of the store: what otlp_protobuf.py and otlp.py do and
   then rows.py, with no object made for an attribute.

   It reads the ordinary case only. A span that is not (a value of another type than its field has, bytes, a NaN, a key
   that is there twice) is given to the reader in Python as it came, and of a request that is malformed nothing is read
   here: the reader in Python decides what it is and says so. So there is one place that knows what is refused, and this
   file has only to be right about what it accepts. Every length is checked against what is left before it is used, and
   text is made by Python's own decoder, which refuses what is not UTF-8.

   https://github.com/open-telemetry/opentelemetry-proto (trace.proto, common.proto), protobuf.dev/programming-guides/encoding
*/
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "json_text.h"

#define DEPTH 40        /* of nested values; protobuf itself gives up at 100 messages, which are about 47 of them */
#define MOST_KEYS 128   /* of one set of attributes */
#define MOST_RULES 256  /* places for attribute names that tell a field; a power of two, more than twice what there are */
#define SHARED 1024     /* short texts that are kept, as names and models come again and again; a power of two */
#define GROUPS 256      /* and groups */

typedef struct { const unsigned char *at, *end; } Part;

static size_t size_of(Part part) { return (size_t)(part.end - part.at); }

static int is(Part part, const char *name) { return size_of(part) == strlen(name) && memcmp(part.at, name, size_of(part)) == 0; }

static int add_chars(Text *text, const char *chars) { return add(text, chars, strlen(chars)); }

static int add_string(Text *text, Part part) { return add_json_string(text, (const char *)part.at, size_of(part)); }

static int add_whole(Text *text, long long number) {
    char digits[24];
    return add(text, digits, (size_t)PyOS_snprintf(digits, sizeof digits, "%lld", number));
}

static int add_float(Text *text, double number) {
    static struct { double number; char digits[32]; } known[64];
    uint64_t bits;
    if (!isfinite(number)) return 0;
    memcpy(&bits, &number, sizeof bits);
    size_t place = (size_t)((bits * 0x9E3779B97F4A7C15u) >> 58);
    if (known[place].digits[0] && memcmp(&known[place].number, &number, sizeof number) == 0) return add_chars(text, known[place].digits);
    char *digits = PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    int good = digits != NULL && add_chars(text, digits);
    if (good && strlen(digits) < sizeof known->digits) {
        known[place].number = number;
        strcpy(known[place].digits, digits);
    }
    PyMem_Free(digits);
    return good;
}

static PyObject *to_text(const Text *text) { return PyUnicode_DecodeUTF8(text->at, (Py_ssize_t)text->size, NULL); }

/* What the conventions say. */

enum { AGENT, MODEL, PROVIDER, SESSION, CATEGORY, POLICY, TEMPLATE, INPUT_TOKENS, OUTPUT_TOKENS, COST, REWARD, FIELDS };

typedef struct {
    const char *name;
    size_t size;
    int field, rank;    /* what it tells, and before whom; -1: nothing */
    int kind;           /* its place among the attributes that tell the kind; -1: none */
} Rule;

static struct {
    PyObject *tables;   /* of which this was made */
    PyTypeObject *type;
    Py_ssize_t trace_at, row_at;
    PyObject *kinds, *statuses, *other, *span_of_protobuf, *span_of_json, *source_of, *session_of, *asked;
    Rule rules[MOST_RULES];
} plan;

static size_t place_of(const char *name, size_t size) {
    uint64_t first = 0, last = 0;
    memcpy(&first, name, size < 8 ? size : 8);
    if (size > 8) memcpy(&last, name + size - 8, 8);
    return (size_t)(((first ^ (last * 0xC2B2AE3D27D4EB4Fu) ^ size) * 0x9E3779B97F4A7C15u) >> 40);
}

static Rule *rule_of(Part name) {
    size_t size = size_of(name);
    for (size_t at = place_of((const char *)name.at, size);; at++) {
        Rule *rule = &plan.rules[at % MOST_RULES];
        if (rule->name == NULL || (rule->size == size && memcmp(rule->name, name.at, size) == 0)) return rule;
    }
}

static Rule *new_rule(PyObject *name) {
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == NULL) return NULL;
    Rule *rule = rule_of((Part){(const unsigned char *)text, (const unsigned char *)text + size});
    if (rule->name == NULL) *rule = (Rule){.name = text, .size = (size_t)size, .field = -1, .kind = -1};
    return rule;
}

static int slot_of(PyTypeObject *type, const char *name, Py_ssize_t *offset) {
    PyObject *place = PyObject_GetAttrString((PyObject *)type, name);
    int known = place != NULL && Py_IS_TYPE(place, &PyMemberDescr_Type);
    if (known) *offset = ((PyMemberDescrObject *)place)->d_member->offset;
    Py_XDECREF(place);
    return known;
}

/* `tables` is (Packed, {name: (rank, field)}, ((name, {value: kind}, what stands around an agent's name), ...), statuses,
   "other", what Python does: the span of a protobuf message, of JSON text, the text of a source, and its session; and the
   names of attributes in which Python finds the model of a call that has none). */
static int set_plan(PyObject *tables) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (plan.tables == tables) return 1;
    memset(&plan, 0, sizeof plan);
    plan.type = (PyTypeObject *)PyTuple_GET_ITEM(tables, 0);
    plan.kinds = PyTuple_GET_ITEM(tables, 2);
    plan.statuses = PyTuple_GET_ITEM(tables, 3);
    plan.other = PyTuple_GET_ITEM(tables, 4);
    plan.span_of_protobuf = PyTuple_GET_ITEM(tables, 5);
    plan.span_of_json = PyTuple_GET_ITEM(tables, 6);
    plan.source_of = PyTuple_GET_ITEM(tables, 7);
    plan.session_of = PyTuple_GET_ITEM(tables, 8);
    plan.asked = PyTuple_GET_ITEM(tables, 9);
    if (PyDict_GET_SIZE(PyTuple_GET_ITEM(tables, 1)) + PyTuple_GET_SIZE(plan.kinds) > MOST_RULES / 2) return 0;
    if (!slot_of(plan.type, "trace_id", &plan.trace_at) || !slot_of(plan.type, "row", &plan.row_at)) return 0;
    while (PyDict_Next(PyTuple_GET_ITEM(tables, 1), &at, &key, &value)) {
        Rule *rule = new_rule(key);
        if (rule == NULL) return 0;
        rule->rank = (int)PyLong_AsLong(PyTuple_GET_ITEM(value, 0));
        rule->field = (int)PyLong_AsLong(PyTuple_GET_ITEM(value, 1));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan.kinds); i++) {
        Rule *rule = new_rule(PyTuple_GET_ITEM(PyTuple_GET_ITEM(plan.kinds, i), 0));
        if (rule == NULL) return 0;
        rule->kind = (int)i;
    }
    plan.tables = Py_NewRef(tables);
    return 1;
}

/* Text as a Python object that a database takes; NULL for what is none or holds a NUL. Short ones are shared. */
static PyObject *shared_text(Part part) {
    static PyObject *known[SHARED];
    size_t size = size_of(part);
    if (memchr(part.at, 0, size) != NULL) return NULL;
    if (size > 64) return PyUnicode_DecodeUTF8((const char *)part.at, (Py_ssize_t)size, NULL);
    PyObject **place = &known[place_of((const char *)part.at, size) % SHARED];
    if (*place != NULL && (size_t)PyUnicode_GET_LENGTH(*place) == size && memcmp(PyUnicode_1BYTE_DATA(*place), part.at, size) == 0)
        return Py_NewRef(*place);
    PyObject *found = PyUnicode_DecodeUTF8((const char *)part.at, (Py_ssize_t)size, NULL);
    if (found != NULL && PyUnicode_IS_COMPACT_ASCII(found)) {
        Py_XDECREF(*place);
        *place = Py_NewRef(found);
    }
    return found;
}

/* (agent, name, kind, model, category), shared by the spans that have the same. */
static PyObject *group_of(PyObject *const names[5]) {
    static PyObject *known[GROUPS];
    uintptr_t hash = 0;
    for (int i = 0; i < 5; i++) hash = (hash ^ ((uintptr_t)names[i] >> 4)) * (uintptr_t)0x9E3779B1u;
    PyObject **place = &known[(hash >> 16) % GROUPS];
    int same = *place != NULL;
    for (int i = 0; same && i < 5; i++) same = PyTuple_GET_ITEM(*place, i) == names[i];
    if (same) return Py_NewRef(*place);
    PyObject *found = PyTuple_Pack(5, names[0], names[1], names[2], names[3], names[4]);
    if (found == NULL) return NULL;
    Py_XDECREF(*place);
    *place = found;
    return Py_NewRef(found);
}

/* A span that is being read. */

enum { S_OTHER, S_TEXT, S_WHOLE, S_FLOAT };

typedef struct {
    int kind;
    Part text;
    long long whole;
    double number;
} Scalar;

typedef struct {
    PyObject *trace_id, *span_id, *parent_id, *name, *error, *field[FIELDS];
    int rank[FIELDS], kind_rank, status;
    PyObject *kind;                      /* borrowed */
    uint64_t start, end, otel_kind;
    Part keys[MOST_KEYS];
    size_t count;
    Text attributes, links, events, otel, scratch;
} Reading;

static void begin(Reading *reading) {
    reading->trace_id = reading->span_id = reading->parent_id = reading->name = reading->error = NULL;
    memset(reading->field, 0, sizeof reading->field);
    reading->kind_rank = INT32_MAX;
    reading->status = 0;
    reading->kind = plan.other;
    reading->start = reading->end = reading->otel_kind = 0;
    reading->count = reading->attributes.size = reading->links.size = reading->events.size = reading->otel.size = 0;
}

static void drop(Reading *reading) {
    Py_CLEAR(reading->trace_id);
    Py_CLEAR(reading->span_id);
    Py_CLEAR(reading->parent_id);
    Py_CLEAR(reading->name);
    Py_CLEAR(reading->error);
    for (int i = 0; i < FIELDS; i++) Py_CLEAR(reading->field[i]);
}

static void finish(Reading *reading) {
    Text *texts[] = {&reading->attributes, &reading->links, &reading->events, &reading->otel, &reading->scratch};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) PyMem_Free(texts[i]->at);
}

/* A key that is not there yet: 1. */
static int is_new(Part *keys, size_t *count, size_t most, Part key) {
    if (*count == most) return 0;
    for (size_t i = 0; i < *count; i++)
        if (size_of(keys[i]) == size_of(key) && memcmp(keys[i].at, key.at, size_of(key)) == 0) return 0;
    keys[(*count)++] = key;
    return 1;
}

/* What a value is as a field; NULL where it is not of the type that the field has. */
static PyObject *field_of(int field, const Scalar *value) {
    if (field < INPUT_TOKENS) return value->kind == S_TEXT ? shared_text(value->text) : NULL;
    if (field < COST) { /* `countable` in values.py */
        if (value->kind != S_WHOLE || value->whole <= -(1LL << 40) || value->whole >= 1LL << 40) return NULL;
        return PyLong_FromLongLong(value->whole);
    }
    if (value->kind != S_FLOAT && value->kind != S_WHOLE) return NULL;
    double number = value->kind == S_FLOAT ? value->number : (double)value->whole;
    return fabs(number) < 1e300 ? PyFloat_FromDouble(number) : NULL;
}

/* What an attribute tells of the span's fields: `conventions.fill`. 0 where it is not the ordinary case. */
static int tell(Reading *reading, Part key, const Scalar *value) {
    const Rule *rule = rule_of(key);
    if (rule->name == NULL) return 1;
    if (rule->field >= 0) {
        PyObject *found = field_of(rule->field, value), **place = &reading->field[rule->field];
        if (found == NULL) return 0;
        if (*place == NULL || rule->rank < reading->rank[rule->field]) {
            Py_XSETREF(*place, found);
            reading->rank[rule->field] = rule->rank;
        } else Py_DECREF(found);
    }
    if (rule->kind >= 0 && rule->kind < reading->kind_rank && value->kind == S_TEXT) {
        PyObject *text = shared_text(value->text);
        if (text == NULL) return 0;
        PyObject *kind = PyDict_GetItemWithError(PyTuple_GET_ITEM(PyTuple_GET_ITEM(plan.kinds, rule->kind), 1), text);
        Py_DECREF(text);
        if (kind != NULL) {
            reading->kind = kind;
            reading->kind_rank = rule->kind;
        }
    }
    return 1;
}

/* A name without what a convention puts around the agent's name in it: ((before, after), ...), as bytes. */
static Part within(Part name, PyObject *around) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(around); i++) {
        PyObject *before = PyTuple_GET_ITEM(PyTuple_GET_ITEM(around, i), 0), *after = PyTuple_GET_ITEM(PyTuple_GET_ITEM(around, i), 1);
        size_t first = (size_t)PyBytes_GET_SIZE(before), last = (size_t)PyBytes_GET_SIZE(after);
        if (size_of(name) <= first + last || memcmp(name.at, PyBytes_AS_STRING(before), first) != 0) continue;
        if (memcmp(name.end - last, PyBytes_AS_STRING(after), last) == 0) return (Part){name.at + first, name.end - last};
    }
    return name;
}

/* The name of a span of an agent that is not named stands in for it: `conventions.fill`. */
static int stand_in(Reading *reading) {
    PyObject *agent = reading->field[AGENT];
    Py_ssize_t size;
    if (reading->kind_rank == INT32_MAX || (agent != NULL && PyUnicode_GET_LENGTH(agent))) return 1;
    PyObject *around = PyTuple_GET_ITEM(PyTuple_GET_ITEM(plan.kinds, reading->kind_rank), 2);
    if (around == Py_None || PyUnicode_CompareWithASCIIString(reading->kind, "agent") != 0) return 1;
    const char *name = PyUnicode_AsUTF8AndSize(reading->name, &size);
    if (name == NULL || size == 0) return name != NULL;
    if ((agent = shared_text(within((Part){(const unsigned char *)name, (const unsigned char *)name + size}, around))) == NULL) return 0;
    Py_XSETREF(reading->field[AGENT], agent);
    return 1;
}

/* A call of a model that is not named, with an attribute in which Python may find it: rare, as only a call that failed
   has no name of the model that answered. */
static int only_asked(const Reading *reading) {
    PyObject *model = reading->field[MODEL];
    if ((model != NULL && PyUnicode_GET_LENGTH(model)) || PyUnicode_CompareWithASCIIString(reading->kind, "model") != 0) return 0;
    for (size_t i = 0; i < reading->count; i++)
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(plan.asked); n++)
            if (is(reading->keys[i], PyBytes_AS_STRING(PyTuple_GET_ITEM(plan.asked, n)))) return 1;
    return 0;
}

/* An evaluation of another program that tells no reward: what it is then, Python says (`conventions.UNSCORED`). */
static int is_unscored(const Reading *reading) {
    return reading->field[REWARD] == NULL && reading->kind_rank != 0 && PyUnicode_CompareWithASCIIString(reading->kind, "reward") == 0;
}

/* {"events": [...], "otel": {...}} of what there is. */
static PyObject *extra_of(Reading *reading) {
    Text *text = &reading->scratch;
    if (!reading->events.size && !reading->otel.size) return Py_NewRef(Py_None);
    text->size = 0;
    if (!add(text, "{", 1)) return NULL;
    if (reading->events.size && (!add_chars(text, "\"events\":") || !add(text, reading->events.at, reading->events.size) || !add(text, "]", 1)))
        return NULL;
    if (reading->otel.size) {
        if (reading->events.size && !add(text, ",", 1)) return NULL;
        if (!add_chars(text, "\"otel\":") || !add(text, reading->otel.at, reading->otel.size) || !add(text, "}", 1)) return NULL;
    }
    return add(text, "}", 1) ? to_text(text) : NULL;
}

/* The text of a list or object that was begun; None where nothing was. */
static PyObject *closed(Text *text, const char *end) {
    if (!text->size) return Py_NewRef(Py_None);
    return add_chars(text, end) ? to_text(text) : NULL;
}

static PyObject *or_none(PyObject *value) { return Py_NewRef(value == NULL ? Py_None : value); }

static PyObject *bucket_of(uint64_t start, uint64_t end) {
    if (!end) return Py_NewRef(Py_None);
    return PyLong_FromLong(end > start ? (long)(4 * log2((double)(end - start))) : 0);
}

/* The row, as rows.py has its columns, with the group's names and the source's cell where their numbers will be. */
static PyObject *row_of(Reading *reading, PyObject *source) {
    static PyObject *empty;
    if (empty == NULL && (empty = PyUnicode_New(0, 127)) == NULL) return NULL;
    PyObject **field = reading->field;
    if (reading->name == NULL) reading->name = Py_NewRef(empty);
    if (!stand_in(reading) || only_asked(reading) || is_unscored(reading)) return NULL;
    PyObject *names[5] = {field[AGENT] ? field[AGENT] : empty, reading->name, reading->kind,
                          field[MODEL] ? field[MODEL] : empty, field[CATEGORY] ? field[CATEGORY] : empty};
    PyObject *values[29] = {
        Py_NewRef(reading->trace_id), Py_NewRef(reading->span_id), or_none(reading->parent_id), Py_NewRef(reading->name),
        Py_NewRef(reading->kind), PyLong_FromUnsignedLongLong(reading->start),
        reading->end ? PyLong_FromUnsignedLongLong(reading->end) : Py_NewRef(Py_None),
        Py_NewRef(PyTuple_GET_ITEM(plan.statuses, reading->status)), or_none(reading->error), or_none(field[AGENT]),
        or_none(field[MODEL]), or_none(field[PROVIDER]), or_none(field[SESSION]), or_none(field[CATEGORY]),
        or_none(field[POLICY]), or_none(field[TEMPLATE]), or_none(field[INPUT_TOKENS]), or_none(field[OUTPUT_TOKENS]),
        or_none(field[COST]), or_none(field[REWARD]), PyLong_FromUnsignedLongLong(reading->otel_kind), group_of(names),
        bucket_of(reading->start, reading->end), Py_NewRef(source), Py_NewRef(Py_None), Py_NewRef(Py_None),
        closed(&reading->attributes, "}"), closed(&reading->links, "]"), extra_of(reading)};
    PyObject *row = PyTuple_New(29);
    for (int i = 0; row != NULL && i < 29; i++)
        if (values[i] == NULL) Py_CLEAR(row);
    for (int i = 0; i < 29; i++) {
        if (row != NULL) PyTuple_SET_ITEM(row, i, values[i]);
        else Py_XDECREF(values[i]);
    }
    return row;
}

/* The span of a row, with nothing of it made yet. */
static PyObject *packed(Reading *reading, PyObject *source) {
    PyObject *row = row_of(reading, source), *span = row == NULL ? NULL : plan.type->tp_alloc(plan.type, 0);
    if (span == NULL) {
        Py_XDECREF(row);
        return NULL;
    }
    *(PyObject **)((char *)span + plan.trace_at) = Py_NewRef(reading->trace_id);
    *(PyObject **)((char *)span + plan.row_at) = row;
    return span;
}

static int append(PyObject *list, PyObject *item) {
    int good = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return good;
}

/* The id that was read last, again, if it is the same. */
static PyObject *same_id(PyObject *before, Part digits) {
    if (before == NULL || (size_t)PyUnicode_GET_LENGTH(before) != size_of(digits)) return NULL;
    return memcmp(PyUnicode_1BYTE_DATA(before), digits.at, size_of(digits)) == 0 ? Py_NewRef(before) : NULL;
}

static PyObject *id_text(PyObject **before, Part digits) {
    PyObject *found = before == NULL ? NULL : same_id(*before, digits);
    if (found != NULL) return found;
    if ((found = PyUnicode_New((Py_ssize_t)size_of(digits), 127)) == NULL) return NULL;
    memcpy(PyUnicode_1BYTE_DATA(found), digits.at, size_of(digits));
    if (before != NULL) Py_XSETREF(*before, Py_NewRef(found));
    return found;
}

/* Gives the session that their source tells to the spans from `first` to `last` that have none. Nobody has seen the rows
   yet. What Python reads, it gives the session itself. */
static int lend_session(PyObject *spans, Py_ssize_t first, Py_ssize_t last, PyObject *source) {
    if (first == last) return 1;
    PyObject *session = PyObject_CallFunctionObjArgs(plan.session_of, source, NULL);
    if (session == NULL) return 0;
    for (; session != Py_None && first < last; first++) {
        PyObject *span = PyList_GET_ITEM(spans, first);
        if (!Py_IS_TYPE(span, plan.type)) continue;
        PyObject *row = *(PyObject **)((char *)span + plan.row_at), *own = PyTuple_GET_ITEM(row, 12);
        if (own != Py_None && PyUnicode_GET_LENGTH(own)) continue;
        PyTuple_SET_ITEM(row, 12, Py_NewRef(session));
        Py_DECREF(own);
    }
    Py_DECREF(session);
    return 1;
}

static PyObject *last_trace, *last_parent; /* most spans share both with the span before */

/* Protobuf. */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct {
    uint32_t number;
    int wire;
    uint64_t value;       /* VARINT, FIXED64, FIXED32 */
    Part part;            /* BYTES */
} Field;

static int varint(Part *part, uint64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 64 && part->at < part->end; shift += 7) {
        unsigned char byte = *part->at++;
        found |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = found;
            return 1;
        }
    }
    return 0;
}

/* The next field of a message: 1; its end: 0; nothing that can be read: -1. */
static int next(Part *part, Field *field) {
    uint64_t key;
    if (part->at == part->end) return 0;
    if (!varint(part, &key) || key >> 3 == 0 || key >> 3 > 536870911) return -1;
    field->number = (uint32_t)(key >> 3);
    field->wire = (int)(key & 7);
    size_t size = 0;
    switch (field->wire) {
    case VARINT:
        return varint(part, &field->value) ? 1 : -1;
    case FIXED64:
        size = 8;
        break;
    case FIXED32:
        size = 4;
        break;
    case BYTES:
        if (!varint(part, &field->value) || field->value > size_of(*part)) return -1;
        field->part = (Part){part->at, part->at + field->value};
        part->at = field->part.end;
        return 1;
    default:
        return -1;
    }
    if (size_of(*part) < size) return -1;
    field->value = 0;
    for (size_t i = 0; i < size; i++) field->value |= (uint64_t)part->at[i] << (8 * i);
    part->at += size;
    return 1;
}

static int pair_of(Part part, Part *key, Part *value) {
    Field field;
    int more;
    *key = (Part){part.at, part.at};
    *value = (Part){NULL, NULL};
    while ((more = next(&part, &field)) > 0) {
        if (field.number > 2) continue;
        if (field.wire != BYTES) return 0;
        if (field.number == 1) *key = field.part;
        else if (value->at != NULL) return 0; /* two values would have to be merged */
        else *value = field.part;
    }
    return more == 0;
}

static int add_value(Text *text, Part part, int depth, Scalar *scalar);

static int add_list(Text *text, Part part, int depth) {
    Field field;
    Scalar inner;
    int more, first = 1;
    while ((more = next(&part, &field)) > 0) {
        if (field.number != 1) continue;
        if (field.wire != BYTES || !add(text, first ? "[" : ",", 1) || !add_value(text, field.part, depth + 1, &inner)) return 0;
        first = 0;
    }
    return more == 0 && add_chars(text, first ? "[]" : "]");
}

/* A list of KeyValue messages under field 1 (KeyValueList, Resource) or 3, as an object. */
static int add_object(Text *text, Part part, uint32_t number, int depth) {
    Field field;
    Scalar inner;
    Part keys[MOST_KEYS], key, value;
    size_t count = 0;
    int more;
    while ((more = next(&part, &field)) > 0) {
        if (field.number != number) continue;
        if (field.wire != BYTES || !pair_of(field.part, &key, &value) || !is_new(keys, &count, MOST_KEYS, key)) return 0;
        if (!add(text, count == 1 ? "{" : ",", 1) || !add_string(text, key) || !add(text, ":", 1)) return 0;
        if (!add_value(text, value, depth + 1, &inner)) return 0;
    }
    return more == 0 && add_chars(text, count ? "}" : "{}");
}

/* An AnyValue. */
static int add_value(Text *text, Part part, int depth, Scalar *scalar) {
    Field field;
    scalar->kind = S_OTHER;
    if (depth > DEPTH) return 0;
    if (part.at == part.end) return add_chars(text, "null");
    if (next(&part, &field) != 1 || part.at != part.end) return 0; /* of several, the last would count */
    static const int wires[] = {-1, BYTES, VARINT, VARINT, FIXED64, BYTES, BYTES, BYTES};
    if (field.number > 7 || field.wire != wires[field.number]) return 0;
    switch (field.number) {
    case 1:
        scalar->kind = S_TEXT;
        scalar->text = field.part;
        return add_string(text, field.part);
    case 2: return add_chars(text, field.value ? "true" : "false");
    case 3:
        scalar->kind = S_WHOLE;
        scalar->whole = (long long)field.value;
        return add_whole(text, scalar->whole);
    case 4:
        scalar->kind = S_FLOAT;
        memcpy(&scalar->number, &field.value, sizeof scalar->number);
        return add_float(text, scalar->number);
    case 5: return add_list(text, field.part, depth);
    case 6: return add_object(text, field.part, 1, depth);
    default: return 0; /* bytes */
    }
}

static int read_attribute(Reading *reading, Part part) {
    Part key, value;
    Scalar scalar;
    Text *text = &reading->attributes;
    if (!pair_of(part, &key, &value) || !is_new(reading->keys, &reading->count, MOST_KEYS, key)) return 0;
    if (!add(text, text->size ? "," : "{", 1) || !add_string(text, key) || !add(text, ":", 1)) return 0;
    return add_value(text, value, 1, &scalar) && tell(reading, key, &scalar);
}

static Part hex(Part part, unsigned char *to) {
    static const char digits[] = "0123456789abcdef";
    Part found = {to, to + 2 * size_of(part)};
    for (; part.at < part.end; part.at++) {
        *to++ = (unsigned char)digits[*part.at >> 4];
        *to++ = (unsigned char)digits[*part.at & 15];
    }
    return found;
}

static int is_zero(Part part) {
    while (part.at < part.end)
        if (*part.at++) return 0;
    return 1;
}

/* What has no field of its own, as text or as a number. */
static int keep(Text *text, const char *name, const Part *words, uint64_t number) {
    if (!add(text, text->size ? "," : "{", 1) || !add(text, "\"", 1) || !add_chars(text, name) || !add(text, "\":", 2)) return 0;
    return words != NULL ? add_string(text, *words) : number <= INT64_MAX && add_whole(text, (long long)number);
}

static int read_event(Text *text, Part part) {
    Field field;
    int more;
    uint64_t time = 0, dropped = 0;
    Part name = {part.at, part.at}, whole = part;
    while ((more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, FIXED64, BYTES, BYTES, VARINT};
        if (field.number > 4) continue;
        if (field.wire != wires[field.number]) return 0;
        if (field.number == 1) time = field.value;
        else if (field.number == 4) dropped = (uint32_t)field.value;
        else if (field.number == 2) name = field.part;
    }
    if (more < 0 || time > INT64_MAX) return 0;
    if (!add(text, text->size ? "," : "[", 1) || !add_chars(text, "{\"name\":") || !add_string(text, name)) return 0;
    if (!add_chars(text, ",\"time_ns\":") || !add_whole(text, (long long)time) || !add_chars(text, ",\"attributes\":")) return 0;
    if (!add_object(text, whole, 3, 1)) return 0;
    if (dropped && (!add_chars(text, ",\"droppedAttributesCount\":") || !add_whole(text, (long long)dropped))) return 0;
    return add(text, "}", 1);
}

/* (trace, span) of a link that has nothing else. */
static int read_link(Text *text, Part part) {
    Field field;
    int more;
    unsigned char digits[48];
    Part ids[3] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}};
    while ((more = next(&part, &field)) > 0) {
        if (field.number > 6 || (field.number == 5 && field.wire == VARINT)) continue;
        if (field.number > 2 || field.wire != BYTES) return 0;
        ids[field.number] = field.part;
    }
    if (more < 0 || size_of(ids[1]) != 16 || size_of(ids[2]) != 8) return 0;
    Part trace = hex(ids[1], digits), span = hex(ids[2], digits + 32);
    return add(text, text->size ? "," : "[", 1) && add(text, "[", 1) && add_string(text, trace) && add(text, ",", 1) &&
           add_string(text, span) && add(text, "]", 1);
}

static int read_status(Reading *reading, Part part) {
    Field field;
    int more;
    uint64_t code = 0;
    Part message = {NULL, NULL};
    while ((more = next(&part, &field)) > 0) {
        if (field.number == 2 && field.wire == BYTES) message = field.part;
        else if (field.number == 3 && field.wire == VARINT) code = field.value;
        else if (field.number == 2 || field.number == 3) return 0;
    }
    if (more < 0 || code > 2) return 0;
    reading->status = (int)code;
    if (message.at == message.end) return 1;
    if (code != 2) return keep(&reading->otel, "message", &message, 0);
    return (reading->error = shared_text(message)) != NULL;
}

static int read_ids(Reading *reading, const Part ids[5]) {
    unsigned char digits[64];
    if (size_of(ids[1]) != 16 || size_of(ids[2]) != 8 || is_zero(ids[1])) return 0;
    reading->trace_id = id_text(&last_trace, hex(ids[1], digits));
    reading->span_id = id_text(NULL, hex(ids[2], digits));
    int child = size_of(ids[4]) == 8 && !is_zero(ids[4]);
    if (child) reading->parent_id = id_text(&last_parent, hex(ids[4], digits));
    return reading->trace_id != NULL && reading->span_id != NULL && (!child || reading->parent_id != NULL);
}

/* One Span message; 0 where it is not the ordinary case. */
static int read_span(Reading *reading, Part part) {
    static const int wires[] = {-1, BYTES, BYTES, BYTES, BYTES, BYTES, VARINT, FIXED64, FIXED64, BYTES, VARINT,
                                BYTES, VARINT, BYTES, VARINT, BYTES, FIXED32};
    static const char *counts[] = {"droppedAttributesCount", NULL, "droppedEventsCount", NULL, "droppedLinksCount"};
    Field field;
    int more;
    Part ids[5] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}}, status = {NULL, NULL}, name = {NULL, NULL};
    while ((more = next(&part, &field)) > 0) {
        if (field.number > 16) continue;
        if (field.wire != wires[field.number]) return 0;
        switch (field.number) {
        case 1: case 2: case 4: ids[field.number] = field.part; break;
        case 3:
            if (size_of(field.part) && !keep(&reading->otel, "traceState", &field.part, 0)) return 0;
            break;
        case 5: name = field.part; break;
        case 6: reading->otel_kind = field.value; break;
        case 7: reading->start = field.value; break;
        case 8: reading->end = field.value; break;
        case 9:
            if (!read_attribute(reading, field.part)) return 0;
            break;
        case 10: case 12: case 14:
            if ((uint32_t)field.value && !keep(&reading->otel, counts[field.number - 10], NULL, (uint32_t)field.value)) return 0;
            break;
        case 11:
            if (!read_event(&reading->events, field.part)) return 0;
            break;
        case 13:
            if (!read_link(&reading->links, field.part)) return 0;
            break;
        case 15:
            if (status.at != NULL) return 0; /* two would have to be merged */
            status = field.part;
            break;
        default:
            if (field.value && !keep(&reading->otel, "flags", NULL, field.value)) return 0;
        }
    }
    if (more < 0 || reading->start > INT64_MAX || reading->end > INT64_MAX || reading->otel_kind > INT32_MAX) return 0;
    if (!read_ids(reading, ids) || (status.at != NULL && !read_status(reading, status))) return 0;
    return name.at == NULL || (reading->name = shared_text(name)) != NULL;
}

/* The only field of that number in a message, as bytes: 1; none: 0; unreadable, or more than one: -1. */
static int only(Part part, uint32_t number, Part *found) {
    Field field;
    int more, count = 0;
    *found = (Part){part.at, part.at};
    while ((more = next(&part, &field)) > 0) {
        if (field.number != number) continue;
        if (field.wire != BYTES || count++) return -1;
        *found = field.part;
    }
    return more < 0 ? -1 : count;
}

/* A member of an object that is being written, if it is not empty. */
static int note(Text *text, size_t start, const char *name, Part words) {
    if (words.at == words.end) return 1;
    return add(text, text->size > start ? "," : "{", 1) && add(text, "\"", 1) && add_chars(text, name) && add(text, "\":", 2) &&
           add_string(text, words);
}

/* The InstrumentationScope of a ScopeSpans message, with the addresses of both schemas. */
static int add_scope(Text *text, Part part, Part own_schema, Part schema) {
    Field field;
    int more, attributes = 0;
    Part name = {part.at, part.at}, version = name, whole = part;
    uint32_t dropped = 0;
    size_t start = text->size;
    while ((more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, BYTES, BYTES, BYTES, VARINT};
        if (field.number > 4) continue;
        if (field.wire != wires[field.number]) return 0;
        if (field.number == 1) name = field.part;
        else if (field.number == 2) version = field.part;
        else if (field.number == 3) attributes = 1;
        else dropped = (uint32_t)field.value;
    }
    if (more < 0 || !note(text, start, "name", name) || !note(text, start, "version", version)) return 0;
    if (dropped && (!add(text, text->size > start ? "," : "{", 1) || !add_chars(text, "\"droppedAttributesCount\":") || !add_whole(text, dropped)))
        return 0;
    if (attributes && (!add(text, text->size > start ? "," : "{", 1) || !add_chars(text, "\"attributes\":") || !add_object(text, whole, 3, 1)))
        return 0;
    if (!note(text, start, "schemaUrl", own_schema) || !note(text, start, "resourceSchemaUrl", schema)) return 0;
    return add_chars(text, text->size > start ? "}" : "{}");
}

/* {"resource", "scope"} as text in a list of one: the cell that the rows of this scope share. */
static PyObject *source_cell(Text *text, Part resource, Part scope, Part own_schema, Part schema) {
    text->size = 0;
    if (!add_chars(text, "{\"resource\":") || !add_object(text, resource, 1, 1) || !add_chars(text, ",\"scope\":")) return NULL;
    if (!add_scope(text, scope, own_schema, schema) || !add(text, "}", 1)) return NULL;
    PyObject *words = to_text(text), *cell = words == NULL ? NULL : PyList_New(1);
    if (cell == NULL) Py_XDECREF(words);
    else PyList_SET_ITEM(cell, 0, words);
    return cell;
}

/* The span that Python reads from its bytes; NULL if it refuses it. */
static PyObject *in_python(Part part, PyObject *cell) {
    PyErr_Clear();
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)part.at, (Py_ssize_t)size_of(part));
    PyObject *span = bytes == NULL ? NULL : PyObject_CallFunctionObjArgs(plan.span_of_protobuf, bytes, PyList_GET_ITEM(cell, 0), NULL);
    Py_XDECREF(bytes);
    return span;
}

/* ScopeSpans: its spans are added to `spans`. */
static int read_scope(Reading *reading, Part part, Part resource, Part schema, PyObject *spans) {
    Field field;
    int more = 0, good;
    Py_ssize_t before = PyList_GET_SIZE(spans);
    Part scope, own;
    if (only(part, 1, &scope) < 0 || only(part, 3, &own) < 0) return 0;
    PyObject *cell = source_cell(&reading->scratch, resource, scope, own, schema);
    good = cell != NULL;
    while (good && (more = next(&part, &field)) > 0) {
        if (field.number != 2) continue;
        if (field.wire != BYTES) good = 0;
        else {
            begin(reading);
            PyObject *span = read_span(reading, field.part) ? packed(reading, cell) : NULL;
            drop(reading);
            good = append(spans, span != NULL ? span : in_python(field.part, cell));
        }
    }
    good = good && more == 0 && lend_session(spans, before, PyList_GET_SIZE(spans), PyList_GET_ITEM(cell, 0));
    Py_XDECREF(cell);
    return good;
}

/* ResourceSpans. */
static int read_group(Reading *reading, Part part, PyObject *spans) {
    Field field;
    int more;
    Part resource, schema;
    if (only(part, 1, &resource) < 0 || only(part, 3, &schema) < 0) return 0;
    while ((more = next(&part, &field)) > 0)
        if (field.number == 2 && (field.wire != BYTES || !read_scope(reading, field.part, resource, schema, spans))) return 0;
    return more == 0;
}

static PyObject *answer(PyObject *spans, int good) {
    if (good) return spans;
    Py_XDECREF(spans);
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

/* The spans of a request in protobuf, or None. */
PyObject *from_protobuf(PyObject *data, PyObject *tables) {
    Reading reading = {0};
    Field field;
    int more = 0, good = set_plan(tables);
    PyObject *spans = PyList_New(0);
    Part part = {(const unsigned char *)PyBytes_AS_STRING(data), NULL};
    part.end = part.at + PyBytes_GET_SIZE(data);
    good = good && spans != NULL;
    while (good && (more = next(&part, &field)) > 0)
        if (field.number == 1) good = field.wire == BYTES && read_group(&reading, field.part, spans);
    finish(&reading);
    return answer(spans, good && more == 0);
}

/* JSON. What is not as it should be is 0 everywhere below, and then Python reads the span or the request. */

static void blank(Part *part) {
    while (part->at < part->end && (*part->at == ' ' || *part->at == '\n' || *part->at == '\r' || *part->at == '\t')) part->at++;
}

static int take(Part *part, unsigned char wanted) {
    blank(part);
    if (part->at == part->end || *part->at != wanted) return 0;
    part->at++;
    return 1;
}

/* A string: what is between its quotes, and whether it holds a backslash. */
static int quoted(Part *part, Part *words, int *slashed) {
    if (!take(part, '"')) return 0;
    const unsigned char *at = part->at;
    *slashed = 0;
    for (; at < part->end && *at != '"'; at++) {
        if (*at < 0x20) return 0;
        if (*at == '\\') {
            *slashed = 1;
            if (++at == part->end) return 0;
        }
    }
    if (at == part->end) return 0;
    *words = (Part){part->at, at};
    part->at = at + 1;
    return 1;
}

/* A string without a backslash. */
static int plain(Part *part, Part *words) {
    int slashed;
    return quoted(part, words, &slashed) && !slashed;
}

static int hex_digit(unsigned char byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static int four_digits(Part *part, unsigned *code) {
    if (size_of(*part) < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*part->at++);
        if (digit < 0) return 0;
        *code = 16 * *code + (unsigned)digit;
    }
    return 1;
}

/* What stands after a backslash, as the character it means. */
static int meant(Part *part, unsigned *code) {
    static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    unsigned second;
    if (part->at == part->end) return 0;
    unsigned char byte = *part->at++;
    const char *found = byte ? strchr(names, byte) : NULL;
    if (found != NULL) {
        *code = (unsigned char)codes[found - names];
        return 1;
    }
    if (byte != 'u' || !four_digits(part, code)) return 0;
    if (*code < 0xD800 || *code > 0xDFFF) return 1;
    if (*code > 0xDBFF || size_of(*part) < 6 || part->at[0] != '\\' || part->at[1] != 'u') return 0;
    part->at += 2;
    if (!four_digits(part, &second) || second < 0xDC00 || second > 0xDFFF) return 0;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (second - 0xDC00);
    return 1;
}

static char *utf8(char *to, unsigned code) {
    if (code < 0x80) *to++ = (char)code;
    else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 63));
    } else {
        if (code < 0x10000) *to++ = (char)(0xE0 | code >> 12);
        else {
            *to++ = (char)(0xF0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 63));
        }
        *to++ = (char)(0x80 | (code >> 6 & 63));
        *to++ = (char)(0x80 | (code & 63));
    }
    return to;
}

/* What is between the quotes of a string, with nothing escaped (`json` = 0) or as Python's encoder writes it. */
static int add_meant(Text *text, Part words, int json) {
    unsigned code;
    if (!grow(text, 6 * size_of(words) + 2)) return 0;
    char *to = text->at + text->size;
    while (words.at < words.end) {
        if (*words.at != '\\') *to++ = (char)*words.at++;
        else {
            words.at++;
            if (!meant(&words, &code)) return 0;
            if (json && (code < 0x20 || code == '"' || code == '\\')) to = escaped(to, (unsigned char)code);
            else to = utf8(to, code);
        }
    }
    text->size = (size_t)(to - text->at);
    return 1;
}

static int add_quoted(Text *text, Part words, int slashed) {
    if (!add(text, "\"", 1)) return 0;
    return (slashed ? add_meant(text, words, 1) : add(text, (const char *)words.at, size_of(words))) && add(text, "\"", 1);
}

/* Up to 19 digits. */
static int count_of(Part part, uint64_t *number) {
    if (size_of(part) < 1 || size_of(part) > 19) return 0;
    for (*number = 0; part.at < part.end; part.at++) {
        if (*part.at < '0' || *part.at > '9') return 0;
        *number = 10 * *number + (uint64_t)(*part.at - '0');
    }
    return *number <= INT64_MAX;
}

/* Digits, with a sign before them. */
static int digits_of(Part part, long long *number) {
    uint64_t count;
    int negative = part.at < part.end && *part.at == '-';
    if (negative) part.at++;
    if (!count_of(part, &count)) return 0;
    *number = negative ? -(long long)count : (long long)count;
    return 1;
}

static const unsigned char *digits_end(const unsigned char *at, const unsigned char *end) {
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at;
}

/* A number: S_WHOLE or S_FLOAT. */
static int number_of(Part *part, Scalar *scalar) {
    blank(part);
    const unsigned char *start = part->at, *at = start, *end = part->end, *before;
    char copy[64], *stop;
    if (at < end && *at == '-') at++;
    before = at;
    at = digits_end(at, end);
    if (at == before || (*before == '0' && at - before > 1)) return 0;
    scalar->kind = S_WHOLE;
    if (at < end && *at == '.') {
        before = ++at;
        if ((at = digits_end(at, end)) == before) return 0;
        scalar->kind = S_FLOAT;
    }
    if (at < end && (*at | 0x20) == 'e') {
        if (++at < end && (*at == '+' || *at == '-')) at++;
        before = at;
        if ((at = digits_end(at, end)) == before) return 0;
        scalar->kind = S_FLOAT;
    }
    part->at = at;
    if (scalar->kind == S_WHOLE) return digits_of((Part){start, at}, &scalar->whole);
    if ((size_t)(at - start) >= sizeof copy) return 0;
    memcpy(copy, start, (size_t)(at - start));
    copy[at - start] = 0;
    scalar->number = PyOS_string_to_double(copy, &stop, NULL);
    return !PyErr_Occurred() && *stop == 0;
}

/* A whole number that is not negative, in digits or as a number. */
static int whole_of(Part *part, uint64_t *found) {
    Scalar scalar;
    Part words;
    blank(part);
    if (part->at < part->end && *part->at == '"') return plain(part, &words) && count_of(words, found);
    if (!number_of(part, &scalar) || scalar.kind != S_WHOLE || scalar.whole < 0) return 0;
    *found = (uint64_t)scalar.whole;
    return 1;
}

static int literal(Part *part, const char *word) {
    size_t size = strlen(word);
    blank(part);
    if (size_of(*part) < size || memcmp(part->at, word, size) != 0) return 0;
    part->at += size;
    return 1;
}

/* Passes a value by, whatever it is; its inside is not looked at. */
static int skip(Part *part) {
    Part words;
    int slashed, depth = 0;
    do {
        blank(part);
        if (part->at == part->end) return 0;
        if (*part->at == '"') {
            if (!quoted(part, &words, &slashed)) return 0;
            continue;
        }
        if (*part->at == '{' || *part->at == '[') depth++;
        else if (*part->at == '}' || *part->at == ']') depth--;
        else if (!depth) { /* a number or a word */
            while (part->at < part->end && strchr(",}] \n\r\t", *part->at) == NULL) part->at++;
            return 1;
        }
        if (depth < 0) return 0;
        part->at++;
    } while (depth);
    return 1;
}

/* The next member of an object that was begun: 1 and its key; its end: 0; nothing that can be read: -1. */
static int member(Part *part, int *first, Part *key) {
    if (take(part, '}')) return 0;
    if (!*first && !take(part, ',')) return -1;
    *first = 0;
    return plain(part, key) && take(part, ':') ? 1 : -1;
}

/* The next item of a list that was begun: 1; its end: 0; nothing that can be read: -1. */
static int item(Part *part, int *first) {
    if (take(part, ']')) return 0;
    if (!*first && !take(part, ',')) return -1;
    blank(part);
    *first = 0;
    return part->at < part->end ? 1 : -1;
}

/* {"key": ..., "value": ...}: the key, and where the value is ({} where there is none). */
static int json_pair(Part *part, Part *key, Part *value) {
    static const unsigned char nothing[] = "{}";
    Part name;
    int more, first = 1, keys = 0, values = 0;
    *value = (Part){nothing, nothing + 2};
    if (!take(part, '{')) return 0;
    while ((more = member(part, &first, &name)) > 0) {
        if (is(name, "key")) {
            if (keys++ || !plain(part, key)) return 0;
        } else if (is(name, "value") && !values++) {
            blank(part);
            value->at = part->at;
            if (!skip(part)) return 0;
            value->end = part->at;
        } else return 0;
    }
    return more == 0 && keys;
}

static int json_any(Text *text, Part *part, int depth, Scalar *scalar, Text *scratch);

/* The list that stands under "values", the only member. What each item becomes is told by `object`. */
static int json_values(Text *text, Part *part, int depth, Text *scratch, int object) {
    Part keys[MOST_KEYS], name, key, value;
    Scalar inner;
    size_t count = 0;
    int more, first = 1, some = 0, start = 1;
    if (!take(part, '{') || (more = member(part, &start, &name)) < 0 || (more && (!is(name, "values") || !take(part, '[')))) return 0;
    while (more && (more = item(part, &first)) > 0) {
        if (!add(text, some++ ? "," : object ? "{" : "[", 1)) return 0;
        if (object) {
            if (!json_pair(part, &key, &value) || !is_new(keys, &count, MOST_KEYS, key)) return 0;
            if (!add_quoted(text, key, 0) || !add(text, ":", 1) || !json_any(text, &value, depth + 1, &inner, scratch)) return 0;
        } else if (!json_any(text, part, depth + 1, &inner, scratch)) return 0;
    }
    if (more < 0 || (!start && member(part, &start, &name) != 0)) return 0;
    return add_chars(text, object ? (some ? "}" : "{}") : (some ? "]" : "[]"));
}

static int json_text(Text *text, Part *part, Scalar *scalar, Text *scratch) {
    int slashed;
    scalar->kind = S_TEXT;
    if (!quoted(part, &scalar->text, &slashed) || !add_quoted(text, scalar->text, slashed)) return 0;
    if (!slashed) return 1;
    scratch->size = 0;
    if (!add_meant(scratch, scalar->text, 0)) return 0;
    scalar->text = (Part){(unsigned char *)scratch->at, (unsigned char *)scratch->at + scratch->size};
    return 1;
}

static int json_int(Text *text, Part *part, Scalar *scalar) {
    Part words;
    blank(part);
    int good = part->at < part->end && *part->at == '"' ? plain(part, &words) && digits_of(words, &scalar->whole)
                                                        : number_of(part, scalar) && scalar->kind == S_WHOLE;
    scalar->kind = S_WHOLE;
    return good && add_whole(text, scalar->whole);
}

/* An AnyValue. */
static int json_any(Text *text, Part *part, int depth, Scalar *scalar, Text *scratch) {
    Part name;
    int more, first = 1, good = 0;
    scalar->kind = S_OTHER;
    if (depth > DEPTH || !take(part, '{') || (more = member(part, &first, &name)) < 0) return 0;
    if (more == 0) return add_chars(text, "null");
    if (is(name, "stringValue")) good = json_text(text, part, scalar, scratch);
    else if (is(name, "intValue")) good = json_int(text, part, scalar);
    else if (is(name, "doubleValue")) {
        good = number_of(part, scalar);
        if (scalar->kind == S_WHOLE) scalar->number = (double)scalar->whole;
        scalar->kind = S_FLOAT;
        good = good && add_float(text, scalar->number);
    } else if (is(name, "boolValue")) good = literal(part, "true") ? add_chars(text, "true") : literal(part, "false") && add_chars(text, "false");
    else if (is(name, "arrayValue")) good = json_values(text, part, depth, scratch, 0);
    else if (is(name, "kvlistValue")) good = json_values(text, part, depth, scratch, 1);
    return good && take(part, '}'); /* several members are Python's to read */
}

static int json_attributes(Reading *reading, Part *part) {
    Part key, value;
    Scalar scalar;
    Text *text = &reading->attributes;
    int more, first = 1;
    if (!take(part, '[')) return 0;
    while ((more = item(part, &first)) > 0) {
        if (!json_pair(part, &key, &value) || !is_new(reading->keys, &reading->count, MOST_KEYS, key)) return 0;
        if (!add(text, text->size ? "," : "{", 1) || !add_quoted(text, key, 0) || !add(text, ":", 1)) return 0;
        if (!json_any(text, &value, 1, &scalar, &reading->scratch) || value.at != value.end) return 0;
        if (!tell(reading, key, &scalar)) return 0;
    }
    return more == 0;
}

static PyObject *json_shared(Reading *reading, Part *part) {
    Part words;
    int slashed;
    if (!quoted(part, &words, &slashed)) return NULL;
    if (!slashed) return shared_text(words);
    Text *text = &reading->scratch;
    text->size = 0;
    if (!add_meant(text, words, 0)) return NULL;
    return shared_text((Part){(unsigned char *)text->at, (unsigned char *)text->at + text->size});
}

static int json_status(Reading *reading, Part *part) {
    Part name;
    uint64_t code;
    int more, first = 1, codes = 0, messages = 0;
    if (!take(part, '{')) return 0;
    while ((more = member(part, &first, &name)) > 0) {
        if (is(name, "code") && !codes++) {
            blank(part);
            if (part->at == part->end || *part->at == '"' || !whole_of(part, &code) || code > 2) return 0;
            reading->status = (int)code;
        } else if (is(name, "message") && !messages++) {
            if ((reading->error = json_shared(reading, part)) == NULL) return 0;
            if (PyUnicode_GET_LENGTH(reading->error) == 0) Py_CLEAR(reading->error);
        } else return 0;
    }
    return more == 0 && (reading->error == NULL || reading->status == 2);
}

/* An id in lower-case hexadecimal, not all zeros: 1; all zeros or nothing: 0; anything else: -1. */
static int json_id(Part *part, size_t digits, Part *id) {
    int zero = 1;
    if (!plain(part, id)) return -1;
    if (id->at == id->end) return 0;
    if (size_of(*id) != digits) return -1;
    for (const unsigned char *at = id->at; at < id->end; at++) {
        if (!((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'))) return -1;
        zero = zero && *at == '0';
    }
    return !zero;
}

/* A list with nothing in it. */
static int json_empty(Part *part) { return take(part, '[') && take(part, ']'); }

static int json_member(Reading *reading, Part name, Part *part) {
    Part id;
    uint64_t number;
    int found;
    if (is(name, "traceId")) return json_id(part, 32, &id) == 1 && (reading->trace_id = id_text(&last_trace, id)) != NULL;
    if (is(name, "spanId")) return json_id(part, 16, &id) == 1 && (reading->span_id = id_text(NULL, id)) != NULL;
    if (is(name, "parentSpanId")) {
        if ((found = json_id(part, 16, &id)) < 1) return found == 0;
        return (reading->parent_id = id_text(&last_parent, id)) != NULL;
    }
    if (is(name, "name")) return (reading->name = json_shared(reading, part)) != NULL;
    if (is(name, "kind")) {
        blank(part);
        return part->at < part->end && *part->at != '"' && whole_of(part, &reading->otel_kind) && reading->otel_kind <= INT32_MAX;
    }
    if (is(name, "startTimeUnixNano")) return whole_of(part, &reading->start);
    if (is(name, "endTimeUnixNano")) return whole_of(part, &reading->end);
    if (is(name, "attributes")) return json_attributes(reading, part);
    if (is(name, "status")) return json_status(reading, part);
    if (is(name, "events") || is(name, "links")) return json_empty(part);
    if (is(name, "flags")) {
        blank(part);
        if (part->at == part->end || *part->at == '"' || !whole_of(part, &number)) return 0;
        return !number || keep(&reading->otel, "flags", NULL, number);
    }
    return 0;
}

/* One span. */
static int json_span(Reading *reading, Part *part) {
    Part seen[16], name;
    size_t count = 0;
    int more, first = 1;
    if (!take(part, '{')) return 0;
    while ((more = member(part, &first, &name)) > 0)
        if (!is_new(seen, &count, 16, name) || !json_member(reading, name, part)) return 0;
    return more == 0 && reading->trace_id != NULL && reading->span_id != NULL;
}

/* The spans of one scope. Those that Python is to read are noted in `odd` as (place, bytes, cell). */
static int json_spans(Reading *reading, Part *part, PyObject *spans, PyObject *cell, PyObject *odd) {
    int more, first = 1;
    if (!take(part, '[')) return 0;
    while ((more = item(part, &first)) > 0) {
        Part whole = *part;
        begin(reading);
        PyObject *span = json_span(reading, part) ? packed(reading, cell) : NULL;
        drop(reading);
        if (span == NULL) {
            PyErr_Clear();
            *part = whole;
            if (!skip(part)) return 0;
            whole.end = part->at;
            if (!append(odd, Py_BuildValue("ny#O", PyList_GET_SIZE(spans), (const char *)whole.at, (Py_ssize_t)size_of(whole), cell))) return 0;
            span = Py_NewRef(Py_None);
        }
        if (!append(spans, span)) return 0;
    }
    return more == 0;
}

/* A member that is kept as its bytes, in a dictionary. */
static int json_kept(PyObject *kept, Part name, Part *part) {
    blank(part);
    Part whole = *part;
    if (!skip(part)) return 0;
    PyObject *key = PyUnicode_DecodeUTF8((const char *)name.at, (Py_ssize_t)size_of(name), NULL);
    PyObject *value = PyBytes_FromStringAndSize((const char *)whole.at, part->at - whole.at);
    int good = key != NULL && value != NULL && PyDict_SetItem(kept, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return good;
}

/* One of "scopeSpans". Its cell, what tells its source and which its spans are is added to `scopes`, to be filled in when
   all is known. */
static int json_scope(Reading *reading, Part *part, PyObject *spans, PyObject *scopes, PyObject *odd) {
    Part name;
    int more = -1, first = 1, good, lists = 0;
    Py_ssize_t before = PyList_GET_SIZE(spans);
    PyObject *cell = Py_BuildValue("[O]", Py_None), *kept = PyDict_New();
    good = cell != NULL && kept != NULL && take(part, '{');
    while (good && (more = member(part, &first, &name)) > 0) {
        if (is(name, "spans")) good = !lists++ && json_spans(reading, part, spans, cell, odd);
        else good = json_kept(kept, name, part);
    }
    good = good && more == 0 && append(scopes, Py_BuildValue("OOnn", cell, kept, before, PyList_GET_SIZE(spans)));
    Py_XDECREF(cell);
    Py_XDECREF(kept);
    return good;
}

/* Asks Python for the sources of the scopes (also where there is none: it looks at the members that were kept), for the
   sessions that they tell, and for the spans that it is to read. */
static int json_settle(PyObject *kept, PyObject *scopes, PyObject *spans, PyObject *odd) {
    if (PyList_GET_SIZE(scopes) == 0 && !append(scopes, Py_BuildValue("[O]{}nn", Py_None, (Py_ssize_t)0, (Py_ssize_t)0))) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(scopes); i++) {
        PyObject *scope = PyList_GET_ITEM(scopes, i);
        PyObject *words = PyObject_CallFunctionObjArgs(plan.source_of, kept, PyTuple_GET_ITEM(scope, 1), NULL);
        if (words == NULL || PyList_SetItem(PyTuple_GET_ITEM(scope, 0), 0, words) < 0) return 0;
        if (!PyUnicode_Check(words)) return 0;
        Py_ssize_t before = PyLong_AsSsize_t(PyTuple_GET_ITEM(scope, 2)), after = PyLong_AsSsize_t(PyTuple_GET_ITEM(scope, 3));
        if (!lend_session(spans, before, after, words)) return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(odd); i++) {
        PyObject *one = PyList_GET_ITEM(odd, i), *cell = PyTuple_GET_ITEM(one, 2);
        PyObject *span = PyObject_CallFunctionObjArgs(plan.span_of_json, PyTuple_GET_ITEM(one, 1), PyList_GET_ITEM(cell, 0), NULL);
        if (span == NULL || PyList_SetItem(spans, PyLong_AsSsize_t(PyTuple_GET_ITEM(one, 0)), span) < 0) return 0;
    }
    return 1;
}

/* One of "resourceSpans". */
static int json_group(Reading *reading, Part *part, PyObject *spans) {
    Part name;
    int more = -1, first = 1, good, lists = 0;
    PyObject *kept = PyDict_New(), *scopes = PyList_New(0), *odd = PyList_New(0);
    good = kept != NULL && scopes != NULL && odd != NULL && take(part, '{');
    while (good && (more = member(part, &first, &name)) > 0) {
        if (is(name, "scopeSpans")) {
            int some, start = 1;
            good = !lists++ && take(part, '[');
            while (good && (some = item(part, &start)) != 0) good = some > 0 && json_scope(reading, part, spans, scopes, odd);
        } else good = json_kept(kept, name, part);
    }
    good = good && more == 0 && json_settle(kept, scopes, spans, odd);
    Py_XDECREF(kept);
    Py_XDECREF(scopes);
    Py_XDECREF(odd);
    return good;
}

/* The spans of a request in JSON, or None. */
PyObject *from_json(PyObject *data, PyObject *tables) {
    Reading reading = {0};
    PyObject *spans = PyList_New(0);
    Part part = {(const unsigned char *)PyBytes_AS_STRING(data), NULL}, name;
    part.end = part.at + PyBytes_GET_SIZE(data);
    int more, first = 1, start = 1, good = set_plan(tables) && spans != NULL && take(&part, '{');
    good = good && member(&part, &first, &name) == 1 && is(name, "resourceSpans") && take(&part, '[');
    while (good && (more = item(&part, &start)) != 0) good = more > 0 && json_group(&reading, &part, spans);
    good = good && member(&part, &first, &name) == 0;
    blank(&part);
    finish(&reading);
    return answer(spans, good && part.at == part.end);
}

/* Numbers for names. */

/* The rows of spans that are all still packed, with the numbers of their groups and sources; None where one is not, or
   where a number is not known. */
PyObject *numbered(PyObject *spans, PyObject *known) {
    PyObject *groups = PyTuple_GET_ITEM(known, 0), *sources = PyTuple_GET_ITEM(known, 1), *tables = PyTuple_GET_ITEM(known, 2);
    if (!set_plan(tables) || !PyList_CheckExact(spans)) return answer(NULL, 0);
    PyObject *rows = PyList_New(PyList_GET_SIZE(spans));
    int good = rows != NULL;
    for (Py_ssize_t i = 0; good && i < PyList_GET_SIZE(spans); i++) {
        PyObject *span = PyList_GET_ITEM(spans, i), *row = NULL, *made, *grp, *source;
        if (Py_IS_TYPE(span, plan.type)) row = *(PyObject **)((char *)span + plan.row_at);
        if (row == NULL || row == Py_None) break;
        grp = PyDict_GetItemWithError(groups, PyTuple_GET_ITEM(row, 21));
        source = grp == NULL ? NULL : PyDict_GetItemWithError(sources, PyList_GET_ITEM(PyTuple_GET_ITEM(row, 23), 0));
        if (source == NULL || (made = PyTuple_New(29)) == NULL) break;
        for (Py_ssize_t at = 0; at < 29; at++) {
            PyObject *value = at == 21 ? grp : at == 23 ? source : PyTuple_GET_ITEM(row, at);
            PyTuple_SET_ITEM(made, at, Py_NewRef(value));
        }
        PyList_SET_ITEM(rows, i, made);
        if (i + 1 == PyList_GET_SIZE(spans)) return rows;
    }
    return good && PyList_GET_SIZE(spans) == 0 ? rows : answer(rows, 0);
}
