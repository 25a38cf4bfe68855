/** @file attention.c  Samples of attention: the formulas of docs/attention.md in double, one
 * (query, key) pair at a time. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"
#include "core/philox.h"

#include <math.h>

enum { SEED = 1234 }; /* the driver's seed; its offset is 0 */

/** A call. For packed sequences, rows and keys are max_seqlens: dropout and masks index (row, key)
 * pairs by them. */
typedef struct problem {
    const ts_ref_arg *q, *k, *v, *mask, *bounds, *lengths;
    int64_t batch, heads, share, rows, keys, depth, value_depth, left, right;
    double scale, softcap, dropout_p;
    uint64_t seed, offset;
} problem;

/**
 * The call of an op. qkv: query, key, value; options: mask, cu_seqlens, max_seqlens, scale, window,
 * softcap, dropout_p.
 */
static problem problem_of(const ts_ref_arg *qkv, const ts_ref_arg *options)
{
    problem p = {.q = qkv, .k = qkv + 1, .v = qkv + 2, .batch = qkv->sizes[0],
                 .heads = qkv->sizes[1],
                 .share = qkv->sizes[1] / qkv[1].sizes[1], .rows = qkv->sizes[2],
                 .keys = qkv[1].sizes[2], .depth = qkv->sizes[3],
                 .value_depth = qkv[2].sizes[3], .left = -1, .right = -1, .scale = options[3].d,
                 .softcap = options[5].d,
                 .dropout_p = options[6].d, .seed = SEED};
    if (options[0].tag == TS_TAG_TENSOR)
        p.mask = options;
    if (options[1].tag == TS_TAG_TENSORS && options[2].tag == TS_TAG_NONE) {
        p.lengths = options[1].list;
    } else if (options[1].tag == TS_TAG_TENSORS) {
        p.bounds = options[1].list;
        p.batch = p.bounds->sizes[0] - 1;
        p.rows = options[2].sizes[0];
        p.keys = options[2].sizes[1];
    }
    if (options[3].tag == TS_TAG_NONE)
        p.scale = 1 / sqrt((double)p.depth);
    if (options[4].tag == TS_TAG_INTS) {
        p.left = options[4].sizes[0];
        p.right = options[4].sizes[1];
    }
    return p;
}

/** First token, and number of tokens, of packed sequence b; of: 0 queries, 1 keys. */
static int64_t start_of(const problem *p, int of, int64_t b)
{
    return p->bounds ? (int64_t)p->bounds[of].x[b] : 0;
}
static int64_t count_of(const problem *p, int of, int64_t b)
{
    if (p->bounds)
        return (int64_t)(p->bounds[of].x[b + 1] - p->bounds[of].x[b]);
    return !of ? p->rows : p->lengths ? (int64_t)p->lengths->x[b] : p->keys;
}

/** row_at(): row of the query tensor with row i of head h. key_at(): row of the key tensor with the
 * key j that head h reads. */
static int64_t row_at(const problem *p, int64_t b, int64_t h, int64_t i)
{
    return ((p->bounds ? 0 : b) * p->heads + h) * p->q->sizes[2] + start_of(p, 0, b) + i;
}
static int64_t key_at(const problem *p, int64_t b, int64_t h, int64_t j)
{
    int64_t head = (p->bounds ? 0 : b) * p->k->sizes[1] + h / p->share;
    return head * p->k->sizes[2] + start_of(p, 1, b) + j;
}

/**
 * Score of row i and key j, -Inf if hidden. slope: receives the softcap's derivative; may be NULL.
 */
static double score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *slope)
{
    int64_t ahead = j - i - (count_of(p, 1, b) - count_of(p, 0, b));
    if ((p->right >= 0 && ahead > p->right) || (p->left >= 0 && ahead < -p->left))
        return -INFINITY;
    double sum = 0, bias = 0;
    for (int64_t d = 0; d < p->depth; d++)
        sum += p->q->x[row_at(p, b, h, i) * p->depth + d] *
               p->k->x[key_at(p, b, h, j) * p->depth + d];
    sum *= p->scale;
    double u = p->softcap > 0 ? tanh(sum / p->softcap) : 0;
    if (slope)
        *slope = 1 - u * u;
    if (p->mask) {
        const int64_t sizes[] = {p->batch, p->heads, p->rows, p->keys};
        bias = ref_at(p->mask, sizes, 4, ((b * p->heads + h) * p->rows + i) * p->keys + j);
        if (p->mask->dtype == TS_BOOL)
            bias = bias != 0 ? 0 : -INFINITY;
    }
    return (p->softcap > 0 ? p->softcap * u : sum) + bias;
}

/** Dropout's factor for the weight of row i and key j: 0, or 1 / (1 - p). */
static double dropout_factor(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    uint64_t n = (uint64_t)(((b * p->heads + h) * p->rows + i) * p->keys + j);
    if (p->dropout_p == 0)
        return 1;
    bool dropped = (double)ts_philox_uniform_f32(p->seed, p->offset, n) < p->dropout_p;
    return dropped ? 0 : 1 / (1 - p->dropout_p);
}

/** Computes a row of the result (y) and its logsumexp. s: scratch for the row's scores. */
static void forward_row(const problem *p, int64_t b, int64_t h, int64_t i, double *s, double *y,
                        double *lse)
{
    double most = -INFINITY, sum = 0;
    int64_t keys = count_of(p, 1, b);
    for (int64_t j = 0; j < keys; j++)
        most = fmax(most, s[j] = score(p, b, h, i, j, NULL));
    *lse = most;
    if (most == -INFINITY) /* the row sees no key: its result is 0 */
        return;
    for (int64_t j = 0; j < keys; j++)
        sum += exp(s[j] - most);
    *lse = most + log(sum);
    for (int64_t j = 0; j < keys; j++) {
        double w = exp(s[j] - *lse) * dropout_factor(p, b, h, i, j);
        for (int64_t e = 0; e < p->value_depth; e++)
            y[e] += w * p->v->x[key_at(p, b, h, j) * p->value_depth + e];
    }
}

static void ref_forward(ts_ref *r)
{
    problem p = problem_of(r->a, r->a + 3);
    const int64_t *sizes = r->a[0].sizes;
    const int64_t out_sizes[] = {sizes[0], sizes[1], sizes[2], p.value_depth};
    double *y = ref_ret(r, 0, out_sizes, 4), *lse = ref_ret(r, 1, sizes, 3);
    double *s = ref_scratch(r, p.k->sizes[2]);
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < count_of(&p, 0, b); i++) {
                int64_t at = row_at(&p, b, h, i);
                forward_row(&p, b, h, i, s, y + at * p.value_depth, lse + at);
            }
}

/**
 * For halves on tensor cores: lse within 1e-5 at c = 2, as in FlashAttention's tests.
 */
static void ref_forward_tiles(ts_ref *r)
{
    ref_forward(r);
    const ts_ref_arg *lse = &r->ret[1];
    r->scale[1] = ref_scratch(r, lse->numel);
    for (int64_t i = 0; i < lse->numel; i++)
        r->scale[1][i] = 1e-5 / (2 * 0x1p-23) * (1 + fabs(lse->x[i]));
}

/** Adds the gradients of row i to those of queries, keys and values: to[0], to[1], to[2]. `out` and
 * `lse` are arguments of the op and may hold any numbers. */
static void backward_row(const problem *p, const ts_ref *r, int64_t b, int64_t h, int64_t i,
                         double *const *to)
{
    int64_t at = row_at(p, b, h, i), values = p->value_depth;
    const double *g = r->a[0].x + at * values, *out = r->a[5].x + at * values;
    double delta = r->a[1].tag == TS_TAG_TENSOR ? -r->a[1].x[at] : 0;
    for (int64_t e = 0; e < values; e++)
        delta += g[e] * out[e];
    for (int64_t j = 0; j < count_of(p, 1, b); j++) {
        int64_t key = key_at(p, b, h, j);
        double slope = 0, s = score(p, b, h, i, j, &slope), dw = 0,
               factor = dropout_factor(p, b, h, i, j);
        if (s == -INFINITY)
            continue;
        double w = exp(s - r->a[6].x[at]);
        for (int64_t e = 0; e < values; e++) {
            dw += factor * g[e] * p->v->x[key * values + e];
            to[2][key * values + e] += w * factor * g[e];
        }
        double dt = w * (dw - delta) * slope * p->scale;
        for (int64_t d = 0; d < p->depth; d++) {
            to[0][at * p->depth + d] += dt * p->k->x[key * p->depth + d];
            to[1][key * p->depth + d] += dt * p->q->x[at * p->depth + d];
        }
    }
}

static void ref_backward(ts_ref *r)
{
    problem p = problem_of(r->a + 2, r->a + 7);
    p.seed = (uint64_t)r->a[14].i;
    p.offset = (uint64_t)r->a[15].i;
    double *to[] = {ref_ret_like(r, 0, &r->a[2]), ref_ret_like(r, 1, &r->a[3]),
                    ref_ret_like(r, 2, &r->a[4])};
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < count_of(&p, 0, b); i++)
                backward_row(&p, r, b, h, i, to);
}

/* mask, cu_seqlens, max_seqlens */
#define DENSE ABSENT, ABSENT, ABSENT
#define MASKED(...) {.tag = TS_TAG_TENSOR, .nograd = true, SIZES_(__VA_ARGS__)}, ABSENT, ABSENT
#define SEEN(...) T_OF(TS_BOOL, __VA_ARGS__), ABSENT, ABSENT
#define PACKED_AS(mask, parts, tokens_q, tokens_k) mask, \
    LIST(T_BOUNDS(tokens_q, parts + 1), T_BOUNDS(tokens_k, parts + 1)), INTS(tokens_q, tokens_k)
#define LENGTHS(mask, batch, keys) mask, LIST(T_BOUNDS(keys, batch)), ABSENT
#define NO_DROPOUT FLOAT(0), INT(0), INT(0)
#define CAUSAL INTS(-1, 0)

#define FORWARD(name, ...) {"scaled_dot_product_attention", name, __VA_ARGS__, ref_forward, \
    .out = {0, OUT_WIDE}, .c = 32, .scale = 4
#define BACKWARD(name, ...) {"scaled_dot_product_attention_backward", name, __VA_ARGS__, \
    ref_backward, .c = 64, .scale = 8, .depth = SWEEP

/* grad, grad_lse, query, key, value, out, lse of a backward over H heads and G of keys */
#define OPERANDS(H, G) T(1, H, SWEEP, 4), T(1, H, SWEEP), T(1, H, SWEEP, 3), T(1, G, SWEEP, 3), \
    T(1, G, SWEEP, 4), T(1, H, SWEEP, 4), T_UNIFORM(4, 6, 1, H, SWEEP)

/* Halves with depths that tensor cores support; the kernels round weights and gradients of scores
 * to halves once. */
#define FORWARD_TILES(name, ...) {"scaled_dot_product_attention", name, __VA_ARGS__, \
    ref_forward_tiles, .dtypes = DT_HALVES, .out = {0, OUT_WIDE}, .c = 2, .scale = 1
#define BACKWARD_TILES(name, ...) {"scaled_dot_product_attention_backward", name, __VA_ARGS__, \
    ref_backward, .dtypes = DT_HALVES, .c = 2, .scale = 2
#define OPERANDS_OF(H, G, D, E) T(1, H, SWEEP, E), T(1, H, SWEEP), T(1, H, SWEEP, D), \
    T(1, G, SWEEP, D), T(1, G, SWEEP, E), T(1, H, SWEEP, E), T_UNIFORM(4, 6, 1, H, SWEEP)

/* .scale: scores reach 4 standard deviations; their rounding is a relative error of weights. */
static const ts_sample samples[] = {
    FORWARD("full", {T(2, 2, SWEEP, 5), T(2, 2, 9, 5), T(2, 2, 9, 3), DENSE, ABSENT, ABSENT,
         FLOAT(0), FLOAT(0)}),
     .many = 300, .grad = true,
     .bad = {{0, T(2, 3, 5), TS_ERR_SHAPE, "4 dims"}, {1, T(2, 3, 9, 5), TS_ERR_SHAPE, "divisor"},
             {0, T(2, 0, SWEEP, 5), TS_ERR_SHAPE, "divisor of 0"},
             {2, T(2, 2, 8, 3), TS_ERR_SHAPE, "expected sizes"},
             {1, T_OF(TS_I64, 2, 2, 9, 5), TS_ERR_DTYPE, "dtype"},
             {3, T(2, 1, SWEEP, 8), TS_ERR_SHAPE, "broadcast"},
             {3, T_OF(TS_I32, 9), TS_ERR_DTYPE, "bool"}}},
    FORWARD("options", {T(2, 2, SWEEP, 5), T(2, 2, 9, 5), T(2, 2, 9, 3), DENSE, ABSENT, INTS(5, 5),
         FLOAT(3), FLOAT(0)}),
     .many = 300, .grad = true,
     .bad = {{7, INTS(5), TS_ERR_VALUE, "(left, right)"},
             {7, INTS(-2, 0), TS_ERR_VALUE, "(left, right)"},
             {8, FLOAT(-1), TS_ERR_VALUE, "at least 0"},
             {8, FLOAT(NAN), TS_ERR_VALUE, "at least 0"},
             {9, FLOAT(1.5), TS_ERR_VALUE, "from 0 to 1"},
             {5, INTS(3, 3), TS_ERR_VALUE, "two tensors"}}},
    FORWARD("causal", {T(1, 4, SWEEP, 4), T(1, 2, SWEEP, 4), T(1, 2, SWEEP, 4), DENSE, FLOAT(0.4),
         CAUSAL, FLOAT(0), FLOAT(0)}),
     .many = 200, .grad = true},
    FORWARD("keys", {T(1, 1, 2, 3), T(1, 1, SWEEP, 3), T(1, 1, SWEEP, 17), DENSE, INT(1), CAUSAL,
         FLOAT(0), FLOAT(0)}),
     .many = 300, .no_empty = true},
    FORWARD("window", {T(1, 4, SWEEP, 4), T(1, 2, 40, 4), T(1, 2, 40, 4), DENSE, ABSENT, INTS(7, 3),
         FLOAT(0), FLOAT(0)}),
     .many = 200, .grad = true},
    FORWARD("softcap", {T(1, 2, SWEEP, 4), T(1, 2, 9, 4), T(1, 2, 9, 4), DENSE, FLOAT(1), ABSENT,
         FLOAT(1.5), FLOAT(0)}),
     .many = 300, .grad = true},
    FORWARD("mask", {T(2, 2, SWEEP, 4), T(2, 1, 9, 4), T(2, 1, 9, 4), SEEN(2, 1, SWEEP, 9), ABSENT,
         ABSENT, FLOAT(0), FLOAT(0)}),
     .many = 200, .grad = true},
    FORWARD("mask of keys", {T(2, 2, 5, 4), T(2, 1, SWEEP, 4), T(2, 1, SWEEP, 4),
         SEEN(2, 1, 1, SWEEP), ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}),
     .many = 200, .no_empty = true, .grad = true,
     .grad_rets = 1 /* lse is -Inf where a row sees none */},
    FORWARD("added mask", {T(2, 2, SWEEP, 4), T(2, 1, 9, 4), T(2, 1, 9, 4), MASKED(2, SWEEP, 9),
         ABSENT, ABSENT, FLOAT(2), FLOAT(0)}),
     .many = 200, .grad = true},
    FORWARD("dropout", {T(2, 2, SWEEP, 4), T(2, 1, 9, 4), T(2, 1, 9, 4), DENSE, ABSENT, ABSENT,
         FLOAT(0), FLOAT(0.3)}),
     .many = 300, .grad = true},
    FORWARD("all dropped", {T(2, 2, SWEEP, 4), T(2, 1, 9, 4), T(2, 1, 9, 4), DENSE, ABSENT, ABSENT,
         FLOAT(0), FLOAT(1)}), .many = 100},
    FORWARD("packed", {T(1, 2, SWEEP, 4), T(1, 1, 7, 4), T(1, 1, 7, 4),
         PACKED_AS(ABSENT, 2, SWEEP, 7), ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}),
     .many = 300, .grad = true, .no_expand = true,
     .bad = {{5, INTS(7), TS_ERR_VALUE, "two numbers"},
             {5, INTS(-1, 7), TS_ERR_VALUE, "two numbers"},
             {4, LIST(T_BOUNDS(3, 3)), TS_ERR_VALUE, "two tensors"},
             {4, LIST(T_OF(TS_I64, 3), T_OF(TS_I64, 3)), TS_ERR_DTYPE, "i32"},
             {4, LIST(T_BOUNDS(3, 3), T_BOUNDS(7, 4)), TS_ERR_SHAPE, "the sizes of 'cu_seqlens"},
             {0, T(2, 2, SWEEP, 4), TS_ERR_SHAPE, "query"}}},
    FORWARD("packed, all", {T(1, 4, SWEEP, 3), T(1, 2, SWEEP, 3), T(1, 2, SWEEP, 5),
                            PACKED_AS(T_OF(TS_BOOL, SWEEP), 5, SWEEP, SWEEP), ABSENT, INTS(9, 4),
                            FLOAT(2), FLOAT(0.2)}),
     .many = 150, .most = 65, .grad = true, .no_expand = true},
    FORWARD("key lengths", {T(3, 2, SWEEP, 4), T(3, 1, 9, 4), T(3, 1, 9, 4), LENGTHS(ABSENT, 3, 9),
         ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}),
     .many = 200, .grad = true, .no_expand = true,
     .grad_rets = 1, /* lse is -Inf where a row sees none */
     .bad = {{4, LIST(T_OF(TS_I64, 3)), TS_ERR_DTYPE, "i32"},
             {4, LIST(T_BOUNDS(9, 4)), TS_ERR_SHAPE, "as the batch"},
             {5, INTS(9, 9), TS_ERR_VALUE, "two tensors"}}},
    FORWARD("key lengths, all", {T(2, 4, 5, 3), T(2, 2, SWEEP, 3), T(2, 2, SWEEP, 5),
         LENGTHS(T_OF(TS_BOOL, SWEEP), 2, SWEEP), ABSENT, INTS(6, 4), FLOAT(2), FLOAT(0.2)}),
     .many = 150, .most = 65, .grad = true, .no_expand = true, .no_empty = true, .grad_rets = 1},
    FORWARD("all", {T(2, 4, SWEEP, 3), T(2, 2, 11, 3), T(2, 2, 11, 5), MASKED(4, SWEEP, 11), ABSENT,
         INTS(6, 4), FLOAT(2), FLOAT(0.2)}),
     .many = 150, .grad = true},

    BACKWARD("causal", {OPERANDS(4, 2), DENSE, ABSENT, CAUSAL, FLOAT(0), NO_DROPOUT}), .most = 129,
     .many = 200, .grad = true},
    BACKWARD("full", {T(2, 1, SWEEP, 2), ABSENT, T(2, 1, SWEEP, 5), T(2, 1, 7, 5), T(2, 1, 7, 2),
         T(2, 1, SWEEP, 2), T_UNIFORM(4, 6, 2, 1, SWEEP), DENSE, FLOAT(0.5), ABSENT, FLOAT(0),
         NO_DROPOUT}), .many = 200, .grad = true},
    BACKWARD("window", {OPERANDS(4, 2), DENSE, ABSENT, INTS(7, 3), FLOAT(0), NO_DROPOUT}),
     .most = 129, .many = 200, .grad = true},
    BACKWARD("softcap", {OPERANDS(2, 2), DENSE, FLOAT(1), ABSENT, FLOAT(1.5), NO_DROPOUT}),
     .most = 65, .many = 200, .grad = true},
    BACKWARD("mask", {OPERANDS(2, 1), SEEN(SWEEP, SWEEP), ABSENT, ABSENT, FLOAT(0), NO_DROPOUT}),
     .most = 65, .many = 150, .grad = true},
    BACKWARD("added mask", {OPERANDS(2, 1), MASKED(2, 1, SWEEP), ABSENT, CAUSAL, FLOAT(0),
         NO_DROPOUT}),
     .most = 65, .many = 150, .grad = true},
    BACKWARD("dropout", {OPERANDS(2, 1), DENSE, ABSENT, ABSENT, FLOAT(0), FLOAT(0.3), INT(5),
         INT(7)}),
     .most = 65, .many = 150, .grad = true},
    BACKWARD("packed", {OPERANDS(2, 1), PACKED_AS(ABSENT, 2, SWEEP, SWEEP), ABSENT, CAUSAL,
         FLOAT(0), NO_DROPOUT}),
     .most = 129, .many = 200, .grad = true, .no_expand = true},
    BACKWARD("key lengths", {T(3, 2, SWEEP, 4), T(3, 2, SWEEP), T(3, 2, SWEEP, 3), T(3, 1, 9, 3),
         T(3, 1, 9, 4), T(3, 2, SWEEP, 4), T_UNIFORM(4, 6, 3, 2, SWEEP), LENGTHS(ABSENT, 3, 9),
         ABSENT, INTS(7, 3), FLOAT(2), FLOAT(0.2), INT(5), INT(7)}),
     .most = 65, .many = 150, .grad = true, .no_expand = true},
    BACKWARD("packed, all", {OPERANDS(4, 2), PACKED_AS(T_OF(TS_BOOL, 2, 1, 1, SWEEP), 2, SWEEP,
         SWEEP), ABSENT, INTS(9, 4), FLOAT(2), FLOAT(0.2), INT(5), INT(7)}),
     .most = 65, .many = 150, .grad = true, .no_expand = true},

    FORWARD_TILES("64 deep", {T(1, 2, SWEEP, 64), T(1, 1, 150, 64), T(1, 1, 150, 64), DENSE, ABSENT,
         ABSENT, FLOAT(0), FLOAT(0)}), .most = 33, .many = 150},
    FORWARD_TILES("64 deep, causal", {T(1, 2, 70, 64), T(1, 2, SWEEP, 64), T(1, 2, SWEEP, 72),
         DENSE, ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}),
     .most = 65, .many = 150, .no_empty = true},
    FORWARD_TILES("72 deep, window", {T(1, 2, SWEEP, 72), T(1, 1, 90, 72), T(1, 1, 90, 40), DENSE,
         FLOAT(0.2), INTS(30, 5), FLOAT(0), FLOAT(0)}), .most = 33, .many = 150},
    FORWARD_TILES("128 deep, causal", {T(1, 2, SWEEP, 128), T(1, 1, 140, 128), T(1, 1, 140, 128),
         DENSE, ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}), .most = 33, .many = 150},
    FORWARD_TILES("192 deep", {T(1, 1, SWEEP, 192), T(1, 1, 70, 192), T(1, 1, 70, 128), DENSE,
         ABSENT, ABSENT, FLOAT(0), FLOAT(0)}), .most = 33, .many = 70},
    FORWARD_TILES("64 deep, packed", {T(1, 2, SWEEP, 64), T(1, 1, 100, 64), T(1, 1, 100, 64),
         PACKED_AS(ABSENT, 3, SWEEP, 100), ABSENT, CAUSAL, FLOAT(0), FLOAT(0)}),
     .most = 65, .many = 150, .no_expand = true},
    FORWARD_TILES("128 deep, all", {T(1, 2, SWEEP, 128), T(1, 1, 70, 128), T(1, 1, 70, 64),
         SEEN(SWEEP, 70), ABSENT, INTS(50, 9), FLOAT(2), FLOAT(0.2)}), .most = 33, .many = 70},

    BACKWARD_TILES("64 deep, causal", {OPERANDS_OF(2, 1, 64, 64), DENSE, ABSENT, CAUSAL, FLOAT(0),
         NO_DROPOUT}), .most = 33, .many = 150},
    BACKWARD_TILES("72 deep, window", {OPERANDS_OF(2, 2, 72, 40), DENSE, ABSENT, INTS(30, 5),
         FLOAT(0), NO_DROPOUT}), .most = 33, .many = 150},
    BACKWARD_TILES("128 deep", {OPERANDS_OF(2, 1, 128, 128), DENSE, ABSENT, ABSENT, FLOAT(0),
         NO_DROPOUT}), .most = 33, .many = 130},
    BACKWARD_TILES("192 deep", {OPERANDS_OF(1, 1, 192, 128), DENSE, ABSENT, CAUSAL, FLOAT(0),
         NO_DROPOUT}), .most = 33, .many = 70},
    BACKWARD_TILES("64 deep, all", {OPERANDS_OF(2, 1, 64, 64), SEEN(SWEEP, SWEEP), ABSENT,
         INTS(50, 9), FLOAT(2), FLOAT(0.2), INT(5), INT(7)}),
     .most = 33, .many = 100},
};
TS_SAMPLES(attention, samples)
