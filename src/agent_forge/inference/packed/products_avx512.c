/* The integer products by AVX-512 VNNI: a line of the matrix is one register, a row one lane. Part of products.c. */
#include <immintrin.h>

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

/* bytes, one token: four sums, because each waits four cycles for its own last value */
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
