/**
 * @file rows.h  Functions whose compiled form has groups by rows (docs/compile.md): norms and
 * softmax with pointwise calls before and after them, their gradients, and sums over rows.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_ROWS_H
#define TESSERA_TESTS_CUDA_ROWS_H

#include "tests/cuda/cuda.h"

enum { ROW_INPUTS = 5, ROW_OUTPUTS = 3, ROW_KINDS = 12 };

typedef struct row_program {
    int kind;
    int64_t batch, rows, columns;
    ts_dtype dtype;
    double shift; /* kind 0: added to the factor of y; changes from call to call */
    bool exact;   /* the function skips its casts, for a reference in f64 */
} row_program;

static const char *const row_kinds[ROW_KINDS] = {
    "add, layer_norm, cast",  "gradient of layer_norm, add", "softmax of scaled",
    "softmax by parts",       "gelu, rms_norm, mul",         "variance by parts",
    "sum of products",        "sums over rows",              "gradient of log_softmax",
    "gradient of rms_norm",   "extremes",                    "two norms"};

/** A cast of the function; the exact program skips it. */
static inline ts_tensor *row_cast(const row_program *p, ts_tensor *t, ts_dtype dtype)
{
    return p->exact ? t : ts_to(t, dtype);
}

/** Function of kind p->kind. in: x, y, g (batch, rows, columns), weight, bias (columns). out: up to
 *  ROW_OUTPUTS results; TS_NONE where the kind has fewer. */
static inline ts_status row_function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const row_program *p = ctx;
    (void)n;
    ts_tensor *x = in[0], *y = in[1], *g = in[2], *w = in[3], *b = in[4], *t;
    for (int i = 0; i < m; i++)
        out[i] = TS_NONE;
    switch (p->kind) {
    case 0:
        out[1] = ts_add(x, ts_mul_scalar(y, 0.5 + p->shift));
        return TS_STATUS_OF(out[0] = row_cast(p, ts_layer_norm(out[1], w, b), TS_BF16));
    case 1: {
        ts_tensor *of[] = {ts_set_requires_grad(ts_detach(x), true),
                           ts_set_requires_grad(ts_detach(w), true),
                           ts_set_requires_grad(ts_detach(b), true)};
        ts_tensor *z = ts_layer_norm(of[0], of[1], of[2]), *grads[3];
        TS_TRY(ts_grad_of(z, ts_mul(g, y), of, 3, grads, NULL));
        out[0] = ts_add(grads[0], ts_mul_scalar(x, 0.25));
        out[1] = grads[1];
        return TS_STATUS_OF(out[2] = grads[2]);
    }
    case 2: return TS_STATUS_OF(out[0] = ts_mul(ts_softmax(ts_add(ts_mul_scalar(x, 2), y), -1), g));
    case 3:
        t = ts_exp(ts_sub(x, ts_amax_dim(x, -1, true)));
        return TS_STATUS_OF(out[0] = ts_div(t, ts_sum_dim(t, -1, true)));
    case 4: return TS_STATUS_OF(out[0] = ts_mul(ts_rms_norm(ts_gelu(x), w), y));
    case 5:
        t = ts_sub(x, ts_mean_dim(x, -1, true));
        out[1] = ts_mean_dim(ts_square(t), -1, true);
        return TS_STATUS_OF(out[0] = ts_mul(t, ts_rsqrt(ts_add_scalar(out[1], 1e-3))));
    case 6: return TS_STATUS_OF(out[0] = ts_sum_dim(ts_mul(ts_add(x, w), y), -1, false));
    case 7:
        t = ts_mul(x, ts_sigmoid(y));
        out[1] = ts_sum_dims(t, (int64_t[]){0, 1}, 2, false);
        return TS_STATUS_OF(out[0] = row_cast(p, t, TS_F32));
    case 8: {
        ts_tensor *of[] = {ts_set_requires_grad(ts_detach(x), true)}, *grads[1];
        TS_TRY(ts_grad_of(ts_log_softmax(of[0], -1), ts_mul(g, y), of, 1, grads, NULL));
        return TS_STATUS_OF(out[0] = ts_mul_scalar(grads[0], 1.5));
    }
    case 9: {
        ts_tensor *of[] = {ts_set_requires_grad(ts_detach(x), true),
                           ts_set_requires_grad(ts_detach(w), true)}, *grads[2];
        TS_TRY(ts_grad_of(ts_rms_norm(of[0], of[1]), ts_add(g, y), of, 2, grads, NULL));
        out[0] = ts_add(grads[0], x);
        return TS_STATUS_OF(out[1] = grads[1]);
    }
    case 10:
        t = ts_add(x, y);
        out[1] = ts_amin_dim(t, -1, true);
        return TS_STATUS_OF(out[0] = ts_sub(ts_amax_dim(t, -1, true), out[1]));
    default:
        t = ts_layer_norm(ts_add(x, y), w, TS_NONE);
        return TS_STATUS_OF(out[0] = ts_softmax(ts_add(ts_layer_norm(ts_tanh(t), TS_NONE, b), g),
                                                -1));
    }
}

/** A random integer from 0 to n - 1. */
static inline uint32_t row_draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % n;
}

static inline row_program draw_rows(uint64_t seed)
{
    static const int64_t columns[] = {2, 3, 8, 17, 32, 64, 100, 128, 384, 768, 1000, 1024, 1600,
                                      2048, 3072, 4096, 5000, 8192};
    static const int64_t rows[] = {2, 3, 7, 16, 33, 128, 300};
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F32, TS_F16};
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 11;
    row_draw(&s, 2);
    row_program p = {.kind = (int)(seed % ROW_KINDS), .batch = 1 + row_draw(&s, 3)};
    p.rows = rows[row_draw(&s, 7)];
    p.columns = columns[row_draw(&s, 18)];
    p.dtype = dtypes[row_draw(&s, 4)];
    return p;
}

/** Input k on the CPU. */
static inline ts_tensor *row_input(const row_program *p, int k)
{
    ts_tensor *t = k < 3 ? ts_normal(TS_SIZES(p->batch, p->rows, p->columns), k == 0 ? 0.5 : 0, 1,
                                     TS_F32)
                         : ts_normal(TS_SIZES(p->columns), k == 3, 0.5, TS_F32);
    return ts_to(t, p->dtype);
}

#endif
