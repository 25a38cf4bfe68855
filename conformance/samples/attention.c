/** @file attention.c  Samples of attention. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

typedef struct problem {
    int64_t batch, heads, share, rows, keys, depth, value_depth;
    const double *q, *k, *v;
    double scale;
    bool causal;
} problem;

static problem problem_of(const ts_ref_arg *a, const ts_ref_arg *scale, const ts_ref_arg *window)
{
    problem p = {a[0].sizes[0], a[0].sizes[1], a[0].sizes[1] / a[1].sizes[1], a[0].sizes[2], a[1].sizes[2],
                 a[0].sizes[3], a[2].sizes[3], a[0].x, a[1].x, a[2].x, scale->d, window->tag == TS_TAG_INTS && window->sizes[1] == 0};
    if (scale->tag == TS_TAG_NONE)
        p.scale = 1 / sqrt((double)p.depth);
    return p;
}

/** Score of row i of head h (counted over the batch) and key j; -Inf when it is hidden. */
static double score(const problem *p, int64_t h, int64_t i, int64_t j)
{
    if (p->causal && j > i + p->keys - p->rows)
        return -INFINITY;
    double sum = 0;
    for (int64_t d = 0; d < p->depth; d++)
        sum += p->q[(h * p->rows + i) * p->depth + d] * p->k[(h / p->share * p->keys + j) * p->depth + d];
    return sum * p->scale;
}

static void ref_forward(ts_ref *r)
{
    problem p = problem_of(r->a, &r->a[6], &r->a[7]);
    double *y = ref_ret(r, 0, (int64_t[]){p.batch, p.heads, p.rows, p.value_depth}, 4);
    double *lse = ref_ret(r, 1, r->a[0].sizes, 3);
    for (int64_t at = 0; at < p.batch * p.heads * p.rows; at++) {
        int64_t h = at / p.rows, i = at % p.rows;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < p.keys; j++)
            most = fmax(most, score(&p, h, i, j));
        lse[at] = most;
        if (most == -INFINITY) /* sees no key: zeros */
            continue;
        for (int64_t j = 0; j < p.keys; j++)
            sum += exp(score(&p, h, i, j) - most);
        lse[at] = most + log(sum);
        for (int64_t j = 0; j < p.keys; j++)
            for (int64_t e = 0; e < p.value_depth; e++)
                y[at * p.value_depth + e] += exp(score(&p, h, i, j) - lse[at]) * p.v[(h / p.share * p.keys + j) * p.value_depth + e];
    }
}

/* args: grad, grad_lse, query, key, value, out, lse, options; out and lse may hold anything */
static void ref_backward(ts_ref *r)
{
    problem p = problem_of(r->a + 2, &r->a[10], &r->a[11]);
    const double *g = r->a[0].x, *g_lse = r->a[1].tag == TS_TAG_TENSOR ? r->a[1].x : NULL;
    double *dq = ref_ret_like(r, 0, &r->a[2]), *dk = ref_ret_like(r, 1, &r->a[3]), *dv = ref_ret_like(r, 2, &r->a[4]);
    for (int64_t at = 0; at < p.batch * p.heads * p.rows; at++) {
        int64_t h = at / p.rows, i = at % p.rows;
        double delta = g_lse ? -g_lse[at] : 0;
        for (int64_t e = 0; e < p.value_depth; e++)
            delta += g[at * p.value_depth + e] * r->a[5].x[at * p.value_depth + e];
        for (int64_t j = 0; j < p.keys; j++) {
            int64_t key = h / p.share * p.keys + j;
            double w = exp(score(&p, h, i, j) - r->a[6].x[at]), dw = -delta;
            for (int64_t e = 0; e < p.value_depth; e++) {
                dw += g[at * p.value_depth + e] * p.v[key * p.value_depth + e];
                dv[key * p.value_depth + e] += w * g[at * p.value_depth + e];
            }
            for (int64_t d = 0; d < p.depth; d++) {
                dq[at * p.depth + d] += w * dw * p.scale * p.k[key * p.depth + d];
                dk[key * p.depth + d] += w * dw * p.scale * p.q[at * p.depth + d];
            }
        }
    }
}

#define NONE3 ABSENT, ABSENT, ABSENT

/* Rounding of a score, up to 4 deviations large, moves weights relatively; hence the scales. */
static const ts_sample samples[] = {
    {"scaled_dot_product_attention", "full", {T(2, 2, SWEEP, 5), T(2, 2, 9, 5), T(2, 2, 9, 3), NONE3, ABSENT, ABSENT, FLOAT(0), FLOAT(0)}, ref_forward, .out = {0, OUT_WIDE},
     .c = 32, .scale = 4, .many = 300, .grad = true,
     .bad = {{0, T(2, 3, 5), TS_ERR_SHAPE, "4 dims"}, {1, T(2, 3, 9, 5), TS_ERR_SHAPE, "divisor"},
             {2, T(2, 2, 8, 3), TS_ERR_SHAPE, "expected sizes"}, {1, T_OF(TS_I64, 2, 2, 9, 5), TS_ERR_DTYPE, "dtype"}}},
    {"scaled_dot_product_attention", "causal", {T(1, 4, SWEEP, 4), T(1, 2, SWEEP, 4), T(1, 2, SWEEP, 4), NONE3, FLOAT(0.4), INTS(-1, 0), FLOAT(0), FLOAT(0)},
     ref_forward, .out = {0, OUT_WIDE}, .c = 32, .scale = 4, .many = 200, .grad = true},
    {"scaled_dot_product_attention", "keys", {T(1, 1, 2, 3), T(1, 1, SWEEP, 3), T(1, 1, SWEEP, 17), NONE3, INT(1), INTS(-1, 0), FLOAT(0), FLOAT(0)},
     ref_forward, .out = {0, OUT_WIDE}, .c = 32, .scale = 4, .many = 300, .no_empty = true},
    {"scaled_dot_product_attention_backward", "causal",
     {T(1, 4, SWEEP, 4), T(1, 4, SWEEP), T(1, 4, SWEEP, 3), T(1, 2, SWEEP, 3), T(1, 2, SWEEP, 4), T(1, 4, SWEEP, 4),
      T_UNIFORM(4, 6, 1, 4, SWEEP), NONE3, ABSENT, INTS(-1, 0), FLOAT(0), FLOAT(0), INT(0), INT(0)},
     ref_backward, .c = 64, .scale = 8, .depth = SWEEP, .most = 129, .many = 200, .grad = true},
    {"scaled_dot_product_attention_backward", "full",
     {T(2, 1, SWEEP, 2), ABSENT, T(2, 1, SWEEP, 5), T(2, 1, 7, 5), T(2, 1, 7, 2), T(2, 1, SWEEP, 2), T_UNIFORM(4, 6, 2, 1, SWEEP),
      NONE3, FLOAT(0.5), ABSENT, FLOAT(0), FLOAT(0), INT(0), INT(0)},
     ref_backward, .c = 64, .scale = 8, .depth = SWEEP, .many = 200, .grad = true},
};
TS_SAMPLES(attention, samples)
