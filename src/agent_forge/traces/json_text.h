/* Text that grows, and strings in it as JSON has them: what otlp_rows.c and span_rows.c write attributes with. */
#include <Python.h>
#include <string.h>

typedef struct { char *at; size_t size, room; } Text;

static int grow(Text *text, size_t more) {
    if (text->size + more <= text->room) return 1;
    size_t room = 2 * text->room + more + 256;
    char *at = PyMem_Realloc(text->at, room);
    if (at == NULL) return 0;
    text->at = at;
    text->room = room;
    return 1;
}

static int add(Text *text, const char *bytes, size_t size) {
    if (!grow(text, size)) return 0;
    memcpy(text->at + text->size, bytes, size);
    text->size += size;
    return 1;
}

static char *escaped(char *to, unsigned char byte) {
    *to++ = '\\';
    switch (byte) {
    case '"': case '\\': *to++ = (char)byte; break;
    case '\n': *to++ = 'n'; break;
    case '\r': *to++ = 'r'; break;
    case '\t': *to++ = 't'; break;
    case '\f': *to++ = 'f'; break;
    case '\b': *to++ = 'b'; break;
    default:
        memcpy(to, "u00", 3);
        to[3] = (char)('0' + (byte >> 4));
        to[4] = "0123456789abcdef"[byte & 15];
        to += 5;
    }
    return to;
}

/* As json.encoder.encode_basestring: only what JSON cannot do without is escaped. */
static int add_json_string(Text *text, const char *from, size_t size) {
    if (!grow(text, 6 * size + 2)) return 0;
    char *to = text->at + text->size;
    *to++ = '"';
    for (const char *end = from + size; from < end; from++) {
        unsigned char byte = (unsigned char)*from;
        if (byte >= 0x20 && byte != '"' && byte != '\\') *to++ = (char)byte;
        else to = escaped(to, byte);
    }
    *to++ = '"';
    text->size = (size_t)(to - text->at);
    return 1;
}
