/* bfloat16 at full speed: two numbers per 32-bit word, separated by a mask and a shift, so that nothing has to be
 * widened or packed. It computes in float32, with proof that float64, rounded once, would give the same. Conditions are
 * masks of whole words, which every processor has. Part of kernel.c. */

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int32_t Signs __attribute__((vector_size(64)));
typedef uint32_t __attribute__((aligned(2), may_alias)) PackedPair; /* two neighbours, as they lie in memory */
#define PACKED 32                                              /* elements per vector */
#define SIGN 0x80000000u

INLINE float as_float(uint32_t u) {
    union { uint32_t u; float f; } y = {u};
    return y.f;
}

INLINE uint32_t as_bits(float f) {
    union { float f; uint32_t u; } y = {f};
    return y.u;
}

INLINE float low_half(uint32_t word) { return as_float(word << 16); }
INLINE float high_half(uint32_t word) { return as_float(word & 0xffff0000u); }

INLINE Bits load_packed(const uint16_t *p) {
    Bits words;
    memcpy(&words, p, sizeof words);
    return words;
}

INLINE Floats unpack(Bits words, int second) {
    return (Floats)(second ? words & 0xffff0000u : words << 16);
}

INLINE Bits all(uint32_t x) { return (Bits){0} + x; }
INLINE Bits size_of(Floats x) { return (Bits)x & 0x7fffffffu; }
INLINE Bits negative(Bits x) { return (Bits)((Signs)x >> 31); } /* all bits, or none */
INLINE Floats flipped(Floats x, Bits sign) { return (Floats)((Bits)x ^ sign); }
INLINE Bits choice(Bits mask, Bits a, Bits b) { return b ^ ((a ^ b) & mask); }

INLINE Floats with_sign(Floats x, Bits sign) {
    Bits u = (Bits)x ^ sign;
    return (Floats)(u & ~negative(u));
}

/* Rounded to nearest even, in the upper half. */
INLINE Bits nearest(Floats x) { return (Bits)x + 0x7fff + (((Bits)x >> 16) & 1); }

INLINE void store_packed(uint16_t *out, Bits first, Bits second) {
    Bits words = (first >> 16) | (second & 0xffff0000u);
    memcpy(out, &words, sizeof words);
}

/* --- float32 results, and the proof that they are right ------------------------------------------------------------ */

typedef struct {
    Bits differ; /* in the upper halves: numbers within the error would round differently */
    Bits doubt;  /* in the sign bits: something else is uncertain */
} Uncertain;

/* Below this size (2^-100), but not at zero, errors are no longer relative. */
#define SMALLEST (0x0d800000u - 1)

INLINE void check_small(Uncertain *d, Floats size) {
    Bits less = (Bits)size - 1;
    d->doubt |= ~less & (less - SMALLEST);
}

/* What x rounds to, in the upper half. The true error before the last addition must be less than half of `error`,
 * because the ends are rounded themselves. What is not finite differs: its error is NaN. */
INLINE Bits round_checked(Floats x, Floats error, Uncertain *d) {
    Bits high = (Bits)((Floats)size_of(x) + error) + 0x8000u;
    d->differ |= high ^ ((Bits)((Floats)size_of(x) - error) + 0x7fffu);
    return high | ((Bits)x & SIGN);
}

INLINE int all_certain(Uncertain *d) {
    Bits uncertain = (d->differ & 0xffff0000u) | (d->doubt & SIGN);
    uint32_t any = 0;
    for (int i = 0; i < PACKED / 2; i++) any |= uncertain[i];
    return !any;
}

/* --- sums of two ------------------------------------------------------------------------------------------------- */

/* c x + d y, where c and d are powers of two, at most 1. Where the exponents of both are within 15 of each other the sum
 * is exact in float32; otherwise the smaller one is too small to change how the larger is rounded. */
NOINLINE void sum_exact(const uint16_t *x, const uint16_t *y, float c, float d, int64_t n, uint16_t *out) {
    for (int64_t i = 0; i < n; i += PACKED) {
        Bits p = load_packed(x + i), q = load_packed(y + i);
        Floats first = unpack(p, 0) * c + unpack(q, 0) * d, second = unpack(p, 1) * c + unpack(q, 1) * d;
        store_packed(out + i, nearest(first), nearest(second));
    }
}

/* c x + d y for other coefficients from 2^-10 to 2^10: three roundings of 2^-24 each. Returns 0 if float32 is too
 * coarse for one of the results. */
NOINLINE int sum_checked(const uint16_t *x, const uint16_t *y, float c, float d, int64_t n, uint16_t *out) {
    Uncertain uncertain = {{0}, {0}};
    for (int64_t i = 0; i < n; i += PACKED) {
        Bits p = load_packed(x + i), q = load_packed(y + i), rounded[2];
        for (int second = 0; second < 2; second++) {
            Floats v = unpack(p, second) * c, w = unpack(q, second) * d;
            Floats size = (Floats)size_of(v) + (Floats)size_of(w);
            check_small(&uncertain, size);
            rounded[second] = round_checked(v + w, size * 0x1p-21f, &uncertain);
        }
        store_packed(out + i, rounded[0], rounded[1]);
    }
    return all_certain(&uncertain);
}

/* --- elections of two -------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t low[2]; /* the bits of the smallest sizes that stay */
    float one, both; /* factors of the elected sum, of one vector or of both */
    int spread;      /* between the exponents of an element's inputs, up to which this is exact */
} Exact;

INLINE Floats trimmed(Floats x, uint32_t low) {
    return (Floats)((Bits)x & negative((low - 1) - size_of(x)));
}

INLINE Bits elected(Bits base, Bits x, Bits y, int second, const Exact *e) {
    Floats b = unpack(base, second);
    Floats v = trimmed(unpack(x, second) - b, e->low[0]), w = trimmed(unpack(y, second) - b, e->low[1]);
    Bits sign = (Bits)(v + w) & SIGN;
    v = with_sign(v, sign), w = with_sign(w, sign);
    Bits single = negative(((Bits)v - 1) | ((Bits)w - 1)); /* one of them is zero */
    return nearest(b + flipped((v + w) * (Floats)choice(single, all(as_bits(e->one)), all(as_bits(e->both))), sign));
}

NOINLINE void pair_exact(const uint16_t *base, const uint16_t *x, const uint16_t *y, const Exact *options, int64_t n,
                         uint16_t *out) {
    Exact e = *options;
    for (int64_t i = 0; i < n; i += PACKED) {
        Bits b = load_packed(base + i), p = load_packed(x + i), q = load_packed(y + i);
        store_packed(out + i, elected(b, p, q, 0, &e), elected(b, p, q, 1, &e));
    }
}

/* Which elements have inputs whose exponents differ by more than `spread`; zeros do not count. Returns 0 if one is not
 * finite. */
NOINLINE int exponents_apart(const uint16_t *restrict x, const uint16_t *restrict y, const uint16_t *restrict z,
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
    float times[2];            /* factors of the elements of each vector */
    float first, second, both; /* and of their sum, by which of the two have the elected sign */
    int same, usable;
} Checked;

/* Seven roundings of 2^-24 each, in `mixed`. */
INLINE Bits elect_checked(Floats b, Floats v, Floats w, const Checked *e, int same, Uncertain *d) {
    v *= e->times[0], w *= e->times[1];
    Floats whole = v + w;
    Bits sign = (Bits)whole & SIGN;
    v = with_sign(v, sign), w = with_sign(w, sign);
    Floats size = v + w, times = (Floats)all(as_bits(e->both));
    d->doubt |= size_of(whole) - (Bits)(size * 0x1p-20f); /* the elected sign */
    d->doubt |= 0x7f7fffffu - size_of(whole);             /* not finite */
    check_small(d, size);
    if (!same) {
        Bits none = (Bits)v - 1, single = negative(none | ((Bits)w - 1));
        Bits other = choice(negative(none), all(as_bits(e->second)), all(as_bits(e->first)));
        times = (Floats)choice(single, other, (Bits)times);
    }
    Floats mixed = size * times;
    return round_checked(b + flipped(mixed, sign), (Floats)size_of(mixed) * 0x1p-20f, d);
}

static const Bits PLACES = {31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1}; /* of the first of each pair */

INLINE Floats with_bit(Floats x, uint32_t mask, int second) {
    return (Floats)((Bits)x & negative(all(mask) << (PLACES - (uint32_t)second)));
}

/* Keeps elements that are large enough, or those with a bit. Returns 0 if one needs float64. */
INLINE int pair_checked(int top, const uint16_t *base, const uint16_t *x, const uint16_t *y, const uint8_t *p,
                        const uint8_t *q, const Checked *options, int same, int64_t n, uint16_t *out) {
    Checked e = *options;
    Uncertain d = {{0}, {0}};
    for (int64_t i = 0; i < n; i += PACKED) {
        Bits b = load_packed(base + i), r = load_packed(x + i), s = load_packed(y + i), rounded[2];
        uint32_t x_mask = 0, y_mask = 0;
        if (!top) memcpy(&x_mask, p + i / 8, 4), memcpy(&y_mask, q + i / 8, 4);
        for (int second = 0; second < 2; second++) {
            Floats c = unpack(b, second), v = unpack(r, second) - c, w = unpack(s, second) - c;
            v = top ? trimmed(v, e.low[0]) : with_bit(v, x_mask, second);
            w = top ? trimmed(w, e.low[1]) : with_bit(w, y_mask, second);
            rounded[second] = elect_checked(c, v, w, &e, same, &d);
        }
        store_packed(out + i, rounded[0], rounded[1]);
    }
    return all_certain(&d);
}

typedef int CheckedPair(const uint16_t *, const uint16_t *, const uint16_t *, const uint8_t *, const uint8_t *,
                        const Checked *, int64_t, uint16_t *);
#define CHECKED(NAME, TOP, SAME)                                                                                       \
    NOINLINE int NAME(const uint16_t *b, const uint16_t *x, const uint16_t *y, const uint8_t *p, const uint8_t *q,      \
                      const Checked *e, int64_t n, uint16_t *out) {                                                     \
        return pair_checked(TOP, b, x, y, p, q, e, SAME, n, out);                                                       \
    }
CHECKED(bits_same, 0, 1)
CHECKED(bits_other, 0, 0)
CHECKED(top_same, 1, 1)
CHECKED(top_other, 1, 0)
static CheckedPair *const checked_pairs[2][2] = {{bits_other, bits_same}, {top_other, top_same}};

/* --- norms --------------------------------------------------------------------------------------------------------- */

/* The first two steps of halving a block bring together four elements, a quarter of a block apart, of both inputs. Their
 * absolute differences add up exactly in float32 where the exponents are within 13 of each other; `far` marks where they
 * are not. Returns 0 if one is not finite. */
NOINLINE int columns_apart(const uint16_t *restrict x, const uint16_t *restrict y, uint8_t *restrict far) {
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

INLINE void put_doubles(double *out, Floats x) {
    typedef double Doubles __attribute__((vector_size(128)));
    Doubles wide = __builtin_convertvector(x, Doubles);
    memcpy(out, &wide, sizeof wide);
}

/* The sum of |x - base| over one block, and over its elements with a bit. Even and odd positions are summed apart: adding
 * them is the last step of the halving. Returns 0 if it has to be done in float64. */
NOINLINE int norm_packed(const uint16_t *base, const uint16_t *x, const uint8_t *bits, double *before,
                         double *after) {
    double p[2][B / 8], r[2][B / 8];
    union { uint8_t bytes[B / 4]; uint64_t words[B / 32]; } far;
    if (!columns_apart(base, x, far.bytes)) return 0;
    for (int e = 0; e < B / 4; e += PACKED)
        for (int second = 0; second < 2; second++) {
            Floats d[4], t[4];
            for (int q = 0; q < 4; q++) {
                uint32_t mask;
                int at = e + q * (B / 4);
                memcpy(&mask, bits + at / 8, 4);
                d[q] = (Floats)size_of(unpack(load_packed(x + at), second) - unpack(load_packed(base + at), second));
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
                d[q] = fabs((double)low_half(x[at]) - (double)low_half(base[at]));
                t[q] = bits[at / 8] >> at % 8 & 1 ? d[q] : 0.0;
            }
            p[e % 2][e / 2] = (d[0] + d[2]) + (d[1] + d[3]), r[e % 2][e / 2] = (t[0] + t[2]) + (t[1] + t[3]);
        }
    *before = halve(p[0], B / 8) + halve(p[1], B / 8), *after = halve(r[0], B / 8) + halve(r[1], B / 8);
    return 1;
}

/* --- counts -------------------------------------------------------------------------------------------------------- */

/* How many |x - base| of one block are larger than a float32 value, and how many equal it. A difference is rounded where
 * the exponents are more than 15 apart. That preserves the order, so only apparent equality can be wrong: returns 0 if
 * there is such an element. */
NOINLINE int count_packed(const uint16_t *x, const uint16_t *base, float value, int64_t *greater, int64_t *equal) {
    Bits above = {0}, same = {0}, wrong = {0};
    const uint32_t bits = as_bits(value), apart = 15u << 23;
    for (int i = 0; i < B; i += PACKED) {
        Bits p = load_packed(x + i), q = load_packed(base + i);
        for (int second = 0; second < 2; second++) {
            Floats a = unpack(p, second), b = unpack(q, second);
            Bits key = size_of(a - b), hit = negative((key ^ bits) - 1), between = size_of(a) - size_of(b);
            above -= negative(bits - key), same -= hit;
            wrong |= hit & ((between + apart) | (apart - between));
        }
    }
    uint32_t more = 0, many = 0, doubt = 0;
    for (int i = 0; i < PACKED / 2; i++) more += above[i], many += same[i], doubt |= wrong[i];
    if (doubt & SIGN) return 0;
    *greater += more, *equal = many;
    return 1;
}
