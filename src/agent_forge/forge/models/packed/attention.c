/* Attention over the caches of sequences: a token of each, or successive tokens of one. Part of decoder.c. */

/* The two halves of a head are the two coordinates that turn. */
static void rotate(float *x, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = a * sines[i] + b * cosines[i];
    }
}

static void place_head(const Model *d, float *x, int64_t position) {
    const int64_t half = d->head_width / 2;
    if (d->qk_norm) normalise(x, NULL, d->eps, x, d->head_width);
    rotate(x, d->cosines + position * half, d->sines + position * half, half);
}

static void attend(const Model *d, const float *q, const float *keys, const float *values, int64_t from, int64_t to,
                   float *weights, float *out) {
    const int64_t n = to - from, width = d->head_width;
    float most = -INFINITY, total = 0;
    for (int64_t j = 0; j < n; j++) {
        weights[j] = dot_floats(q, keys + (from + j) * width, width) * d->scale;
        most = weights[j] > most ? weights[j] : most;
    }
    for (int64_t j = 0; j < n; j++) weights[j] = exponential(weights[j] - most);
    for (int64_t j = 0; j < n; j++) total += weights[j];
    memset(out, 0, width * sizeof(float));
    for (int64_t j = 0; j < n; j++) {
        const float share = weights[j] / total, *value = values + (from + j) * width;
        for (int64_t i = 0; i < width; i++) out[i] += share * value[i];
    }
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define PLUS(sum, a, b) __builtin_fmaf(a, b, sum)
#else
#define PLUS(sum, a, b) ((sum) + (a) * (b))
#endif
enum { QUERIES = 32, KEYS = 64, AT_ONCE = 4 }; /* KEYS is a multiple of AT_ONCE */
static const float NOTHING = -1e30f; /* the score of what must not be seen */

/* Successive tokens of one sequence: a query is a lane, so that no sum is taken across lanes. */
typedef struct {
    float turned[256][QUERIES], sum[256][QUERIES]; /* queries and results, [head width][token] */
    float score[KEYS][QUERIES], most[QUERIES], total[QUERIES];
} Block;

/* score = K q for the keys `at` .. `at + n` */
static void block_scores(const Model *d, Block *b, const float *keys, int64_t at, int64_t n, int64_t position) {
    const int64_t width = d->head_width;
    for (int64_t j = 0; j < n; j += AT_ONCE) {
        float found[AT_ONCE][QUERIES] = {{0}};
        const float *key[AT_ONCE];
        for (int a = 0; a < AT_ONCE; a++) key[a] = keys + (at + (j + a < n ? j + a : n - 1)) * width;
        for (int64_t i = 0; i < width; i++)
            for (int a = 0; a < AT_ONCE; a++)
                for (int t = 0; t < QUERIES; t++) found[a][t] = PLUS(found[a][t], key[a][i], b->turned[i][t]);
        memcpy(b->score[j], found, sizeof found);
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t key = at + j - position; /* the token after which it can be seen, and where its window ends */
        if (key <= 0 && !(d->window && key + d->window < QUERIES)) continue;
        for (int64_t t = 0; t < QUERIES; t++)
            if (key > t || (d->window && key + d->window <= t)) b->score[j][t] = NOTHING;
    }
}

/* Takes in these scores: what was summed so far is scaled to the new largest one. */
static void block_sums(const Model *d, Block *b, const float *values, int64_t at, int64_t n) {
    float most[QUERIES], shrink[QUERIES];
    memcpy(most, b->most, sizeof most);
    for (int64_t j = 0; j < n; j++)
        for (int t = 0; t < QUERIES; t++) most[t] = b->score[j][t] > most[t] ? b->score[j][t] : most[t];
    for (int t = 0; t < QUERIES; t++) {
        shrink[t] = exponential(b->most[t] - most[t]);
        b->total[t] *= shrink[t];
    }
    for (int64_t j = 0; j < n; j++)
        for (int t = 0; t < QUERIES; t++) {
            const float share = exponential(b->score[j][t] - most[t]);
            b->score[j][t] = b->score[j][t] > NOTHING ? share : 0.0f;
            b->total[t] += b->score[j][t];
        }
    memcpy(b->most, most, sizeof most);
    for (int64_t i = 0; i < d->head_width; i += 2) {
        float sum[2][QUERIES];
        for (int a = 0; a < 2; a++)
            for (int t = 0; t < QUERIES; t++) sum[a][t] = b->sum[i + a][t] * shrink[t];
        for (int64_t j = 0; j < n; j++)
            for (int a = 0; a < 2; a++)
                for (int t = 0; t < QUERIES; t++)
                    sum[a][t] = PLUS(sum[a][t], values[(at + j) * d->head_width + i + a], b->score[j][t]);
        memcpy(b->sum[i], sum, sizeof sum);
    }
}

static void attend_block(const Model *d, int64_t n, const float *q, int64_t q_stride, const float *keys, const float *values,
                         int64_t position, float *out, int64_t out_stride) {
    Block b;
    const int64_t from = d->window && position + 1 > d->window ? position + 1 - d->window : 0, end = position + n;
    for (int t = 0; t < QUERIES; t++) b.most[t] = NOTHING, b.total[t] = 0;
    memset(b.sum, 0, d->head_width * sizeof b.sum[0]);
    for (int64_t i = 0; i < d->head_width; i++)
        for (int64_t t = 0; t < QUERIES; t++) b.turned[i][t] = t < n ? q[t * q_stride + i] * d->scale : 0.0f;
    for (int64_t at = from; at < end; at += KEYS) {
        const int64_t some = end - at < KEYS ? end - at : KEYS;
        block_scores(d, &b, keys, at, some, position);
        block_sums(d, &b, values, at, some);
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < d->head_width; i++) out[t * out_stride + i] = b.sum[i][t] / b.total[t];
}

/* Where the keys or values of a group lie in a cache. */
static int64_t at_group(const Model *d, const History *in, int64_t layer, int64_t group) {
    return (layer * d->groups + group) * in->length * d->head_width;
}

/* q, k, v [tokens][...] -> out [tokens][heads * width]; keys and values go into the caches. */
static void attention(const Model *d, int64_t layer, int64_t tokens, const Place *place, float *qkv[3],
                      const int64_t stride[3], float *out) {
    const int64_t width = d->head_width, shared = d->heads / d->groups, last = tokens - 1;
    for (int64_t t = 0; t < tokens; t++) {
        float *q = qkv[0] + t * stride[0], *k = qkv[1] + t * stride[1], *v = qkv[2] + t * stride[2];
        History *in = place[t].in;
        const int64_t now = place[t].position;
        for (int64_t h = 0; h < d->heads; h++) place_head(d, q + h * width, now);
        for (int64_t g = 0; g < d->groups; g++) {
            const int64_t at = at_group(d, in, layer, g) + now * width;
            place_head(d, k + g * width, now);
            memcpy(in->keys + at, k + g * width, width * sizeof(float));
            memcpy(in->values + at, v + g * width, width * sizeof(float));
        }
    }
    if (tokens >= QUERIES / 4 && place[0].in == place[last].in) { /* a prompt */
        const History *in = place[0].in;
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = at_group(d, in, layer, h / shared);
            attend_block(d, tokens, qkv[0] + h * width, stride[0], in->keys + at, in->values + at, place[0].position,
                         out + h * width, d->heads * width);
        }
        return;
    }
    for (int64_t t = 0; t < tokens; t++) {
        const History *in = place[t].in;
        const int64_t now = place[t].position, from = d->window && now + 1 > d->window ? now + 1 - d->window : 0;
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = at_group(d, in, layer, h / shared);
            attend(d, qkv[0] + t * stride[0] + h * width, in->keys + at, in->values + at, from, now + 1, d->weights,
                   out + (t * d->heads + h) * width);
        }
    }
}
