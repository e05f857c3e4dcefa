/* Merging, element by element: what methods/ defines in torch, computed block by block with next to no memory.
 *
 * Everything is float64 inside and rounded once on the way out. Sums are taken by halving (blocks of 1024, then the
 * blocks), so they come out bit for bit as in exact.py; random numbers are the same function of key and position.
 * Compiled without contraction to fused multiply-adds, which would round differently from torch.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#define B 1024 /* the unit of a sum */
#define K 256  /* the unit of work: a handful of them stays in the first-level cache */
enum { F64, F32, F16, BF16 };
enum { ALL, NONE, TOP, BAND, RANDOM, GIVEN };

typedef struct {
    const void *data;
    int64_t type;
} Input;

/* Which elements of a task vector stay. */
typedef struct {
    int64_t kind;
    double low, high;              /* TOP: above low. BAND: from (low, low_at) up to, without, (high, high_at) */
    int64_t low_at, high_at;       /* among equals: TOP keeps those up to low_at */
    uint64_t key0, key1, below;    /* RANDOM */
    const uint8_t *given;          /* GIVEN: one byte an element, from `given_at` on */
    const double *probability;     /* divide by these, from `given_at` on */
    int64_t given_at;
    double divide;                 /* 0: do not */
    double factor;                 /* 1: do not */
    double weight;
} Rule;

/* --- types ------------------------------------------------------------------------------------------------------ */

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    union { uint32_t u; float f; } x;
    if (exponent == 0) {
        x.f = (float)mantissa * 0x1p-24f;
        x.u |= sign;
        return x.f;
    }
    x.u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
    return x.f;
}

static void load(Input in, int64_t at, int64_t n, double *restrict x) {
    if (in.type == BF16) {
        const uint16_t *p = (const uint16_t *)in.data + at;
        for (int64_t i = 0; i < n; i++) {
            union { uint32_t u; float f; } y = {(uint32_t)p[i] << 16};
            x[i] = y.f;
        }
    } else if (in.type == F32) {
        const float *p = (const float *)in.data + at;
        for (int64_t i = 0; i < n; i++) x[i] = p[i];
    } else if (in.type == F64) {
        memcpy(x, (const double *)in.data + at, n * sizeof(double));
    } else {
        const uint16_t *p = (const uint16_t *)in.data + at;
        int64_t i = 0;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8) {
            __m256 y = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + i)));
            _mm256_storeu_pd(x + i, _mm256_cvtps_pd(_mm256_castps256_ps128(y)));
            _mm256_storeu_pd(x + i + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(y, 1)));
        }
#endif
        for (; i < n; i++) x[i] = half_to_float(p[i]);
    }
}

/* float32 with the last bit set if it is not exact: a second rounding to fewer bits is then the right one. */
static void to_odd(const double *restrict x, int64_t n, uint32_t *restrict bits) {
    for (int64_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } y = {(float)x[i]};
        double back = y.f;
        uint32_t away = fabs(x[i]) > fabs(back) ? 1u : 0xffffffffu;
        uint32_t inexact = (x[i] < back) | (x[i] > back);
        bits[i] = y.u + (inexact & ~y.u & 1u) * away;
    }
}

static uint16_t float_to_half(uint32_t u) {
    uint32_t sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7e00 | ((size >> 13) & 0x3ff);
    if (size >= 0x47800000) return sign | 0x7c00;
    if (size < 0x33000001) return sign;
    if (size < 0x38800000) { /* subnormal */
        uint32_t shift = 126 - (size >> 23), mantissa = (size & 0x7fffff) | 0x800000;
        uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
        return sign | (kept + (rest > half || (rest == half && (kept & 1))));
    }
    size += 0xfff + ((size >> 13) & 1);
    return sign | ((size - 0x38000000) >> 13);
}

static void store(const double *restrict x, int64_t n, int64_t type, void *out, int64_t at) {
    uint32_t bits[B];
    if (type == F32) {
        float *p = (float *)out + at;
        for (int64_t i = 0; i < n; i++) p[i] = (float)x[i];
    } else if (type == F64) {
        memcpy((double *)out + at, x, n * sizeof(double));
    } else if (type == BF16) {
        uint16_t *p = (uint16_t *)out + at;
        to_odd(x, n, bits);
        for (int64_t i = 0; i < n; i++) {
            uint32_t u = bits[i], nan = (u & 0x7fffffff) > 0x7f800000;
            uint32_t near = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
            p[i] = (uint16_t)(nan ? (u >> 16) | 0x40 : near);
        }
    } else {
        uint16_t *p = (uint16_t *)out + at;
        int64_t i = 0;
        to_odd(x, n, bits);
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(p + i), _mm256_cvtps_ph(_mm256_loadu_ps((const float *)(bits + i)), 0));
#endif
        for (; i < n; i++) p[i] = float_to_half(bits[i]);
    }
}

/* --- sums by halving -------------------------------------------------------------------------------------------- */

static double halve(double *x, int n) {
    for (int h = n / 2; h; h /= 2)
        for (int i = 0; i < h; i++) x[i] += x[i + h];
    return x[0];
}

static double halve_all(double *x, int64_t n) {
    int64_t size = 1;
    if (n == 0) return 0;
    while (size < n) size *= 2;
    for (int64_t h = size / 2; h; h /= 2)
        for (int64_t i = 0; i < h && i + h < n; i++) x[i] += x[i + h];
    return x[0];
}

/* A sum that is fed piece by piece. */
typedef struct {
    double *blocks;
    int64_t count, used;
    double block[B];
} Sum;

static int sum_begin(Sum *s, int64_t n) {
    s->count = s->used = 0;
    s->blocks = malloc((n / B + 2) * sizeof(double));
    return s->blocks != NULL;
}

static void sum_add(Sum *s, const double *x, int64_t n) {
    while (n) {
        int64_t take = B - s->used < n ? B - s->used : n;
        memcpy(s->block + s->used, x, take * sizeof(double));
        s->used += take, x += take, n -= take;
        if (s->used == B) s->blocks[s->count++] = halve(s->block, B), s->used = 0;
    }
}

static double sum_end(Sum *s) {
    if (s->used) {
        memset(s->block + s->used, 0, (B - s->used) * sizeof(double));
        s->blocks[s->count++] = halve(s->block, B);
    }
    double total = halve_all(s->blocks, s->count);
    free(s->blocks);
    return total;
}

/* --- random numbers --------------------------------------------------------------------------------------------- */

static void random_words(uint32_t key0, uint32_t key1, int64_t at, int64_t n, uint32_t *restrict words) {
    while (n > 0) { /* up to where the upper half of the position changes */
        uint32_t low = (uint32_t)at, added = key1 + (uint32_t)((uint64_t)at >> 32) * 0x9e3779b9u;
        int64_t left = (int64_t)0x100000000 - low, k = n < left ? n : left;
        for (int64_t i = 0; i < k; i++) {
            uint32_t x = (low + (uint32_t)i) ^ key0;
            x = (x ^ (x >> 16)) * 0x7feb352du;
            x = (x ^ (x >> 15)) * 0x846ca68bu;
            x = (x ^ (x >> 16)) + added;
            x = (x ^ (x >> 17)) * 0xed5ad4bbu;
            x = (x ^ (x >> 11)) * 0xac4c1b51u;
            x = (x ^ (x >> 15)) * 0x31848babu;
            words[i] = x ^ (x >> 14);
        }
        at += k, n -= k, words += k;
    }
}

/* --- task vectors ----------------------------------------------------------------------------------------------- */

static void difference(double *restrict x, const double *restrict base, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] -= base[i];
}

/* x becomes the task vector x - base, thinned out and rescaled, times `weight`. At most B elements. */
static void thin(const Rule *r, const double *restrict base, int64_t at, int64_t n, double weight, double *restrict x) {
    double factor = r->factor, low = r->low, high = r->high;
    int64_t low_at = r->low_at - at, high_at = r->high_at - at;
    if (r->kind == ALL) {
        for (int64_t i = 0; i < n; i++) x[i] = (x[i] - base[i]) * factor * weight;
    } else if (r->kind == NONE) {
        memset(x, 0, n * sizeof(double));
    } else if (r->kind == TOP) {
        for (int64_t i = 0; i < n; i++) {
            double d = x[i] - base[i], a = fabs(d);
            x[i] = (a > low) | ((a == low) & (i <= low_at)) ? d * factor * weight : 0.0;
        }
    } else if (r->kind == BAND) {
        for (int64_t i = 0; i < n; i++) {
            double d = x[i] - base[i], a = fabs(d);
            int from = (a > low) | ((a == low) & (i >= low_at)), to = (a < high) | ((a == high) & (i < high_at));
            x[i] = from & to ? d * factor * weight : 0.0;
        }
    } else if (r->kind == RANDOM) {
        uint32_t words[B], below = (uint32_t)r->below;
        random_words((uint32_t)r->key0, (uint32_t)r->key1, at, n, words);
        for (int64_t i = 0; i < n; i++) x[i] = words[i] < below ? (x[i] - base[i]) * factor * weight : 0.0;
    } else {
        const uint8_t *keep = r->given + (at - r->given_at);
        for (int64_t i = 0; i < n; i++) x[i] = keep[i] ? (x[i] - base[i]) * factor * weight : 0.0;
    }
}

/* A task vector as it goes into the sum. Divisions come before the weight, as in methods/. */
static void vector_of(Input in, const Rule *r, const double *base, int64_t at, int64_t n, double *restrict x) {
    load(in, at, n, x);
    if (!r->probability && r->divide == 0) {
        thin(r, base, at, n, r->weight, x);
        return;
    }
    thin(r, base, at, n, 1.0, x);
    if (r->probability) {
        const double *p = r->probability + (at - r->given_at);
        for (int64_t i = 0; i < n; i++) x[i] = x[i] / p[i] * r->weight;
    } else {
        for (int64_t i = 0; i < n; i++) x[i] = x[i] / r->divide * r->weight;
    }
}

/* Of two vectors or more: the sum of the elements that have the sign of the whole sum, divided by their weights. */
static void elect(const double *x, const double *weights, const double *times, int64_t m, int64_t k, int64_t normalize,
                  double least, double *restrict whole, double *restrict mixed, double *restrict below) {
    memcpy(whole, x, k * sizeof(double));
    for (int64_t j = 1; j < m; j++)
        for (int64_t i = 0; i < k; i++) whole[i] += x[j * K + i];
    memset(mixed, 0, k * sizeof(double)), memset(below, 0, k * sizeof(double));
    for (int64_t j = 0; j < m; j++) {
        const double *v = x + j * K;
        double weight = weights[j], factor = times ? times[j] : 1.0;
        for (int64_t i = 0; i < k; i++) {
            int ours = (whole[i] >= 0 ? v[i] : -v[i]) > 0;
            mixed[i] += ours ? v[i] * factor : 0.0;
            below[i] += ours ? weight : 0.0;
        }
    }
    if (least > 0)
        for (int64_t i = 0; i < k; i++) mixed[i] /= below[i] < least ? least : below[i];
    else if (normalize)
        for (int64_t i = 0; i < k; i++) mixed[i] /= below[i] == 0 ? 1.0 : below[i];
}

/* --- the usual case at full speed: two vectors of one type, elected ------------------------------------------------ */

typedef struct {
    double low, scale, weight; /* scale: of the vector, before its weight */
    int64_t last;
    uint32_t below;
    const uint32_t *words;
    const uint8_t *given;
} Side;

static inline __attribute__((always_inline)) double wide(int type, const void *p, int64_t i) {
    if (type == F32) return ((const float *)p)[i];
    union { uint32_t u; float f; } y = {(uint32_t)((const uint16_t *)p)[i] << 16};
    return y.f;
}

/* As store does. */
static inline __attribute__((always_inline)) void put(int type, void *out, int64_t i, double made) {
    if (type == F32) {
        ((float *)out)[i] = (float)made;
        return;
    }
    union { float f; uint32_t u; } r = {(float)made};
    double back = r.f;
    uint32_t away = fabs(made) > fabs(back) ? 1u : 0xffffffffu;
    uint32_t u = r.u + (((made < back) | (made > back)) & ~r.u & 1u) * away;
    uint32_t nan = (u & 0x7fffffff) > 0x7f800000;
    ((uint16_t *)out)[i] = (uint16_t)(nan ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline __attribute__((always_inline)) double kept(int kind, const Side *s, double d, int64_t i) {
    double a = fabs(d), v = d * s->scale * s->weight;
    if (kind == TOP) return (a > s->low) | ((a == s->low) & (i <= s->last)) ? v : 0.0;
    if (kind == RANDOM) return s->words[i] < s->below ? v : 0.0;
    return s->given[i] ? v : 0.0;
}

/* What vector_of, elect, the sum and store do for m = 2, without going to memory in between. */
static inline __attribute__((always_inline)) void pair(int type, int kind, const void *restrict base,
                                                       const void *restrict x, const void *restrict y, Side p, Side q,
                                                       int normalize, double scale, int64_t n, void *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        double b = wide(type, base, i);
        double v = kept(kind, &p, wide(type, x, i) - b, i), w = kept(kind, &q, wide(type, y, i) - b, i);
        double sign = v + w >= 0 ? 1.0 : -1.0;
        int v_counts = v * sign > 0, w_counts = w * sign > 0;
        double mixed = (v_counts ? v : 0.0) + (w_counts ? w : 0.0);
        double below = (v_counts ? p.weight : 0.0) + (w_counts ? q.weight : 0.0);
        if (normalize) mixed /= below == 0 ? 1.0 : below;
        double made = b + mixed * scale;
        put(type, out, i, made);
    }
}

#define PAIR(TYPE, KIND)                                                                                              \
    static __attribute__((noinline)) void pair_##TYPE##_##KIND(const void *b, const void *x, const void *y, Side p,      \
                                                               Side q, int normalize, double scale, int64_t n,         \
                                                               void *out) {                                            \
        if (normalize) pair(TYPE, KIND, b, x, y, p, q, 1, scale, n, out);                                              \
        else pair(TYPE, KIND, b, x, y, p, q, 0, scale, n, out);                                                        \
    }
PAIR(BF16, TOP)
PAIR(BF16, RANDOM)
PAIR(BF16, GIVEN)
PAIR(F32, TOP)
PAIR(F32, RANDOM)
PAIR(F32, GIVEN)

static Side side_of(const Rule *r, int64_t at, int64_t n, uint32_t *words) {
    Side s = {.low = r->low, .scale = r->factor, .weight = r->weight, .last = r->low_at - at, .below = (uint32_t)r->below};
    s.words = words;
    s.given = r->given ? r->given + (at - r->given_at) : NULL;
    if (r->kind == RANDOM) random_words((uint32_t)r->key0, (uint32_t)r->key1, at, n, words);
    return s;
}

/* 1 if the case is a usual one and done. */
static int usual(const Input *base, const Input *in, const Rule *rules, int64_t m, int64_t normalize, double scale,
                 int64_t at, int64_t n, int64_t type, void *out) {
    int64_t kind = rules[0].kind, width = type == F32 ? 4 : 2;
    if (m != 2 || kind != rules[1].kind || (kind != TOP && kind != RANDOM && kind != GIVEN)) return 0;
    if ((type != BF16 && type != F32) || base->type != type || in[0].type != type || in[1].type != type) return 0;
    if (rules[0].divide != 0 || rules[1].divide != 0 || rules[0].probability || rules[1].probability) return 0;
    uint32_t words[2][B];
    for (int64_t start = 0; start < n; start += B) {
        int64_t k = n - start < B ? n - start : B, from = (at + start) * width;
        Side p = side_of(rules, at + start, k, words[0]), q = side_of(rules + 1, at + start, k, words[1]);
        const char *b = (const char *)base->data + from, *x = (const char *)in[0].data + from;
        const char *y = (const char *)in[1].data + from;
        char *to = (char *)out + start * width;
        void (*work)(const void *, const void *, const void *, Side, Side, int, double, int64_t, void *) =
            type == F32 ? (kind == TOP ? pair_F32_TOP : kind == RANDOM ? pair_F32_RANDOM : pair_F32_GIVEN)
                        : (kind == TOP ? pair_BF16_TOP : kind == RANDOM ? pair_BF16_RANDOM : pair_BF16_GIVEN);
        work(b, x, y, p, q, normalize != 0, scale, k, to);
    }
    return 1;
}

/* base + scale * sum of the vectors; `elect`: of those elements that have the sign of the sum (TIES).
 * `late` holds weights that count only after the election (SCE), with what they are divided by kept above 1e-6. */
int task_vectors(const Input *base, const Input *in, const Rule *rules, int64_t m, int64_t elects, int64_t normalize,
                 double total, double scale, const double *late, int64_t at, int64_t n, int64_t type, void *out) {
    if (elects && !late && usual(base, in, rules, m, normalize, scale, at, n, type, out)) return 0;
    double *x = malloc(((m + 4) * K + m) * sizeof(double));
    double *b = x + m * K, *whole = b + K, *mixed = whole + K, *below = mixed + K, *weights = below + K;
    if (!x) return 1;
    for (int64_t j = 0; j < m; j++) weights[j] = late ? late[j] : rules[j].weight;
    for (int64_t start = 0; start < n; start += K) {
        int64_t k = n - start < K ? n - start : K;
        load(*base, at + start, k, b);
        for (int64_t j = 0; j < m; j++) vector_of(in[j], rules + j, b, at + start, k, x + j * K);
        if (elects) {
            elect(x, weights, late, m, k, normalize, late ? 1e-6 : 0.0, whole, mixed, below);
        } else {
            memcpy(mixed, x, k * sizeof(double));
            for (int64_t j = 1; j < m; j++)
                for (int64_t i = 0; i < k; i++) mixed[i] += x[j * K + i];
            if (normalize)
                for (int64_t i = 0; i < k; i++) mixed[i] /= total;
        }
        for (int64_t i = 0; i < k; i++) mixed[i] = b[i] + mixed[i] * scale;
        store(mixed, k, type, out, start);
    }
    free(x);
    return 0;
}

static inline __attribute__((always_inline)) void two(int type, const void *restrict x, const void *restrict y, double c,
                                                      double d, int64_t n, void *restrict out) {
    for (int64_t i = 0; i < n; i++) put(type, out, i, wide(type, x, i) * c + wide(type, y, i) * d);
}

static __attribute__((noinline)) void two_bf16(const uint16_t *x, const uint16_t *y, const double *c, int64_t n, void *out) {
    two(BF16, x, y, c[0], c[1], n, out);
}

static __attribute__((noinline)) void two_f32(const float *x, const float *y, const double *c, int64_t n, void *out) {
    two(F32, x, y, c[0], c[1], n, out);
}

/* sum_j c_j x_j, divided by `divide` if that is not 0; with a base, base + sum_j c_j (x_j - base). */
int combination(const Input *base, const Input *in, const double *c, int64_t m, double divide, int64_t at, int64_t n,
                int64_t type, void *out) {
    if (m == 2 && !base && divide == 0 && in[0].type == type && in[1].type == type) {
        if (type == BF16) return two_bf16((const uint16_t *)in[0].data + at, (const uint16_t *)in[1].data + at, c, n, out), 0;
        if (type == F32) return two_f32((const float *)in[0].data + at, (const float *)in[1].data + at, c, n, out), 0;
    }
    double b[K], x[K], total[K];
    for (int64_t start = 0; start < n; start += K) {
        int64_t k = n - start < K ? n - start : K;
        if (base) load(*base, at + start, k, b);
        for (int64_t j = 0; j < m; j++) {
            double *to = j ? x : total;
            load(in[j], at + start, k, to);
            if (base) difference(to, b, k);
            if (j)
                for (int64_t i = 0; i < k; i++) total[i] += x[i] * c[j];
            else
                for (int64_t i = 0; i < k; i++) total[i] *= c[0];
        }
        if (divide != 0)
            for (int64_t i = 0; i < k; i++) total[i] /= divide;
        if (base)
            for (int64_t i = 0; i < k; i++) total[i] += b[i];
        store(total, k, type, out, start);
    }
    return 0;
}

/* --- statistics of a tensor ------------------------------------------------------------------------------------- */

/* All inner products of the inputs (less the base, if there is one): out[i * m + j], the lower triangle. With masks
 * (SCE), of what they keep. */
int gram(const Input *base, const Input *in, int64_t m, const uint8_t *mask, int64_t n, double *out) {
    int64_t blocks = (n + B - 1) / B, pairs = m * (m + 1) / 2;
    double *x = malloc((m + 2) * B * sizeof(double)), *b = x + m * B, *product = b + B;
    double *sums = malloc((pairs * blocks + 1) * sizeof(double));
    if (!x || !sums) return free(x), free(sums), 1;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * B, k = n - at < B ? n - at : B, pair = 0;
        if (base) load(*base, at, k, b);
        for (int64_t j = 0; j < m; j++) {
            double *v = x + j * B;
            load(in[j], at, k, v);
            if (base) difference(v, b, k);
            if (mask)
                for (int64_t i = 0; i < k; i++) v[i] = mask[at + i] ? v[i] : 0.0;
            memset(v + k, 0, (B - k) * sizeof(double));
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j <= i; j++, pair++) {
                const double *p = x + i * B, *q = x + j * B; /* the first two steps of the halving at once */
                for (int64_t e = 0; e < B / 4; e++)
                    product[e] = (p[e] * q[e] + p[e + B / 2] * q[e + B / 2]) +
                                 (p[e + B / 4] * q[e + B / 4] + p[e + 3 * B / 4] * q[e + 3 * B / 4]);
                sums[pair * blocks + block] = halve(product, B / 4);
            }
    }
    for (int64_t i = 0, pair = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++, pair++) out[i * m + j] = halve_all(sums + pair * blocks, blocks);
    free(x), free(sums);
    return 0;
}

/* One block of the norms of a randomly thinned vector, with the first two steps of the halving at once. */
static inline __attribute__((always_inline)) void norm_block(int type, const void *restrict base, const void *restrict x,
                                                             const uint32_t *restrict words, uint32_t below,
                                                             double *restrict before, double *restrict after) {
    for (int64_t e = 0; e < B / 4; e++) {
        double a[4], t[4];
        for (int q = 0; q < 4; q++) {
            int64_t i = e + q * (B / 4);
            a[q] = fabs(wide(type, x, i) - wide(type, base, i));
            t[q] = words[i] < below ? a[q] : 0.0;
        }
        before[e] = (a[0] + a[2]) + (a[1] + a[3]);
        after[e] = (t[0] + t[2]) + (t[1] + t[3]);
    }
}

static __attribute__((noinline)) void norm_bf16(const uint16_t *b, const uint16_t *x, const uint32_t *words, uint32_t below,
                                                double *before, double *after) {
    norm_block(BF16, b, x, words, below, before, after);
}

static __attribute__((noinline)) void norm_f32(const float *b, const float *x, const uint32_t *words, uint32_t below,
                                               double *before, double *after) {
    norm_block(F32, b, x, words, below, before, after);
}

/* The L1 norms of a task vector before and after thinning out. */
int norms(const Input *base, const Input *in, const Rule *rule, int64_t n, double *out) {
    double b[B], x[B], a[B];
    Sum before, after;
    if (!sum_begin(&before, n)) return 1;
    if (!sum_begin(&after, n)) return free(before.blocks), 1;
    int64_t type = in->type, fast = rule->kind == RANDOM && base->type == type && (type == BF16 || type == F32);
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B;
        if (fast && k == B) {
            uint32_t words[B], below = (uint32_t)rule->below;
            random_words((uint32_t)rule->key0, (uint32_t)rule->key1, at, k, words);
            if (type == BF16) norm_bf16((const uint16_t *)base->data + at, (const uint16_t *)in->data + at, words, below, b, x);
            else norm_f32((const float *)base->data + at, (const float *)in->data + at, words, below, b, x);
            before.blocks[before.count++] = halve(b, B / 4), after.blocks[after.count++] = halve(x, B / 4);
            continue;
        }
        load(*base, at, k, b);
        load(*in, at, k, x);
        for (int64_t i = 0; i < k; i++) a[i] = fabs(x[i] - b[i]);
        sum_add(&before, a, k);
        thin(rule, b, at, k, 1.0, x);
        for (int64_t i = 0; i < k; i++) a[i] = fabs(x[i]);
        sum_add(&after, a, k);
    }
    out[0] = sum_end(&before);
    out[1] = sum_end(&after);
    return 0;
}

/* --- selection -------------------------------------------------------------------------------------------------- */

/* What is ranked: |x - base| of one input, or, of several, their variance. `x` has room for (m + 2) blocks. */
static void keys_of(const Input *base, const Input *in, int64_t m, int64_t at, int64_t k, double *x, double *keys) {
    double *b = x + m * B, *mean = b + B;
    load(*base, at, k, b);
    for (int64_t j = 0; j < m; j++) load(in[j], at, k, x + j * B), difference(x + j * B, b, k);
    if (m == 1) {
        for (int64_t i = 0; i < k; i++) keys[i] = fabs(x[i]);
        return;
    }
    memcpy(mean, x, k * sizeof(double));
    for (int64_t j = 1; j < m; j++)
        for (int64_t i = 0; i < k; i++) mean[i] += x[j * B + i];
    for (int64_t i = 0; i < k; i++) mean[i] /= (double)m;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < k; i++) {
            double d = x[j * B + i] - mean[i];
            keys[i] = (j ? keys[i] : 0.0) + d * d;
        }
    for (int64_t i = 0; i < k; i++) keys[i] /= (double)m;
}

/* The value that would stand at place k of the sorted array; reorders it. */
static double quickselect(double *x, int64_t n, int64_t k) {
    int64_t from = 0, to = n - 1;
    while (from < to) {
        double a = x[from], b = x[from + (to - from) / 2], c = x[to];
        double pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        int64_t i = from, j = to;
        while (i <= j) {
            while (x[i] < pivot) i++;
            while (x[j] > pivot) j--;
            if (i <= j) {
                double t = x[i];
                x[i++] = x[j], x[j--] = t;
            }
        }
        if (k <= j) to = j;
        else if (k >= i) from = i;
        else break;
    }
    return x[k];
}

typedef struct {
    double *values, *copy;
    int64_t *places, count, room, greater;
} Candidates;

#define SAMPLE 32768 /* at most; 1 in 64 */
#define SMALL 65536  /* tensors up to this size are taken whole */

/* float32 bounds between which the k-th largest lies almost surely, from a sample; 0 if there is no memory. */
static int bracket(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, double *x, float *low, float *high,
                   double *middle_value) {
    int64_t size = n / 64 < SAMPLE ? n / 64 / 16 * 16 : SAMPLE;
    double *sample = malloc(size * sizeof(double)), keys[B];
    if (!sample) return 0;
    for (int64_t i = 0; i < size / 16; i++) {
        int64_t at = (int64_t)((double)i / (double)(size / 16) * (double)(n - 16));
        keys_of(base, in, m, at, 16, x, keys);
        memcpy(sample + i * 16, keys, 16 * sizeof(double));
    }
    double share = 1.0 - (double)k / (double)n, middle = share * (double)size;
    double margin = 5 * sqrt((double)size * share * (1 - share)) + 16;
    int64_t from = (int64_t)(middle - margin), to = (int64_t)(middle + margin);
    *low = from < 0 ? -1.0f : (float)quickselect(sample, size, from);
    *high = to >= size ? INFINITY : (float)quickselect(sample, size, to);
    int64_t here = (int64_t)middle < size ? (int64_t)middle : size - 1, equal = 0;
    *middle_value = quickselect(sample, size, here);
    for (int64_t i = 0; i < size; i++) equal += sample[i] == *middle_value;
    if (equal * 128 < size) *middle_value = -1; /* not a value that many elements share */
    free(sample);
    return 1;
}

static void load32(Input in, int64_t at, int64_t n, float *restrict x) {
    const uint16_t *p = (const uint16_t *)in.data + at;
    if (in.type == BF16) {
        for (int64_t i = 0; i < n; i++) {
            union { uint32_t u; float f; } y = {(uint32_t)p[i] << 16};
            x[i] = y.f;
        }
        return;
    }
    double wide[B];
    load(in, at, n, wide);
    for (int64_t i = 0; i < n; i++) x[i] = (float)wide[i];
}

static double value_at(Input in, int64_t at) {
    union { uint32_t u; float f; } y;
    if (in.type == BF16) return y.u = (uint32_t)((const uint16_t *)in.data)[at] << 16, y.f;
    if (in.type == F32) return ((const float *)in.data)[at];
    if (in.type == F64) return ((const double *)in.data)[at];
    return half_to_float(((const uint16_t *)in.data)[at]);
}

/* The keys rounded to float32: rounding keeps the order, so this is enough to tell which lie near the threshold. */
static void keys32_of(const Input *base, const Input *in, int64_t m, int64_t at, int64_t k, double *x, float *keys) {
    if (m == 1 && in->type != F64 && base->type != F64) {
        float b[B];
        load32(*base, at, k, b);
        load32(*in, at, k, keys);
        for (int64_t i = 0; i < k; i++) keys[i] = fabsf(keys[i] - b[i]);
        return;
    }
    double wide[B];
    keys_of(base, in, m, at, k, x, wide);
    for (int64_t i = 0; i < k; i++) keys[i] = (float)wide[i];
}

static int32_t near_bf16(const uint16_t *restrict x, const uint16_t *restrict b, float low, float high, uint8_t *restrict flags) {
    int32_t above = 0;
    for (int i = 0; i < B; i++) {
        union { uint32_t u; float f; } p = {(uint32_t)x[i] << 16}, q = {(uint32_t)b[i] << 16};
        float key = fabsf(p.f - q.f);
        flags[i] = (key >= low) & (key <= high);
        above += key > high;
    }
    return above;
}

static int32_t near_f32(const float *restrict x, const float *restrict b, float low, float high, uint8_t *restrict flags) {
    int32_t above = 0;
    for (int i = 0; i < B; i++) {
        float key = fabsf(x[i] - b[i]);
        flags[i] = (key >= low) & (key <= high);
        above += key > high;
    }
    return above;
}

/* All keys that round into [low, high], in order of their places, and how many lie above; 0 if there is no room. */
static int gather(const Input *base, const Input *in, int64_t m, int64_t n, float low, float high, double *x, Candidates *c) {
    float keys[B];
    union { uint8_t flags[B]; uint64_t words[B / 8]; } inside;
    c->count = c->greater = 0;
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B;
        if (c->count + B > c->room) return 0;
        if (k == B && m == 1 && in->type == BF16 && base->type == BF16) {
            c->greater += near_bf16((const uint16_t *)in->data + at, (const uint16_t *)base->data + at, low, high, inside.flags);
        } else if (k == B && m == 1 && in->type == F32 && base->type == F32) {
            c->greater += near_f32((const float *)in->data + at, (const float *)base->data + at, low, high, inside.flags);
        } else {
            keys32_of(base, in, m, at, k, x, keys);
            for (int64_t i = k; i < B; i++) keys[i] = -2.0f;
            for (int i = 0; i < B; i++) inside.flags[i] = (keys[i] >= low) & (keys[i] <= high);
            for (int i = 0; i < B; i++) c->greater += keys[i] > high;
        }
        for (int w = 0; w < B / 8; w++)
            for (uint64_t word = inside.words[w]; word; word &= word - 1)
                c->places[c->count++] = at + w * 8 + __builtin_ctzll(word) / 8;
    }
    for (int64_t i = 0; i < c->count; i++) {
        int64_t at = c->places[i];
        if (m == 1) c->values[i] = fabs(value_at(*in, at) - value_at(*base, at));
        else keys_of(base, in, m, at, 1, x, c->values + i);
    }
    return 1;
}

/* 16 bits of the keys, from `shift` on, counted where the bits above are `prefix`. */
int histogram(const Input *base, const Input *in, int64_t m, int64_t n, int64_t shift, uint64_t prefix, int64_t *counts) {
    double keys[B], *x = malloc((m + 2) * B * sizeof(double));
    if (!x) return 1;
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B;
        keys_of(base, in, m, at, k, x, keys);
        for (int64_t i = 0; i < k; i++) {
            uint64_t bits;
            memcpy(&bits, keys + i, 8);
            if (shift == 48 || bits >> (shift + 16) == prefix) counts[bits >> shift & 0xffff]++;
        }
    }
    free(x);
    return 0;
}

/* The k-th largest key by four histograms: for tensors in which most elements are equal. */
static int by_histograms(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, double *value, int64_t *greater) {
    int64_t *counts = malloc(65536 * sizeof(int64_t)), left = k;
    uint64_t prefix = 0;
    if (!counts) return 1;
    for (int64_t shift = 48; shift >= 0; shift -= 16) {
        int64_t bin = 65535;
        memset(counts, 0, 65536 * sizeof(int64_t));
        if (histogram(base, in, m, n, shift, prefix, counts)) return free(counts), 1;
        while (left > counts[bin]) left -= counts[bin--];
        prefix = prefix << 16 | (uint64_t)bin;
    }
    memcpy(value, &prefix, 8);
    *greater = k - left;
    free(counts);
    return 0;
}

/* The place of the `which`-th key (from 0) that equals `value`; -1 if there are not so many. */
int64_t occurrence(const Input *base, const Input *in, int64_t m, int64_t n, double value, int64_t which) {
    double keys[B], *x = malloc((m + 2) * B * sizeof(double));
    if (!x) return -2;
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B, equal = 0;
        keys_of(base, in, m, at, k, x, keys);
        for (int64_t i = 0; i < k; i++) equal += keys[i] == value;
        if (which < equal)
            for (int64_t i = 0; i < k; i++)
                if (keys[i] == value && which-- == 0) return free(x), at + i;
        which -= equal;
    }
    free(x);
    return -1;
}

static int slow_select(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below, double *value, int64_t *place) {
    int64_t greater, equal = 0, which;
    double keys[B], *x;
    if (by_histograms(base, in, m, n, k, value, &greater)) return 1;
    which = k - 1 - greater;
    if (from_below) {
        if (!(x = malloc((m + 2) * B * sizeof(double)))) return 1;
        for (int64_t at = 0; at < n; at += B) {
            int64_t part = n - at < B ? n - at : B;
            keys_of(base, in, m, at, part, x, keys);
            for (int64_t i = 0; i < part; i++) equal += keys[i] == *value;
        }
        free(x);
        which = (n - k) - (n - greater - equal);
    }
    *place = occurrence(base, in, m, n, *value, which);
    return *place < 0;
}

static inline __attribute__((always_inline)) void count_block(int type, const void *restrict x, const void *restrict b,
                                                              double value, int64_t *greater, int64_t *equal) {
    int64_t above = 0, same = 0;
    for (int64_t i = 0; i < B; i++) {
        double key = fabs(wide(type, x, i) - wide(type, b, i));
        above += key > value, same += key == value;
    }
    *greater += above, *equal = same;
}

/* In 16-bit types many elements share a value, and the threshold is almost surely the sample's: one pass proves it. */
static int by_value(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below, double value,
                    double *x, int64_t *place) {
    int64_t blocks = (n + B - 1) / B, greater = 0, total = 0, which, block = 0;
    uint16_t *counts = malloc(blocks * sizeof(uint16_t));
    double keys[B];
    if (!counts) return 0;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t at = i * B, part = n - at < B ? n - at : B, equal = 0;
        if (part == B && m == 1 && in->type == BF16 && base->type == BF16) {
            count_block(BF16, (const uint16_t *)in->data + at, (const uint16_t *)base->data + at, value, &greater, &equal);
        } else {
            keys_of(base, in, m, at, part, x, keys);
            for (int64_t e = 0; e < part; e++) greater += keys[e] > value, equal += keys[e] == value;
        }
        counts[i] = (uint16_t)equal;
        total += equal;
    }
    int found = k > greater && k <= greater + total;
    if (found) {
        which = from_below ? (n - k) - (n - greater - total) : k - 1 - greater;
        while (which >= counts[block]) which -= counts[block++];
        int64_t at = block * B, part = n - at < B ? n - at : B;
        keys_of(base, in, m, at, part, x, keys);
        for (int64_t e = 0; e < part; e++)
            if (keys[e] == value && which-- == 0) *place = at + e;
    }
    free(counts);
    return found;
}

/* The k-th largest key and its place. Among equals the lower place comes first in the order from above, and also, with
 * `from_below`, in the order from below. */
int select_key(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below, double *value, int64_t *place) {
    double *x = malloc((m + 2) * B * sizeof(double)), middle = -1;
    float low = -1, high = INFINITY;
    if (n > SMALL && x && bracket(base, in, m, n, k, x, &low, &high, &middle) && middle >= 0 &&
        by_value(base, in, m, n, k, from_below, middle, x, place))
        return *value = middle, free(x), 0;
    Candidates c = {.room = n <= SMALL ? n + B : n / 12 + 2 * B};
    int found = 0;
    c.values = malloc(c.room * sizeof(double)), c.copy = malloc(c.room * sizeof(double));
    c.places = malloc(c.room * sizeof(int64_t));
    if (x && c.values && c.copy && c.places && gather(base, in, m, n, low, high, x, &c) && k > c.greater && k <= c.greater + c.count) {
        int64_t greater = c.greater, equal = 0, which;
        memcpy(c.copy, c.values, c.count * sizeof(double));
        *value = quickselect(c.copy, c.count, c.count - (k - c.greater));
        for (int64_t i = 0; i < c.count; i++) greater += c.values[i] > *value, equal += c.values[i] == *value;
        which = from_below ? (n - k) - (n - greater - equal) : k - 1 - greater;
        for (int64_t i = 0; i < c.count && !found; i++)
            if (c.values[i] == *value && which-- == 0) *place = c.places[i], found = 1;
    }
    free(x), free(c.values), free(c.copy), free(c.places);
    return found ? 0 : slow_select(base, in, m, n, k, from_below, value, place);
}

/* How many keys are not zero. */
int64_t nonzero(const Input *base, const Input *in, int64_t m, int64_t n) {
    double keys[B], *x = malloc((m + 2) * B * sizeof(double));
    int64_t count = 0;
    if (!x) return -1;
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B;
        keys_of(base, in, m, at, k, x, keys);
        for (int64_t i = 0; i < k; i++) count += keys[i] != 0;
    }
    free(x);
    return count;
}

/* One byte an element: whether its key is above `low`, or equal to it and not beyond `last`. */
int mask_above(const Input *base, const Input *in, int64_t m, int64_t n, double low, int64_t last, uint8_t *mask) {
    double keys[B], *x = malloc((m + 2) * B * sizeof(double));
    if (!x) return 1;
    for (int64_t at = 0; at < n; at += B) {
        int64_t k = n - at < B ? n - at : B;
        keys_of(base, in, m, at, k, x, keys);
        for (int64_t i = 0; i < k; i++) mask[at + i] = (keys[i] > low) | ((keys[i] == low) & (at + i <= last));
    }
    free(x);
    return 0;
}

/* --- DELLA ------------------------------------------------------------------------------------------------------ */

#define BINS 512 /* 32 to an octave */
#define LONG 16384 /* longer rows are sorted */

typedef struct {
    double *a;
    uint32_t *bits, *words;
    uint8_t *open;
    int64_t *order;
    double first, span; /* the probability of rank r is first + r * span */
} Row;

static void merge_sort(int64_t *order, int64_t *spare, const double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t from = 0; from < n; from += 2 * width) {
            int64_t middle = from + width < n ? from + width : n, to = from + 2 * width < n ? from + 2 * width : n;
            for (int64_t i = from, j = middle, k = from; k < to; k++)
                spare[k] = i < middle && (j >= to || a[order[i]] <= a[order[j]]) ? order[i++] : order[j++];
        }
        memcpy(order, spare, n * sizeof(int64_t));
    }
}

static int64_t rank_in(const double *restrict a, int64_t n, int64_t place) {
    double v = a[place];
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++) rank += a[i] < v;
    for (int64_t i = 0; i < place; i++) rank += a[i] == v;
    return rank;
}

/* An element stays if u < first + rank * span, with u = word / 2^32. For most elements the ends of the range of ranks that
 * their bin covers decide alike, so the rank itself is found for a few in a thousand only. */
static void decide(const Row *r, int64_t n, uint8_t *keep) {
    uint32_t start[BINS + 1] = {0}, other[BINS + 1] = {0}, most = 0;
    double first = r->first, span = r->span, last = first + (double)(n - 1) * span;
    uint32_t surely = (uint32_t)ceil(first * 0x1p32), never = (uint32_t)ceil(last * 0x1p32);
    for (int64_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } y = {(float)r->a[i]};
        r->bits[i] = y.u;
    }
    for (int64_t i = 0; i < n; i++) most = r->bits[i] > most ? r->bits[i] : most;
    int32_t lowest = (int32_t)(most >> 18) - (BINS - 1);
    for (int64_t i = 0; i < n; i++) {
        int32_t bin = (int32_t)(r->bits[i] >> 18) - lowest;
        r->bits[i] = (uint32_t)(bin < 0 ? 0 : bin);
    }
    for (int64_t i = 0; i < n; i++) keep[i] = r->words[i] < surely;
    for (int64_t i = 0; i < n; i++) r->open[i] = (r->words[i] >= surely) & (r->words[i] < never);
    for (int64_t i = 0; i + 1 < n; i += 2) start[r->bits[i] + 1]++, other[r->bits[i + 1] + 1]++; /* neighbours collide */
    if (n % 2) start[r->bits[n - 1] + 1]++;
    for (int b = 0; b < BINS; b++) start[b + 1] += start[b] + other[b + 1];
    for (int64_t at = 0; at < n; at += 8) {
        uint64_t word;
        memcpy(&word, r->open + at, 8);
        for (; word; word &= word - 1) {
            int64_t i = at + __builtin_ctzll(word) / 8;
            double u = r->words[i] * 0x1p-32;
            uint32_t bin = r->bits[i];
            int lower = u < first + (double)start[bin] * span, upper = u < first + (double)(start[bin + 1] - 1) * span;
            keep[i] = (uint8_t)lower;
            if (lower != upper && r->a[i] != 0) /* whether a zero stays makes no difference */
                keep[i] = u < first + (double)rank_in(r->a, n, i) * span;
        }
    }
}

/* MagPrune for rows [row, row + rows) of length n: one byte an element; the probabilities, if asked for; and the L1 norms
 * before and after, if asked for (then over these rows only, so all of them at once). */
int magprune(const Input *base, const Input *in, int64_t row, int64_t rows, int64_t n, double density, double epsilon,
             uint64_t key0, uint64_t key1, uint8_t *keep, double *probability, double *l1) {
    Row r = {.first = density - epsilon, .span = 2 * epsilon / (double)(n > 1 ? n - 1 : 1)};
    double *b = malloc(n * sizeof(double));
    int ranks = probability || n > LONG, fault = 0;
    Sum before = {0}, after = {0};
    r.a = malloc(n * sizeof(double)), r.bits = malloc(n * sizeof(uint32_t)), r.words = malloc(n * sizeof(uint32_t));
    r.open = calloc(n + 8, 1);
    r.order = malloc((ranks ? 2 * n : 1) * sizeof(int64_t));
    if (!b || !r.a || !r.bits || !r.words || !r.open || !r.order || (l1 && !(sum_begin(&before, rows * n) && sum_begin(&after, rows * n))))
        fault = 1;
    for (int64_t i = 0; i < rows && !fault; i++, keep += n) {
        int64_t at = (row + i) * n;
        load(*base, at, n, b);
        load(*in, at, n, r.a);
        for (int64_t e = 0; e < n; e++) r.a[e] = fabs(r.a[e] - b[e]);
        random_words((uint32_t)key0, (uint32_t)key1, at, n, r.words);
        if (ranks) {
            merge_sort(r.order, r.order + n, r.a, n);
            for (int64_t e = 0; e < n; e++) {
                double p = r.first + (double)e * r.span;
                keep[r.order[e]] = r.words[r.order[e]] * 0x1p-32 < p;
                if (probability) probability[i * n + r.order[e]] = p;
            }
        } else {
            decide(&r, n, keep);
        }
        if (l1) {
            sum_add(&before, r.a, n);
            for (int64_t e = 0; e < n; e++) r.a[e] = keep[e] ? r.a[e] : 0.0;
            sum_add(&after, r.a, n);
        }
    }
    if (l1 && !fault) l1[0] = sum_end(&before), l1[1] = sum_end(&after);
    free(b), free(r.a), free(r.bits), free(r.open), free(r.words), free(r.order);
    return fault;
}
