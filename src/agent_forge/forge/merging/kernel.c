/* Merging, element by element: what methods/ defines in torch, computed block by block with next to no memory.
 *
 * Everything is float64 inside and rounded once at the end. Sums are taken by halving (blocks of 1024, then the blocks),
 * so they equal those of exact.py bit for bit; random numbers are the same function of key and position (rng.py).
 * Compiled without contraction to fused multiply-adds, which would round differently from torch.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define B 1024 /* the unit of a sum */
#define K 256  /* the unit of work: a few of them fit into the first-level cache */
enum { F64, F32, F16, BF16 };
enum { ALL, NONE, TOP, BAND, BYTES, BITS };

typedef struct {
    const void *data;
    int64_t type;
} Input;

/* Which elements of a task vector stay. */
typedef struct {
    int64_t kind;
    double low, high;          /* TOP: above low. BAND: from (low, low_at) up to, but without, (high, high_at) */
    int64_t low_at, high_at;   /* among equals: TOP keeps those up to low_at */
    const uint8_t *mask;       /* BYTES: one byte per element, from `mask_at` on; BITS: one bit, from 0 on */
    const double *probability; /* divisors, from `mask_at` on */
    int64_t mask_at;
    double divide; /* 0: no division */
    double factor; /* 1: no rescaling */
    double weight;
} Rule;

/* Fetches what will be read two blocks later into the second-level cache: the processor's own prefetching stops at every
 * page, and loses track of several inputs that are read in short pieces. */
INLINE void prefetch(const void *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + 2 * bytes + i, 0, 2);
}

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

/* float32 rounded to odd: the last bit is set if it is inexact, which makes a second rounding to fewer bits correct. */
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
        uint32_t high = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
        return sign | (high + (rest > half || (rest == half && (high & 1))));
    }
    size += 0xfff + ((size >> 13) & 1);
    return sign | ((size - 0x38000000) >> 13);
}

/* The float32 whose upper half is x rounded to bfloat16, in one step. Wrong for what becomes subnormal (see SIZE) and for
 * a NaN whose payload is below the upper half. */
INLINE uint32_t to_bf16(double x) {
    union { double d; uint64_t u; } r = {x};
    r.u = (r.u + 0x0fffffffffffull + ((r.u >> 45) & 1)) & ~0x1fffffffffffull;
    union { float f; uint32_t u; } y = {(float)r.d};
    return y.u;
}

/* The minimum of these over many results is below TINY if one of them is subnormal, but not zero. */
#define SIZE(u) (((u) << 1) - 1u)
#define TINY 0x01ffffffu

static int store_bf16(const double *restrict x, int64_t n, uint16_t *restrict p) {
    uint32_t least = 0xffffffffu, nans = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = to_bf16(x[i]), size = SIZE(u);
        least = size < least ? size : least;
        nans |= x[i] != x[i];
        p[i] = (uint16_t)(u >> 16);
    }
    return least >= TINY && !nans;
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
        if (store_bf16(x, n, p)) return;
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

INLINE double halve(double *x, int n) {
    int h = n / 2;
    for (; h >= 8; h /= 2)
        for (int i = 0; i < h; i += 8)
            for (int k = 0; k < 8; k++) x[i + k] += x[i + k + h];
    for (int i = 0; i < 4; i++) x[i] += x[i + 4]; /* n is at least 16 */
    return (x[0] + x[2]) + (x[1] + x[3]);
}

static double halve_all(double *x, int64_t n) {
    int64_t size = 1;
    if (n == 0) return 0;
    while (size < n) size *= 2;
    for (int64_t h = size / 2; h; h /= 2)
        for (int64_t i = 0; i < h && i + h < n; i++) x[i] += x[i + h];
    return x[0];
}

/* A sum of numbers that arrive in pieces. */
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

/* Eight SFC64 generators at once, as in rng.py. */
#define LANES 8
#define PAGE (1 << 18) /* elements per seeding of the generators */
typedef uint64_t Lanes __attribute__((vector_size(64)));

typedef struct {
    Lanes a, b, c, step;
} Generators;

static uint64_t splitmix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

INLINE Lanes next_lanes(Generators *g) {
    Lanes drawn = g->a + g->b + g->step;
    g->step += 1;
    g->a = g->b ^ (g->b >> 11);
    g->b = g->c + (g->c << 3);
    g->c = ((g->c << 24) | (g->c >> 40)) + drawn;
    return drawn;
}

static void seed_page(Generators *g, uint64_t key, int64_t page) {
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t at = 3 * ((uint64_t)page * LANES + lane);
        g->a[lane] = splitmix64(key + (at + 1) * 0x9e3779b97f4a7c15ull);
        g->b[lane] = splitmix64(key + (at + 2) * 0x9e3779b97f4a7c15ull);
        g->c[lane] = splitmix64(key + (at + 3) * 0x9e3779b97f4a7c15ull);
        g->step[lane] = 1;
    }
    for (int i = 0; i < 12; i++) next_lanes(g);
}

/* One bit per element, set with probability value / 2^digits; value is odd. `bits` has space for a multiple of 512. */
int random_bits(uint64_t key, uint64_t value, int64_t digits, int64_t n, uint8_t *bits) {
    Generators g;
    for (int64_t at = 0; at < n; at += 64 * LANES) {
        if (at % PAGE == 0) seed_page(&g, key, at / PAGE);
        Lanes below = next_lanes(&g);
        for (int64_t digit = 1; digit < digits; digit++) {
            Lanes more = next_lanes(&g);
            below = value >> digit & 1 ? below | more : below & more;
        }
        memcpy(bits + at / 8, &below, sizeof below);
    }
    return 0;
}

/* 16-bit words, one per element, in sequence from any element on. */
#define POOL 1024
typedef struct {
    Generators g;
    uint64_t key;
    int64_t at; /* the first word after the pool */
    int used;
    uint16_t pool[POOL];
} Words;

static void words_fill(Words *w) {
    if (w->at % PAGE == 0) seed_page(&w->g, w->key, w->at / PAGE);
    for (int i = 0; i < POOL; i += 4 * LANES) {
        Lanes drawn = next_lanes(&w->g);
        memcpy(w->pool + i, &drawn, sizeof drawn);
    }
    w->at += POOL, w->used = 0;
}

static void words_begin(Words *w, uint64_t key, int64_t at) {
    w->key = key, w->at = at / PAGE * PAGE;
    do words_fill(w);
    while (w->at <= at);
    w->used = (int)(at % POOL);
}

static void words_take(Words *w, int64_t n, uint16_t *words) {
    while (n) {
        if (w->used == POOL) words_fill(w);
        int64_t take = POOL - w->used < n ? POOL - w->used : n;
        memcpy(words, w->pool + w->used, take * sizeof(uint16_t));
        w->used += (int)take, words += take, n -= take;
    }
}

/* --- masks of one bit per element ------------------------------------------------------------------------------- */

/* Packs n bytes of 0 or 1 (n a multiple of 8) into bits, the first being the lowest. */
static void pack_bits(const uint8_t *bytes, int64_t n, uint8_t *bits) {
    for (int64_t i = 0; i < n / 8; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, 8);
        bits[i] = (uint8_t)((word * 0x0102040810204080ull) >> 56);
    }
}

/* The reverse: byte i is not 0 if bit i is set. `at` is a multiple of 8; `bytes` has space for n rounded up to one. */
static void unpack_bits(const uint8_t *bits, int64_t at, int64_t n, uint8_t *bytes) {
    for (int64_t i = 0; i < (n + 7) / 8; i++) {
        uint64_t word = bits[at / 8 + i] * 0x0101010101010101ull & 0x8040201008040201ull;
        memcpy(bytes + 8 * i, &word, 8);
    }
}

/* --- task vectors ----------------------------------------------------------------------------------------------- */

static void difference(double *restrict x, const double *restrict base, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] -= base[i];
}

/* Replaces x by the task vector x - base, sparsified and rescaled, times `weight`. At most B elements. */
static void sparsify(const Rule *r, const double *restrict base, int64_t at, int64_t n, double weight,
                     double *restrict x) {
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
    } else {
        uint8_t bytes[B + 8];
        const uint8_t *keep = r->kind == BITS ? bytes : r->mask + (at - r->mask_at);
        if (r->kind == BITS) unpack_bits(r->mask, at, n, bytes);
        for (int64_t i = 0; i < n; i++) x[i] = keep[i] ? (x[i] - base[i]) * factor * weight : 0.0;
    }
}

/* A task vector as it enters the sum. Divisions come before the weight, as in methods/. */
static void task_vector(Input in, const Rule *r, const double *base, int64_t at, int64_t n, double *restrict x) {
    load(in, at, n, x);
    if (!r->probability && r->divide == 0) {
        sparsify(r, base, at, n, r->weight, x);
        return;
    }
    sparsify(r, base, at, n, 1.0, x);
    if (r->probability) {
        const double *p = r->probability + (at - r->mask_at);
        for (int64_t i = 0; i < n; i++) x[i] = x[i] / p[i] * r->weight;
    } else {
        for (int64_t i = 0; i < n; i++) x[i] = x[i] / r->divide * r->weight;
    }
}

/* Of two vectors or more: the sum of the elements with the sign of the whole sum, divided by their weights. */
static void elect(const double *x, const double *weights, const double *times, int64_t m, int64_t k,
                  int64_t normalize, double least, double *restrict whole, double *restrict mixed,
                  double *restrict below) {
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

/* --- the most common case at full speed: two vectors of one type, elected ------------------------------------------ */

typedef struct {
    double low, factor, weight;
    const uint8_t *keep;
} Side;

typedef struct {
    double first, second, both; /* divisors, by which of the two have the elected sign */
} Divisors;

INLINE double wide(int type, const void *p, int64_t i) {
    if (type == F32) return ((const float *)p)[i];
    union { uint32_t u; float f; } y = {(uint32_t)((const uint16_t *)p)[i] << 16};
    return y.f;
}

INLINE uint32_t store_one(int type, void *out, int64_t i, double x) {
    if (type == F32) {
        ((float *)out)[i] = (float)x;
        return 0xffffffffu;
    }
    uint32_t u = to_bf16(x);
    ((uint16_t *)out)[i] = (uint16_t)(u >> 16);
    return SIZE(u);
}

INLINE double masked(int kind, const Side *s, double d, int64_t i) {
    if (kind == TOP) return fabs(d) >= s->low ? d * s->weight : 0.0;
    return s->keep[i] ? d * s->factor * s->weight : 0.0;
}

INLINE double signed_as(double x, uint64_t sign) {
    union { double d; uint64_t u; } y = {x};
    y.u ^= sign;
    return y.d;
}

/* What task_vector, elect, the sum and store do for m = 2, without going to memory in between. Returns 0 if something
 * became subnormal and has to be done again. `mode`: 0 no division, 1 division, 2 an equivalent multiplication. */
INLINE int pair(int type, int kind, int mode, const void *restrict base, const void *restrict x,
                const void *restrict y, Side p, Side q, Divisors d, double scale, int64_t n, void *restrict out) {
    uint32_t least = 0xffffffffu;
    for (int64_t i = 0; i < n; i++) {
        double b = wide(type, base, i);
        double v = masked(kind, &p, wide(type, x, i) - b, i), w = masked(kind, &q, wide(type, y, i) - b, i);
        uint64_t sign = v + w >= 0 ? 0 : 1ull << 63;
        v = signed_as(v, sign) > 0 ? v : 0.0, w = signed_as(w, sign) > 0 ? w : 0.0;
        double mixed = v + w, part = w != 0 ? d.both : d.first, other = w != 0 ? d.second : 1.0;
        part = v != 0 ? part : other;
        if (mode == 1) mixed /= part;
        if (mode == 2) mixed *= part;
        uint32_t size = store_one(type, out, i, b + mixed * scale);
        least = size < least ? size : least;
    }
    return least >= TINY;
}

typedef int Pair(const void *, const void *, const void *, Side, Side, Divisors, double, int64_t, void *);

#define PAIR(TYPE, KIND, MODE)                                                                                         \
    NOINLINE int pair_##TYPE##_##KIND##_##MODE(const void *b, const void *x, const void *y, Side p, Side q, Divisors d, \
                                               double scale, int64_t n, void *out) {                                    \
        return pair(TYPE, KIND, MODE, b, x, y, p, q, d, scale, n, out);                                                 \
    }
#define PAIRS(TYPE, KIND) PAIR(TYPE, KIND, 0) PAIR(TYPE, KIND, 1) PAIR(TYPE, KIND, 2)
PAIRS(BF16, TOP)
PAIRS(BF16, BYTES)
PAIRS(F32, TOP)
PAIRS(F32, BYTES)
#define THREE(TYPE, KIND) {pair_##TYPE##_##KIND##_0, pair_##TYPE##_##KIND##_1, pair_##TYPE##_##KIND##_2}
static Pair *const pairs[2][2][3] = {{THREE(BF16, TOP), THREE(BF16, BYTES)}, {THREE(F32, TOP), THREE(F32, BYTES)}};

static int is_power(double x) {
    int exponent;
    return fabs(frexp(x, &exponent)) == 0.5 && exponent > -60 && exponent < 60;
}

static int divisors_of(const Rule *rules, int64_t normalize, Divisors *d) {
    double first = rules[0].weight, second = rules[1].weight, both = first + second;
    *d = (Divisors){first, second, both == 0 ? 1.0 : both};
    if (!normalize) return 0;
    if (!is_power(first) || !is_power(second) || !is_power(d->both)) return 1;
    *d = (Divisors){1 / d->first, 1 / d->second, 1 / d->both};
    return 2;
}

/* The next larger double of a non-negative number. */
static double above(double x) {
    union { double d; uint64_t u; } y = {x};
    y.u += x < INFINITY;
    return y.d;
}

static Side side_at(const Rule *r, int64_t at) {
    Side s = {.low = r->low, .factor = r->factor, .weight = r->weight};
    if (r->kind == TOP && at > r->low_at) s.low = above(r->low); /* of equals, the first stay */
    return s;
}

static int is_fast_pair(const Input *base, const Input *in, const Rule *rules, int64_t m, int64_t type) {
    int64_t kind = rules[0].kind;
    if (m != 2 || kind != rules[1].kind || kind == ALL || kind == NONE || kind == BAND) return 0;
    if ((type != BF16 && type != F32) || base->type != type || in[0].type != type || in[1].type != type) return 0;
    if (rules[0].divide != 0 || rules[1].divide != 0 || rules[0].probability || rules[1].probability) return 0;
    return kind != TOP || (rules[0].factor == 1 && rules[1].factor == 1);
}

/* --- two elected vectors in float32 -------------------------------------------------------------------------------- */

#include "couples.c"

static float float_above(double x) {
    float y = (float)x;
    return (double)y < x ? nextafterf(y, INFINITY) : y;
}

/* Many recipes give all models the same weight, a power of two. On bfloat16 numbers with similar exponents every step is
 * then exact in float32: all numbers are multiples of a unit q and smaller than M; a sum of two task vectors is smaller
 * than 4 M, the result smaller than M + 4 M both or M + 2 M one, and a multiple of the smaller of q and q both. */
static int exact_of(const Rule *rules, Divisors d, int mode, double scale, Exact *e) {
    double weight = rules[0].weight;
    if (rules[0].kind != TOP || mode == 1 || weight <= 0 || weight != rules[1].weight) return 0;
    if (!is_power(weight) || !is_power(scale)) return 0;
    double one = mode ? scale : scale * weight, both = mode ? scale * weight * d.both : one;
    double unit = fabs(one) < fabs(both) ? fabs(one) : fabs(both), most = fmax(2 * fabs(one), 4 * fabs(both));
    if (unit < 0x1p-6 || most > 0x1p6) return 0; /* neither overflow nor underflow */
    int bits = (int)ceil(log2((1 + most) / (unit < 1 ? unit : 1)));
    e->one = (float)one, e->both = (float)both, e->spread = 16 - bits < 14 ? 16 - bits : 14;
    return 1;
}

/* With other weights, or with factors that restore a norm, nothing is exact; but most results are far enough from the
 * midpoint between two bfloat16 numbers. */
static Checked checked_of(const Rule *rules, Divisors d, int mode, double scale) {
    double p = rules[0].factor * rules[0].weight, q = rules[1].factor * rules[1].weight;
    double first = mode == 0 ? scale : mode == 1 ? scale / d.first : scale * d.first;
    double second = mode == 0 ? scale : mode == 1 ? scale / d.second : scale * d.second;
    double both = mode == 0 ? scale : mode == 1 ? scale / d.both : scale * d.both;
    Checked e = {.times = {(float)p, (float)q}, .first = (float)first, .second = (float)second, .both = (float)both};
    double all[] = {p, q, p * first, q * second, p * both, q * both};
    e.same = e.first == e.second && e.first == e.both, e.usable = rules[0].kind == TOP || rules[0].kind == BITS;
    for (int i = 0; i < 6; i++) e.usable &= fabs(all[i]) >= 0x1p-10 && fabs(all[i]) <= 0x1p10;
    return e;
}

/* What all blocks share, and where this block is. */
typedef struct {
    Divisors divisors;
    Exact exact;
    Checked checked;
    int mode, floats;
    double scale;
    const Rule *rules;
    const char *base, *x, *y;
    char *out;
    Side p, q;
    int64_t at, type;
} FastPair;

/* k elements of a block, from `from` on, in float64. */
static int pair_in_doubles(const FastPair *u, int64_t from, int64_t k) {
    int64_t o = from * (u->type == F32 ? 4 : 2), kind = u->rules[0].kind;
    uint8_t keep[2][B + 8];
    Side sides[2] = {u->p, u->q};
    for (int j = 0; j < 2; j++) {
        sides[j].keep = kind == BYTES ? u->rules[j].mask + (u->at + from - u->rules[j].mask_at) : keep[j];
        if (kind == BITS) unpack_bits(u->rules[j].mask, u->at + from, k, keep[j]);
    }
    Pair *pair = pairs[u->type == F32][kind != TOP][u->mode];
    return pair(u->base + o, u->x + o, u->y + o, sides[0], sides[1], u->divisors, u->scale, k, u->out + o);
}

/* A multiple of 32 elements of a block in float32, and those without proof again in float64. */
#define SHARED 256 /* elements that are done again together */

static int pair_in_floats(FastPair *u, int64_t n) {
    const uint16_t *b = (const uint16_t *)u->base, *x = (const uint16_t *)u->x, *y = (const uint16_t *)u->y;
    uint16_t *out = (uint16_t *)u->out;
    union { uint8_t bytes[B]; uint64_t words[B / 8]; } far;
    int top = u->rules[0].kind == TOP;
    int spread = u->floats ? u->exact.spread : 15;
    if (top && !exponents_apart(b, x, y, spread, n, far.bytes)) return pair_in_doubles(u, 0, n);
    uint32_t low[2] = {as_bits(float_above(u->p.low)), as_bits(float_above(u->q.low))};
    memcpy(u->floats ? u->exact.low : u->checked.low, low, sizeof low);
    if (u->floats) pair_exact(b, x, y, &u->exact, n, out);
    for (int64_t o = 0; o < n && !u->floats; o += SHARED) {
        int64_t k = n - o < SHARED ? n - o : SHARED, bit = (u->at + o) / 8;
        const uint8_t *p = top ? NULL : u->rules[0].mask + bit, *q = top ? NULL : u->rules[1].mask + bit;
        CheckedPair *pair = checked_pairs[top][u->checked.same];
        if (!pair(b + o, x + o, y + o, p, q, &u->checked, k, out + o) && !pair_in_doubles(u, o, k)) return 0;
    }
    for (int64_t w = 0; top && w < n / 8; w++)
        if (__builtin_expect(far.words[w] != 0, 0) && !pair_in_doubles(u, 8 * w, 8)) return 0;
    return 1;
}

/* Computes the elements from `at` on that have one rule, and returns their number; 0 if they take the general way. */
static int64_t fast_pair(const Input *base, const Input *in, FastPair *u, int64_t at, int64_t n, char *out) {
    int64_t width = u->type == F32 ? 4 : 2, kind = u->rules[0].kind;
    n = n < B ? n : B;
    for (int j = 0; j < 2; j++) {
        int64_t last = u->rules[j].low_at;
        if (kind == TOP && at <= last && last + 1 - at < n) n = last + 1 - at;
    }
    u->p = side_at(u->rules, at), u->q = side_at(u->rules + 1, at), u->at = at, u->out = out;
    u->base = (const char *)base->data + at * width;
    u->x = (const char *)in[0].data + at * width, u->y = (const char *)in[1].data + at * width;
    prefetch(u->base, width * n), prefetch(u->x, width * n), prefetch(u->y, width * n);
    if (u->type == BF16 && n >= PACKED && (u->floats || u->checked.usable))
        return pair_in_floats(u, n / PACKED * PACKED) ? n / PACKED * PACKED : 0;
    return pair_in_doubles(u, 0, n) ? n : 0;
}

/* base + scale * sum of the vectors; with `elects`, of the elements with the sign of the sum (TIES).
 * `late` holds weights that count only after the election (SCE), whose divisors are at least 1e-6. */
int task_vectors(const Input *base, const Input *in, const Rule *rules, int64_t m, int64_t elects, int64_t normalize,
                 double total, double scale, const double *late, int64_t at, int64_t n, int64_t type, void *out) {
    int64_t fast = elects && !late && is_fast_pair(base, in, rules, m, type);
    int64_t width = type == F64 ? 8 : type == F32 ? 4 : 2;
    double *x = malloc(((m + 4) * K + m) * sizeof(double));
    double *b = x + m * K, *whole = b + K, *mixed = whole + K, *below = mixed + K, *weights = below + K;
    if (!x) return 1;
    FastPair u = {.rules = rules, .scale = scale, .type = type};
    if (fast) {
        u.mode = divisors_of(rules, normalize, &u.divisors);
        u.floats = exact_of(rules, u.divisors, u.mode, scale, &u.exact);
        u.checked = checked_of(rules, u.divisors, u.mode, scale);
    }
    for (int64_t j = 0; j < m; j++) weights[j] = late ? late[j] : rules[j].weight;
    for (int64_t start = 0, k; start < n; start += k) {
        k = fast ? fast_pair(base, in, &u, at + start, n - start, (char *)out + start * width) : 0;
        if (k) continue;
        k = n - start < K ? n - start : K;
        load(*base, at + start, k, b);
        for (int64_t j = 0; j < m; j++) task_vector(in[j], rules + j, b, at + start, k, x + j * K);
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

INLINE int sum_two(int type, const void *restrict x, const void *restrict y, double c, double d, int64_t n,
                   void *restrict out) {
    uint32_t least = 0xffffffffu;
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = store_one(type, out, i, wide(type, x, i) * c + wide(type, y, i) * d);
        least = size < least ? size : least;
    }
    return least >= TINY;
}

NOINLINE int sum_two_bf16(const uint16_t *x, const uint16_t *y, const double *c, int64_t n, void *out) {
    return sum_two(BF16, x, y, c[0], c[1], n, out);
}

NOINLINE int sum_two_f32(const float *x, const float *y, const double *c, int64_t n, void *out) {
    return sum_two(F32, x, y, c[0], c[1], n, out);
}

/* Two bfloat16 inputs. Returns 0 if they take the general way. */
static int sum_two_packed(const uint16_t *x, const uint16_t *y, const double *c, int64_t n, uint16_t *out) {
    double more = fmax(fabs(c[0]), fabs(c[1])), less = fmin(fabs(c[0]), fabs(c[1]));
    int64_t whole = n / PACKED * PACKED;
    if (is_power(c[0]) && is_power(c[1]) && less >= 0x1p-6 && more <= 1) {
        sum_exact(x, y, (float)c[0], (float)c[1], whole, out);
    } else if (less >= 0x1p-10 && more <= 0x1p10) {
        for (int64_t i = 0, k; i < whole; i += k) {
            k = whole - i < SHARED ? whole - i : SHARED;
            int done = sum_checked(x + i, y + i, (float)c[0], (float)c[1], k, out + i);
            if (!done && !sum_two_bf16(x + i, y + i, c, k, out + i)) return 0;
        }
    } else {
        whole = 0;
    }
    return sum_two_bf16(x + whole, y + whole, c, n - whole, out + whole);
}

/* sum_j c_j x_j, divided by `divide` if that is not 0; with a base, base + sum_j c_j (x_j - base). */
int combination(const Input *base, const Input *in, const double *c, int64_t m, double divide, int64_t at, int64_t n,
                int64_t type, void *out) {
    int fast = m == 2 && !base && divide == 0 && in[0].type == type && in[1].type == type;
    if (fast && type == F32)
        return sum_two_f32((const float *)in[0].data + at, (const float *)in[1].data + at, c, n, out), 0;
    double b[K], x[K], total[K];
    for (int64_t start = 0, k; start < n; start += k) {
        k = n - start < B ? n - start : B;
        const uint16_t *p = (const uint16_t *)in[0].data + at + start;
        if (fast && type == BF16) {
            const uint16_t *q = (const uint16_t *)in[1].data + at + start;
            uint16_t *to = (uint16_t *)out + start;
            prefetch(p, 2 * k), prefetch(q, 2 * k);
            if (sum_two_packed(p, q, c, k, to)) continue;
        }
        k = k < K ? k : K;
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

/* c + a b. The product of float32 numbers is exact in float64, so rounding once or twice is the same. */
#ifdef __FMA__
#define PLUS(a, b, c) __builtin_fma(a, b, c)
#else
#define PLUS(a, b, c) ((c) + (a) * (b))
#endif

/* The first two steps of the halving at once. */
INLINE double four_products(const double *a, const double *c) {
    return PLUS(a[2], c[2], a[0] * c[0]) + PLUS(a[3], c[3], a[1] * c[1]);
}

/* <x, x>, <x, y> and <y, y> of one block. */
NOINLINE void gram_f32(const float *restrict x, const float *restrict y, double *restrict sums, int64_t blocks) {
    double p[3][B / 4];
    for (int64_t e = 0; e < B / 4; e++) {
        double a[4], c[4];
        for (int q = 0; q < 4; q++) a[q] = x[e + q * (B / 4)], c[q] = y[e + q * (B / 4)];
        p[0][e] = four_products(a, a), p[1][e] = four_products(c, a), p[2][e] = four_products(c, c);
    }
    for (int i = 0; i < 3; i++) sums[i * blocks] = halve(p[i], B / 4);
}

/* Even and odd positions are summed apart: adding them is the last step of the halving. */
NOINLINE void gram_bf16(const PackedPair *restrict x, const PackedPair *restrict y, double *restrict sums,
                        int64_t blocks) {
    double p[6][B / 8];
    for (int64_t e = 0; e < B / 8; e++) {
        double a[4], c[4], d[4], f[4];
        for (int q = 0; q < 4; q++) {
            uint32_t u = x[e + q * (B / 8)], v = y[e + q * (B / 8)];
            a[q] = low_half(u), c[q] = low_half(v), d[q] = high_half(u), f[q] = high_half(v);
        }
        p[0][e] = four_products(a, a), p[1][e] = four_products(c, a), p[2][e] = four_products(c, c);
        p[3][e] = four_products(d, d), p[4][e] = four_products(f, d), p[5][e] = four_products(f, f);
    }
    for (int i = 0; i < 3; i++) sums[i * blocks] = halve(p[i], B / 8) + halve(p[i + 3], B / 8);
}

/* All inner products of the inputs (less the base, if there is one): out[i * m + j], the lower triangle. With a mask
 * (SCE), over its elements. */
int gram(const Input *base, const Input *in, int64_t m, const uint8_t *mask, int64_t n, double *out) {
    int64_t blocks = (n + B - 1) / B, pairs = m * (m + 1) / 2;
    double *x = malloc((m + 2) * B * sizeof(double)), *b = x + m * B, *product = b + B;
    double *sums = malloc((pairs * blocks + 1) * sizeof(double));
    if (!x || !sums) return free(x), free(sums), 1;
    int64_t fast = m == 2 && !base && !mask && in[0].type == in[1].type ? in[0].type : -1;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * B, k = n - at < B ? n - at : B, pair = 0;
        if (k == B && (fast == BF16 || fast == F32)) {
            int64_t width = fast == BF16 ? 2 : 4;
            const char *p = (const char *)in[0].data + at * width, *q = (const char *)in[1].data + at * width;
            prefetch(p, width * B), prefetch(q, width * B);
            if (fast == BF16) gram_bf16((const PackedPair *)p, (const PackedPair *)q, sums + block, blocks);
            else gram_f32((const float *)p, (const float *)q, sums + block, blocks);
            continue;
        }
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

/* One block of the norms of a sparsified vector, with the first two steps of the halving at once. */
NOINLINE void norm_f32(const float *restrict base, const float *restrict x, const uint8_t *restrict keep,
                       double *restrict before, double *restrict after) {
    double p[B / 4], r[B / 4];
    for (int64_t e = 0; e < B / 4; e++) {
        double a[4], t[4];
        for (int q = 0; q < 4; q++) {
            int64_t i = e + q * (B / 4);
            a[q] = fabs((double)x[i] - (double)base[i]);
            t[q] = keep[i] ? a[q] : 0.0;
        }
        p[e] = (a[0] + a[2]) + (a[1] + a[3]);
        r[e] = (t[0] + t[2]) + (t[1] + t[3]);
    }
    *before = halve(p, B / 4), *after = halve(r, B / 4);
}

/* Adds a block to both norms, the second over elements with a bit. Only the last block may be shorter. */
static void norms_of_block(const Input *base, const Input *in, int64_t at, int64_t k, const uint8_t *bits,
                           Sum *before, Sum *after) {
    double b[B], x[B];
    uint8_t keep[B];
    int64_t type = in->type == base->type ? in->type : -1, width = type == F32 ? 4 : 2;
    if (k == B && (type == BF16 || type == F32)) {
        const char *p = (const char *)base->data + at * width, *q = (const char *)in->data + at * width;
        double *sum = before->blocks + before->count, *rest = after->blocks + after->count;
        prefetch(p, width * B), prefetch(q, width * B);
        if (type == F32) unpack_bits(bits, 0, B, keep), norm_f32((const float *)p, (const float *)q, keep, sum, rest);
        if (type == F32 || norm_packed((const uint16_t *)p, (const uint16_t *)q, bits, sum, rest)) {
            before->count++, after->count++;
            return;
        }
    }
    unpack_bits(bits, 0, k, keep);
    load(*base, at, k, b);
    load(*in, at, k, x);
    for (int64_t i = 0; i < k; i++) x[i] = fabs(x[i] - b[i]);
    sum_add(before, x, k);
    for (int64_t i = 0; i < k; i++) x[i] = keep[i] ? x[i] : 0.0;
    sum_add(after, x, k);
}

static void norms_by_rule(const Input *base, const Input *in, const Rule *rule, int64_t at, int64_t k, Sum *before,
                          Sum *after) {
    double b[B], x[B], a[B];
    load(*base, at, k, b);
    load(*in, at, k, x);
    for (int64_t i = 0; i < k; i++) a[i] = fabs(x[i] - b[i]);
    sum_add(before, a, k);
    sparsify(rule, b, at, k, 1.0, x);
    for (int64_t i = 0; i < k; i++) a[i] = fabs(x[i]);
    sum_add(after, a, k);
}

/* The L1 norms of m task vectors, each before and after sparsification. */
int norms(const Input *base, const Input *in, const Rule *rules, int64_t m, int64_t n, double *out) {
    Sum *sums = calloc(2 * m, sizeof(Sum));
    int fault = !sums;
    for (int64_t j = 0; j < 2 * m && !fault; j++) fault = !sum_begin(sums + j, n);
    for (int64_t at = 0; at < n && !fault; at += B)
        for (int64_t j = 0; j < m; j++) {
            int64_t k = n - at < B ? n - at : B;
            Sum *before = sums + 2 * j, *after = before + 1;
            if (rules[j].kind == BITS) norms_of_block(base, in + j, at, k, rules[j].mask + at / 8, before, after);
            else norms_by_rule(base, in + j, rules + j, at, k, before, after);
        }
    for (int64_t j = 0; j < 2 * m && sums; j++) {
        if (fault) free(sums[j].blocks);
        else out[j] = sum_end(sums + j);
    }
    free(sums);
    return fault;
}

/* --- selection -------------------------------------------------------------------------------------------------- */

/* The keys that are ranked: |x - base| of one input, or the variance of several; zero where that is NaN. `x` has space
 * for (m + 2) blocks. */
static void keys_of(const Input *base, const Input *in, int64_t m, int64_t at, int64_t k, double *x, double *keys) {
    double *b = x + m * B, *mean = b + B;
    load(*base, at, k, b);
    for (int64_t j = 0; j < m; j++) load(in[j], at, k, x + j * B), difference(x + j * B, b, k);
    if (m == 1) {
        for (int64_t i = 0; i < k; i++) keys[i] = x[i] == x[i] ? fabs(x[i]) : 0.0;
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
    for (int64_t i = 0; i < k; i++) keys[i] = keys[i] == keys[i] ? keys[i] / (double)m : 0.0;
}

/* The value at position k of the sorted array, which lies between `from` and `to`; reorders these. */
static double quickselect(double *x, int64_t from, int64_t to, int64_t k) {
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

#define BUCKETS 2048

/* Selects from positive numbers without reordering them: buckets by their bits first, then one bucket. `scratch` has
 * space for n + 1. */
static double bucketselect(const double *x, int64_t n, int64_t k, double *scratch) {
    int64_t counts[BUCKETS] = {0}, bucket = 0, size = 0;
    uint64_t least = UINT64_MAX, most = 0, bits;
    int shift = 0;
    for (int64_t i = 0; i < n; i++)
        memcpy(&bits, x + i, 8), least = bits < least ? bits : least, most = bits > most ? bits : most;
    while ((most - least) >> shift >= BUCKETS) shift++;
    for (int64_t i = 0; i < n; i++) memcpy(&bits, x + i, 8), counts[(bits - least) >> shift]++;
    while (k >= counts[bucket]) k -= counts[bucket++];
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, 8);
        scratch[size] = x[i];
        size += (bits - least) >> shift == (uint64_t)bucket;
    }
    return quickselect(scratch, 0, size - 1, k);
}

/* Elements near a threshold: their positions, and their keys as float32 bits, which have the order of the keys. */
typedef struct {
    uint32_t *bits;
    int64_t *places, count, capacity, greater;
} Candidates;

typedef struct {
    double *keys, middle;
    int64_t size;
    float low, high;
} Sample;

#define SAMPLE 16384 /* at most; otherwise 1 in 32 */
#define RUN 64        /* consecutive elements: every run costs a wait for memory */
#define SMALL 65536  /* larger tensors are sampled */
#define TRIES 4      /* values that many elements share, at most */

/* A sample: its own quantile, and float32 bounds that almost surely enclose the k-th largest. */
static int take_sample(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, double *x, Sample *s) {
    int64_t size = n / 32 < SAMPLE ? n / 32 / RUN * RUN : SAMPLE;
    s->size = size, s->low = -1, s->high = INFINITY, s->middle = -1;
    if (n <= SMALL) return 1;
    if (!(s->keys = malloc((2 * size + 1) * sizeof(double)))) return 0;
    double *scratch = s->keys + size; /* one more, since an element is written before it is known to belong */
    for (int64_t i = 0; i < size / RUN; i++) {
        int64_t at = (int64_t)((double)i / (double)(size / RUN) * (double)(n - RUN));
        keys_of(base, in, m, at, RUN, x, s->keys + i * RUN);
    }
    double share = 1.0 - (double)k / (double)n, place = share * (double)size;
    int64_t here = (int64_t)place < size ? (int64_t)place : size - 1, equal = 0;
    s->middle = bucketselect(s->keys, size, here, scratch);
    for (int64_t i = 0; i < size; i++) equal += s->keys[i] == s->middle;
    if (equal * 128 >= size) return 1; /* many elements share the value: try it first */
    double margin = 4 * sqrt((double)size * share * (1 - share)) + 16;
    int64_t from = (int64_t)(place - margin), to = (int64_t)(place + margin);
    s->middle = -1;
    if (from >= 0) s->low = (float)bucketselect(s->keys, size, from, scratch);
    if (to < size) s->high = (float)bucketselect(s->keys, size, to, scratch);
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

INLINE double value_at(Input in, int64_t at) {
    union { uint32_t u; float f; } y;
    if (in.type == BF16) return y.u = (uint32_t)((const uint16_t *)in.data)[at] << 16, y.f;
    if (in.type == F32) return ((const float *)in.data)[at];
    if (in.type == F64) return ((const double *)in.data)[at];
    return half_to_float(((const uint16_t *)in.data)[at]);
}

INLINE double key_at(const Input *base, const Input *in, int64_t m, int64_t at, double *x) {
    double key = 0;
    if (m != 1) return keys_of(base, in, m, at, 1, x, &key), key;
    key = fabs(value_at(*in, at) - value_at(*base, at));
    return key == key ? key : 0.0;
}

/* The keys rounded to float32: rounding preserves the order, so it is enough to find those near the threshold. */
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

NOINLINE int32_t keys_between_bf16(const uint16_t *restrict x, const uint16_t *restrict b, float low, float high,
                                   uint8_t *restrict flags) {
    int32_t above = 0;
    for (int i = 0; i < B; i++) {
        union { uint32_t u; float f; } p = {(uint32_t)x[i] << 16}, q = {(uint32_t)b[i] << 16};
        float key = fabsf(p.f - q.f);
        flags[i] = (key >= low) & (key <= high);
        above += key > high;
    }
    return above;
}

NOINLINE int32_t keys_between_f32(const float *restrict x, const float *restrict b, float low, float high,
                                  uint8_t *restrict flags) {
    int32_t above = 0;
    for (int i = 0; i < B; i++) {
        float key = fabsf(x[i] - b[i]);
        flags[i] = (key >= low) & (key <= high);
        above += key > high;
    }
    return above;
}

/* Flags the keys of a block that round into [low, high], one byte each; returns how many are above. */
static int64_t keys_between(const Input *base, const Input *in, int64_t m, int64_t at, int64_t k, float low,
                            float high, double *x, uint8_t *flags) {
    float keys[B];
    int64_t above = 0, type = m == 1 && in->type == base->type ? in->type : -1, width = type == BF16 ? 2 : 4;
    if (k == B && (type == BF16 || type == F32)) {
        const char *p = (const char *)in->data + at * width, *q = (const char *)base->data + at * width;
        prefetch(p, B * width), prefetch(q, B * width);
        if (type == BF16) return keys_between_bf16((const uint16_t *)p, (const uint16_t *)q, low, high, flags);
        return keys_between_f32((const float *)p, (const float *)q, low, high, flags);
    }
    keys32_of(base, in, m, at, k, x, keys);
    for (int64_t i = k; i < B; i++) keys[i] = -2.0f;
    for (int i = 0; i < B; i++) flags[i] = (keys[i] >= low) & (keys[i] <= high), above += keys[i] > high;
    return above;
}

/* All keys that round into [low, high], in order of position, and how many are above; 0 if they do not fit. */
static int gather(const Input *base, const Input *in, int64_t m, int64_t n, float low, float high, double *x,
                  Candidates *c) {
    union { uint8_t flags[B]; uint64_t words[B / 64]; } inside;
    union { float f; uint32_t u; } y;
    c->count = c->greater = 0;
    for (int64_t at = 0; at < n; at += B) {
        if (c->count + B > c->capacity) return 0;
        c->greater += keys_between(base, in, m, at, n - at < B ? n - at : B, low, high, x, inside.flags);
        pack_bits(inside.flags, B, inside.flags); /* 64 at a time, which helps branch prediction */
        for (int w = 0; w < B / 64; w++)
            for (uint64_t word = inside.words[w]; word; word &= word - 1) {
                int64_t place = at + w * 64 + __builtin_ctzll(word);
                y.f = (float)key_at(base, in, m, place, x);
                c->places[c->count] = place, c->bits[c->count++] = y.u;
            }
    }
    return 1;
}

/* Counts the 16 bits of the keys from `shift` on, where the bits above are `prefix`. */
int histogram(const Input *base, const Input *in, int64_t m, int64_t n, int64_t shift, uint64_t prefix,
              int64_t *counts) {
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

/* The k-th largest key by four histograms: for tensors most of whose elements are equal. */
static int by_histograms(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, double *value,
                         int64_t *greater) {
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

/* The position of the `which`-th key (from 0) that equals `value`; -1 if there are fewer. */
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

static int select_by_histograms(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k,
                                int64_t from_below, double *value, int64_t *place) {
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

NOINLINE void count_doubles(const double *restrict keys, int64_t n, double value, int64_t *greater, int64_t *equal) {
    int64_t above = 0, same = 0;
    for (int64_t i = 0; i < n; i++) above += keys[i] > value, same += keys[i] == value;
    *greater += above, *equal = same;
}

/* The number of the k-th largest key among its equals, from 0. */
static int64_t which_equal(int64_t n, int64_t k, int64_t from_below, int64_t greater, int64_t equal) {
    return from_below ? (n - k) - (n - greater - equal) : k - 1 - greater;
}

/* In 16-bit types many elements share a value, and the sample probably contains the threshold: one pass proves it.
 * Returns -1 if the threshold is larger, 1 if it is smaller, 0 if it is this value; 2 if there is no memory. */
static int try_value(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below,
                     double value, double *x, int64_t *place) {
    int64_t blocks = (n + B - 1) / B, greater = 0, total = 0, block = 0;
    int floats = m == 1 && in->type == BF16 && base->type == BF16 && (double)(float)value == value;
    uint16_t *counts = malloc(blocks * sizeof(uint16_t));
    double keys[B];
    if (!counts) return 2;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t at = i * B, part = n - at < B ? n - at : B, equal = 0;
        const uint16_t *p = (const uint16_t *)in->data + at, *q = (const uint16_t *)base->data + at;
        if (floats && part == B) prefetch(p, 2 * B), prefetch(q, 2 * B);
        if (!(floats && part == B && count_packed(p, q, (float)value, &greater, &equal))) {
            keys_of(base, in, m, at, part, x, keys);
            count_doubles(keys, part, value, &greater, &equal);
        }
        counts[i] = (uint16_t)equal;
        total += equal;
    }
    int side = k <= greater ? -1 : k > greater + total ? 1 : 0;
    if (!side) {
        int64_t which = which_equal(n, k, from_below, greater, total);
        while (which >= counts[block]) which -= counts[block++];
        int64_t at = block * B, part = n - at < B ? n - at : B;
        keys_of(base, in, m, at, part, x, keys);
        for (int64_t e = 0; e < part; e++)
            if (keys[e] == value && which-- == 0) *place = at + e;
    }
    free(counts);
    return side;
}

/* The next value of the sample in a direction; -1 if there is none. */
static double next_value(const Sample *s, double value, int side) {
    double next = -1;
    for (int64_t i = 0; i < s->size; i++) {
        double key = s->keys[i];
        if (side < 0 ? key > value && (next < 0 || key < next) : key < value && key > next) next = key;
    }
    return next;
}

static int try_values(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below,
                      const Sample *s, double *x, double *value, int64_t *place) {
    double candidate = s->middle;
    for (int i = 0; i < TRIES && candidate >= 0; i++) {
        int side = try_value(base, in, m, n, k, from_below, candidate, x, place);
        if (side == 0) return *value = candidate, 1;
        if (side == 2) return 0;
        candidate = next_value(s, candidate, side);
    }
    return 0;
}

/* Of the candidates, the k-th largest among all elements: buckets by their bits first, then the keys of one bucket. */
static int select_candidate(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below,
                            Candidates *c, double *x, double *value, int64_t *place) {
    int64_t counts[BUCKETS] = {0}, bucket = BUCKETS - 1, greater = c->greater, size = 0, equal = 0;
    uint32_t least = 0xffffffffu, most = 0, shift = 0;
    for (int64_t i = 0; i < c->count; i++)
        least = c->bits[i] < least ? c->bits[i] : least, most = c->bits[i] > most ? c->bits[i] : most;
    while ((most - least) >> shift >= BUCKETS) shift++;
    for (int64_t i = 0; i < c->count; i++) counts[(c->bits[i] - least) >> shift]++;
    while (greater + counts[bucket] < k) greater += counts[bucket--];
    double *keys = malloc(2 * counts[bucket] * sizeof(double)), *copy = keys + counts[bucket];
    if (!keys) return 0;
    for (int64_t i = 0; i < c->count; i++)
        if ((c->bits[i] - least) >> shift == bucket)
            c->places[size] = c->places[i], keys[size++] = key_at(base, in, m, c->places[i], x);
    memcpy(copy, keys, size * sizeof(double));
    *value = quickselect(copy, 0, size - 1, size - (k - greater));
    count_doubles(keys, size, *value, &greater, &equal);
    int64_t which = which_equal(n, k, from_below, greater, equal);
    for (int64_t i = 0; i < size; i++)
        if (keys[i] == *value && which-- == 0) *place = c->places[i];
    free(keys);
    return 1;
}

/* The k-th largest key and its position. Among equals the lower position comes first in descending order, and, with
 * `from_below`, also in ascending order. */
int select_key(const Input *base, const Input *in, int64_t m, int64_t n, int64_t k, int64_t from_below, double *value,
               int64_t *place) {
    double *x = malloc((m + 2) * B * sizeof(double));
    Sample s = {0};
    Candidates c = {.capacity = n <= SMALL ? n + B : n / 12 + 2 * B};
    int ok = x && take_sample(base, in, m, n, k, x, &s);
    if (ok && s.middle >= 0) {
        ok = try_values(base, in, m, n, k, from_below, &s, x, value, place);
    } else if (ok) {
        c.bits = malloc(c.capacity * sizeof(uint32_t)), c.places = malloc(c.capacity * sizeof(int64_t));
        ok = c.bits && c.places && gather(base, in, m, n, s.low, s.high, x, &c) && k > c.greater &&
             k <= c.greater + c.count && select_candidate(base, in, m, n, k, from_below, &c, x, value, place);
    }
    free(x), free(s.keys), free(c.bits), free(c.places);
    return ok ? 0 : select_by_histograms(base, in, m, n, k, from_below, value, place);
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

/* One byte per element: whether its key is above `low`, or equal to it and not beyond position `last`. */
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

#define BINS 512   /* 64 per octave, from the largest down */
#define LONG 16384 /* longer rows are sorted */
#define MOST_INEXACT 32

/* One row: float32 bits of |x - base|, their bins, and random words. */
typedef struct {
    const Input *base, *in;
    int64_t n, at;
    uint32_t *bits;
    uint16_t *words, *limits, *bins; /* an element of rank r stays if its word is below limits[r] */
    uint8_t *open, *keep;
    int64_t inexact[MOST_INEXACT];   /* the elements whose bits may be rounded */
    int inexact_count;               /* how many; MOST_INEXACT: any of the row; -1: not determined */
    double first, span;              /* the probability of rank r is first + r * span */
    double *a;                       /* |x - base|, in rows that are sorted */
    int64_t *order;
    void *memory;
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

/* The limit of an element's word: its probability, rounded to a multiple of 2^-16. */
static double limit_of(const Row *r, int64_t rank) {
    double limit = rint((r->first + (double)rank * r->span) * 0x1p16);
    return limit < 0 ? 0 : limit;
}

static int row_begin(Row *r, int ranks) {
    int64_t n = r->n, large = ranks ? n : 1;
    char *p = r->memory = malloc(3 * large * 8 + n * 4 + 3 * n * 2 + 2 * n + 128);
    if (!p) return 0;
    r->a = (double *)p, r->order = (int64_t *)(r->a + large), p += 3 * large * 8;
    r->bits = (uint32_t *)p, p += n * 4;
    r->words = (uint16_t *)p, r->limits = r->words + n, r->bins = r->limits + n, p += 3 * n * 2;
    r->keep = (uint8_t *)p, r->open = r->keep + n;
    memset(r->open, 0, n + 64);
    for (int64_t i = 0; i < n && !ranks; i++) r->limits[i] = (uint16_t)limit_of(r, i);
    return 1;
}

NOINLINE void bits_bf16(const uint16_t *restrict x, const uint16_t *restrict b, int64_t n, uint32_t *restrict bits) {
    for (int64_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } y = {low_half(x[i]) - low_half(b[i])};
        bits[i] = y.u & 0x7fffffff;
    }
}

NOINLINE void bits_f32(const float *restrict x, const float *restrict b, int64_t n, uint32_t *restrict bits) {
    for (int64_t i = 0; i < n; i++) {
        union { float f; uint32_t u; } y = {x[i] - b[i]};
        bits[i] = y.u & 0x7fffffff;
    }
}

static void row_bits(Row *r) {
    double x[K], b[K];
    int64_t type = r->in->type == r->base->type ? r->in->type : -1;
    if (type == BF16) {
        bits_bf16((const uint16_t *)r->in->data + r->at, (const uint16_t *)r->base->data + r->at, r->n, r->bits);
    } else if (type == F32) {
        bits_f32((const float *)r->in->data + r->at, (const float *)r->base->data + r->at, r->n, r->bits);
    } else {
        for (int64_t i = 0; i < r->n; i += K) {
            int64_t k = r->n - i < K ? r->n - i : K;
            load(*r->in, r->at + i, k, x);
            load(*r->base, r->at + i, k, b);
            for (int64_t e = 0; e < k; e++) {
                union { float f; uint32_t u; } y = {(float)fabs(x[e] - b[e])};
                r->bits[i + e] = y.u & 0x7fffffff;
            }
        }
    }
}

NOINLINE int64_t rank_of_exact(const uint32_t *restrict bits, int64_t n, int64_t place) {
    uint32_t v = bits[place];
    int32_t rank = 0;
    for (int64_t i = 0; i < place; i++) rank += bits[i] <= v;
    for (int64_t i = place + 1; i < n; i++) rank += bits[i] < v;
    return rank;
}

/* The largest exponent less the smallest; zeros do not count. */
INLINE int exponent_spread(const uint16_t *restrict x, const uint16_t *restrict y, int64_t n) {
    uint16_t most = 0, least = 0xffff;
    for (int64_t i = 0; i < n; i++) {
        uint16_t p = x[i] & 0x7fff, q = y[i] & 0x7fff, p_less = (uint16_t)(p - 1), q_less = (uint16_t)(q - 1);
        p = p > q ? p : q, most = p > most ? p : most;
        p_less = p_less < q_less ? p_less : q_less, least = p_less < least ? p_less : least;
    }
    return most >= 0x7f80 ? 1 << 16 : (most >> 7) - ((least + 1) >> 7);
}

/* The difference of two bfloat16 numbers is exact in float32 if their exponents are within 15 of each other. */
NOINLINE void find_inexact(Row *r) {
    const uint16_t *x = (const uint16_t *)r->in->data + r->at, *b = (const uint16_t *)r->base->data + r->at;
    r->inexact_count = MOST_INEXACT;
    if (r->in->type != BF16 || r->base->type != BF16) return;
    r->inexact_count = 0;
    if (exponent_spread(b, x, r->n) <= 15) return;
    for (int64_t from = 0; from < r->n; from += 64) {
        int k = r->n - from < 64 ? (int)(r->n - from) : 64;
        if (exponent_spread(b + from, x + from, k) <= 15) continue;
        for (int64_t i = from; i < from + k; i++) {
            int p = x[i] >> 7 & 255, q = b[i] >> 7 & 255, apart = p > q ? p - q : q - p;
            if (apart <= 15 || !(x[i] & 0x7fff) || !(b[i] & 0x7fff)) continue;
            if (r->inexact_count == MOST_INEXACT) return;
            r->inexact[r->inexact_count++] = i;
        }
    }
}

/* The rank of an element in its row. Rounding to float32 preserves the order; what it makes equal is compared exactly. */
NOINLINE int64_t rank_in(Row *r, int64_t place) {
    const uint32_t *restrict bits = r->bits;
    uint32_t v = bits[place];
    int32_t less = 0, equal = 0, inexact = 0;
    if (r->inexact_count < 0) find_inexact(r);
    for (int i = 0; i < r->inexact_count && r->inexact_count < MOST_INEXACT; i++) inexact |= bits[r->inexact[i]] == v;
    if (!inexact && r->inexact_count < MOST_INEXACT) return rank_of_exact(bits, r->n, place);
    for (int64_t i = 0; i < r->n; i++) less += bits[i] < v, equal += bits[i] == v;
    if (equal == 1) return less;
    double own = fabs(value_at(*r->in, r->at + place) - value_at(*r->base, r->at + place));
    for (int64_t i = 0; i < r->n; i++) {
        if (bits[i] != v) continue;
        double key = fabs(value_at(*r->in, r->at + i) - value_at(*r->base, r->at + i));
        less += key < own || (key == own && i < place);
    }
    return less;
}

NOINLINE void row_bins(const uint32_t *restrict bits, int64_t n, uint16_t *restrict bins) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) most = bits[i] > most ? bits[i] : most;
    int32_t lowest = (int32_t)(most >> 17) - (BINS - 1);
    for (int64_t i = 0; i < n; i++) {
        int32_t bin = (int32_t)(bits[i] >> 17) - lowest;
        bins[i] = (uint16_t)(bin < 0 ? 0 : bin);
    }
}

/* start[b]: how many elements are in lower bins. Four 16-bit sums per word, since rows are shorter than 65536. */
NOINLINE void row_starts(const uint16_t *bins, int64_t n, uint16_t *start) {
    /* four tables, so that neighbours do not wait for each other */
    union { uint16_t counts[4][BINS]; uint64_t words[4][BINS / 4]; } t = {{{0}}};
    uint64_t before = 0;
    int64_t i = 0;
    for (; i + 3 < n; i += 4)
        t.counts[0][bins[i]]++, t.counts[1][bins[i + 1]]++, t.counts[2][bins[i + 2]]++, t.counts[3][bins[i + 3]]++;
    for (; i < n; i++) t.counts[0][bins[i]]++;
    for (int w = 0; w < BINS / 4; w++) {
        uint64_t all = t.words[0][w] + t.words[1][w] + t.words[2][w] + t.words[3][w];
        uint64_t sums = all * 0x0001000100010001ull, up = sums + before;
        memcpy(start + 1 + 4 * w, &up, 8);
        before += (sums >> 48) * 0x0001000100010001ull;
    }
    start[0] = 0;
}

NOINLINE void row_open(const uint16_t *restrict words, uint16_t first, uint16_t last, int64_t n,
                       uint8_t *restrict keep, uint8_t *restrict open) {
    for (int64_t i = 0; i < n; i++) keep[i] = words[i] < first;
    for (int64_t i = 0; i < n; i++) open[i] = (uint16_t)(words[i] - first) < (uint16_t)(last - first);
}

/* An element stays if its word is below the limit of its rank. For most, both ends of the range of ranks of their bin
 * give the same answer, so only a few in a thousand need the rank itself. */
NOINLINE void decide(Row *r) {
    uint16_t start[BINS + 4];
    r->inexact_count = -1;
    row_bits(r);
    row_bins(r->bits, r->n, r->bins);
    row_starts(r->bins, r->n, start);
    row_open(r->words, r->limits[0], r->limits[r->n - 1], r->n, r->keep, r->open);
    pack_bits(r->open, (r->n + 7) / 8 * 8, r->open); /* 64 at a time, which helps branch prediction */
    for (int64_t at = 0; at < r->n; at += 64) {
        uint64_t word;
        memcpy(&word, r->open + at / 8, 8);
        if (r->n - at < 64) word &= (1ull << (r->n - at)) - 1;
        for (; word; word &= word - 1) {
            int64_t i = at + __builtin_ctzll(word);
            uint32_t bin = r->bins[i], own = r->words[i];
            uint32_t lower = r->limits[start[bin]], upper = r->limits[start[bin + 1] - 1];
            r->keep[i] = own < lower;
            /* (whether a zero stays makes no difference) */
            if (__builtin_expect(own - lower < upper - lower && r->bits[i], 0))
                r->keep[i] = own < r->limits[rank_in(r, i)];
        }
    }
}

static void decide_by_sorting(Row *r, double *probability) {
    for (int64_t e = 0; e < r->n; e++) r->a[e] = fabs(value_at(*r->in, r->at + e) - value_at(*r->base, r->at + e));
    merge_sort(r->order, r->order + r->n, r->a, r->n);
    for (int64_t e = 0; e < r->n; e++) {
        r->keep[r->order[e]] = r->words[r->order[e]] < limit_of(r, e);
        if (probability) probability[r->order[e]] = r->first + (double)e * r->span;
    }
}

/* Collects rows of any length into blocks, which sums and bits are made of. */
typedef struct {
    uint8_t bytes[B];
    int64_t used, at;
    uint8_t *bits;
    int sums;
    Sum before, after;
} Blocks;

static void blocks_flush(Blocks *k, const Input *base, const Input *in) {
    pack_bits(k->bytes, (k->used + 7) / 8 * 8, k->bits + k->at / 8);
    if (k->sums) norms_of_block(base, in, k->at, k->used, k->bits + k->at / 8, &k->before, &k->after);
    k->at += k->used, k->used = 0;
}

static void blocks_add(Blocks *k, const Input *base, const Input *in, const uint8_t *keep, int64_t n) {
    while (n) {
        int64_t take = B - k->used < n ? B - k->used : n;
        memcpy(k->bytes + k->used, keep, take);
        k->used += take, keep += take, n -= take;
        if (k->used == B) blocks_flush(k, base, in);
    }
}

/* MagPrune for rows [row, row + rows) of length n. Writes either one byte per element and its probability; or, for all
 * rows at once, one bit per element and optionally the L1 norms before and after. */
int magprune(const Input *base, const Input *in, int64_t row, int64_t rows, int64_t n, double density, double epsilon,
             uint64_t key, uint8_t *bytes, double *probability, uint8_t *bits, double *l1) {
    double span = 2 * epsilon / (double)(n > 1 ? n - 1 : 1);
    Row r = {.base = base, .in = in, .n = n, .first = density - epsilon, .span = span};
    /* 16 bits cannot hold the limit for probability 1, so those rows are sorted too */
    int ranks = probability || n > LONG || density + epsilon > 0.9999;
    Blocks *k = calloc(1, sizeof(Blocks));
    Words w;
    int fault = !k || !row_begin(&r, ranks);
    if (!fault && l1) {
        fault = !sum_begin(&k->before, rows * n) || !sum_begin(&k->after, rows * n);
        k->sums = 1;
    }
    if (!fault) k->bits = bits;
    words_begin(&w, key, row * n);
    for (int64_t i = 0; i < rows && !fault; i++) {
        r.at = (row + i) * n;
        words_take(&w, n, r.words);
        if (ranks) decide_by_sorting(&r, probability ? probability + i * n : NULL);
        else decide(&r);
        if (bits) blocks_add(k, base, in, r.keep, n);
        else memcpy(bytes + i * n, r.keep, n);
    }
    if (!fault && bits && k->used) blocks_flush(k, base, in);
    if (!fault && l1) l1[0] = sum_end(&k->before), l1[1] = sum_end(&k->after);
    free(r.memory), free(k);
    return fault;
}

/* --- to a file ---------------------------------------------------------------------------------------------------- */

static int write_all(int file, const char *data, int64_t size, int64_t at) {
    while (size) {
        ssize_t written = pwrite(file, data, (size_t)size, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        data += written, size -= written, at += written;
    }
    return 0;
}

/* The number of elements to write first, so that the rest is written in whole stretches of the file: whole pages are
 * cheaper. Masks are read from whole bytes. */
static int64_t first_stretch(int64_t step, int64_t width, int64_t at) {
    int64_t behind = at % (step * width), left = (step * width - behind) / width;
    return behind % (64 * width) ? step : left;
}

/* Writes what `combination` (rules = NULL) or `task_vectors` computes, in stretches that stay in the cache until they are
 * written. `buffer` has space for one of them. Returns -1 if there is no memory, else 0 or errno. */
int to_file(const Input *base, const Input *in, const Rule *rules, const double *c, int64_t m, int64_t elects,
            int64_t normalize, double total, double scale, const double *late, int64_t n, int64_t type, int64_t step,
            void *buffer, int64_t file, int64_t at) {
    int64_t width = type == F64 ? 8 : type == F32 ? 4 : 2, k = first_stretch(step, width, at);
    for (int64_t start = 0; start < n; start += k, k = step) {
        k = n - start < k ? n - start : k;
        int fault = rules ? task_vectors(base, in, rules, m, elects, normalize, total, scale, late, start, k, type, buffer)
                          : combination(base, in, c, m, total, start, k, type, buffer);
        if (fault) return -1;
        if ((fault = write_all((int)file, buffer, k * width, at + start * width))) return fault;
    }
    return 0;
}
