/** @file matmul.c  Samples of matrix products. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

/* Errors of a product grow with the sum of magnitudes of its terms, which the scales contain. */

/** y (m, n) += a (m, k) * b, b read as (k, n) or, turned, as (n, k). */
static void product(const double *a, const double *b, double *y, double *scale, int64_t m,
                    int64_t n, int64_t k, bool turned)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t p = 0; p < k; p++) {
                double term = a[i * k + p] * (turned ? b[j * k + p] : b[p * n + j]);
                y[i * n + j] += term;
                scale[i * n + j] += fabs(term);
            }
}

static void ref_mm(ts_ref *r)
{
    int64_t sizes[2] = {r->a[0].sizes[0], r->a[1].sizes[1]};
    double *y = ref_ret(r, 0, sizes, 2);
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    product(r->a[0].x, r->a[1].x, y, r->scale[0], sizes[0], sizes[1], r->a[0].sizes[1], false);
}

/** beta self + alpha mat1 mat2 */
static void ref_addmm(ts_ref *r)
{
    const ts_ref_arg *x = &r->a[0], *a = &r->a[1], *b = &r->a[2];
    int64_t sizes[2] = {a->sizes[0], b->sizes[1]};
    double *y = ref_ret(r, 0, sizes, 2), beta = r->a[3].d, alpha = r->a[4].d;
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    product(a->x, b->x, y, r->scale[0], sizes[0], sizes[1], a->sizes[1], false);
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        double part = beta == 0 ? 0 : beta * ref_at(x, sizes, 2, i);
        y[i] = part + alpha * y[i];
        r->scale[0][i] = fabs(part) + fabs(alpha) * r->scale[0][i];
    }
}

static void ref_bmm(ts_ref *r)
{
    int64_t batch = r->a[0].sizes[0], m = r->a[0].sizes[1], k = r->a[0].sizes[2],
            n = r->a[1].sizes[2];
    double *y = ref_ret(r, 0, (int64_t[]){batch, m, n}, 3);
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    for (int64_t b = 0; b < batch; b++)
        product(r->a[0].x + b * m * k, r->a[1].x + b * k * n, y + b * m * n,
                r->scale[0] + b * m * n, m, n, k, false);
}

static void ref_linear(ts_ref *r)
{
    const ts_ref_arg *x = &r->a[0], *w = &r->a[1], *bias = &r->a[2];
    int64_t sizes[TS_MAX_DIMS], n = w->sizes[0], k = w->sizes[1],
            m = ref_numel(x->sizes, x->ndim - 1);
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d + 1 < x->ndim ? x->sizes[d] : n;
    double *y = ref_ret(r, 0, sizes, x->ndim);
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    product(x->x, w->x, y, r->scale[0], m, n, k, true);
    for (int64_t i = 0; bias->tag == TS_TAG_TENSOR && i < m * n; i++) {
        y[i] += bias->x[i % n];
        r->scale[0][i] += fabs(bias->x[i % n]);
    }
}

/** Errors of the linear part go through gelu, whose slope is at most 1.13. */
static void ref_linear_gelu(ts_ref *r)
{
    ref_linear(r);
    double *y = r->ret[0].x, *x = ref_ret_like(r, 1, &r->ret[0]);
    bool tanh_form = r->a[3].i;
    r->scale[1] = ref_scratch(r, r->ret[0].numel);
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        x[i] = y[i];
        r->scale[1][i] = r->scale[0][i];
        y[i] *= tanh_form
                    ? 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x[i] + 0.044715 * x[i] * x[i] * x[i])))
                    : 0.5 * erfc(-x[i] / sqrt(2));
    }
}

static void ref_linear_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *x = &r->a[1], *w = &r->a[2];
    int64_t n = w->sizes[0], k = w->sizes[1], m = ref_numel(g->sizes, g->ndim - 1);
    double *dx = ref_ret_like(r, 0, x), *dw = ref_ret_like(r, 1, w), *db = ref_ret(r, 2, &n, 1);
    for (int i = 0; i < 3; i++)
        r->scale[i] = ref_scratch(r, r->ret[i].numel);
    product(g->x, w->x, dx, r->scale[0], m, k, n, false);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double v = g->x[i * n + j];
            db[j] += v;
            r->scale[2][j] += fabs(v);
            for (int64_t p = 0; p < k; p++) {
                dw[j * k + p] += v * x->x[i * k + p];
                r->scale[1][j * k + p] += fabs(v * x->x[i * k + p]);
            }
        }
}

/* c covers a chain of √depth rounding errors of the terms' magnitudes */
/** Vectors, matrices, lists of matrices: each operand as one with batch dims,
 * matrices by broadcast. */
static void ref_matmul(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0], *b = &r->a[1];
    int64_t m = a->ndim > 1 ? a->sizes[a->ndim - 2] : 1, k = a->sizes[a->ndim - 1];
    int64_t n = b->ndim > 1 ? b->sizes[b->ndim - 1] : 1;
    int la = a->ndim > 2 ? a->ndim - 2 : 0, lb = b->ndim > 2 ? b->ndim - 2 : 0,
        leading = la > lb ? la : lb;
    int64_t sizes[TS_MAX_DIMS + 2], count = 1;
    for (int d = 0; d < leading; d++) {
        int64_t x = d < leading - la ? 1 : a->sizes[d - (leading - la)],
                y = d < leading - lb ? 1 : b->sizes[d - (leading - lb)];
        count *= sizes[d] = x == 1 ? y : x;
    }
    int ndim = leading;
    if (a->ndim > 1)
        sizes[ndim++] = m;
    if (b->ndim > 1)
        sizes[ndim++] = n;
    double *c = ref_ret(r, 0, sizes, ndim);
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, at[2] = {0, 0}, step[2] = {1, 1};
        for (int d = leading - 1; d >= 0; d--) {
            int64_t index = rest % sizes[d];
            rest /= sizes[d];
            const ts_ref_arg *args[] = {a, b};
            for (int s = 0; s < 2; s++) {
                int own = d - (leading - (s ? lb : la));
                if (own < 0)
                    continue;
                at[s] += args[s]->sizes[own] > 1 ? index * step[s] : 0;
                step[s] *= args[s]->sizes[own];
            }
        }
        product(a->x + at[0] * m * k, b->x + at[1] * k * n, c + i * m * n, r->scale[0] + i * m * n,
                m, n, k, false);
    }
}

static const ts_sample samples[] = {
    {"mm", "rows", {T(SWEEP, 5), T(5, 3)}, ref_mm, .c = 2, .depth = 5, .grad = true,
     .bad = {{1, T(4, 3), TS_ERR_SHAPE, "mm"}, {1, T(5), TS_ERR_SHAPE, "2 dims"},
             {0, T(2, 3, 5), TS_ERR_SHAPE, "2 dims"},
             {1, T_OF(TS_F64, 5, 3), TS_ERR_DTYPE, "f64"}}},
    {"mm", "inner", {T(3, SWEEP), T(SWEEP, 4)}, ref_mm, .c = 2, .depth = SWEEP, .grad = true},
    {"mm", "square", {T(SWEEP, SWEEP), T(SWEEP, SWEEP)}, ref_mm, .c = 2, .depth = SWEEP, .most = 65,
     .many = 200},
    {"mm", "one column", {T(SWEEP, 9), T(9, 1)}, ref_mm, .c = 2, .depth = 9, .grad = true},
    {"mm", "integers", {T_WHOLE(-60000, 60000, SWEEP, 33), T_WHOLE(-60000, 60000, 33, 66)}, ref_mm,
     .dtypes = DT_INTS, .many = 3001},
    {"mm", "integers, inner", {T_WHOLE(-60000, 60000, 67, SWEEP), T_WHOLE(-60000, 60000, SWEEP, 3)},
     ref_mm, .dtypes = DT_INTS},
    {"addmm", "matrix", {T(SWEEP, 3), T(SWEEP, 5), T(5, 3), INT(1), INT(1)}, ref_addmm, .c = 2,
     .depth = 6, .grad = true,
     .bad = {{0, T(2, 3), TS_ERR_SHAPE, "broadcast to (3, 3)"},
             {0, T(1, 3, 3), TS_ERR_SHAPE, "broadcast"}, {2, T(4, 3), TS_ERR_SHAPE, "mat2"},
             {0, T_OF(TS_I64, 3, 3), TS_ERR_DTYPE, "self"}}},
    {"addmm", "row", {T(7), T(3, SWEEP), T(SWEEP, 7), INT(1), INT(1)}, ref_addmm, .c = 2,
     .depth = SWEEP, .grad = true},
    {"addmm", "column, factors", {T(SWEEP, 1), T(SWEEP, 4), T(4, 2), FLOAT(0.75), FLOAT(-1.5)},
     ref_addmm, .c = 3, .depth = 5,
     .grad = true, .many = 3001},
    {"addmm", "number, factors", {T(), T(2, SWEEP), T(SWEEP, 3), FLOAT(2), INT(1)}, ref_addmm,
     .c = 3, .depth = SWEEP, .grad = true},
    {"addmm", "beta 0", {T(SWEEP, 3), T(SWEEP, 5), T(5, 3), INT(0), FLOAT(2)}, ref_addmm, .c = 2,
     .depth = 5, .grad = true},
    {"addmm", "alpha 0", {T(SWEEP, 3), T(SWEEP, 5), T(5, 3), FLOAT(2), INT(0)}, ref_addmm, .c = 2,
     .grad = true},
    {"addmm", "integers", {T_WHOLE(-3, 4, SWEEP, 3), T_WHOLE(-3, 4, SWEEP, 5), T_WHOLE(-3, 4, 5, 3),
                           INT(-2), INT(3)}, ref_addmm,
     .dtypes = DT_INTS, .bad = {{3, FLOAT(0.5), TS_ERR_DTYPE, "whole number"}}},
    {"bmm", "batch", {T(SWEEP, 3, 4), T(SWEEP, 4, 2)}, ref_bmm, .c = 2, .depth = 4, .grad = true,
     .many = 3001,
     .bad = {{1, T(3, 5, 2), TS_ERR_SHAPE, "bmm"}, {1, T(4, 4, 2), TS_ERR_SHAPE, "bmm"},
             {1, T(4, 2), TS_ERR_SHAPE, "3 dims"}}},
    {"bmm", "inner", {T(2, 3, SWEEP), T(2, SWEEP, 5)}, ref_bmm, .c = 2, .depth = SWEEP,
     .grad = true},
    {"bmm", "square", {T(3, SWEEP, SWEEP), T(3, SWEEP, SWEEP)}, ref_bmm, .c = 2, .depth = SWEEP,
     .most = 33, .many = 120},
    {"bmm", "integers", {T_WHOLE(-60000, 60000, 3, SWEEP, 18), T_WHOLE(-60000, 60000, 3, 18, 5)},
     ref_bmm, .dtypes = DT_INTS, .many = 3001},
    {"linear", "2 dims", {T(SWEEP, 5), T(4, 5), T(4)}, ref_linear, .c = 2, .depth = 6, .grad = true,
     .bad = {{1, T(4, 6), TS_ERR_SHAPE, "linear"}, {2, T(5), TS_ERR_SHAPE, "bias"},
             {1, T(5), TS_ERR_SHAPE, "2 dims"}}},
    {"linear", "no bias", {T(3, SWEEP), T(2, SWEEP), ABSENT}, ref_linear, .c = 2, .depth = SWEEP,
     .grad = true},
    {"linear", "3 dims", {T(2, SWEEP, 3), T(5, 3), T(5)}, ref_linear, .c = 2, .depth = 4,
     .grad = true},
    {"linear", "1 dim", {T(SWEEP), T(4, SWEEP), T(4)}, ref_linear, .c = 2, .depth = SWEEP,
     .grad = true},
    {"linear", "wide", {T(33, 65), T(SWEEP, 65), T(SWEEP)}, ref_linear, .c = 2, .depth = 66,
     .most = 65, .many = 501},
    {"linear", "integers", {T_WHOLE(-60000, 60000, 2, SWEEP, 17), T_WHOLE(-60000, 60000, 66, 17),
                            T_WHOLE(-60000, 60000, 66)}, ref_linear,
     .dtypes = DT_INTS, .many = 3001},
    {"linear_backward", "2 dims", {T(SWEEP, 4), T(SWEEP, 5), T(4, 5)}, ref_linear_backward, .c = 2,
     .depth = SWEEP, .scale = 1,
     .grad = true},
    {"linear_backward", "3 dims", {T(2, SWEEP, 4), T(2, SWEEP, 3), T(4, 3)}, ref_linear_backward,
     .c = 4, .depth = SWEEP,
     .grad = true},
    {"linear_backward", "integers",
     {T_WHOLE(-60000, 60000, 2, SWEEP, 4), T_WHOLE(-60000, 60000, 2, SWEEP, 3),
      T_WHOLE(-60000, 60000, 4, 3)},
     ref_linear_backward, .dtypes = DT_INTS},
    {"linear_gelu", "2 dims, erf", {T(SWEEP, 5), T(4, 5), T(4), BOOL(false)}, ref_linear_gelu,
     .c = 4, .depth = 6, .grad = true,
     .bad = {{1, T(4, 6), TS_ERR_SHAPE, "linear_gelu"}, {2, T(5), TS_ERR_SHAPE, "bias"},
             {0, T_OF(TS_I64, 3, 5), TS_ERR_DTYPE, "floating"}}},
    {"linear_gelu", "2 dims, tanh", {T(SWEEP, 8), T(16, 8), T(16), BOOL(true)}, ref_linear_gelu,
     .c = 4, .depth = 9, .grad = true},
    {"linear_gelu", "no bias", {T(3, SWEEP), T(2, SWEEP), ABSENT, BOOL(true)}, ref_linear_gelu,
     .c = 4, .depth = SWEEP, .grad = true},
    {"linear_gelu", "3 dims", {T(2, SWEEP, 3), T(5, 3), T(5), BOOL(true)}, ref_linear_gelu, .c = 4,
     .depth = 4, .grad = true},
    {"matmul", "vectors", {T(SWEEP), T(SWEEP)}, ref_matmul, .c = 2, .depth = SWEEP, .grad = true,
     .bad = {{0, T(), TS_ERR_SHAPE, "at least 1 dim"}}},
    {"matmul", "row", {T(7), T(7, SWEEP)}, ref_matmul, .c = 2, .depth = 7, .grad = true},
    {"matmul", "column", {T(SWEEP, 7), T(7)}, ref_matmul, .c = 2, .depth = 7, .grad = true},
    {"matmul", "matrices", {T(SWEEP, 7), T(7, 5)}, ref_matmul, .c = 2, .depth = 7, .grad = true,
     .bad = {{1, T(6, 5), TS_ERR_SHAPE, "expected 7"}}},
    {"matmul", "list and matrix", {T(2, SWEEP, 7), T(7, 5)}, ref_matmul, .c = 2, .depth = 7,
     .many = 700, .grad = true},
    {"matmul", "list and column", {T(2, SWEEP, 7), T(7)}, ref_matmul, .c = 2, .depth = 7,
     .many = 700, .grad = true},
    {"matmul", "row and list", {T(7), T(2, 7, SWEEP)}, ref_matmul, .c = 2, .depth = 7, .many = 700,
     .grad = true},
    {"matmul", "integers",
     {T_WHOLE(-60000, 60000, 2, 1, SWEEP, 4), T_WHOLE(-60000, 60000, 3, 4, 5)}, ref_matmul,
     .dtypes = DT_INTS, .many = 700},
    {"matmul", "broadcast", {T(2, 1, SWEEP, 4), T(3, 4, 5)}, ref_matmul, .c = 2, .depth = 4,
     .many = 700, .grad = true,
     .bad = {{0, T(2, 2, 5, 4), TS_ERR_SHAPE, "broadcast"}}},
};
TS_SAMPLES(matmul, samples)
