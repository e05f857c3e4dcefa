/* The integer products by NEON on 64-bit ARM, with dot products where the processor has them: a line of the matrix is
 * four registers. Part of products.c. */
#include <arm_neon.h>

#define BROADCAST(p) vreinterpretq_s8_s32(vdupq_n_s32(*(const int32_t *)(const void *)(p)))

/* digits of 16 bytes, which are four columns of four rows; returns how many */
static inline __attribute__((always_inline)) int split(int kind, uint8x16_t w, int8x16_t *d) {
    if (kind == INT8) {
        d[0] = vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(128)));
        return 1;
    }
    if (kind == INT4) {
        d[0] = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
        d[1] = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
        return 2;
    }
    if (kind == BIT2) {
        const uint8x16_t low = vdupq_n_u8(3);
        d[0] = vreinterpretq_s8_u8(vandq_u8(w, low));
        d[1] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(w, 2), low));
        d[2] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(w, 4), low));
        d[3] = vreinterpretq_s8_u8(vshrq_n_u8(w, 6));
        return 4;
    }
    for (int i = 0; i < 5; i++) { /* the digit is 3 w / 256 = (w + w / 2) / 2 / 64, rounded down at every step */
        d[i] = vreinterpretq_s8_u8(vshrq_n_u8(vhaddq_u8(w, vshrq_n_u8(w, 1)), 6));
        w = vaddq_u8(w, vaddq_u8(w, w));
    }
    return 5;
}

#ifdef __ARM_FEATURE_DOTPROD

static inline __attribute__((always_inline)) void
dot_lines(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    int32x4_t sum[TOKENS][4], other[4]; /* a single token alternates between two sums, which wait less for each other */
    int8x16_t digit[5];
    for (int v = 0; v < 4; v++) {
        other[v] = vdupq_n_s32(0);
        for (int t = 0; t < n; t++) sum[t][v] = vdupq_n_s32(0);
    }
    for (int64_t c = 0; c < chunks; c++, w += LINE, q += CHUNK[kind]) {
        __builtin_prefetch(w + AHEAD);
        for (int v = 0; v < 4; v++) {
            const int digits = split(kind, vld1q_u8(w + 16 * v), digit);
            for (int i = 0; i < digits; i++)
                for (int t = 0; t < n; t++) {
                    int32x4_t *to = n == 1 && i % 2 ? &other[v] : &sum[t][v];
                    *to = vdotq_s32(*to, digit[i], BROADCAST(q + t * stride + 4 * i));
                }
        }
    }
    for (int v = 0; v < 4; v++) {
        if (n == 1) sum[0][v] = vaddq_s32(sum[0][v], other[v]);
        for (int t = 0; t < n; t++) vst1q_s32(out + ROWS * t + 4 * v, sum[t][v]);
    }
}

#else

/* Chunks between two transfers from int16 to int32. A chunk adds at most its digits times the largest code times 127:
 * 2-bit 4 * 3 * 127 = 1,524, 5 digits 5 * 2 * 127 = 1,270, 4-bit 2 * 15 * 127 = 3,810, bytes 128 * 127 = 16,256; 21, 25,
 * 8 and 2 of them stay below 32,767. */
static const int FLUSH[] = {21, 25, 8, 2};

static inline __attribute__((always_inline)) void
dot_lines(int kind, int n, const uint8_t *w, const int8_t *q, int64_t stride, int64_t chunks, int32_t *out) {
    int32x4_t sum[TOKENS][8]; /* the two halves of each vector; a row is two lanes of a half until the end */
    int8x16_t digit[5];
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 8; h++) sum[t][h] = vdupq_n_s32(0);
    while (chunks > 0) {
        const int64_t now = chunks < FLUSH[kind] ? chunks : FLUSH[kind];
        for (int v = 0; v < 4; v++) {
            int16x8_t narrow[TOKENS][2];
            for (int t = 0; t < n; t++) narrow[t][0] = narrow[t][1] = vdupq_n_s16(0);
            for (int64_t c = 0; c < now; c++) {
                if (v == 0) __builtin_prefetch(w + AHEAD + LINE * c);
                const int digits = split(kind, vld1q_u8(w + LINE * c + 16 * v), digit);
                for (int i = 0; i < digits; i++)
                    for (int t = 0; t < n; t++) {
                        const int8x16_t x = BROADCAST(q + t * stride + CHUNK[kind] * c + 4 * i);
                        narrow[t][0] = vmlal_s8(narrow[t][0], vget_low_s8(digit[i]), vget_low_s8(x));
                        narrow[t][1] = vmlal_high_s8(narrow[t][1], digit[i], x);
                    }
            }
            for (int t = 0; t < n; t++)
                for (int h = 0; h < 2; h++) sum[t][2 * v + h] = vpadalq_s16(sum[t][2 * v + h], narrow[t][h]);
        }
        w += LINE * now;
        q += CHUNK[kind] * now;
        chunks -= now;
    }
    for (int t = 0; t < n; t++)
        for (int v = 0; v < 4; v++) vst1q_s32(out + ROWS * t + 4 * v, vpaddq_s32(sum[t][2 * v], sum[t][2 * v + 1]));
}

#endif
