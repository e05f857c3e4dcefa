/* A whole decoder in one call: the layers of a Llama- or Cognate-shaped model over packed matrices, with a cache.
 *
 * Between the products everything is float32. Several tokens go through a layer together (a prompt), so that the weights
 * are read once for all of them. Only the last token's logits are computed, unless all are wanted.
 */
#include "products.c"

enum { FLOATS = 5 }; /* a kind of its own here: a plain float32 matrix, row after row */

typedef struct {
    const float *norm_in, *norm_mid; /* gains, or NULL for none */
    Matrix q, k, v, o, gate, up, down; /* rows 0: not there (q holds q, k and v; no gate: the MLP is relu squared) */
    Matrix memory_qkv, memory_rates, memory_out; /* Cognate's neural memory */
    const float *attention_gain, *memory_gain;
    float *keys, *values; /* cache [groups][length][head width] */
    float *state; /* memory [heads][width][width] */
} Layer;

typedef struct {
    int64_t layers, width, heads, groups, head_width, length, window, memory_heads, memory_width, most_tokens;
    int64_t qk_norm, norm_embedding;
    float eps, scale;
    const float *cosines, *sines; /* [length][head width / 2] */
    const float *norm_out;
    Matrix table, embed_up, head_down, head;
    Layer *layer;
    float *scratch; /* SCRATCH parts of most_tokens * widest floats */
    int64_t widest;
    int8_t *numbers; /* most_tokens * (widest + 64 * group padding) */
    int64_t numbers_size;
} Model;

#define SCRATCH 8

/* ---- small things ----------------------------------------------------------------------------------------------- */

/* e^x to about 2e-7: x = n ln 2 + r, a polynomial for e^r. Written so that a loop over it becomes vector code. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float n = rintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } two_to_n = {((int32_t)n + 127) << 23};
    return p * two_to_n.f;
}

static float dot_floats(const float *a, const float *b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void normalise(const float *x, const float *gain, float eps, float *y, int64_t n) {
    const float factor = 1.0f / sqrtf(dot_floats(x, x, n) / n + eps);
    if (gain) for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * gain[i];
    else for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

static void unit_length(float *x, int64_t n) {
    const float length = sqrtf(dot_floats(x, x, n)), factor = 1.0f / (length > 1e-12f ? length : 1e-12f);
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void silu(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = x[i] / (1.0f + exponential(-x[i]));
}

/* ---- products --------------------------------------------------------------------------------------------------- */

static void float_product(const Matrix *m, int64_t tokens, const float *x, float *y) {
    const float *w = (const float *)(const void *)m->packed;
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t t = 0; t < tokens; t++)
            y[t * m->rows + r] = dot_floats(w + r * m->columns, x + t * m->columns, m->columns) + (m->bias ? m->bias[r] : 0);
}

/* Quantised activations, kept while the next matrices want the same ones. */
typedef struct {
    int32_t kind;
    int64_t columns, group;
    int8_t *numbers;
    int32_t *sums;
    float *units;
} Rounded;

static void multiply(const Model *d, const Matrix *m, int64_t tokens, const float *x, float *y, Rounded *kept) {
    if (m->kind == FLOATS) {
        float_product(m, tokens, x, y);
        return;
    }
    const Layout l = layout_of(m);
    const int64_t stride = l.chunks * CHUNK[m->kind];
    if (kept->kind != m->kind || kept->columns != m->columns || kept->group != m->group) {
        kept->kind = m->kind, kept->columns = m->columns, kept->group = m->group;
        kept->numbers = d->numbers;
        kept->sums = (int32_t *)(void *)(d->numbers + tokens * stride);
        kept->units = (float *)(void *)(kept->sums + tokens * l.groups);
        for (int64_t t = 0; t < tokens; t++)
            kept->units[t] = quantize(m, &l, x + t * m->columns, kept->numbers + t * stride, kept->sums + t * l.groups);
    }
    product(m, &l, tokens, kept->numbers, kept->sums, kept->units, y);
}

static void multiply_once(const Model *d, const Matrix *m, int64_t tokens, const float *x, float *y) {
    Rounded none = {-1, 0, 0, 0, 0, 0};
    multiply(d, m, tokens, x, y, &none);
}

static float one_scale(const Matrix *m, int64_t at) {
    return m->half ? from_half(((const uint16_t *)m->scales)[at]) : ((const float *)m->scales)[at];
}

/* A row of an embedding. */
static void look_up_row(const Matrix *m, int64_t row, float *out) {
    if (m->kind == FLOATS) {
        memcpy(out, (const float *)(const void *)m->packed + row * m->columns, m->columns * sizeof(float));
        return;
    }
    const Layout l = layout_of(m);
    const int chunk = CHUNK[m->kind], bits = m->kind == INT8 ? 8 : m->kind == INT4 ? 4 : 2;
    const int offset = m->kind == INT8 ? 128 : OFFSET[m->kind];
    const uint8_t *w = m->packed + (row / ROWS) * l.chunks * LINE + (row % ROWS) * 4;
    for (int64_t i = 0; i < m->columns; i++) {
        const int64_t g = i / m->group, within = i % m->group, c = g * l.group_chunks + within / chunk;
        const int place = within % chunk, byte = w[c * LINE + place % 4], digit = place / 4;
        int code = (byte >> (bits * digit)) & ((1 << bits) - 1);
        if (m->kind == TRIT5) {
            int rest = byte;
            for (int d = 0; d <= digit; d++) rest = (rest & 255) * 3;
            code = rest >> 8;
        }
        out[i] = (float)(STEP[m->kind] * code - offset) * one_scale(m, g * l.tiles * ROWS + row);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* The two halves of a head are the two coordinates that turn. */
static void rotate(float *x, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = a * sines[i] + b * cosines[i];
    }
}

static void place_head(const Model *d, float *x, int64_t position) {
    const int64_t half = d->head_width / 2;
    if (d->qk_norm) normalise(x, NULL, d->eps, x, d->head_width);
    rotate(x, d->cosines + position * half, d->sines + position * half, half);
}

static void attend(const Model *d, const float *q, const float *keys, const float *values, int64_t from, int64_t to,
                   float *weights, float *out) {
    const int64_t n = to - from, width = d->head_width;
    float most = -INFINITY, total = 0;
    for (int64_t j = 0; j < n; j++) {
        weights[j] = dot_floats(q, keys + (from + j) * width, width) * d->scale;
        most = weights[j] > most ? weights[j] : most;
    }
    for (int64_t j = 0; j < n; j++) weights[j] = exponential(weights[j] - most);
    for (int64_t j = 0; j < n; j++) total += weights[j];
    memset(out, 0, width * sizeof(float));
    for (int64_t j = 0; j < n; j++) {
        const float share = weights[j] / total, *value = values + (from + j) * width;
        for (int64_t i = 0; i < width; i++) out[i] += share * value[i];
    }
}

/* q, k, v [tokens][...] -> out [tokens][heads * width]; keys and values go into the cache. */
static void attention(const Model *d, Layer *layer, int64_t tokens, int64_t position, float *qkv[3], const int64_t stride[3],
                      float *weights, float *out) {
    const int64_t width = d->head_width, shared = d->heads / d->groups;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t now = position + t, from = d->window && now + 1 > d->window ? now + 1 - d->window : 0;
        float *q = qkv[0] + t * stride[0], *k = qkv[1] + t * stride[1], *v = qkv[2] + t * stride[2];
        for (int64_t g = 0; g < d->groups; g++) {
            place_head(d, k + g * width, now);
            memcpy(layer->keys + (g * d->length + now) * width, k + g * width, width * sizeof(float));
            memcpy(layer->values + (g * d->length + now) * width, v + g * width, width * sizeof(float));
        }
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = h / shared * d->length * width;
            place_head(d, q + h * width, now);
            attend(d, q + h * width, layer->keys + at, layer->values + at, from, now + 1, weights,
                   out + (t * d->heads + h) * width);
        }
    }
}

/* ---- Cognate's memory, one token at a time: M = keep M + rate (v - M k) k^T, read M q (see memory.py) -------------- */

static float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

static void remember(const Model *d, Layer *layer, const float *qkv, const float *rates, float *read) {
    const int64_t heads = d->memory_heads, width = d->memory_width;
    for (int64_t h = 0; h < heads; h++) {
        const float *q = qkv + h * width, *k = qkv + (heads + h) * width, *v = qkv + (2 * heads + h) * width;
        const float rate = sigmoid(rates[h]), keep = sigmoid(-rates[heads + h]);
        for (int64_t i = 0; i < width; i++) {
            float *row = layer->state + (h * width + i) * width;
            const float surprise = rate * (v[i] - dot_floats(row, k, width));
            for (int64_t j = 0; j < width; j++) row[j] = keep * row[j] + surprise * k[j];
            read[h * width + i] = dot_floats(row, q, width);
        }
    }
}

/* y becomes norm(y) * gain * 2 sigmoid(norm(memory's answer) * gain) */
static void memory_gate(const Model *d, Layer *layer, int64_t tokens, const float *x, float *y, float **spare) {
    const int64_t inner = d->memory_heads * d->memory_width;
    multiply_once(d, &layer->memory_qkv, tokens, x, spare[0]);
    multiply_once(d, &layer->memory_rates, tokens, x, spare[1]);
    silu(spare[0], tokens * 3 * inner);
    for (int64_t t = 0; t < tokens; t++) {
        float *qkv = spare[0] + t * 3 * inner;
        for (int64_t h = 0; h < 2 * d->memory_heads; h++) unit_length(qkv + h * d->memory_width, d->memory_width);
        remember(d, layer, qkv, spare[1] + t * layer->memory_rates.rows, spare[2] + t * inner);
    }
    multiply_once(d, &layer->memory_out, tokens, spare[2], spare[0]);
    for (int64_t t = 0; t < tokens; t++) {
        float *gate = spare[0] + t * d->width, *state = y + t * d->width;
        normalise(gate, layer->memory_gain, d->eps, gate, d->width);
        normalise(state, layer->attention_gain, d->eps, state, d->width);
        for (int64_t i = 0; i < d->width; i++) state[i] *= 2.0f / (1.0f + exponential(-gate[i]));
    }
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void norm_rows(const Model *d, const float *x, const float *gain, float *y, int64_t tokens) {
    for (int64_t t = 0; t < tokens; t++) normalise(x + t * d->width, gain, d->eps, y + t * d->width, d->width);
}

static void mlp(const Model *d, Layer *layer, int64_t tokens, float *h, float **part) {
    const int64_t inner = tokens * layer->up.rows;
    Rounded kept = {-1, 0, 0, 0, 0, 0};
    norm_rows(d, h, layer->norm_mid, part[0], tokens);
    multiply(d, &layer->up, tokens, part[0], part[1], &kept);
    if (layer->gate.rows) {
        float *gate = part[2], *up = part[1];
        multiply(d, &layer->gate, tokens, part[0], gate, &kept);
        for (int64_t i = 0; i < inner; i++) up[i] *= gate[i] / (1.0f + exponential(-gate[i]));
    } else
        for (int64_t i = 0; i < inner; i++) part[1][i] = part[1][i] > 0 ? part[1][i] * part[1][i] : 0;
    multiply_once(d, &layer->down, tokens, part[1], part[0]);
    add(h, part[0], tokens * d->width);
}

static void block(const Model *d, Layer *layer, int64_t tokens, int64_t position, float *h, float **part, float *weights) {
    Rounded kept = {-1, 0, 0, 0, 0, 0};
    const int64_t q_width = d->heads * d->head_width, kv_width = d->groups * d->head_width;
    float *qkv[3] = {part[1], part[2], part[3]};
    int64_t stride[3] = {q_width, kv_width, kv_width};
    norm_rows(d, h, layer->norm_in, part[0], tokens);
    multiply(d, &layer->q, tokens, part[0], part[1], &kept);
    if (layer->k.rows) {
        multiply(d, &layer->k, tokens, part[0], part[2], &kept);
        multiply(d, &layer->v, tokens, part[0], part[3], &kept);
    } else {
        qkv[1] = part[1] + q_width, qkv[2] = qkv[1] + kv_width;
        stride[0] = stride[1] = stride[2] = q_width + 2 * kv_width;
    }
    attention(d, layer, tokens, position, qkv, stride, weights, part[4]);
    if (layer->state) memory_gate(d, layer, tokens, part[0], part[4], part + 1);
    multiply_once(d, &layer->o, tokens, part[4], part[0]);
    add(h, part[0], tokens * d->width);
    mlp(d, layer, tokens, h, part);
}

static void embed(const Model *d, int64_t tokens, const int64_t *ids, float *h, float *spare) {
    if (d->embed_up.rows) {
        for (int64_t t = 0; t < tokens; t++) look_up_row(&d->table, ids[t], spare + t * d->table.columns);
        multiply_once(d, &d->embed_up, tokens, spare, h);
    } else
        for (int64_t t = 0; t < tokens; t++) look_up_row(&d->table, ids[t], h + t * d->width);
    if (d->norm_embedding) norm_rows(d, h, NULL, h, tokens);
}

/* Reads `tokens` <= most_tokens ids at `position`; the logits of the last one, or of all, go to `logits`. */
int decoder_step(Model *d, int64_t tokens, int64_t position, const int64_t *ids, int64_t all, float *logits) {
    if (tokens < 1 || tokens > d->most_tokens || position < 0 || position + tokens > d->length) return 1;
    for (int64_t t = 0; t < tokens; t++)
        if (ids[t] < 0 || ids[t] >= d->table.rows) return 2;
    float *part[SCRATCH], *h = d->scratch, *weights = d->scratch + (SCRATCH - 1) * d->most_tokens * d->widest;
    for (int i = 0; i + 2 < SCRATCH; i++) part[i] = d->scratch + (i + 1) * d->most_tokens * d->widest;
    embed(d, tokens, ids, h, part[0]);
    for (int64_t i = 0; i < d->layers; i++) block(d, d->layer + i, tokens, position, h, part, weights);
    const int64_t wanted = all ? tokens : 1;
    float *x = part[0];
    norm_rows(d, h + (tokens - wanted) * d->width, d->norm_out, x, wanted);
    if (d->head_down.rows) {
        multiply_once(d, &d->head_down, wanted, x, part[1]);
        x = part[1];
    }
    multiply_once(d, &d->head, wanted, x, logits);
    return 0;
}
