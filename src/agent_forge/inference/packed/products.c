/* Products of packed integer matrices with int8 activations. The layout is described in trits.py.
 *
 *   y[t][r] = (sum over groups g of (float)dot(t, r, g) * scale[g][r]) * scale_x[t] (+ bias[r])
 *   dot(t, r, g) = sum over the group's columns of value[r][c] * x[t][c],   exact in int32
 *
 * value = STEP * code - OFFSET, so dot = STEP * sum(code * x) - OFFSET * sum(x). Every path (AVX-512 VNNI, AVX2, NEON with
 * and without dot products, plain C) computes the same integers, and all share one C loop for the floating-point part,
 * in a fixed order and without fused multiply-add (the build passes -ffp-contract=off): the results are the same to the
 * last bit.
 *
 * Why no accumulator overflows. int32: a row has at most 65,536 columns, |code| <= 255 and |x| <= 127, so a sum is at
 * most 65,536 * 255 * 127 = 2,122,383,360 < 2^31; the shifted digits of the VNNI path are at most 192 * 127 * 16,384.
 * int16 (AVX2, NEON): the bound is given beside each FLUSH. Compile with -DPLAIN for plain C on any machine.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__) && !defined(PLAIN)
#define VNNI 1
#elif defined(__AVX2__) && !defined(PLAIN)
#define AVX2 1
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__) && !defined(PLAIN)
#define NEON 1
#endif

#define ROWS 16
#define LINE 64 /* bytes of a chunk: 16 rows of 4 bytes */
#define AHEAD 8192 /* bytes to prefetch ahead: beyond the 4 KB page at whose end the processor's own prefetcher stops */
#define TOKENS 4 /* tokens for which the weights are read once */

enum { BIT2 = 0, TRIT5 = 1, INT4 = 2, INT8 = 3, LEVEL4 = 4 };
static const int CHUNK[] = {16, 20, 8, 4, 16}, STEP[] = {1, 1, 1, 1, 2};
#if defined(AVX2) || defined(NEON)
static const int OFFSET[] = {1, 1, 8, 0, 3}; /* their product of bytes subtracts the offset before it multiplies */
#else
static const int OFFSET[] = {1, 1, 8, 128, 3};
#endif

typedef struct {
    int32_t kind, half; /* half: the scales are float16 */
    int64_t rows, columns, group;
    const uint8_t *packed;
    const void *scales; /* [groups][rows rounded up to 16] */
    const float *bias; /* [rows] or NULL */
} Matrix;

const char *products_path(void) {
#if defined(VNNI)
    return "avx512vnni";
#elif defined(AVX2)
    return "avx2";
#elif defined(NEON) && defined(__ARM_FEATURE_DOTPROD)
    return "neon dotprod";
#elif defined(NEON)
    return "neon";
#else
    return "plain";
#endif
}

/* How a matrix lies in memory; divisions are slow, so it is computed once per product. */
typedef struct {
    int64_t tiles, groups, chunks; /* chunks of a row */
    int64_t group_chunks, last_chunks, last_columns; /* of a group, and of the last one */
} Layout;

static Layout layout_of(const Matrix *m) {
    Layout l;
    const int chunk = CHUNK[m->kind];
    l.tiles = (m->rows + ROWS - 1) / ROWS;
    l.groups = (m->columns + m->group - 1) / m->group;
    l.last_columns = m->columns - (l.groups - 1) * m->group;
    l.group_chunks = (m->group + chunk - 1) / chunk;
    l.last_chunks = (l.last_columns + chunk - 1) / chunk;
    l.chunks = (l.groups - 1) * l.group_chunks + l.last_chunks;
    return l;
}

/* ---- activations: int8 by the largest magnitude of the token ---------------------------------------------------- */

/* The largest |x|, by its bits: as integers they have the order of the magnitudes, and a NaN is above everything. */
static float largest(const float *x, int64_t n) {
    int32_t most = 0;
    float out;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    memcpy(&out, &most, 4);
    return out;
}

/* One token: q in the order of the chunks (padding is zero), the sum of each group; returns the scale (NaN if x holds
 * anything that is not finite, so that the product is NaN too). */
static float quantize(const Matrix *m, const Layout *l, const float *x, int8_t *q, int32_t *sums) {
    const int chunk = CHUNK[m->kind];
    float most = largest(x, m->columns);
    if (!isfinite(most)) {
        memset(q, 0, l->chunks * chunk);
        memset(sums, 0, l->groups * sizeof(int32_t));
        return NAN;
    }
    most = most < 1e-5f ? 1e-5f : most;
    const float unit = most / 127.0f;
    for (int64_t g = 0; g < l->groups; g++) {
        const int last = g + 1 == l->groups;
        const int64_t n = last ? l->last_columns : m->group, padded = (last ? l->last_chunks : l->group_chunks) * chunk;
        int32_t sum = 0;
        for (int64_t i = 0; i < n; i++) {
            int32_t v = (int32_t)rintf(x[i] / unit);
            q[i] = (int8_t)v;
            sum += v;
        }
        memset(q + n, 0, padded - n);
        sums[g] = sum;
        x += n;
        q += padded;
    }
    return unit;
}

/* ---- the integer product of one tile and one group, for n tokens: out[t][16] ------------------------------------- */

#if defined(VNNI)
#include "products_avx512.c"
#elif defined(AVX2)
#include "products_avx2.c"
#elif defined(NEON)
#include "products_neon.c"
#else

/* Plain C: the reference for the other paths. */
static void dot_lines(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    memset(out, 0, sizeof(int32_t) * ROWS * n);
    for (int64_t c = 0; c < chunks; c++, w += LINE, q += CHUNK[kind])
        for (int i = 0; i < LINE; i++) {
            int rest = w[i];
            for (int d = 0; d < CHUNK[kind] / 4; d++) {
                int code;
                if (kind == TRIT5) {
                    rest = (rest & 255) * 3;
                    code = rest >> 8;
                } else {
                    const int bits = 32 / CHUNK[kind];
                    code = (rest >> (bits * d)) & ((1 << bits) - 1);
                }
                for (int t = 0; t < n; t++) out[ROWS * t + i / 4] += code * q[t * stride + 4 * d + i % 4];
            }
        }
}

#endif

/* The constant arguments let the compiler specialise the loop for each kind and number of tokens. */
static void dot(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
#if defined(VNNI)
    if (n == 1 && kind == BIT2) { dot_bit2(w, q, chunks, out); return; }
    if (n == 1 && kind == INT8) { dot_int8(w, q, chunks, out); return; }
#ifdef __AVX512VBMI__
    if (n == 1 && kind == TRIT5) { dot_trit5(w, q, chunks, out); return; }
#endif
#elif defined(AVX2)
    if (n == 1 && kind == BIT2) { dot_bit2(w, q, chunks, out); return; }
    if (kind == INT8) {
        if (n == 1) dot_bytes(1, w, q, stride, chunks, out);
        else if (n == 2) dot_bytes(2, w, q, stride, chunks, out);
        else if (n == 3) dot_bytes(3, w, q, stride, chunks, out);
        else dot_bytes(4, w, q, stride, chunks, out);
        return;
    }
#endif
#define EACH_COUNT(KIND) \
    if (n == 1) dot_lines(KIND, 1, w, q, stride, chunks, out); \
    else if (n == 2) dot_lines(KIND, 2, w, q, stride, chunks, out); \
    else if (n == 3) dot_lines(KIND, 3, w, q, stride, chunks, out); \
    else dot_lines(KIND, 4, w, q, stride, chunks, out)
    if (kind == BIT2) { EACH_COUNT(BIT2); }
    else if (kind == TRIT5) { EACH_COUNT(TRIT5); }
    else if (kind == INT4) { EACH_COUNT(INT4); }
#ifndef AVX2
    else { EACH_COUNT(INT8); }
#endif
}

/* ---- scales, in floating point ---------------------------------------------------------------------------------- */

static inline float from_half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t bits;
    float out;
    if (rest >= 0x7c00) bits = 0x7f800000 | (rest & 0x3ff) << 13;
    else if (rest >= 0x400) bits = (rest << 13) + ((127 - 15) << 23);
    else {
        out = (float)rest * 0x1p-24f;
        memcpy(&bits, &out, 4);
    }
    bits |= sign;
    memcpy(&out, &bits, 4);
    return out;
}

static inline void load_scales(const Matrix *m, int64_t at, float *out) {
    if (!m->half) {
        memcpy(out, (const float *)m->scales + at, ROWS * sizeof(float));
        return;
    }
    const uint16_t *half = (const uint16_t *)m->scales + at;
#if defined(__F16C__) && (defined(VNNI) || defined(AVX2))
    for (int i = 0; i < ROWS; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(half + i))));
#else
    for (int i = 0; i < ROWS; i++) out[i] = from_half(half[i]);
#endif
}

/* The 16 rows of a tile, in whatever vectors the processor has (the compiler may warn about how they would be passed to
 * other files, which does not matter here). */
#pragma GCC diagnostic ignored "-Wpsabi"
typedef float Floats __attribute__((vector_size(ROWS * sizeof(float))));
typedef int32_t Whole __attribute__((vector_size(ROWS * sizeof(int32_t))));

static inline __attribute__((always_inline)) Floats lanes(const float *x) {
    Floats out;
    memcpy(&out, x, sizeof out);
    return out;
}

/* One tile for n <= TOKENS tokens: y[t][rows of the tile]. */
static inline __attribute__((always_inline)) void
tile_product(const Matrix *m, const Layout *l, int64_t tile, int n, const int8_t *q, const int32_t *sums,
             const float *scale_x, float *y) {
    const int kind = m->kind, step = STEP[kind];
    const int64_t first = tile * ROWS, stride = l->chunks * CHUNK[kind];
    const int rows = m->rows - first < ROWS ? (int)(m->rows - first) : ROWS;
    const uint8_t *w = m->packed + tile * l->chunks * LINE;
    Floats total[TOKENS] = {{0}}, bias = {0};
    int32_t found[TOKENS * ROWS];
    float scales[ROWS];
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t chunks = g + 1 == l->groups ? l->last_chunks : l->group_chunks;
        dot(kind == LEVEL4 ? BIT2 : kind, n, w, q, stride, chunks, found);
        load_scales(m, g * l->tiles * ROWS + first, scales);
        const Floats scale = lanes(scales);
        for (int t = 0; t < n; t++) {
            Whole value;
            memcpy(&value, found + ROWS * t, sizeof value);
            value = step * value - OFFSET[kind] * sums[t * l->groups + g];
            total[t] += __builtin_convertvector(value, Floats) * scale;
        }
        w += chunks * LINE;
        q += chunks * CHUNK[kind];
    }
    if (m->bias) memcpy(&bias, m->bias + first, rows * sizeof(float));
    for (int t = 0; t < n; t++) {
        float *to = y + t * m->rows + first;
        total[t] *= scale_x[t];
        if (m->bias) total[t] += bias;
        if (rows == ROWS) memcpy(to, &total[t], sizeof total[t]); /* a known size: no call */
        else memcpy(to, &total[t], rows * sizeof(float));
    }
}

/* All tiles, with activations that are quantised already. */
static void product(const Matrix *m, const Layout *l, int64_t tokens, const int8_t *q, const int32_t *sums,
                    const float *scale_x, float *y) {
    const int64_t stride = l->chunks * CHUNK[m->kind];
    if (tokens == 1) {
        for (int64_t tile = 0; tile < l->tiles; tile++) tile_product(m, l, tile, 1, q, sums, scale_x, y);
        return;
    }
    for (int64_t tile = 0; tile < l->tiles; tile++) {
        int64_t t = 0;
#define SOME(n) tile_product(m, l, tile, n, q + t * stride, sums + t * l->groups, scale_x + t, y + t * m->rows)
        for (; t + TOKENS <= tokens; t += TOKENS) SOME(TOKENS);
        if (t < tokens) SOME((int)(tokens - t));
#undef SOME
    }
}

/* x [tokens][columns] -> y [tokens][rows]. Returns 0, or 1 if out of memory. */
int products_linear(const Matrix *m, int64_t tokens, const float *x, float *y) {
    const Layout l = layout_of(m);
    const int64_t stride = l.chunks * CHUNK[m->kind];
    int8_t *q = malloc(tokens * (stride + 4 * l.groups + 4));
    if (!q) return 1;
    int32_t *sums = (int32_t *)(void *)(q + tokens * stride); /* stride is a multiple of 4 */
    float *scale_x = (float *)(void *)(sums + tokens * l.groups);
    for (int64_t t = 0; t < tokens; t++)
        scale_x[t] = quantize(m, &l, x + t * m->columns, q + t * stride, sums + t * l.groups);
    product(m, &l, tokens, q, sums, scale_x, y);
    free(q);
    return 0;
}
