/* bfloat16 at full speed: two numbers in every 32-bit word, taken apart by a mask and a shift, so that nothing has to be
 * widened or packed. All of it in float32, with proof that float64, rounded once, would give the same. Conditions are masks of
 * whole words, which every processor has. Part of kernel.c. */

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int32_t Signs __attribute__((vector_size(64)));
typedef uint32_t __attribute__((aligned(2), may_alias)) Couple; /* of neighbours, as they lie in memory */
#define COUPLES 32                                              /* elements in a vector of them */
#define SIGN 0x80000000u

static inline __attribute__((always_inline)) float as_float(uint32_t u) {
    union { uint32_t u; float f; } y = {u};
    return y.f;
}

static inline __attribute__((always_inline)) uint32_t as_bits(float f) {
    union { float f; uint32_t u; } y = {f};
    return y.u;
}

static inline __attribute__((always_inline)) float first_of(uint32_t couple) { return as_float(couple << 16); }
static inline __attribute__((always_inline)) float second_of(uint32_t couple) { return as_float(couple & 0xffff0000u); }

static inline __attribute__((always_inline)) Bits couples(const uint16_t *p) {
    Bits found;
    memcpy(&found, p, sizeof found);
    return found;
}

static inline __attribute__((always_inline)) Floats half_of(Bits couples, int second) {
    return (Floats)(second ? couples & 0xffff0000u : couples << 16);
}

static inline __attribute__((always_inline)) Bits all(uint32_t x) { return (Bits){0} + x; }
static inline __attribute__((always_inline)) Bits size_of(Floats x) { return (Bits)x & 0x7fffffffu; }
static inline __attribute__((always_inline)) Bits negative(Bits x) { return (Bits)((Signs)x >> 31); } /* all bits, or none */
static inline __attribute__((always_inline)) Floats flipped(Floats x, Bits sign) { return (Floats)((Bits)x ^ sign); }
static inline __attribute__((always_inline)) Bits choice(Bits mask, Bits a, Bits b) { return b ^ ((a ^ b) & mask); }

static inline __attribute__((always_inline)) Floats positive(Floats x, Bits sign) {
    Bits u = (Bits)x ^ sign;
    return (Floats)(u & ~negative(u));
}

/* Rounded to nearest even, in the upper half. */
static inline __attribute__((always_inline)) Bits nearest(Floats x) { return (Bits)x + 0x7fff + (((Bits)x >> 16) & 1); }

static inline __attribute__((always_inline)) void put_couples(uint16_t *out, Bits first, Bits second) {
    Bits made = (first >> 16) | (second & 0xffff0000u);
    memcpy(out, &made, sizeof made);
}

/* --- results that may be wrong, and the proof that they are not ---------------------------------------------------- */

typedef struct {
    Bits differ; /* upper halves: whether numbers within the error would round differently */
    Bits doubt;  /* signs */
} Doubts;

/* Sizes that are not zero, below which errors are no longer relative: 2^-100. */
#define FEW (0x0d800000u - 1)

static inline __attribute__((always_inline)) void doubt_small(Doubts *d, Floats size) {
    Bits few = (Bits)size - 1;
    d->doubt |= ~few & (few - FEW);
}

/* What x rounds to, in the upper half. The true error before the last addition must be less than half of `error`, because
 * the ends are rounded themselves. What is not finite differs: its error is not a number. */
static inline __attribute__((always_inline)) Bits surely(Floats x, Floats error, Doubts *d) {
    Bits high = (Bits)((Floats)size_of(x) + error) + 0x8000u;
    d->differ |= high ^ ((Bits)((Floats)size_of(x) - error) + 0x7fffu);
    return high | ((Bits)x & SIGN);
}

static inline __attribute__((always_inline)) int is_sure(Doubts *d) {
    Bits found = (d->differ & 0xffff0000u) | (d->doubt & SIGN);
    uint32_t any = 0;
    for (int i = 0; i < COUPLES / 2; i++) any |= found[i];
    return !any;
}

/* --- sums of two ------------------------------------------------------------------------------------------------- */

/* c x + d y, where c and d are powers of two, 1 at most. Where the exponents of both lie within 15 of each other the sum is
 * exact in float32; where they do not, the smaller one is too small to change how the larger is rounded. */
static __attribute__((noinline)) void sum_exact(const uint16_t *x, const uint16_t *y, float c, float d, int64_t n, uint16_t *out) {
    for (int64_t i = 0; i < n; i += COUPLES) {
        Bits p = couples(x + i), q = couples(y + i);
        Floats first = half_of(p, 0) * c + half_of(q, 0) * d, second = half_of(p, 1) * c + half_of(q, 1) * d;
        put_couples(out + i, nearest(first), nearest(second));
    }
}

/* c x + d y for other coefficients from 2^-10 to 2^10: three roundings of 2^-24 each. 0 if that is not enough. */
static __attribute__((noinline)) int sum_surely(const uint16_t *x, const uint16_t *y, float c, float d, int64_t n, uint16_t *out) {
    Doubts doubts = {{0}, {0}};
    for (int64_t i = 0; i < n; i += COUPLES) {
        Bits p = couples(x + i), q = couples(y + i), made[2];
        for (int second = 0; second < 2; second++) {
            Floats v = half_of(p, second) * c, w = half_of(q, second) * d;
            Floats size = (Floats)size_of(v) + (Floats)size_of(w);
            doubt_small(&doubts, size);
            made[second] = surely(v + w, size * 0x1p-21f, &doubts);
        }
        put_couples(out + i, made[0], made[1]);
    }
    return is_sure(&doubts);
}

/* --- elections of two -------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t low[2]; /* the bits of the smallest sizes that stay */
    float one, both; /* what the elected sum is multiplied by, of one vector or of both */
    int spread;      /* of the exponents of an element's inputs, up to which this is exact */
} Exact;

static inline __attribute__((always_inline)) Floats trimmed(Floats x, uint32_t low) {
    return (Floats)((Bits)x & negative((low - 1) - size_of(x)));
}

static inline __attribute__((always_inline)) Bits elected(Bits base, Bits x, Bits y, int second, const Exact *e) {
    Floats b = half_of(base, second);
    Floats v = trimmed(half_of(x, second) - b, e->low[0]), w = trimmed(half_of(y, second) - b, e->low[1]);
    Bits sign = (Bits)(v + w) & SIGN;
    v = positive(v, sign), w = positive(w, sign);
    Bits single = negative(((Bits)v - 1) | ((Bits)w - 1)); /* one of them is zero */
    return nearest(b + flipped((v + w) * (Floats)choice(single, all(as_bits(e->one)), all(as_bits(e->both))), sign));
}

static __attribute__((noinline)) void pair_exact(const uint16_t *base, const uint16_t *x, const uint16_t *y, const Exact *given,
                                                 int64_t n, uint16_t *out) {
    Exact e = *given;
    for (int64_t i = 0; i < n; i += COUPLES) {
        Bits b = couples(base + i), p = couples(x + i), q = couples(y + i);
        put_couples(out + i, elected(b, p, q, 0, &e), elected(b, p, q, 1, &e));
    }
}

/* Which elements have inputs whose exponents differ by more than `spread`; zeros do not count. 0 if not all are finite. */
static __attribute__((noinline)) int far_apart(const uint16_t *restrict x, const uint16_t *restrict y, const uint16_t *restrict z,
                                               int spread, int64_t n, uint8_t *restrict far) {
    uint16_t most = 0, limit = (uint16_t)(spread << 7);
    for (int64_t i = 0; i < n; i++) {
        uint16_t p = x[i] & 0x7fff, q = y[i] & 0x7fff, r = z[i] & 0x7fff;
        uint16_t p_less = (uint16_t)(p - 1), q_less = (uint16_t)(q - 1), r_less = (uint16_t)(r - 1);
        p = p > q ? p : q, p = p > r ? p : r, most = p > most ? p : most;
        p_less = p_less < q_less ? p_less : q_less, p_less = p_less < r_less ? p_less : r_less;
        far[i] = (uint16_t)(p - p_less - 1) > limit;
    }
    return most < 0x7f80;
}

typedef struct {
    uint32_t low[2];
    float times[2];            /* what a vector's elements are multiplied by */
    float first, second, both; /* and their sum, as to which of the two have the elected sign */
    int same, usable;
} Near;

/* Seven roundings of 2^-24 each, in `mixed`. */
static inline __attribute__((always_inline)) Bits elected_surely(Floats b, Floats v, Floats w, const Near *e, int same, Doubts *d) {
    v *= e->times[0], w *= e->times[1];
    Floats whole = v + w;
    Bits sign = (Bits)whole & SIGN;
    v = positive(v, sign), w = positive(w, sign);
    Floats size = v + w, times = (Floats)all(as_bits(e->both));
    d->doubt |= size_of(whole) - (Bits)(size * 0x1p-20f); /* which sign is elected */
    d->doubt |= 0x7f7fffffu - size_of(whole);             /* what is not finite */
    doubt_small(d, size);
    if (!same) {
        Bits none = (Bits)v - 1, single = negative(none | ((Bits)w - 1));
        Bits other = choice(negative(none), all(as_bits(e->second)), all(as_bits(e->first)));
        times = (Floats)choice(single, other, (Bits)times);
    }
    Floats mixed = size * times;
    return surely(b + flipped(mixed, sign), (Floats)size_of(mixed) * 0x1p-20f, d);
}

static const Bits PLACES = {31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1}; /* of the first of each couple */

static inline __attribute__((always_inline)) Floats with_bit(Floats x, uint32_t mask, int second) {
    return (Floats)((Bits)x & negative(all(mask) << (PLACES - (uint32_t)second)));
}

/* Elements that are large enough stay, or those that have a bit. 0 if something has to be done in float64. */
static inline __attribute__((always_inline)) int pair_surely(int top, const uint16_t *base, const uint16_t *x, const uint16_t *y,
                                                             const uint8_t *p, const uint8_t *q, const Near *given, int same,
                                                             int64_t n, uint16_t *out) {
    Near e = *given;
    Doubts d = {{0}, {0}};
    for (int64_t i = 0; i < n; i += COUPLES) {
        Bits b = couples(base + i), r = couples(x + i), s = couples(y + i), made[2];
        uint32_t one = 0, two = 0;
        if (!top) memcpy(&one, p + i / 8, 4), memcpy(&two, q + i / 8, 4);
        for (int second = 0; second < 2; second++) {
            Floats c = half_of(b, second), v = half_of(r, second) - c, w = half_of(s, second) - c;
            v = top ? trimmed(v, e.low[0]) : with_bit(v, one, second);
            w = top ? trimmed(w, e.low[1]) : with_bit(w, two, second);
            made[second] = elected_surely(c, v, w, &e, same, &d);
        }
        put_couples(out + i, made[0], made[1]);
    }
    return is_sure(&d);
}

typedef int Surely(const uint16_t *, const uint16_t *, const uint16_t *, const uint8_t *, const uint8_t *, const Near *, int64_t, uint16_t *);
#define SURELY(NAME, TOP, SAME)                                                                                               \
    static __attribute__((noinline)) int NAME(const uint16_t *b, const uint16_t *x, const uint16_t *y, const uint8_t *p,        \
                                              const uint8_t *q, const Near *e, int64_t n, uint16_t *out) {                      \
        return pair_surely(TOP, b, x, y, p, q, e, SAME, n, out);                                                              \
    }
SURELY(bits_same, 0, 1)
SURELY(bits_other, 0, 0)
SURELY(top_same, 1, 1)
SURELY(top_other, 1, 0)
static Surely *const surely_of[2][2] = {{bits_other, bits_same}, {top_other, top_same}};

/* --- norms --------------------------------------------------------------------------------------------------------- */

/* The first two steps of the halving of a block bring together four elements, a quarter of a block apart, of both inputs.
 * Their absolute differences are added exactly in float32 where exponents lie within 13 of each other. Which do not; 0 if
 * not all are finite. */
static __attribute__((noinline)) int columns_apart(const uint16_t *restrict x, const uint16_t *restrict y, uint8_t *restrict far) {
    uint16_t largest = 0;
    for (int e = 0; e < B / 4; e++) {
        uint16_t most = 0, least = 0xffff;
        for (int q = 0; q < 4; q++) {
            uint16_t p = x[e + q * (B / 4)] & 0x7fff, r = y[e + q * (B / 4)] & 0x7fff;
            uint16_t p_less = (uint16_t)(p - 1), r_less = (uint16_t)(r - 1);
            most = p > most ? p : most, most = r > most ? r : most;
            least = p_less < least ? p_less : least, least = r_less < least ? r_less : least;
        }
        far[e] = (uint16_t)(most - least - 1) > (13 << 7);
        largest = most > largest ? most : largest;
    }
    return largest < 0x7f80;
}

static inline __attribute__((always_inline)) void put_doubles(double *out, Floats x) {
    typedef double Doubles __attribute__((vector_size(128)));
    Doubles wide = __builtin_convertvector(x, Doubles);
    memcpy(out, &wide, sizeof wide);
}

/* |x - base| of one block, added up; whole, and what has a bit. Even and odd places apart: their sum is the last step of the
 * halving. 0 if it has to be done otherwise. */
static __attribute__((noinline)) int norm_couples(const uint16_t *base, const uint16_t *x, const uint8_t *bits, double *before, double *after) {
    double p[2][B / 8], r[2][B / 8];
    union { uint8_t bytes[B / 4]; uint64_t words[B / 32]; } far;
    if (!columns_apart(base, x, far.bytes)) return 0;
    for (int e = 0; e < B / 4; e += COUPLES)
        for (int second = 0; second < 2; second++) {
            Floats d[4], t[4];
            for (int q = 0; q < 4; q++) {
                uint32_t mask;
                int at = e + q * (B / 4);
                memcpy(&mask, bits + at / 8, 4);
                d[q] = (Floats)size_of(half_of(couples(x + at), second) - half_of(couples(base + at), second));
                t[q] = with_bit(d[q], mask, second);
            }
            put_doubles(p[second] + e / 2, (d[0] + d[2]) + (d[1] + d[3]));
            put_doubles(r[second] + e / 2, (t[0] + t[2]) + (t[1] + t[3]));
        }
    for (int w = 0; w < B / 32; w++)
        for (uint64_t word = far.words[w]; word; word &= word - 1) {
            int e = w * 8 + __builtin_ctzll(word) / 8;
            double d[4], t[4];
            for (int q = 0; q < 4; q++) {
                int at = e + q * (B / 4);
                d[q] = fabs((double)first_of(x[at]) - (double)first_of(base[at])), t[q] = bits[at / 8] >> at % 8 & 1 ? d[q] : 0.0;
            }
            p[e % 2][e / 2] = (d[0] + d[2]) + (d[1] + d[3]), r[e % 2][e / 2] = (t[0] + t[2]) + (t[1] + t[3]);
        }
    *before = halve(p[0], B / 8) + halve(p[1], B / 8), *after = halve(r[0], B / 8) + halve(r[1], B / 8);
    return 1;
}

/* --- counts -------------------------------------------------------------------------------------------------------- */

/* How many |x - base| of one block are larger than a float32 value, and how many equal it. A difference is rounded where the
 * exponents lie more than 15 apart; that keeps the order, so only what seems equal can be wrong: 0 if there is such a one. */
static __attribute__((noinline)) int count_couples(const uint16_t *x, const uint16_t *base, float value, int64_t *greater, int64_t *equal) {
    Bits above = {0}, same = {0}, wrong = {0};
    const uint32_t bits = as_bits(value), apart = 15u << 23;
    for (int i = 0; i < B; i += COUPLES) {
        Bits p = couples(x + i), q = couples(base + i);
        for (int second = 0; second < 2; second++) {
            Floats a = half_of(p, second), b = half_of(q, second);
            Bits key = size_of(a - b), hit = negative((key ^ bits) - 1), between = size_of(a) - size_of(b);
            above -= negative(bits - key), same -= hit;
            wrong |= hit & ((between + apart) | (apart - between));
        }
    }
    uint32_t more = 0, many = 0, doubt = 0;
    for (int i = 0; i < COUPLES / 2; i++) more += above[i], many += same[i], doubt |= wrong[i];
    if (doubt & SIGN) return 0;
    *greater += more, *equal = many;
    return 1;
}
