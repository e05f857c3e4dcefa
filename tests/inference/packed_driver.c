/* Products of cases that come on standard input, for processors that run in an emulator. A case: kind, half, rows, columns,
 * group, tokens and whether there is a bias, as int64; then the packed bytes, the scales, the bias and the activations.
 * The products go to standard output, the path's name to standard error. */
#include "products.c"
#include <stdio.h>

static void *take(size_t bytes) {
    void *out = malloc(bytes + 1);
    if (!out || fread(out, 1, bytes, stdin) != bytes) exit(2);
    return out;
}

int main(void) {
    int64_t h[7];
    fputs(products_path(), stderr);
    while (fread(h, sizeof h, 1, stdin) == 1) {
        Matrix m = {(int32_t)h[0], (int32_t)h[1], h[2], h[3], h[4], 0, 0, 0};
        const Layout l = layout_of(&m);
        m.packed = take(l.tiles * l.chunks * LINE);
        m.scales = take(l.groups * l.tiles * ROWS * (m.half ? 2 : 4));
        m.bias = h[6] ? take(m.rows * sizeof(float)) : NULL;
        float *x = take(h[5] * m.columns * sizeof(float)), *y = malloc(h[5] * m.rows * sizeof(float));
        if (!y || products_linear(&m, h[5], x, y)) return 3;
        fwrite(y, sizeof(float), h[5] * m.rows, stdout);
        free((void *)m.packed), free((void *)m.scales), free((void *)m.bias), free(x), free(y);
    }
    return 0;
}
