/* OTLP trace requests, in protobuf and as parsed JSON, straight to spans: what otlp_protobuf.py and otlp.py do, without
   a step of Python for every field.

   It reads the ordinary case only. For anything else (a malformed message, a field of another type, a value out of
   range, a link with attributes) it gives None, and the reader in Python decides what it is and says so. So there is
   one place that knows what is refused, and this file has only to be right about what it accepts. Every length is
   checked against what is left of the message before it is used.

   https://github.com/open-telemetry/opentelemetry-proto (trace.proto, common.proto), protobuf.dev/programming-guides/encoding
*/
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#define DEPTH 90          /* of nested values; protobuf itself gives up at 100 */
#define MOST_FIELDS 16    /* that attributes can fill */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct { const unsigned char *at, *end; } Part;

typedef struct {
    uint32_t number;
    int wire;
    uint64_t value;       /* VARINT, FIXED64, FIXED32 */
    Part part;            /* BYTES */
} Field;

/* Where the slots of a span are, in the order of SLOTS in otlp_native.py. */
enum { TRACE, SPAN, NAME, KIND, PARENT, START, END, STATUS, ERROR, INPUTS, OUTPUTS, ATTRIBUTES, LINKS, EVENTS, AGENT,
       MODEL, SESSION, CLOCK, RARE, SLOTS };

typedef struct {
    PyTypeObject *type;
    Py_ssize_t offset[SLOTS];
    PyObject *rules;      /* attribute name: (rank, field, slot or -1, name, type, read) */
    PyObject *kinds;      /* ((attribute name, {value: kind}), ...) in the order in which they win */
    PyObject *statuses;   /* by number */
    PyObject *other;      /* the kind of a span that does not say */
} Plan;

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
    size_t left = (size_t)(part->end - part->at), size = 0;
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
        if (!varint(part, &field->value)) return -1;
        left = (size_t)(part->end - part->at);
        if (field->value > left) return -1;
        field->part.at = part->at;
        field->part.end = part->at + field->value;
        part->at = field->part.end;
        return 1;
    default:
        return -1;
    }
    if (left < size) return -1;
    field->value = 0;
    for (size_t i = 0; i < size; i++) field->value |= (uint64_t)part->at[i] << (8 * i);
    part->at += size;
    return 1;
}

static PyObject *text(Part part) { return PyUnicode_DecodeUTF8((const char *)part.at, part.end - part.at, NULL); }

static PyObject *hex(Part part) {
    static const char digits[] = "0123456789abcdef";
    Py_ssize_t size = part.end - part.at;
    PyObject *found = PyUnicode_New(2 * size, 127);
    if (found == NULL) return NULL;
    Py_UCS1 *to = PyUnicode_1BYTE_DATA(found);
    for (Py_ssize_t i = 0; i < size; i++) {
        *to++ = digits[part.at[i] >> 4];
        *to++ = digits[part.at[i] & 15];
    }
    return found;
}

static int is_zero(Part part) {
    while (part.at < part.end)
        if (*part.at++) return 0;
    return 1;
}

static int add_pair(PyObject *found, Part part, int depth);

static PyObject *list_of(Part part, int depth);

/* An AnyValue. A field that is there twice counts the second time, as the last of a `oneof` does. */
static PyObject *value_of(Part part, int depth) {
    Field field;
    int more;
    PyObject *found = Py_NewRef(Py_None);
    if (depth > DEPTH) goto refuse;
    while ((more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, BYTES, VARINT, VARINT, FIXED64, BYTES, BYTES, BYTES};
        if (field.number > 7) continue;
        if (field.wire != wires[field.number]) goto refuse;
        Py_CLEAR(found);
        switch (field.number) {
        case 1: found = text(field.part); break;
        case 2: found = PyBool_FromLong(field.value != 0); break;
        case 3: found = PyLong_FromLongLong((long long)field.value); break;
        case 4: {
            double number;
            memcpy(&number, &field.value, sizeof number);
            found = PyFloat_FromDouble(number);
            break;
        }
        case 5: found = list_of(field.part, depth + 1); break;
        case 6: {
            Field pair;
            found = PyDict_New();
            while (found != NULL && (more = next(&field.part, &pair)) > 0)
                if (pair.number == 1 && (pair.wire != BYTES || !add_pair(found, pair.part, depth + 1))) goto refuse;
            if (more < 0) goto refuse;
            break;
        }
        default:
            found = PyBytes_FromStringAndSize((const char *)field.part.at, field.part.end - field.part.at);
        }
        if (found == NULL) return NULL;
    }
    if (more == 0) return found;
refuse:
    Py_XDECREF(found);
    return NULL;
}

static PyObject *list_of(Part part, int depth) {
    Field field;
    int more;
    PyObject *found = PyList_New(0);
    while (found != NULL && (more = next(&part, &field)) > 0) {
        if (field.number != 1) continue;
        PyObject *item = field.wire == BYTES ? value_of(field.part, depth) : NULL;
        if (item == NULL || PyList_Append(found, item) < 0) {
            Py_XDECREF(item);
            Py_CLEAR(found);
            return NULL;
        }
        Py_DECREF(item);
    }
    if (found != NULL && more < 0) Py_CLEAR(found);
    return found;
}

/* A KeyValue into a dictionary; 0 where it cannot be read. */
static int add_pair(PyObject *found, Part part, int depth) {
    Field field;
    int more, good = 0;
    Part content = {NULL, NULL};
    PyObject *key = NULL, *value = NULL;
    while ((more = next(&part, &field)) > 0) {
        if (field.number > 2) continue;
        if (field.wire != BYTES) goto end;
        if (field.number == 1) {
            Py_XDECREF(key);
            if ((key = text(field.part)) == NULL) goto end;
        } else {
            if (content.at != NULL) goto end; /* two values would have to be merged */
            content = field.part;
        }
    }
    if (more < 0) goto end;
    if (key == NULL && (key = PyUnicode_New(0, 127)) == NULL) goto end;
    value = content.at == NULL ? Py_NewRef(Py_None) : value_of(content, depth);
    good = value != NULL && PyDict_SetItem(found, key, value) == 0;
end:
    Py_XDECREF(key);
    Py_XDECREF(value);
    return good;
}

/* `found[name] = value`, taking over the value. */
static int put(PyObject *found, const char *name, PyObject *value) {
    int good = value != NULL && PyDict_SetItemString(found, name, value) == 0;
    Py_XDECREF(value);
    return good;
}

static PyObject *event_of(Part part) {
    Field field;
    int more;
    uint64_t time = 0, dropped = 0;
    PyObject *found = PyDict_New(), *name = PyUnicode_New(0, 127), *attributes = PyDict_New();
    while (found != NULL && name != NULL && attributes != NULL && (more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, FIXED64, BYTES, BYTES, VARINT};
        if (field.number > 4) continue;
        if (field.wire != wires[field.number]) goto refuse;
        if (field.number == 1) time = field.value;
        else if (field.number == 4) dropped = (uint32_t)field.value;
        else if (field.number == 2) {
            Py_DECREF(name);
            if ((name = text(field.part)) == NULL) goto refuse;
        } else if (!add_pair(attributes, field.part, 1)) goto refuse;
    }
    if (found == NULL || name == NULL || attributes == NULL || more < 0) goto refuse;
    if (!put(found, "name", Py_NewRef(name)) || !put(found, "time_ns", PyLong_FromUnsignedLongLong(time))) goto refuse;
    if (!put(found, "attributes", Py_NewRef(attributes))) goto refuse;
    if (dropped && !put(found, "droppedAttributesCount", PyLong_FromUnsignedLongLong(dropped))) goto refuse;
    Py_DECREF(name);
    Py_DECREF(attributes);
    return found;
refuse:
    Py_XDECREF(found);
    Py_XDECREF(name);
    Py_XDECREF(attributes);
    return NULL;
}

/* (trace, span) of a link that has nothing else. */
static PyObject *link_of(Part part) {
    Field field;
    int more;
    Part ids[3] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}};
    while ((more = next(&part, &field)) > 0) {
        if (field.number > 6 || (field.number == 5 && field.wire == VARINT)) continue;
        if (field.number > 2 || field.wire != BYTES) return NULL;
        ids[field.number] = field.part;
    }
    if (more < 0 || ids[1].end - ids[1].at != 16 || ids[2].end - ids[2].at != 8) return NULL;
    PyObject *trace = hex(ids[1]), *span = hex(ids[2]);
    PyObject *found = trace == NULL || span == NULL ? NULL : PyTuple_Pack(2, trace, span);
    Py_XDECREF(trace);
    Py_XDECREF(span);
    return found;
}

static void set(const Plan *plan, PyObject *span, int slot, PyObject *value) {
    PyObject **place = (PyObject **)((char *)span + plan->offset[slot]), *before = *place;
    *place = value;
    Py_XDECREF(before);
}

/* What the attributes tell of the other fields: `conventions.fill`. 0 on an error. */
static int fill(const Plan *plan, PyObject *span, PyObject *attributes, PyObject *rare) {
    PyObject *key, *value, *best[MOST_FIELDS] = {NULL}, *rule_of[MOST_FIELDS] = {NULL};
    long rank_of[MOST_FIELDS];
    Py_ssize_t at = 0;
    int good = 1;
    while (good && PyDict_Next(attributes, &at, &key, &value)) {
        PyObject *rule = PyDict_GetItemWithError(plan->rules, key);
        if (rule == NULL) continue;
        long rank = PyLong_AsLong(PyTuple_GET_ITEM(rule, 0)), field = PyLong_AsLong(PyTuple_GET_ITEM(rule, 1));
        if (field < 0 || field >= MOST_FIELDS) continue;
        if (best[field] != NULL && rank_of[field] < rank) continue;
        PyObject *read;
        if ((PyObject *)Py_TYPE(value) == PyTuple_GET_ITEM(rule, 4)) read = Py_NewRef(value);
        else {
            Py_INCREF(value); /* what is called may do anything */
            read = PyObject_CallOneArg(PyTuple_GET_ITEM(rule, 5), value);
            Py_DECREF(value);
        }
        if (read == NULL) good = 0;
        else if (read == Py_None) Py_DECREF(read);
        else {
            Py_XDECREF(best[field]);
            best[field] = read;
            rank_of[field] = rank;
            rule_of[field] = rule;
        }
    }
    for (int field = 0; field < MOST_FIELDS; field++) {
        if (best[field] == NULL) continue;
        long slot = PyLong_AsLong(PyTuple_GET_ITEM(rule_of[field], 2));
        if (slot >= 0 && slot < SLOTS) set(plan, span, (int)slot, Py_NewRef(best[field]));
        else if (good && PyDict_SetItem(rare, PyTuple_GET_ITEM(rule_of[field], 3), best[field]) < 0) good = 0;
        Py_DECREF(best[field]);
    }
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(plan->kinds); i++) {
        PyObject *pair = PyTuple_GET_ITEM(plan->kinds, i);
        value = PyDict_GetItemWithError(attributes, PyTuple_GET_ITEM(pair, 0));
        if (value == NULL || !PyUnicode_Check(value)) continue;
        PyObject *kind = PyDict_GetItemWithError(PyTuple_GET_ITEM(pair, 1), value);
        if (kind != NULL) {
            set(plan, span, KIND, Py_NewRef(kind));
            break;
        }
    }
    return good && !PyErr_Occurred();
}

/* What has no field of its own goes into rare["otel"], taking over the value. */
static int keep(PyObject *rare, const char *name, PyObject *value) {
    PyObject *otel = PyDict_GetItemString(rare, "otel");
    if (otel == NULL) {
        if ((otel = PyDict_New()) == NULL || PyDict_SetItemString(rare, "otel", otel) < 0) {
            Py_XDECREF(otel);
            Py_XDECREF(value);
            return 0;
        }
        Py_DECREF(otel); /* `rare` holds it */
    }
    return put(otel, name, value);
}

static int read_status(const Plan *plan, PyObject *span, PyObject *rare, Part part) {
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
    set(plan, span, STATUS, Py_NewRef(PyTuple_GET_ITEM(plan->statuses, (Py_ssize_t)code)));
    if (message.at == message.end) return 1;
    PyObject *said = text(message);
    if (said == NULL) return 0;
    if (code != 2) return keep(rare, "message", said);
    set(plan, span, ERROR, said);
    return 1;
}

static int append(PyObject *list, PyObject *item) {
    int good = item != NULL && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return good;
}

/* One span; NULL where it is not the ordinary case. `source` is {"resource", "scope"}. */
static PyObject *span_of(const Plan *plan, Part part, PyObject *source) {
    Field field;
    int more;
    Part ids[5] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL}}, status = {NULL, NULL};
    uint64_t start = 0, end = 0, kind = 0;
    PyObject *rare = PyDict_Copy(source), *attributes = PyDict_New(), *links = PyList_New(0), *events = PyList_New(0);
    PyObject *name = NULL, *span = plan->type->tp_alloc(plan->type, 0);
    if (rare == NULL || attributes == NULL || links == NULL || events == NULL || span == NULL) goto refuse;
    while ((more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, BYTES, BYTES, BYTES, BYTES, BYTES, VARINT, FIXED64, FIXED64, BYTES, VARINT,
                                    BYTES, VARINT, BYTES, VARINT, BYTES, FIXED32};
        static const char *counts[] = {"droppedAttributesCount", NULL, "droppedEventsCount", NULL, "droppedLinksCount"};
        if (field.number > 16) continue;
        if (field.wire != wires[field.number]) goto refuse;
        switch (field.number) {
        case 1: case 2: case 4: ids[field.number] = field.part; break;
        case 3:
            if (field.part.at != field.part.end && !keep(rare, "traceState", text(field.part))) goto refuse;
            break;
        case 5:
            Py_XDECREF(name);
            if ((name = text(field.part)) == NULL) goto refuse;
            break;
        case 6: kind = field.value; break;
        case 7: start = field.value; break;
        case 8: end = field.value; break;
        case 9:
            if (!add_pair(attributes, field.part, 1)) goto refuse;
            break;
        case 10: case 12: case 14:
            if ((uint32_t)field.value &&
                !keep(rare, counts[field.number - 10], PyLong_FromUnsignedLong((uint32_t)field.value))) goto refuse;
            break;
        case 11:
            if (!append(events, event_of(field.part))) goto refuse;
            break;
        case 13:
            if (!append(links, link_of(field.part))) goto refuse;
            break;
        case 15:
            if (status.at != NULL) goto refuse; /* two would have to be merged */
            status = field.part;
            break;
        default:
            if (field.value && !keep(rare, "flags", PyLong_FromUnsignedLongLong(field.value))) goto refuse;
        }
    }
    if (more < 0 || ids[1].end - ids[1].at != 16 || ids[2].end - ids[2].at != 8 || is_zero(ids[1])) goto refuse;
    if (start > INT64_MAX || end > INT64_MAX || kind > INT32_MAX) goto refuse;
    if (name == NULL && (name = PyUnicode_New(0, 127)) == NULL) goto refuse;
    for (int slot = 0; slot < SLOTS; slot++) set(plan, span, slot, Py_NewRef(Py_None));
    set(plan, span, STATUS, Py_NewRef(PyTuple_GET_ITEM(plan->statuses, 0)));
    set(plan, span, KIND, Py_NewRef(plan->other));
    if (!put(rare, "otel_kind", PyLong_FromUnsignedLongLong(kind))) goto refuse;
    if (status.at != NULL && !read_status(plan, span, rare, status)) goto refuse;
    if (PyDict_GET_SIZE(attributes) && !fill(plan, span, attributes, rare)) goto refuse;
    PyObject *trace_id = hex(ids[1]), *span_id = hex(ids[2]), *began = PyLong_FromUnsignedLongLong(start);
    int child = ids[4].end - ids[4].at == 8 && !is_zero(ids[4]);
    PyObject *parent_id = child ? hex(ids[4]) : Py_NewRef(Py_None);
    PyObject *ended = end ? PyLong_FromUnsignedLongLong(end) : Py_NewRef(Py_None);
    set(plan, span, TRACE, trace_id);
    set(plan, span, SPAN, span_id);
    set(plan, span, PARENT, parent_id);
    set(plan, span, START, began);
    set(plan, span, END, ended);
    if (!trace_id || !span_id || !parent_id || !began || !ended) goto refuse;
    set(plan, span, NAME, name);
    set(plan, span, ATTRIBUTES, attributes);
    set(plan, span, LINKS, links);
    set(plan, span, EVENTS, events);
    set(plan, span, RARE, rare);
    return span;
refuse:
    Py_XDECREF(name);
    Py_XDECREF(rare);
    Py_XDECREF(attributes);
    Py_XDECREF(links);
    Py_XDECREF(events);
    Py_XDECREF(span);
    return NULL;
}

/* The first field of that number in a message, as bytes: 1; none: 0; unreadable, or more than one: -1. */
static int only(Part part, uint32_t number, Part *found) {
    Field field;
    int more, count = 0;
    while ((more = next(&part, &field)) > 0) {
        if (field.number != number) continue;
        if (field.wire != BYTES || count++) return -1;
        *found = field.part;
    }
    return more < 0 ? -1 : count;
}

/* Puts a text that is not empty into a dictionary; 0 where it cannot be read. */
static int note(PyObject *found, const char *name, Part part) {
    return part.at == part.end || put(found, name, text(part));
}

/* The InstrumentationScope of a ScopeSpans message, with the addresses of both schemas. */
static PyObject *scope_of(Part part, Part own_schema, Part schema) {
    Field field;
    int more;
    PyObject *found = PyDict_New(), *attributes = PyDict_New();
    if (found == NULL || attributes == NULL) goto refuse;
    while ((more = next(&part, &field)) > 0) {
        static const int wires[] = {-1, BYTES, BYTES, BYTES, VARINT};
        if (field.number > 4) continue;
        if (field.wire != wires[field.number]) goto refuse;
        if (field.number == 1 && !note(found, "name", field.part)) goto refuse;
        if (field.number == 2 && !note(found, "version", field.part)) goto refuse;
        if (field.number == 3 && !add_pair(attributes, field.part, 1)) goto refuse;
        if (field.number == 4 && (uint32_t)field.value &&
            !put(found, "droppedAttributesCount", PyLong_FromUnsignedLong((uint32_t)field.value))) goto refuse;
    }
    if (more < 0) goto refuse;
    if (PyDict_GET_SIZE(attributes) && !put(found, "attributes", Py_NewRef(attributes))) goto refuse;
    if (!note(found, "schemaUrl", own_schema) || !note(found, "resourceSchemaUrl", schema)) goto refuse;
    Py_DECREF(attributes);
    return found;
refuse:
    Py_XDECREF(found);
    Py_XDECREF(attributes);
    return NULL;
}

/* ScopeSpans: its spans are added to `spans`; 0 where one is not the ordinary case. */
static int read_scope(const Plan *plan, Part part, PyObject *resource, Part schema, PyObject *spans) {
    Field field;
    int more = 0, good;
    Part scope = {NULL, NULL}, own = {NULL, NULL};
    if (only(part, 1, &scope) < 0 || only(part, 3, &own) < 0) return 0;
    PyObject *source = PyDict_New();
    good = source != NULL && put(source, "resource", Py_NewRef(resource)) &&
           put(source, "scope", scope_of(scope, own, schema));
    while (good && (more = next(&part, &field)) > 0)
        if (field.number == 2) good = field.wire == BYTES && append(spans, span_of(plan, field.part, source));
    Py_XDECREF(source);
    return good && more == 0;
}

/* ResourceSpans. */
static int read_group(const Plan *plan, Part part, PyObject *spans) {
    Field field;
    int more = 0, good;
    Part resource = {NULL, NULL}, schema = {NULL, NULL};
    if (only(part, 1, &resource) < 0 || only(part, 3, &schema) < 0) return 0;
    PyObject *attributes = PyDict_New();
    good = attributes != NULL;
    while (good && (more = next(&resource, &field)) > 0)
        if (field.number == 1) good = field.wire == BYTES && add_pair(attributes, field.part, 1);
    good = good && more == 0;
    while (good && (more = next(&part, &field)) > 0)
        if (field.number == 2) good = field.wire == BYTES && read_scope(plan, field.part, attributes, schema, spans);
    Py_XDECREF(attributes);
    return good && more == 0;
}

static int slots_of(Plan *plan, PyObject *tables) {
    plan->type = (PyTypeObject *)PyTuple_GET_ITEM(tables, 0);
    plan->rules = PyTuple_GET_ITEM(tables, 2);
    plan->kinds = PyTuple_GET_ITEM(tables, 3);
    plan->statuses = PyTuple_GET_ITEM(tables, 4);
    plan->other = PyTuple_GET_ITEM(tables, 5);
    PyObject *names = PyTuple_GET_ITEM(tables, 1);
    if (PyTuple_GET_SIZE(names) != SLOTS) return 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        PyObject *place = PyObject_GetAttr((PyObject *)plan->type, PyTuple_GET_ITEM(names, slot));
        int known = place != NULL && Py_IS_TYPE(place, &PyMemberDescr_Type);
        if (known) plan->offset[slot] = ((PyMemberDescrObject *)place)->d_member->offset;
        Py_XDECREF(place);
        if (!known) return 0;
    }
    return 1;
}

/* The spans of a request in protobuf, or None. `tables` is (Span, slot names, rules, kinds, statuses, "other"). */
PyObject *decode(PyObject *data, PyObject *tables) {
    Plan plan;
    PyObject *spans = NULL;
    if (!slots_of(&plan, tables)) goto refuse;
    Part part = {(const unsigned char *)PyBytes_AS_STRING(data), NULL};
    part.end = part.at + PyBytes_GET_SIZE(data);
    Field field;
    int more;
    if ((spans = PyList_New(0)) == NULL) return NULL;
    while ((more = next(&part, &field)) > 0)
        if (field.number == 1 && (field.wire != BYTES || !read_group(&plan, field.part, spans))) goto refuse;
    if (more == 0) return spans;
refuse:
    Py_XDECREF(spans);
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

/* JSON. The names of a span's fields, in the order of JSON_NAMES in otlp_native.py. */
enum { J_TRACE, J_SPAN, J_PARENT, J_NAME, J_KIND, J_START, J_END, J_ATTRIBUTES, J_STATUS, J_EVENTS, J_LINKS, J_KEY,
       J_VALUE, J_STRING, J_INT, J_DOUBLE, J_BOOL, J_CODE, J_MESSAGE, J_NAMES };
#define J_FIELDS J_KEY

typedef struct {
    Plan plan;
    PyObject *names, *value_of, *span_of;
} Reader;

static PyObject *item(const Reader *reader, PyObject *data, int name) {
    return PyDict_GetItemWithError(data, PyTuple_GET_ITEM(reader->names, name));
}

/* An id in lower-case hexadecimal that is not all zeros. */
static int is_id(PyObject *value, Py_ssize_t digits) {
    if (value == NULL || !PyUnicode_CheckExact(value) || !PyUnicode_IS_ASCII(value)) return 0;
    if (PyUnicode_GET_LENGTH(value) != digits) return 0;
    const Py_UCS1 *at = PyUnicode_1BYTE_DATA(value);
    int zero = 1;
    for (Py_ssize_t i = 0; i < digits; i++) {
        if (!((at[i] >= '0' && at[i] <= '9') || (at[i] >= 'a' && at[i] <= 'f'))) return 0;
        zero = zero && at[i] == '0';
    }
    return !zero;
}

/* A whole number that is not negative, in digits or as a number. */
static int whole(PyObject *value, uint64_t most, uint64_t *found) {
    *found = 0;
    if (value == NULL) return 1;
    if (PyLong_CheckExact(value)) {
        long long number = PyLong_AsLongLong(value);
        if (number < 0) return 0; /* an error is -1 */
        *found = (uint64_t)number;
        return *found <= most;
    }
    if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_ASCII(value)) return 0;
    Py_ssize_t size = PyUnicode_GET_LENGTH(value);
    if (size < 1 || size > 19) return 0;
    const Py_UCS1 *at = PyUnicode_1BYTE_DATA(value);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (at[i] < '0' || at[i] > '9') return 0;
        *found = 10 * *found + (uint64_t)(at[i] - '0');
    }
    return *found <= most;
}

/* An AnyValue: text, a number or a truth value here, the others in Python. */
static PyObject *json_value(const Reader *reader, PyObject *value) {
    PyObject *found;
    if (!PyDict_CheckExact(value)) return NULL;
    if (PyDict_GET_SIZE(value) == 1) {
        if ((found = item(reader, value, J_STRING)) != NULL) return PyUnicode_CheckExact(found) ? Py_NewRef(found) : NULL;
        if ((found = item(reader, value, J_INT)) != NULL) {
            uint64_t number;
            if (PyLong_CheckExact(found)) return Py_NewRef(found);
            if (whole(found, INT64_MAX, &number)) return PyLong_FromUnsignedLongLong(number);
        } else if ((found = item(reader, value, J_DOUBLE)) != NULL) {
            if (PyFloat_CheckExact(found)) return Py_NewRef(found);
        } else if ((found = item(reader, value, J_BOOL)) != NULL && PyBool_Check(found)) return Py_NewRef(found);
    }
    return PyObject_CallOneArg(reader->value_of, value);
}

static int json_attributes(const Reader *reader, PyObject *found, PyObject *given) {
    if (!PyList_CheckExact(given)) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); i++) {
        PyObject *pair = PyList_GET_ITEM(given, i), *key, *value;
        if (!PyDict_CheckExact(pair)) return 0;
        key = item(reader, pair, J_KEY);
        value = item(reader, pair, J_VALUE);
        if (key == NULL || value == NULL || !PyUnicode_CheckExact(key)) return 0;
        if ((value = json_value(reader, value)) == NULL) return 0;
        int good = PyDict_SetItem(found, key, value) == 0;
        Py_DECREF(value);
        if (!good) return 0;
    }
    return 1;
}

static int json_status(const Reader *reader, PyObject *span, PyObject *status) {
    uint64_t code;
    PyObject *said;
    if (!PyDict_CheckExact(status)) return 0;
    PyObject *given = item(reader, status, J_CODE);
    if ((given != NULL && !PyLong_CheckExact(given)) || !whole(given, 2, &code)) return 0;
    set(&reader->plan, span, STATUS, Py_NewRef(PyTuple_GET_ITEM(reader->plan.statuses, (Py_ssize_t)code)));
    if ((said = item(reader, status, J_MESSAGE)) == NULL) return 1;
    if (!PyUnicode_CheckExact(said)) return 0;
    if (PyUnicode_GET_LENGTH(said) == 0) return 1;
    if (code != 2) return 0;
    set(&reader->plan, span, ERROR, Py_NewRef(said));
    return 1;
}

/* One span; NULL where it is not the ordinary case. */
static PyObject *json_span(const Reader *reader, PyObject *data, PyObject *source) {
    const Plan *plan = &reader->plan;
    PyObject *field[J_FIELDS], *span = NULL, *rare = NULL, *attributes = NULL;
    Py_ssize_t known = 0;
    uint64_t start, end, kind;
    if (!PyDict_CheckExact(data)) return NULL;
    for (int i = 0; i < J_FIELDS; i++) known += (field[i] = item(reader, data, i)) != NULL;
    if (known != PyDict_GET_SIZE(data) || !is_id(field[J_TRACE], 32) || !is_id(field[J_SPAN], 16)) return NULL;
    for (int i = J_EVENTS; i <= J_LINKS; i++)
        if (field[i] != NULL && (!PyList_CheckExact(field[i]) || PyList_GET_SIZE(field[i]))) return NULL;
    int child = field[J_PARENT] != NULL && !(PyUnicode_Check(field[J_PARENT]) && !PyUnicode_GET_LENGTH(field[J_PARENT]));
    if (child && !is_id(field[J_PARENT], 16)) return NULL;
    if (field[J_NAME] == NULL || !PyUnicode_CheckExact(field[J_NAME])) return NULL;
    if (field[J_KIND] != NULL && !PyLong_CheckExact(field[J_KIND])) return NULL;
    if (!whole(field[J_KIND], INT32_MAX, &kind)) return NULL;
    if (!whole(field[J_START], INT64_MAX, &start) || !whole(field[J_END], INT64_MAX, &end)) return NULL;
    rare = PyDict_Copy(source);
    attributes = PyDict_New();
    span = plan->type->tp_alloc(plan->type, 0);
    if (rare == NULL || attributes == NULL || span == NULL) goto refuse;
    for (int slot = 0; slot < SLOTS; slot++) set(plan, span, slot, Py_NewRef(Py_None));
    set(plan, span, STATUS, Py_NewRef(PyTuple_GET_ITEM(plan->statuses, 0)));
    set(plan, span, KIND, Py_NewRef(plan->other));
    if (!put(rare, "otel_kind", PyLong_FromUnsignedLongLong(kind))) goto refuse;
    if (field[J_STATUS] != NULL && !json_status(reader, span, field[J_STATUS])) goto refuse;
    if (field[J_ATTRIBUTES] != NULL && !json_attributes(reader, attributes, field[J_ATTRIBUTES])) goto refuse;
    if (PyDict_GET_SIZE(attributes) && !fill(plan, span, attributes, rare)) goto refuse;
    PyObject *began = PyLong_FromUnsignedLongLong(start), *links = PyList_New(0), *events = PyList_New(0);
    PyObject *ended = end ? PyLong_FromUnsignedLongLong(end) : Py_NewRef(Py_None);
    set(plan, span, START, began);
    set(plan, span, END, ended);
    set(plan, span, LINKS, links);
    set(plan, span, EVENTS, events);
    if (!began || !ended || !links || !events) goto refuse;
    set(plan, span, TRACE, Py_NewRef(field[J_TRACE]));
    set(plan, span, SPAN, Py_NewRef(field[J_SPAN]));
    if (child) set(plan, span, PARENT, Py_NewRef(field[J_PARENT]));
    set(plan, span, NAME, Py_NewRef(field[J_NAME]));
    set(plan, span, ATTRIBUTES, attributes);
    set(plan, span, RARE, rare);
    return span;
refuse:
    Py_XDECREF(span);
    Py_XDECREF(rare);
    Py_XDECREF(attributes);
    return NULL;
}

/* The spans of the list `given` in one scope of a request in JSON, or None; what is not ordinary is read by `span_of`.
   `source` is {"resource", "scope"}; `tables` is that of `decode` with (names, value_of, span_of) added. */
PyObject *json_spans(PyObject *given, PyObject *source, PyObject *tables) {
    Reader reader = {.names = PyTuple_GET_ITEM(tables, 6), .value_of = PyTuple_GET_ITEM(tables, 7),
                     .span_of = PyTuple_GET_ITEM(tables, 8)};
    PyObject *spans = NULL;
    if (!slots_of(&reader.plan, tables) || PyTuple_GET_SIZE(reader.names) != J_NAMES) goto refuse;
    if (!PyList_CheckExact(given) || !PyDict_CheckExact(source)) goto refuse;
    if ((spans = PyList_New(0)) == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); i++) {
        PyObject *data = Py_NewRef(PyList_GET_ITEM(given, i)), *span = json_span(&reader, data, source);
        if (span == NULL) {
            PyErr_Clear();
            span = PyObject_CallFunctionObjArgs(reader.span_of, data, PyDict_GetItemString(source, "resource"),
                                                PyDict_GetItemString(source, "scope"), NULL);
        }
        Py_DECREF(data);
        if (!append(spans, span)) goto refuse;
    }
    return spans;
refuse:
    Py_XDECREF(spans);
    PyErr_Clear();
    return Py_NewRef(Py_None);
}
