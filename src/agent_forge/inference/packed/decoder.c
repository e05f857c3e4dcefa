/* A whole decoder in one call: the layers of a Llama- or Cognate-shaped model over packed matrices, with caches.
 *
 * Between the products everything is float32. Several tokens go through a layer together, so that the weights are read
 * once for all of them: those of one sequence (a prompt), or one of each of several sequences, each with its own cache.
 * The result for a token does not depend on the sequences beside it, to the last bit.
 */
#include "products.c"

enum { FLOATS = 5 }; /* a kind of its own here: a plain float32 matrix, row after row */

typedef struct {
    const float *norm_in, *norm_mid; /* gains, or NULL for none */
    Matrix q, k, v, o, gate, up, down; /* rows 0: absent (then q holds q, k and v; without gate the MLP is relu squared) */
    Matrix memory_qkv, memory_rates, memory_out; /* Cognate's neural memory */
    const float *attention_gain, *memory_gain;
    int64_t memory; /* its index among the layers that have one; -1: none */
} Layer;

/* The cache of one sequence. */
typedef struct {
    float *keys, *values; /* [layers][groups][length][head width]; see attention.c for the order of keys */
    float *state; /* [layers with a memory][heads][width][width] */
    int64_t length, read; /* tokens there is room for, and tokens read */
} History;

/* The sequence and position of a token. */
typedef struct {
    History *in;
    int64_t position;
} Place;

typedef struct {
    int64_t layers, width, heads, groups, head_width, window, memory_heads, memory_width, most_tokens;
    int64_t qk_norm, norm_embedding;
    float eps, scale;
    const float *cosines, *sines; /* [reach][head width / 2] */
    float *weights; /* of attention: [reach], the length of the longest sequence */
    int64_t reach;
    const float *norm_out;
    Matrix table, embed_up, head_down, head;
    Layer *layer;
    float *scratch; /* SCRATCH parts of most_tokens * widest floats */
    int64_t widest;
    int8_t *numbers; /* most_tokens * (widest + 64 * group padding) */
    int64_t numbers_size;
} Model;

#define SCRATCH 7

/* ---- elementwise ------------------------------------------------------------------------------------------------ */

/* e^x to about 2e-7: x = n ln 2 + r, a polynomial for e^r. A loop over it becomes vector code. */
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
    const int32_t whole = n == n ? (int32_t)n : 0; /* not a number: p is not either */
    union { int32_t i; float f; } two_to_n = {(whole + 127) << 23};
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

/* As many floats as a register holds. A wider vector of gcc's is computed float by float, through memory. */
#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float))));
static inline __attribute__((always_inline)) Wide wide(const float *x) {
    Wide out;
    memcpy(&out, x, sizeof out);
    return out;
}

/* Keeps a value in a register: gcc would load it again for every product, and loads are what the products wait for. */
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define IN_REGISTER(x) __asm__("" : "+w"(x))
#else
#define IN_REGISTER(x) (void)(x)
#endif

/* By halves, as every step of a plain loop would wait for the one before. */
static inline __attribute__((always_inline)) float lane_sum(Wide x) {
    for (int half = WIDTH / 2; half; half /= 2)
        for (int l = 0; l < half; l++) x[l] += x[l + half];
    return x[0];
}

enum { TILE_ROWS = 2, TILE_TOKENS = 4 };

/* Some rows times some tokens in registers: each weight is loaded once for all these tokens, and no sum waits for another.
 * A sum is taken in the same order whatever is computed beside it. */
static inline __attribute__((always_inline)) void float_tile(const Matrix *m, int64_t row, int rows, const float *x, int tokens,
                                                             float *y) {
    const int64_t n = m->columns;
    const float *w = (const float *)(const void *)m->packed + row * n;
    Wide sum[TILE_ROWS][TILE_TOKENS] = {{{0}}};
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        Wide of[TILE_TOKENS];
        for (int t = 0; t < tokens; t++) {
            of[t] = wide(x + t * n + i);
            IN_REGISTER(of[t]);
        }
        for (int r = 0; r < rows; r++) {
            __builtin_prefetch(w + (r + TILE_ROWS) * n + i); /* of the next tile */
            Wide weight = wide(w + r * n + i);
            IN_REGISTER(weight);
            for (int t = 0; t < tokens; t++) sum[r][t] += weight * of[t];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++) {
            float total = lane_sum(sum[r][t]);
            for (int64_t j = i; j < n; j++) total += w[r * n + j] * x[t * n + j];
            y[t * m->rows + row + r] = total + (m->bias ? m->bias[row + r] : 0);
        }
}

/* Some rows times all tokens. */
static inline __attribute__((always_inline)) void float_rows(const Matrix *m, int64_t row, int rows, int64_t tokens, const float *x,
                                                             float *y) {
    for (; tokens >= TILE_TOKENS; tokens -= TILE_TOKENS, x += TILE_TOKENS * m->columns, y += TILE_TOKENS * m->rows)
        float_tile(m, row, rows, x, TILE_TOKENS, y);
    if (tokens == 3) float_tile(m, row, rows, x, 3, y);
    else if (tokens == 2) float_tile(m, row, rows, x, 2, y);
    else if (tokens == 1) float_tile(m, row, rows, x, 1, y);
}

static void float_product(const Matrix *m, int64_t tokens, const float *x, float *y) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= m->rows; row += TILE_ROWS) float_rows(m, row, TILE_ROWS, tokens, x, y);
    for (; row < m->rows; row++) float_rows(m, row, 1, tokens, x, y);
}

/* Quantised activations, kept while the next matrices need the same ones. */
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

#include "attention.c"

/* ---- Cognate's memory, one token at a time: M = keep M + rate (v - M k) k^T, read M q (see memory.py) -------------- */

static float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

static void remember(const Model *d, float *state, const float *qkv, const float *rates, float *read) {
    const int64_t heads = d->memory_heads, width = d->memory_width;
    for (int64_t h = 0; h < heads; h++) {
        const float *q = qkv + h * width, *k = qkv + (heads + h) * width, *v = qkv + (2 * heads + h) * width;
        const float rate = sigmoid(rates[h]), keep = sigmoid(-rates[heads + h]);
        for (int64_t i = 0; i < width; i++) {
            float *row = state + (h * width + i) * width;
            const float surprise = rate * (v[i] - dot_floats(row, k, width));
            for (int64_t j = 0; j < width; j++) row[j] = keep * row[j] + surprise * k[j];
            read[h * width + i] = dot_floats(row, q, width);
        }
    }
}

/* y becomes norm(y) * gain * 2 sigmoid(norm(memory's output) * gain) */
static void memory_gate(const Model *d, const Layer *layer, int64_t tokens, const Place *place, const float *x, float *y,
                        float **spare) {
    const int64_t inner = d->memory_heads * d->memory_width, size = inner * d->memory_width;
    multiply_once(d, &layer->memory_qkv, tokens, x, spare[0]);
    multiply_once(d, &layer->memory_rates, tokens, x, spare[1]);
    silu(spare[0], tokens * 3 * inner);
    for (int64_t t = 0; t < tokens; t++) {
        float *qkv = spare[0] + t * 3 * inner;
        for (int64_t h = 0; h < 2 * d->memory_heads; h++) unit_length(qkv + h * d->memory_width, d->memory_width);
        remember(d, place[t].in->state + layer->memory * size, qkv, spare[1] + t * layer->memory_rates.rows, spare[2] + t * inner);
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

static void mlp(const Model *d, const Layer *layer, int64_t tokens, float *h, float **part) {
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

static void block(const Model *d, int64_t number, int64_t tokens, const Place *place, float *h, float **part) {
    const Layer *layer = d->layer + number;
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
    attention(d, number, tokens, place, qkv, stride, part[4]);
    if (layer->memory >= 0) memory_gate(d, layer, tokens, place, part[0], part[4], part + 1);
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

/* The logits of the last `each` tokens of every row. */
static void answer(const Model *d, int64_t rows, int64_t tokens, int64_t each, const float *h, float **part, float *logits) {
    float *x = part[0];
    for (int64_t r = 0; r < rows; r++)
        norm_rows(d, h + ((r + 1) * tokens - each) * d->width, d->norm_out, x + r * each * d->width, each);
    if (d->head_down.rows) {
        multiply_once(d, &d->head_down, rows * each, x, part[1]);
        x = part[1];
    }
    multiply_once(d, &d->head, rows * each, x, logits);
}

/* Each of `rows` sequences reads `tokens` ids, ids [rows][tokens], at most most_tokens in all. The logits of the last `each`
 * of them go to `logits` [rows][each][vocabulary]. Returns 0, 1 for a call that is wrong, 2 for an unknown token. */
int decoder_read(const Model *d, History *history, int64_t rows, int64_t tokens, const int64_t *ids, int64_t each,
                 float *logits) {
    const int64_t all = rows * tokens;
    if (rows < 1 || tokens < 1 || all > d->most_tokens || each < 0 || each > tokens) return 1;
    if (d->head_width > WIDEST_HEAD || d->head_width % 4) return 1;
    Place place[all];
    for (int64_t t = 0; t < all; t++) {
        History *in = history + t / tokens;
        place[t] = (Place){in, in->read + t % tokens};
        if (in->read < 0 || in->read + tokens > in->length || in->length > d->reach || in->length % LANES) return 1;
        if (ids[t] < 0 || ids[t] >= d->table.rows) return 2;
    }
    float *part[SCRATCH], *h = d->scratch;
    for (int i = 0; i + 1 < SCRATCH; i++) part[i] = d->scratch + (i + 1) * d->most_tokens * d->widest;
    embed(d, all, ids, h, part[0]);
    for (int64_t i = 0; i < d->layers; i++) block(d, i, all, place, h, part);
    for (int64_t r = 0; r < rows; r++) history[r].read += tokens;
    if (each) answer(d, rows, tokens, each, h, part, logits);
    return 0;
}
