/* Loops of benchmarks/ternary_kernels.py, so that no Python stands between two products. */
#include <stddef.h>
#include <stdint.h>

typedef int (*Linear)(const void *matrix, int64_t tokens, const float *x, float *y);
typedef void (*Dot)(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int nrc);
typedef void (*FromFloat)(const float *x, void *y, int64_t n);

void sweep_ours(Linear linear, const void *matrices, int64_t stride, int64_t count, const float *x, float *y) {
    for (int64_t i = 0; i < count; i++) linear((const char *)matrices + i * stride, 1, x, y);
}

/* ggml's own way for one thread: the activations to Q8_K, then row after row. */
void sweep_ggml(Dot dot, FromFloat from_float, const char *weights, int64_t row_bytes, int64_t rows, int64_t columns,
                int64_t count, const float *x, void *activations, float *y) {
    for (int64_t i = 0; i < count; i++) {
        from_float(x, activations, columns);
        for (int64_t r = 0; r < rows; r++, weights += row_bytes)
            dot((int)columns, y + r, 0, weights, 0, activations, 0, 1);
    }
}

/* Reads every byte once, with as many independent sums as the machine can use. */
int64_t read_all(const int64_t *words, int64_t count) {
    int64_t sum[32] = {0}, total = 0;
    for (int64_t i = 0; i + 32 <= count; i += 32)
        for (int k = 0; k < 32; k++) sum[k] += words[i + k];
    for (int k = 0; k < 32; k++) total += sum[k];
    return total;
}
