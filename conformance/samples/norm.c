/** @file norm.c  Samples of layer and RMS normalisation. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>

static int64_t row_size(const ts_ref_arg *x, int64_t dims)
{
    int64_t n = 1;
    for (int d = x->ndim - (int)dims; d < x->ndim; d++)
        n *= x->sizes[d];
    return n;
}

/** Result i with one number per row: the sizes of x with ones for the last `dims` dims. */
static double *per_row(ts_ref *r, int i, const ts_ref_arg *x, int64_t dims)
{
    int64_t sizes[TS_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d < x->ndim - dims ? x->sizes[d] : 1;
    return ref_ret(r, i, sizes, x->ndim);
}

static double affine(const ts_ref_arg *a, int64_t i, double absent)
{
    return a->tag == TS_TAG_TENSOR ? a->x[i] : absent;
}

/** (x - mean) / sqrt(var + eps) * weight + bias; mean; 1 / sqrt(var + eps). values: elements of x;
 * at: index of the argument with the number of normalised dims. */
static void layer_norm(ts_ref *r, const double *values, int at)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t dims = r->a[at].i, n = row_size(x, dims);
    int64_t rows = ref_numel(x->sizes, x->ndim - (int)dims);
    double eps = r->a[at + 3].d, *y = ref_ret_like(r, 0, x), *mean = per_row(r, at, x, dims),
           *rstd = per_row(r, at + 1, x, dims);
    r->scale[0] = ref_scratch(r, x->numel);
    for (int64_t i = 0; i < rows; i++) {
        const double *row = values + i * n;
        long double m = n ? 0 : NAN, v = m; /* the variance of equal elements must be 0 */
        for (int64_t k = 0; k < n; k++)
            m += row[k] / (long double)n;
        for (int64_t k = 0; k < n; k++)
            v += (row[k] - m) * (row[k] - m) / n;
        mean[i] = (double)m;
        rstd[i] = 1 / sqrt((double)v + eps);
        for (int64_t k = 0; k < n; k++) {
            double w = affine(&r->a[at + 1], k, 1), b = affine(&r->a[at + 2], k, 0);
            y[i * n + k] = (double)(row[k] - m) * rstd[i] * w + b;
            /* the rounding error of x and its mean, when they cancel */
            r->scale[0][i * n + k] = (fabs(row[k]) + fabs((double)m)) * rstd[i] * fabs(w) + fabs(b);
        }
    }
}

static void ref_layer_norm(ts_ref *r) { layer_norm(r, r->a[0].x, 1); }

/** The sum is rounded before it is normalised. */
static void ref_add_layer_norm(ts_ref *r)
{
    double *sum = ref_ret_like(r, 1, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        sum[i] = round_to(r->a[0].x[i] + r->a[1].x[i], r->dtype);
    layer_norm(r, sum, 2);
}

/** By definition: dx = rstd (gw - mean(gw) - xhat mean(gw xhat)), dw = sum(g xhat), db = sum(g) */
static void ref_layer_norm_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *x = &r->a[1], *w = &r->a[4];
    int64_t dims = r->a[5].i, n = row_size(x, dims), rows = n ? x->numel / n : 0;
    double *dx = ref_ret_like(r, 0, x), *dw = ref_ret(r, 1, x->sizes + x->ndim - dims, (int)dims);
    double *db = ref_ret(r, 2, x->sizes + x->ndim - dims, (int)dims);
    for (int64_t i = 0; i < rows; i++) {
        double m = r->a[2].x[i], rstd = r->a[3].x[i], a = 0, b = 0;
        const double *gr = g->x + i * n, *xr = x->x + i * n;
        for (int64_t k = 0; k < n; k++) {
            double hat = (xr[k] - m) * rstd, gw = gr[k] * affine(w, k, 1);
            a += gw / (double)n;
            b += gw * hat / (double)n;
            dw[k] += gr[k] * hat;
            db[k] += gr[k];
        }
        for (int64_t k = 0; k < n; k++)
            dx[i * n + k] = rstd * (gr[k] * affine(w, k, 1) - a - (xr[k] - m) * rstd * b);
    }
}

/** Results for rows of equal elements: 0, exactly their value as mean, and 1 / sqrt(eps). Argument
 * `at` is the number of normalised dims. */
static void equal_rows(ts_ref *r, const double *values, int at)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t dims = r->a[at].i, n = row_size(x, dims), rows = n ? x->numel / n : 0;
    ref_ret_like(r, 0, x);
    double *mean = per_row(r, at, x, dims), *rstd = per_row(r, at + 1, x, dims);
    for (int64_t i = 0; i < rows; i++) {
        mean[i] = values[i * n];
        rstd[i] = 1 / sqrt(r->a[at + 3].d);
    }
}
static void ref_layer_norm_of_equal(ts_ref *r) { equal_rows(r, r->a[0].x, 1); }
static void ref_add_layer_norm_of_equal(ts_ref *r)
{
    double *sum = ref_ret_like(r, 1, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        sum[i] = round_to(r->a[0].x[i] + r->a[1].x[i], r->dtype);
    equal_rows(r, sum, 2);
}

/** The gradient of weight is exactly 0 where each element is its row's mean. */
static void ref_layer_norm_backward_of_equal(ts_ref *r)
{
    ref_layer_norm_backward(r);
    for (int i = 0; i < 3; i++) {
        r->scale[i] = ref_scratch(r, r->ret[i].numel);
        for (int64_t k = 0; i != 1 && k < r->ret[i].numel; k++)
            r->scale[i][k] = 64;
    }
}

static void ref_rms_norm(ts_ref *r)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t dims = r->a[1].i, n = row_size(x, dims);
    int64_t rows = ref_numel(x->sizes, x->ndim - (int)dims);
    double eps = r->a[3].d, *y = ref_ret_like(r, 0, x), *rstd = per_row(r, 1, x, dims);
    for (int64_t i = 0; i < rows; i++) {
        double s = n ? 0 : NAN;
        for (int64_t k = 0; k < n; k++)
            s += x->x[i * n + k] * x->x[i * n + k] / (double)n;
        rstd[i] = 1 / sqrt(s + eps);
        for (int64_t k = 0; k < n; k++)
            y[i * n + k] = x->x[i * n + k] * rstd[i] * affine(&r->a[2], k, 1);
    }
}

/** dx = rstd (gw - xhat mean(gw xhat)), dw = sum(g xhat) */
static void ref_rms_norm_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *x = &r->a[1], *w = &r->a[3];
    int64_t dims = r->a[4].i, n = row_size(x, dims), rows = n ? x->numel / n : 0;
    double *dx = ref_ret_like(r, 0, x), *dw = ref_ret(r, 1, x->sizes + x->ndim - dims, (int)dims);
    for (int64_t i = 0; i < rows; i++) {
        double rstd = r->a[2].x[i], b = 0;
        for (int64_t k = 0; k < n; k++) {
            double hat = x->x[i * n + k] * rstd;
            b += g->x[i * n + k] * affine(w, k, 1) * hat / (double)n;
            dw[k] += g->x[i * n + k] * hat;
        }
        for (int64_t k = 0; k < n; k++)
            dx[i * n + k] = rstd * (g->x[i * n + k] * affine(w, k, 1) - x->x[i * n + k] * rstd * b);
    }
}

static const ts_sample samples[] = {
#define EQUAL(...) T_UNIFORM(1.1, 1.1, __VA_ARGS__)
    {"layer_norm", "equal elements", {EQUAL(3, SWEEP), INT(1), T(SWEEP), ABSENT, FLOAT(1e-5)},
     ref_layer_norm_of_equal, .out = {0, OUT_WIDE, OUT_WIDE}, .c = 4, .no_empty = true},
    {"layer_norm", "long rows of equal elements",
     {EQUAL(2, 24000), INT(1), ABSENT, ABSENT, FLOAT(1e-5)}, ref_layer_norm_of_equal,
     .out = {0, OUT_WIDE, OUT_WIDE}, .c = 4},
    {"layer_norm_backward", "equal elements",
     {T(SWEEP, 7), EQUAL(SWEEP, 7), EQUAL(SWEEP, 1), T_POSITIVE(SWEEP, 1), T(7), INT(1)},
     ref_layer_norm_backward_of_equal, .c = 16, .depth = SWEEP},
    {"layer_norm_backward", "long rows of equal elements",
     {T(3, 2048), EQUAL(3, 2048), EQUAL(3, 1), T_POSITIVE(3, 1), T(2048), INT(1)},
     ref_layer_norm_backward_of_equal, .c = 16, .depth = 2048},
    {"add_layer_norm", "equal elements",
     {EQUAL(3, SWEEP), EQUAL(3, SWEEP), INT(1), T(SWEEP), ABSENT, FLOAT(1e-5)},
     ref_add_layer_norm_of_equal, .out = {0, 0, OUT_WIDE, OUT_WIDE}, .c = 4, .no_empty = true},
#undef EQUAL
    {"layer_norm", "rows", {T(SWEEP, 5), INT(1), T(5), T(5), FLOAT(1e-5)}, ref_layer_norm,
     .out = {0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 5, .scale = 4,
     .grad = true, .grad_c = 256,
     .bad = {{2, T(4), TS_ERR_SHAPE, "weight"}, {3, T(4), TS_ERR_SHAPE, "bias"},
             {1, INT(3), TS_ERR_SHAPE, "dims"},
             {0, T_OF(TS_I64, 3, 5), TS_ERR_DTYPE, "float"}}},
    {"layer_norm", "wide", {T(4, 257), INT(1), T(257), T(257), FLOAT(1e-5)}, ref_layer_norm,
     .out = {0, OUT_WIDE, OUT_WIDE}, .c = 4, .depth = 257, .scale = 1},
    {"layer_norm", "two dims", {T(SWEEP, 3, 4), INT(2), T(3, 4), T(3, 4), FLOAT(1e-5)},
     ref_layer_norm, .out = {0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 12,
     .scale = 4, .grad = true, .grad_c = 256},
    {"layer_norm", "no affine", {T(SWEEP, 7), INT(1), ABSENT, ABSENT, FLOAT(1e-5)}, ref_layer_norm,
     .out = {0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 7,
     .scale = 4, .grad = true, .grad_c = 256},
    {"layer_norm", "weight alone", {T(SWEEP, 7), INT(1), T(7), ABSENT, FLOAT(0.1)}, ref_layer_norm,
     .out = {0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 7,
     .scale = 4, .grad = true, .grad_c = 256},
    {"layer_norm", "rows of nothing", {T(SWEEP, 0), INT(1), ABSENT, ABSENT, FLOAT(1e-5)},
     ref_layer_norm, .out = {0, OUT_WIDE, OUT_WIDE}},
    {"layer_norm_backward", "rows",
     {T(SWEEP, 5), T(SWEEP, 5), T(SWEEP, 1), T_POSITIVE(SWEEP, 1), T(5), INT(1)},
     ref_layer_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true},
    {"layer_norm_backward", "two dims",
     {T(SWEEP, 2, 3), T(SWEEP, 2, 3), T(SWEEP, 1, 1), T_POSITIVE(SWEEP, 1, 1), T(2, 3), INT(2)},
     ref_layer_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true},
    {"add_layer_norm", "rows", {T(SWEEP, 5), T(SWEEP, 5), INT(1), T(5), T(5), FLOAT(1e-5)},
     ref_add_layer_norm,
     .out = {0, 0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 5, .scale = 4, .grad = true, .grad_c = 256,
     .bad = {{3, T(4), TS_ERR_SHAPE, "weight"}, {1, T(4), TS_ERR_SHAPE, "residual"},
             {2, INT(3), TS_ERR_SHAPE, "dims"},
             {1, T_OF(TS_I64, 3, 5), TS_ERR_DTYPE, "residual"}}},
    {"add_layer_norm", "wide", {T(4, 257), T(4, 257), INT(1), T(257), T(257), FLOAT(1e-5)},
     ref_add_layer_norm,
     .out = {0, 0, OUT_WIDE, OUT_WIDE}, .c = 4, .depth = 257, .scale = 1},
    {"add_layer_norm", "rows of nothing",
     {T(SWEEP, 0), T(SWEEP, 0), INT(1), ABSENT, ABSENT, FLOAT(1e-5)}, ref_add_layer_norm,
     .out = {0, 0, OUT_WIDE, OUT_WIDE}},
    {"add_layer_norm", "two dims, no affine",
     {T(SWEEP, 3, 4), T(SWEEP, 3, 4), INT(2), ABSENT, ABSENT, FLOAT(1e-5)}, ref_add_layer_norm,
     .out = {0, 0, OUT_WIDE, OUT_WIDE}, .c = 8, .depth = 12, .scale = 4, .grad = true,
     .grad_c = 256},
    {"rms_norm", "rows", {T(SWEEP, 5), INT(1), T(5), FLOAT(1e-6)}, ref_rms_norm,
     .out = {0, OUT_WIDE}, .c = 8, .depth = 5, .scale = 1, .grad = true,
     .grad_c = 256, .bad = {{2, T(4), TS_ERR_SHAPE, "weight"}, {1, INT(3), TS_ERR_SHAPE, "dims"}}},
    {"rms_norm", "wide", {T(4, 257), INT(1), T(257), FLOAT(1e-6)}, ref_rms_norm,
     .out = {0, OUT_WIDE}, .c = 4, .depth = 257, .scale = 1},
    {"rms_norm", "no weight", {T(SWEEP, 2, 3), INT(2), ABSENT, FLOAT(1e-6)}, ref_rms_norm,
     .out = {0, OUT_WIDE}, .c = 8, .depth = 6, .scale = 1,
     .grad = true, .grad_c = 256},
    {"rms_norm", "rows of nothing", {T(SWEEP, 0), INT(1), ABSENT, FLOAT(1e-6)}, ref_rms_norm,
     .out = {0, OUT_WIDE}},
    {"rms_norm_backward", "rows", {T(SWEEP, 5), T(SWEEP, 5), T_POSITIVE(SWEEP, 1), T(5), INT(1)},
     ref_rms_norm_backward, .c = 16,
     .depth = SWEEP, .scale = 64, .grad = true},
};
TS_SAMPLES(norm, samples)
