/** @file softmax.c  Samples of softmax, log_softmax and their gradients. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

/** Applies fn to each line of n elements with stride `step` along the dim in argument dim_arg.
 * other: the line of argument 1, or of argument 0 if argument 1 is not a tensor. */
static void rows(ts_ref *r, int dim_arg,
                 void (*fn)(double *y, const double *x, const double *other, int64_t n,
                            int64_t step))
{
    int64_t outer, n, inner;
    ref_split(&r->a[0], r->a[dim_arg].i, &outer, &n, &inner);
    double *y = ref_ret_like(r, 0, &r->a[0]);
    const double *x = r->a[0].x, *other = r->a[1].tag == TS_TAG_TENSOR ? r->a[1].x : x;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t at = o * n * inner + i;
            fn(y + at, x + at, other + at, n, inner);
        }
}

/** Sum of exp(x - m), m the largest. */
static double exp_sum(const double *x, int64_t n, int64_t step, double *m)
{
    double s = 0;
    *m = -INFINITY;
    for (int64_t k = 0; k < n; k++)
        *m = fmax(*m, x[k * step]);
    for (int64_t k = 0; k < n; k++)
        s += exp(x[k * step] - *m);
    return s;
}

static void softmax(double *y, const double *x, const double *other, int64_t n, int64_t step)
{
    double m, s = exp_sum(x, n, step, &m);
    (void)other;
    for (int64_t k = 0; k < n; k++)
        y[k * step] = exp(x[k * step] - m) / s;
}
static void log_softmax(double *y, const double *x, const double *other, int64_t n, int64_t step)
{
    double m, s = exp_sum(x, n, step, &m);
    (void)other;
    for (int64_t k = 0; k < n; k++)
        y[k * step] = x[k * step] - m - log(s);
}
/** y (g - sum(g y)) */
static void softmax_backward(double *out, const double *g, const double *y, int64_t n, int64_t step)
{
    double s = 0;
    for (int64_t k = 0; k < n; k++)
        s += g[k * step] * y[k * step];
    for (int64_t k = 0; k < n; k++)
        out[k * step] = y[k * step] * (g[k * step] - s);
}
/** g - exp(y) sum(g) */
static void log_softmax_backward(double *out, const double *g, const double *y, int64_t n,
                                 int64_t step)
{
    double s = 0;
    for (int64_t k = 0; k < n; k++)
        s += g[k * step];
    for (int64_t k = 0; k < n; k++)
        out[k * step] = g[k * step] - exp(y[k * step]) * s;
}

static void ref_softmax(ts_ref *r) { rows(r, 1, softmax); }
static void ref_log_softmax(ts_ref *r) { rows(r, 1, log_softmax); }
static void ref_softmax_backward(ts_ref *r) { rows(r, 2, softmax_backward); }
static void ref_log_softmax_backward(ts_ref *r) { rows(r, 2, log_softmax_backward); }

#define VALUES(...) T_UNIFORM(-6, 6, __VA_ARGS__)
#define SHAPES(op, ref)                                                                            \
    {op, "last dim", {VALUES(3, SWEEP), INT(-1)}, ref, .c = 4, .depth = SWEEP, .scale = 1,         \
     .grad = true,                                                                                 \
     .bad = {{1, INT(2), TS_ERR_INDEX, "dim"}, {1, INT(-3), TS_ERR_INDEX, "dim"},                  \
             {0, T_OF(TS_I64, 2, 3), TS_ERR_DTYPE, "float"}}},                                     \
    {op, "first dim", {VALUES(SWEEP, 4), INT(0)}, ref, .c = 4, .depth = SWEEP, .scale = 1,         \
     .grad = true},                                                                                \
    {op, "middle", {VALUES(2, SWEEP, 3), INT(1)}, ref, .c = 4, .depth = SWEEP, .scale = 1,         \
     .grad = true},                                                                                \
    {op, "many rows", {VALUES(SWEEP, 5), INT(1)}, ref, .c = 4, .depth = 5, .scale = 1},            \
    {op, "0-dim", {VALUES(), INT(0)}, ref, .c = 4, .grad = true},                                  \
    {op, "large", {T_UNIFORM(-1000, 1000, 5, 7), INT(1)}, ref, .c = 4, .depth = 7, .scale = 1}
#define BACKWARD(op, ref, result)                                                                  \
    {op, "last dim", {T(3, SWEEP), result(3, SWEEP), INT(1)}, ref, .c = 4, .depth = SWEEP,         \
     .scale = 2, .grad = true,                                                                     \
     .bad = {{1, T(3, 2), TS_ERR_SHAPE, "sizes"}, {2, INT(2), TS_ERR_INDEX, "dim"}}},              \
    {op, "first dim", {T(SWEEP, 4), result(SWEEP, 4), INT(0)}, ref, .c = 4, .depth = SWEEP,        \
     .scale = 2, .grad = true}
#define PROBABILITIES(...) T_UNIFORM(0, 0.1, __VA_ARGS__)
#define LOGARITHMS(...) T_UNIFORM(-9, -1, __VA_ARGS__)

static const ts_sample samples[] = {
    SHAPES("softmax", ref_softmax),
    SHAPES("log_softmax", ref_log_softmax),
    BACKWARD("softmax_backward", ref_softmax_backward, PROBABILITIES),
    BACKWARD("log_softmax_backward", ref_log_softmax_backward, LOGARITHMS),
    {"softmax", "into f64", {VALUES(3, SWEEP), INT(1), DTYPE(TS_F64)}, ref_softmax, .c = 8,
     .depth = SWEEP, .scale = 1,
     .dtypes = TS_DT(TS_F32), .out = {OUT(TS_F64)}},
};
TS_SAMPLES(softmax, samples)
