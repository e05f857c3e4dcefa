/* Attention over the caches of sequences: a token of each, or successive tokens of one. Part of decoder.c. */

/* The two halves of a head are the two coordinates that are rotated. */
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

/* Keys are stored in blocks of 16 tokens, [head width][16]: a token is a lane, so that nothing is summed across lanes.
 * Values are stored [token][head width]. */
enum { LANES = ROWS, WIDEST_HEAD = 256 };

static const float NOTHING = -1e30f; /* the score of a masked key */

/* Scores of the keys `from` .. `to`, beginning with the first one's block; the largest of each lane. */
static void scores(const Model *d, const float *q, const float *keys, int64_t from, int64_t to, float *found, float *most) {
    const int64_t width = d->head_width;
    for (int l = 0; l < LANES; l++) most[l] = NOTHING;
    for (int64_t at = from / LANES * LANES; at < to; at += LANES, found += LANES) {
        const float *key = keys + at * width;
        for (int l = 0; l < LANES; l += WIDTH) {
            Wide part[4] = {{0}};
            for (int64_t i = 0; i < width; i += 4)
                for (int a = 0; a < 4; a++) part[a] += q[i + a] * wide(key + (i + a) * LANES + l);
            const Wide sum = ((part[0] + part[1]) + (part[2] + part[3])) * d->scale;
            memcpy(found + l, &sum, sizeof sum);
        }
        if (at < from || at + LANES > to)
            for (int l = 0; l < LANES; l++)
                if (at + l < from || at + l >= to) found[l] = NOTHING;
        for (int l = 0; l < LANES; l++) most[l] = found[l] > most[l] ? found[l] : most[l];
    }
}

/* Replaces scores by their exponentials; returns their sum. */
static float exponentials(float *score, int64_t blocks, const float *lane_most) {
    float most = NOTHING, lane_total[LANES] = {0}, total = 0;
    for (int l = 0; l < LANES; l++) most = lane_most[l] > most ? lane_most[l] : most;
    for (int64_t b = 0; b < blocks; b++, score += LANES)
        for (int l = 0; l < LANES; l++) {
            const float share = exponential(score[l] - most);
            score[l] = score[l] > NOTHING ? share : 0.0f;
            lane_total[l] += score[l];
        }
    for (int l = 0; l < LANES; l++) total += lane_total[l];
    return total;
}

/* One token: out = the values, weighted. */
static void attend(const Model *d, const float *q, const float *keys, const float *values, int64_t from, int64_t to,
                   float *out) {
    const int64_t width = d->head_width, start = from / LANES * LANES;
    float *weights = d->weights, most[LANES];
    scores(d, q, keys, from, to, weights, most);
    const float share = 1.0f / exponentials(weights, (to - start + LANES - 1) / LANES, most);
    int64_t i = 0;
    for (; i + 4 * WIDTH <= width; i += 4 * WIDTH) {
        Wide sum[4] = {{0}};
        for (int64_t j = from; j < to; j++)
            for (int a = 0; a < 4; a++) sum[a] += weights[j - start] * wide(values + j * width + i + a * WIDTH);
        for (int a = 0; a < 4; a++) sum[a] *= share;
        memcpy(out + i, sum, sizeof sum);
    }
    for (; i < width; i++) {
        float sum = 0;
        for (int64_t j = from; j < to; j++) sum += weights[j - start] * values[j * width + i];
        out[i] = sum * share;
    }
}

/* Successive tokens of one sequence: here a query is a lane. */
enum { QUERIES = 2 * LANES, KEYS = 64, AT_ONCE = 4 }; /* AT_ONCE divides LANES, which divides KEYS */
enum { PAIR = 2 * WIDTH }; /* queries that are summed in registers, beside AT_ONCE keys */
typedef struct {
    float turned[WIDEST_HEAD][QUERIES], sum[WIDEST_HEAD][QUERIES]; /* queries and results, [head width][token] */
    float score[KEYS][QUERIES], most[QUERIES], total[QUERIES];
} Block;

/* score = K q for the keys `at` .. `at + n`; `at` begins a block */
static void block_scores(const Model *d, Block *b, const float *keys, int64_t at, int64_t n, int64_t position) {
    const int64_t width = d->head_width;
    for (int64_t j = 0; j < n; j += AT_ONCE) { /* beyond n: garbage, which gets no weight */
        const float *key = keys + (at + j) / LANES * LANES * width + (at + j) % LANES;
        for (int t = 0; t < QUERIES; t += PAIR) {
            Wide found[AT_ONCE][2] = {{{0}}};
            for (int64_t i = 0; i < width; i++)
                for (int a = 0; a < AT_ONCE; a++)
                    for (int h = 0; h < 2; h++) found[a][h] += key[i * LANES + a] * wide(b->turned[i] + t + h * WIDTH);
            for (int a = 0; a < AT_ONCE; a++) memcpy(b->score[j + a] + t, found[a], sizeof found[a]);
        }
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t key = at + j - position; /* it is visible from this token on, until its window ends */
        if (key <= 0 && !(d->window && key + d->window < QUERIES)) continue;
        for (int64_t t = 0; t < QUERIES; t++)
            if (key > t || (d->window && key + d->window <= t)) b->score[j][t] = NOTHING;
    }
}

/* Adds these scores; the sums so far are rescaled to the new largest one (online softmax). */
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
    for (int64_t i = 0; i < d->head_width; i += 4)
        for (int t = 0; t < QUERIES; t += PAIR) {
            Wide sum[4][2];
            for (int a = 0; a < 4; a++)
                for (int h = 0; h < 2; h++)
                    sum[a][h] = wide(b->sum[i + a] + t + h * WIDTH) * wide(shrink + t + h * WIDTH);
            for (int64_t j = 0; j < n; j++)
                for (int a = 0; a < 4; a++)
                    for (int h = 0; h < 2; h++)
                        sum[a][h] += values[(at + j) * d->head_width + i + a] * wide(b->score[j] + t + h * WIDTH);
            for (int a = 0; a < 4; a++) memcpy(b->sum[i + a] + t, sum[a], sizeof sum[a]);
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
    for (int64_t at = from / LANES * LANES; at < end; at += KEYS) {
        const int64_t some = end - at < KEYS ? end - at : KEYS;
        block_scores(d, &b, keys, at, some, position);
        block_sums(d, &b, values, at, some);
    }
    for (int64_t i = 0; i < d->head_width; i++)
        for (int64_t t = 0; t < n; t++) out[t * out_stride + i] = b.sum[i][t] / b.total[t];
}

/* The offset of the keys or values of a group in a cache. */
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
            const int64_t at = at_group(d, in, layer, g);
            float *key = in->keys + at + now / LANES * LANES * width + now % LANES;
            place_head(d, k + g * width, now);
            for (int64_t i = 0; i < width; i++) key[i * LANES] = k[g * width + i];
            memcpy(in->values + at + now * width, v + g * width, width * sizeof(float));
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
            attend(d, qkv[0] + t * stride[0] + h * width, in->keys + at, in->values + at, from, now + 1,
                   out + (t * d->heads + h) * width);
        }
    }
}
