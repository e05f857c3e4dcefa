/* Interleaved rANS (Duda, 1311.2540; the word-wise form of Giesen, 1402.3392).

   Symbol i belongs to lane i % lanes. A lane's state is in [2^16, 2^32) between symbols; it reads and writes 16-bit
   words, at most one per symbol. The numpy code in entropy.py does the same for one symbol of every lane at a time, so
   both write the same bytes. The frequencies of one context sum to 2^bits. */

#include <stddef.h>
#include <stdint.h>

#define LOW 65536u

/* Writes words backwards from out[capacity]; returns the index of the first one, or -1 for a symbol of frequency 0. */
int64_t rans_encode(const uint16_t *symbols, const uint8_t *contexts, int64_t count, int64_t lanes,
                    const uint32_t *frequency, const uint32_t *start, int64_t alphabet, int bits, uint32_t *states,
                    uint16_t *out, int64_t capacity) {
    int64_t at = capacity;
    for (int64_t lane = 0; lane < lanes; lane++) states[lane] = LOW;
    for (int64_t i = count - 1; i >= 0; i--) {
        size_t row = (size_t)contexts[i] * (size_t)alphabet + symbols[i];
        uint32_t f = frequency[row], x = states[i % lanes];
        if (f == 0) return -1;
        if ((uint64_t)x >= (uint64_t)f << (32 - bits)) {
            if (at == 0) return -1;
            out[--at] = (uint16_t)x;
            x >>= 16;
        }
        states[i % lanes] = ((x / f) << bits) + x % f + start[row];
    }
    return at;
}

/* Returns the number of words read, or -1 when they run out. `symbol_at` is [contexts][2^bits]. */
int64_t rans_decode(const uint16_t *words, int64_t available, const uint8_t *contexts, int64_t count, int64_t lanes,
                    const uint32_t *frequency, const uint32_t *start, const uint16_t *symbol_at, int64_t alphabet,
                    int bits, uint32_t *states, uint16_t *symbols) {
    int64_t used = 0, lane = 0;
    const uint32_t mask = (1u << bits) - 1;
    for (int64_t i = 0; i < count; i++) {
        uint32_t x = states[lane], slot = x & mask;
        uint16_t symbol = symbol_at[((size_t)contexts[i] << bits) + slot];
        size_t row = (size_t)contexts[i] * (size_t)alphabet + symbol;
        x = frequency[row] * (x >> bits) + slot - start[row];
        if (x < LOW) {
            if (used == available) return -1;
            x = (x << 16) | words[used++];
        }
        states[lane] = x;
        symbols[i] = symbol;
        if (++lane == lanes) lane = 0;
    }
    return used;
}
