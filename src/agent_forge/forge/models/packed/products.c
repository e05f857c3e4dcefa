/* Products of packed integer matrices with int8 activations. The layout is described in trits.py.
 *
 *   y[t][r] = (sum over groups g of (float)dot(t, r, g) * scale[g][r]) * scale_x[t] (+ bias[r])
 *   dot(t, r, g) = sum over the group's columns of value[r][c] * x[t][c],   exact in int32
 *
 * value = STEP * code - OFFSET, so dot = STEP * sum(code * x) - OFFSET * sum(x). Every path (AVX-512 VNNI, AVX2, plain C) computes
 * the same integers, and the floating-point part is one C loop for all of them, in a fixed order and without fused
 * multiply-add (the build says -ffp-contract=off): the results are the same to the last bit.
 *
 * Why no accumulator overflows. int32: a row has at most 65,536 columns, |code| <= 255 and |x| <= 127, so a sum is at
 * most 65,536 * 255 * 127 = 2,122,383,360 < 2^31; the shifted digits of the VNNI path are at most 192 * 127 * 16,384.
 * int16 (AVX2): the bound stands beside each FLUSH. Compile with -DPLAIN for plain C on any machine.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__) && !defined(PLAIN)
#define VNNI 1
#elif defined(__AVX2__) && !defined(PLAIN)
#define AVX2 1
#endif
#if defined(VNNI) || defined(AVX2)
#include <immintrin.h>
#endif

#define ROWS 16
#define LINE 64 /* bytes of a chunk: 16 rows of 4 bytes */
#define AHEAD 8192 /* bytes to prefetch ahead: past the end of the 4 KB page, where the processor's own prefetcher stops */
#define TOKENS 4 /* tokens that share one reading of the weights */

enum { BIT2 = 0, TRIT5 = 1, INT4 = 2, INT8 = 3, LEVEL4 = 4 };
static const int CHUNK[] = {16, 20, 8, 4, 16}, STEP[] = {1, 1, 1, 1, 2};
#ifdef AVX2
static const int OFFSET[] = {1, 1, 8, 0, 3}; /* its product of bytes takes the offset off before it multiplies */
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
#else
    return "plain";
#endif
}

/* How a matrix lies in memory; divisions are slow, so it is worked out once a product. */
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

/* The largest |x|, by its bits: as integers they are in the order of the magnitudes, and a NaN is above everything. */
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

/* One token: q in the order of the chunks (padding zero), the sum of each group; returns the scale (NaN if x holds
 * anything that is not finite, so that the product says so too). */
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

#define BROADCAST(p) _mm512_set1_epi32(*(const int32_t *)(const void *)(p))

#ifdef __AVX512VBMI__
/* A byte of five digits -> the first four as 2-bit codes, and the fifth: two tables of 256 bytes. */
static uint8_t four_of[256] __attribute__((aligned(64))), fifth_of[256] __attribute__((aligned(64)));
__attribute__((constructor)) static void fill_tables(void) {
    for (int byte = 0; byte < 256; byte++) {
        int rest = byte, four = 0;
        for (int d = 0; d < 5; d++) {
            rest = (rest & 255) * 3;
            if (d < 4) four |= (rest >> 8) << (2 * d);
        }
        four_of[byte] = (uint8_t)four;
        fifth_of[byte] = (uint8_t)(rest >> 8);
    }
}
typedef struct { __m512i part[4]; } Table;
static inline Table table(const uint8_t *bytes) {
    Table out;
    for (int i = 0; i < 4; i++) out.part[i] = _mm512_load_si512(bytes + 64 * i);
    return out;
}
static inline __m512i look_up(const Table *t, __m512i at, __mmask64 high) {
    __m512i low = _mm512_permutex2var_epi8(t->part[0], at, t->part[1]);
    return _mm512_mask_mov_epi8(low, high, _mm512_permutex2var_epi8(t->part[2], at, t->part[3]));
}
#endif

/* digits of one line; returns how many */
static inline __attribute__((always_inline)) int split(int kind, __m512i w, __m512i *d) {
    if (kind == INT8) {
        d[0] = w;
        return 1;
    }
    if (kind == INT4) {
        const __m512i low = _mm512_set1_epi8(15);
        d[0] = _mm512_and_si512(w, low);
        d[1] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        return 2;
    }
    if (kind == BIT2) {
        const __m512i low = _mm512_set1_epi8(3);
        for (int i = 0; i < 4; i++) d[i] = _mm512_and_si512(_mm512_srli_epi16(w, 2 * i), low);
        return 4;
    }
    const __m512i one = _mm512_set1_epi8(1), first = _mm512_set1_epi8(86), second = _mm512_set1_epi8((char)171);
    for (int i = 0; i < 5; i++) { /* the digit is 3 w / 256: at least 1 from 86, 2 from 171 */
        __mmask64 some = _mm512_cmpge_epu8_mask(w, first), two = _mm512_cmpge_epu8_mask(w, second);
        d[i] = _mm512_mask_add_epi8(_mm512_maskz_mov_epi8(some, one), two, one, one);
        w = _mm512_add_epi8(w, _mm512_add_epi8(w, w));
    }
    return 5;
}

/* 2-bit, one token: digits stay where they are in the byte (times 1, 4, 16, 64), the sums are shifted at the end. */
static inline __m512i line_sums(__m512i *sum) {
    __m512i low = _mm512_add_epi32(sum[0], _mm512_srai_epi32(sum[1], 2));
    return _mm512_add_epi32(low, _mm512_add_epi32(_mm512_srai_epi32(sum[2], 4), _mm512_srai_epi32(sum[3], 6)));
}

static inline __attribute__((always_inline)) void four_in_place(__m512i *sum, __m512i w, const int8_t *q) {
    __asm__("" : "+v"(w)); /* keep it in a register: gcc would load the line again for each digit */
    for (int i = 0; i < 4; i++) {
        const __m512i digit = _mm512_and_si512(w, _mm512_set1_epi8((char)(3 << (2 * i))));
        sum[i] = _mm512_dpbusd_epi32(sum[i], digit, BROADCAST(q + 4 * i));
    }
}

static void dot_bit2(const uint8_t *w, const int8_t *q, int64_t chunks, int32_t *out) {
    __m512i even[4], odd[4];
    for (int i = 0; i < 4; i++) even[i] = odd[i] = _mm512_setzero_si512();
    int64_t c = 0;
    for (; c + 2 <= chunks; c += 2, w += 2 * LINE, q += 32) {
        __builtin_prefetch(w + AHEAD);
        __builtin_prefetch(w + AHEAD + LINE);
        four_in_place(even, _mm512_loadu_si512(w), q);
        four_in_place(odd, _mm512_loadu_si512(w + LINE), q + 16);
    }
    if (c < chunks) four_in_place(even, _mm512_loadu_si512(w), q);
    _mm512_storeu_si512(out, _mm512_add_epi32(line_sums(even), line_sums(odd)));
}

#ifdef __AVX512VBMI__
static void dot_trit5(const uint8_t *w, const int8_t *q, int64_t chunks, int32_t *out) {
    const Table fours = table(four_of), fifths = table(fifth_of);
    __m512i sum[4], last = _mm512_setzero_si512();
    for (int i = 0; i < 4; i++) sum[i] = last;
    for (int64_t c = 0; c < chunks; c++, w += LINE, q += 20) {
        __builtin_prefetch(w + AHEAD);
        const __m512i bytes = _mm512_loadu_si512(w);
        const __mmask64 high = _mm512_movepi8_mask(bytes);
        four_in_place(sum, look_up(&fours, bytes, high), q);
        last = _mm512_dpbusd_epi32(last, look_up(&fifths, bytes, high), BROADCAST(q + 16));
    }
    _mm512_storeu_si512(out, _mm512_add_epi32(line_sums(sum), last));
}
#endif

static inline __attribute__((always_inline)) void
dot_lines(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    __m512i sum[TOKENS], digit[5];
    for (int t = 0; t < n; t++) sum[t] = _mm512_setzero_si512();
    for (int64_t c = 0; c < chunks; c++, w += LINE, q += CHUNK[kind]) {
        __builtin_prefetch(w + AHEAD);
        const int digits = split(kind, _mm512_loadu_si512(w), digit);
        for (int i = 0; i < digits; i++)
            for (int t = 0; t < n; t++) sum[t] = _mm512_dpbusd_epi32(sum[t], digit[i], BROADCAST(q + t * stride + 4 * i));
    }
    for (int t = 0; t < n; t++) _mm512_storeu_si512(out + ROWS * t, sum[t]);
}

/* bytes as they are, one token: four sums, because each waits four cycles for its own last value */
static void dot_int8(const uint8_t *w, const int8_t *q, int64_t chunks, int32_t *out) {
    __m512i sum[4];
    for (int i = 0; i < 4; i++) sum[i] = _mm512_setzero_si512();
    int64_t c = 0;
    for (; c + 4 <= chunks; c += 4, w += 4 * LINE, q += 16)
        for (int i = 0; i < 4; i++) {
            __builtin_prefetch(w + AHEAD + LINE * i);
            sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_loadu_si512(w + LINE * i), BROADCAST(q + 4 * i));
        }
    for (; c < chunks; c++, w += LINE, q += 4)
        sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_loadu_si512(w), BROADCAST(q));
    _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3])));
}

#elif defined(AVX2)

#define BROADCAST(p) _mm256_set1_epi32(*(const int32_t *)(const void *)(p))
/* Chunks between two transfers from int16 to int32. One maddubs of digits up to d adds at most 2 d 127:
 * 2-bit 4 * 2 * 3 * 127 = 3,048 a chunk, 5 digits 5 * 2 * 2 * 127 = 2,540, 4-bit 2 * 2 * 15 * 127 = 7,620; 32,767 is
 * reached by none of 10, 12 and 4 of them. (A code of 3 occurs in damaged files only, and is allowed for.) */
static const int FLUSH[] = {10, 12, 4, 1};

static inline __attribute__((always_inline)) int split(int kind, __m256i w, __m256i *d) {
    if (kind == INT4) {
        const __m256i low = _mm256_set1_epi8(15);
        d[0] = _mm256_and_si256(w, low);
        d[1] = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
        return 2;
    }
    if (kind == BIT2) {
        const __m256i low = _mm256_set1_epi8(3);
        for (int i = 0; i < 4; i++) d[i] = _mm256_and_si256(_mm256_srli_epi16(w, 2 * i), low);
        return 4;
    }
    /* the digit is 3 w / 256: at least 1 from 86, 2 from 171; w - 128 because the comparison is signed, and it stays
     * w - 128 when it is tripled modulo 256 */
    const __m256i first = _mm256_set1_epi8(85 - 128), second = _mm256_set1_epi8(170 - 128);
    w = _mm256_xor_si256(w, _mm256_set1_epi8((char)128));
    for (int i = 0; i < 5; i++) {
        d[i] = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_cmpgt_epi8(w, first));
        d[i] = _mm256_sub_epi8(d[i], _mm256_cmpgt_epi8(w, second));
        w = _mm256_add_epi8(w, _mm256_add_epi8(w, w));
    }
    return 5;
}

static inline __attribute__((always_inline)) void
dot_lines(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum[TOKENS][2], narrow[TOKENS][2], digit[5];
    for (int t = 0; t < n; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
    while (chunks > 0) {
        const int64_t now = chunks < FLUSH[kind] ? chunks : FLUSH[kind];
        for (int t = 0; t < n; t++) narrow[t][0] = narrow[t][1] = _mm256_setzero_si256();
        for (int64_t c = 0; c < now; c++, w += LINE, q += CHUNK[kind]) {
            __builtin_prefetch(w + AHEAD);
            for (int h = 0; h < 2; h++) {
                const int digits = split(kind, _mm256_loadu_si256((const void *)(w + 32 * h)), digit);
                for (int i = 0; i < digits; i++)
                    for (int t = 0; t < n; t++) {
                        const __m256i pairs = _mm256_maddubs_epi16(digit[i], BROADCAST(q + t * stride + 4 * i));
                        narrow[t][h] = _mm256_add_epi16(narrow[t][h], pairs);
                    }
            }
        }
        for (int t = 0; t < n; t++)
            for (int h = 0; h < 2; h++)
                sum[t][h] = _mm256_add_epi32(sum[t][h], _mm256_madd_epi16(narrow[t][h], one));
        chunks -= now;
    }
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_si256((void *)(out + ROWS * t + 8 * h), sum[t][h]);
}

/* 2-bit, one token: two digits of each nibble need no shift; "high" sums are four times too large until the end.
 * int16: low 2 * 2 * 3 * 127 = 1,524 and high 6,096 a chunk; 5 chunks stay below 32,767. int32: 4 * 3 * 127 a column. */
static void dot_bit2(const uint8_t *w, const int8_t *q, int64_t chunks, int32_t *out) {
    const __m256i one = _mm256_set1_epi16(1), four = _mm256_set1_epi16(4);
    const __m256i low_mask = _mm256_set1_epi8(3), high_mask = _mm256_set1_epi8(12);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    while (chunks > 0) {
        const int64_t now = chunks < 5 ? chunks : 5;
        __m256i low[2], high[2];
        low[0] = low[1] = high[0] = high[1] = _mm256_setzero_si256();
        for (int64_t c = 0; c < now; c++, w += LINE, q += 16) {
            __builtin_prefetch(w + AHEAD);
            const __m256i x0 = BROADCAST(q), x1 = BROADCAST(q + 4), x2 = BROADCAST(q + 8), x3 = BROADCAST(q + 12);
            for (int h = 0; h < 2; h++) {
                const __m256i a = _mm256_loadu_si256((const void *)(w + 32 * h)), b = _mm256_srli_epi16(a, 4);
                low[h] = _mm256_add_epi16(low[h], _mm256_maddubs_epi16(_mm256_and_si256(a, low_mask), x0));
                high[h] = _mm256_add_epi16(high[h], _mm256_maddubs_epi16(_mm256_and_si256(a, high_mask), x1));
                low[h] = _mm256_add_epi16(low[h], _mm256_maddubs_epi16(_mm256_and_si256(b, low_mask), x2));
                high[h] = _mm256_add_epi16(high[h], _mm256_maddubs_epi16(_mm256_and_si256(b, high_mask), x3));
            }
        }
        for (int h = 0; h < 2; h++) {
            const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(low[h], four), _mm256_madd_epi16(high[h], one));
            sum[h] = _mm256_add_epi32(sum[h], both);
        }
        chunks -= now;
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_si256((void *)(out + 8 * h), _mm256_srai_epi32(sum[h], 2));
}

/* bytes: |v| times x with v's sign, because code * x would saturate; a pair is at most 2 * 128 * 127 = 32,512 */
static inline __attribute__((always_inline)) void
dot_bytes(int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    const __m256i one = _mm256_set1_epi16(1), middle = _mm256_set1_epi8((char)128);
    __m256i sum[TOKENS][2];
    for (int t = 0; t < n; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
    for (int64_t c = 0; c < chunks; c++, w += LINE, q += 4) {
        __builtin_prefetch(w + AHEAD);
        for (int h = 0; h < 2; h++) {
            const __m256i v = _mm256_xor_si256(_mm256_loadu_si256((const void *)(w + 32 * h)), middle);
            const __m256i size = _mm256_abs_epi8(v);
            for (int t = 0; t < n; t++) {
                const __m256i signed_x = _mm256_sign_epi8(BROADCAST(q + t * stride), v);
                sum[t][h] = _mm256_add_epi32(sum[t][h], _mm256_madd_epi16(_mm256_maddubs_epi16(size, signed_x), one));
            }
        }
    }
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_si256((void *)(out + ROWS * t + 8 * h), sum[t][h]);
}

#else

/* Plain C: what the others must equal. */
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

/* The constant arguments let the compiler make one loop for each kind and number of tokens. */
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

/* One tile for n <= TOKENS tokens: y[t][rows of the tile]. */
static inline __attribute__((always_inline)) void
tile_product(const Matrix *m, const Layout *l, int64_t tile, int n, const int8_t *q, const int32_t *sums,
             const float *scale_x, float *y) {
    const int kind = m->kind, step = STEP[kind];
    const int64_t first = tile * ROWS, stride = l->chunks * CHUNK[kind];
    const uint8_t *w = m->packed + tile * l->chunks * LINE;
    float total[TOKENS * ROWS] = {0}, scale[ROWS];
    int32_t found[TOKENS * ROWS];
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t chunks = g + 1 == l->groups ? l->last_chunks : l->group_chunks;
        dot(kind == LEVEL4 ? BIT2 : kind, n, w, q, stride, chunks, found);
        load_scales(m, g * l->tiles * ROWS + first, scale);
        for (int t = 0; t < n; t++) {
            const int32_t shift = OFFSET[kind] * sums[t * l->groups + g];
            for (int r = 0; r < ROWS; r++)
                total[ROWS * t + r] += (float)(step * found[ROWS * t + r] - shift) * scale[r];
        }
        w += chunks * LINE;
        q += chunks * CHUNK[kind];
    }
    const int rows = m->rows - first < ROWS ? (int)(m->rows - first) : ROWS;
    for (int t = 0; t < n; t++) {
        for (int r = 0; r < ROWS; r++) total[ROWS * t + r] *= scale_x[t];
        if (m->bias)
            for (int r = 0; r < rows; r++) total[ROWS * t + r] += m->bias[first + r];
        memcpy(y + t * m->rows + first, total + ROWS * t, rows * sizeof(float));
    }
}

/* All tiles, when the activations are quantised already. */
static void product(const Matrix *m, const Layout *l, int64_t tokens, const int8_t *q, const int32_t *sums,
                    const float *scale_x, float *y) {
    const int64_t stride = l->chunks * CHUNK[m->kind];
    if (tokens == 1) {
        for (int64_t tile = 0; tile < l->tiles; tile++) tile_product(m, l, tile, 1, q, sums, scale_x, y);
        return;
    }
    for (int64_t tile = 0; tile < l->tiles; tile++)
        for (int64_t t = 0; t < tokens; t += TOKENS) {
            const int n = tokens - t < TOKENS ? (int)(tokens - t) : TOKENS;
            tile_product(m, l, tile, n, q + t * stride, sums + t * l->groups, scale_x + t, y + t * m->rows);
        }
}

/* x [tokens][columns] -> y [tokens][rows]. Returns 0, or 1 without memory. */
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
