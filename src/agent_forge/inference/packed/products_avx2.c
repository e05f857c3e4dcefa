/* The integer products by AVX2: a line of the matrix is two registers. Part of products.c. */
#include <immintrin.h>

#define BROADCAST(p) _mm256_set1_epi32(*(const int32_t *)(const void *)(p))
/* Chunks between two transfers from int16 to int32. One maddubs of digits up to d adds at most 2 d 127:
 * 2-bit 4 * 2 * 3 * 127 = 3,048 per chunk, 5 digits 5 * 2 * 2 * 127 = 2,540, 4-bit 2 * 2 * 15 * 127 = 7,620; 10, 12 and
 * 4 of them stay below 32,767. (A code of 3 occurs in damaged files only, and is allowed for.) */
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
 * int16: low 2 * 2 * 3 * 127 = 1,524 and high 6,096 per chunk; 5 chunks stay below 32,767. int32: 4 * 3 * 127 per column. */
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
