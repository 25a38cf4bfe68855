/** @file batch_norm.c  Conformance samples of batch norm and group norm. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>
#include <string.h>

static double parameter(const ts_ref_arg *a, int64_t i, double absent)
{
    return a->tag == TS_TAG_TENSOR ? a->x[i] : absent;
}

/** Sizes of a call's statistics: one per group of a sample, or one per channel of the batch. */
typedef struct statistics {
    const ts_ref_arg *x;
    int64_t channels, groups, positions; /* groups 0: batch norm */
    double eps;
} statistics;

static statistics statistics_of(const ts_ref_arg *x, int64_t groups, double eps)
{
    statistics s = {x, x->sizes[1], groups, ref_numel(x->sizes + 2, x->ndim - 2), eps};
    return s;
}
static int64_t channel_of(const statistics *s, int64_t i)
{
    return i / s->positions % s->channels;
}
/** Index of the statistic of element i. */
static int64_t set_of(const statistics *s, int64_t i)
{
    return s->groups ? i / (s->positions * (s->channels / s->groups)) : channel_of(s, i);
}
static double *statistic_ret(ts_ref *r, int i, const statistics *s)
{
    int64_t sizes[2] = {s->x->sizes[0], s->groups};
    return s->groups ? ref_ret(r, i, sizes, 2) : ref_ret(r, i, &s->channels, 1);
}

/** Adds x to a sum and the rounding error of this addition to *lost (Knuth 1997, 4.2.2). */
static void add(double *sum, double *lost, double x)
{
    double all = *sum + x, part = all - *sum;
    *lost += (*sum - (all - part)) + (x - part);
    *sum = all;
}

/** Means and variances (divided by n), with compensated sums. */
static void measure(ts_ref *r, const statistics *s, double *mean, double *var, int64_t sets)
{
    double n = sets ? (double)s->x->numel / (double)sets : 0, *lost = ref_scratch(r, 2 * sets);
    for (int64_t i = 0; i < s->x->numel; i++)
        add(&mean[set_of(s, i)], &lost[2 * set_of(s, i)], s->x->x[i]);
    for (int64_t k = 0; k < sets; k++)
        mean[k] = n > 0 ? (double)(((long double)mean[k] + lost[2 * k]) / n) : NAN;
    for (int64_t i = 0; i < s->x->numel; i++) {
        double d = s->x->x[i] - mean[set_of(s, i)];
        add(&var[set_of(s, i)], &lost[2 * set_of(s, i) + 1], d * d);
    }
    for (int64_t k = 0; k < sets; k++)
        var[k] = n > 0 ? (var[k] + lost[2 * k + 1]) / n : NAN;
}

/** (x - mean) / sqrt(var + eps) * weight + bias; parameters are arguments `at` and the next. */
static void normalise(ts_ref *r, const statistics *s, const double *mean, const double *var, int at)
{
    double *y = ref_ret_like(r, 0, s->x);
    r->scale[0] = ref_scratch(r, s->x->numel);
    for (int64_t i = 0; i < s->x->numel; i++) {
        int64_t k = set_of(s, i), c = channel_of(s, i);
        double rstd = 1 / sqrt(var[k] + s->eps), w = parameter(&r->a[at], c, 1),
               b = parameter(&r->a[at + 1], c, 0);
        y[i] = (s->x->x[i] - mean[k]) * rstd * w + b;
        /* error that the rounding of x and the mean leaves if they cancel */
        r->scale[0][i] = (fabs(s->x->x[i]) + fabs(mean[k])) * rstd * fabs(w) + fabs(b);
    }
}

static void ref_batch_norm(ts_ref *r)
{
    statistics s = statistics_of(&r->a[0], 0, r->a[5].d);
    double *mean = statistic_ret(r, 1, &s), *var = statistic_ret(r, 2, &s);
    if (r->a[1].tag == TS_TAG_TENSOR) {
        memcpy(mean, r->a[1].x, (size_t)s.channels * sizeof *mean);
        memcpy(var, r->a[2].x, (size_t)s.channels * sizeof *var);
    } else {
        measure(r, &s, mean, var, s.channels);
    }
    normalise(r, &s, mean, var, 3);
}

static void ref_batch_norm_relu(ts_ref *r)
{
    ref_batch_norm(r);
    double *y = r->ret[0].x;
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        y[i] = y[i] < 0 ? 0 : y[i];
}

static void ref_group_norm(ts_ref *r)
{
    statistics s = statistics_of(&r->a[0], r->a[1].i, r->a[4].d);
    double *mean = statistic_ret(r, 1, &s), *var = statistic_ret(r, 2, &s);
    measure(r, &s, mean, var, s.x->sizes[0] * s.groups);
    normalise(r, &s, mean, var, 2);
}

/** Expected results for equal elements: result 0, the exact mean, variance 0. */
static void ref_of_equal(ts_ref *r)
{
    bool batch = r->a[1].tag == TS_TAG_NONE;
    statistics s = statistics_of(&r->a[0], batch ? 0 : r->a[1].i, 0);
    ref_ret_like(r, 0, s.x);
    double *mean = statistic_ret(r, 1, &s);
    statistic_ret(r, 2, &s);
    for (int64_t i = 0; i < s.x->numel; i++)
        mean[set_of(&s, i)] = s.x->x[i];
}

/** Gradients by the definition: dx = rstd (gw - mean(gw) - z mean(gw z)), or rstd gw for constant
 * statistics; dw = sum(g z), db = sum(g). bias: not NULL if the result went through relu. */
static void gradients(ts_ref *r, const statistics *s, bool constant, const ts_ref_arg *bias)
{
    const ts_ref_arg *g = &r->a[0], *mean = &r->a[2], *var = &r->a[3], *w = &r->a[4];
    double *dx = ref_ret_like(r, 0, s->x), *dw = ref_ret(r, 1, &s->channels, 1),
           *db = ref_ret(r, 2, &s->channels, 1), *shift = ref_scratch(r, mean->numel),
           *along = ref_scratch(r, mean->numel);
    double n = mean->numel ? (double)s->x->numel / (double)mean->numel : 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < s->x->numel; i++) {
            int64_t k = set_of(s, i), c = channel_of(s, i);
            double rstd = 1 / sqrt(var->x[k] + s->eps), z = (s->x->x[i] - mean->x[k]) * rstd,
                   f = parameter(w, c, 1),
                   gi = bias && z * f + parameter(bias, c, 0) <= 0 ? 0 : g->x[i], h = gi * f;
            if (pass == 0) {
                dw[c] += gi * z;
                db[c] += gi;
                shift[k] += h / n;
                along[k] += h * z / n;
            } else {
                dx[i] = rstd * (constant ? h : h - shift[k] - z * along[k]);
            }
        }
}

static void ref_batch_norm_backward(ts_ref *r)
{
    statistics s = statistics_of(&r->a[1], 0, r->a[5].d);
    gradients(r, &s, r->a[6].i, NULL);
}
static void ref_batch_norm_relu_backward(ts_ref *r)
{
    statistics s = statistics_of(&r->a[1], 0, r->a[6].d);
    gradients(r, &s, r->a[7].i, &r->a[5]);
}
static void ref_group_norm_backward(ts_ref *r)
{
    statistics s = statistics_of(&r->a[1], r->a[5].i, r->a[6].d);
    gradients(r, &s, false, NULL);
}

static void ref_update(ts_ref *r)
{
    double n = (double)r->a[4].i, rate = r->a[5].d;
    for (int q = 0; q < 2; q++) {
        double *y = ref_ret_like(r, q, &r->a[q]);
        for (int64_t i = 0; i < r->a[q].numel; i++)
            y[i] = (1 - rate) * r->a[q].x[i] + rate * r->a[2 + q].x[i] * (q ? n / (n - 1) : 1);
    }
}

#define STATISTICS .out = {0, OUT_WIDE, OUT_WIDE}
/** Integers: with a bias of 0.2 to 0.4, results of a batch norm are not near relu's kink. */
#define APART(...) T_WHOLE(-3, 3, __VA_ARGS__)
#define EQUAL(...) T_UNIFORM(1.1, 1.1, __VA_ARGS__)
static const ts_sample samples[] = {
    {"batch_norm", "images", {T(SWEEP, 6, 2, 3), ABSENT, ABSENT, T(6), T(6), FLOAT(1e-5)},
     ref_batch_norm, STATISTICS, .c = 8, .depth = SWEEP, .scale = 4, .grad = true, .grad_c = 256,
     .most = 65, .many = 4001,
     .bad = {{3, T(4), TS_ERR_SHAPE, "weight"}, {4, T(4), TS_ERR_SHAPE, "bias"},
             {0, T(6), TS_ERR_SHAPE, "dims"}, {0, T(1, 6, 1), TS_ERR_SHAPE,
                                               "more than one element"},
             {0, T_OF(TS_I64, 2, 6), TS_ERR_DTYPE, "float"},
             {1, T(6), TS_ERR_VALUE, "as argument 'mean'"}}},
    {"batch_norm", "rows", {T(7, SWEEP), ABSENT, ABSENT, T(SWEEP), ABSENT, FLOAT(0.1)},
     ref_batch_norm, STATISTICS, .c = 8, .depth = 7, .scale = 4, .grad = true, .grad_c = 256},
    {"batch_norm", "long rows", {T(2, 3, SWEEP, 33), ABSENT, ABSENT, ABSENT, T(3), FLOAT(1e-3)},
     ref_batch_norm, STATISTICS, .c = 8, .depth = SWEEP, .scale = 4, .grad = true, .grad_c = 256,
     .many = 1201},
    {"batch_norm", "channels", {T(3, SWEEP, 5), ABSENT, ABSENT, T(SWEEP), T(SWEEP), FLOAT(1e-5)},
     ref_batch_norm, STATISTICS, .c = 8, .depth = 15, .scale = 4, .grad = true, .grad_c = 256,
     .many = 4001},
    {"batch_norm", "running statistics",
     {T(SWEEP, 6, 2, 3), T(6), T_POSITIVE(6), T(6), T(6), FLOAT(1e-5)}, ref_batch_norm, STATISTICS,
     .c = 8, .scale = 4, .grad = true, .grad_c = 256, .most = 65, .many = 4001,
     .bad = {{1, T(5), TS_ERR_SHAPE, "mean"}, {2, T(5), TS_ERR_SHAPE, "var"},
             {2, ABSENT, TS_ERR_VALUE, "as argument 'mean'"}}},
    {"batch_norm", "running statistics of rows",
     {T(SWEEP, 5), T(5), T_POSITIVE(5), ABSENT, ABSENT, FLOAT(0.1)}, ref_batch_norm, STATISTICS,
     .c = 8, .scale = 4, .grad = true, .grad_c = 256},
    {"batch_norm", "parameters in f32",
     {T(SWEEP, 6, 2, 3), ABSENT, ABSENT, T_OF(TS_F32, 6), T_OF(TS_F32, 6), FLOAT(1e-5)},
     ref_batch_norm, STATISTICS, .dtypes = DT_HALVES, .c = 8, .depth = SWEEP, .scale = 4,
     .most = 65, .many = 4001},
    {"batch_norm", "equal elements", {EQUAL(3, 4, SWEEP), ABSENT, ABSENT, ABSENT, ABSENT,
                                      FLOAT(1e-5)},
     ref_of_equal, STATISTICS, .c = 0, .no_empty = true},
    {"batch_norm_backward", "images",
     {T(SWEEP, 4, 2, 3), T(SWEEP, 4, 2, 3), T(4), T_POSITIVE(4), T(4), FLOAT(1e-5), BOOL(false)},
     ref_batch_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true, .grad_c = 256,
     .most = 65, .many = 4001,
     .bad = {{0, T(2, 4, 3), TS_ERR_SHAPE, "grad"}, {2, T(3), TS_ERR_SHAPE, "mean"},
             {4, T(3), TS_ERR_SHAPE, "weight"}}},
    {"batch_norm_backward", "rows",
     {T(SWEEP, 5), T(SWEEP, 5), T(5), T_POSITIVE(5), ABSENT, FLOAT(0.1), BOOL(false)},
     ref_batch_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true, .grad_c = 256},
    {"batch_norm_backward", "constant",
     {T(SWEEP, 4, 6), T(SWEEP, 4, 6), T(4), T_POSITIVE(4), T(4), FLOAT(1e-5), BOOL(true)},
     ref_batch_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true, .grad_c = 256,
     .most = 65, .many = 4001},
    {"batch_norm_relu", "images",
     {T(SWEEP, 6, 2, 3), ABSENT, ABSENT, T(6), T(6), FLOAT(1e-5)}, ref_batch_norm_relu, STATISTICS,
     .c = 8, .depth = SWEEP, .scale = 4, .most = 65, .many = 4001,
     .bad = {{3, T(4), TS_ERR_SHAPE, "weight"}, {0, T(6), TS_ERR_SHAPE, "dims"},
             {1, T(6), TS_ERR_VALUE, "as argument 'mean'"}}},
    {"batch_norm_relu", "rows", {T(7, SWEEP), ABSENT, ABSENT, ABSENT, T(SWEEP), FLOAT(0.1)},
     ref_batch_norm_relu, STATISTICS, .c = 8, .depth = 7, .scale = 4},
    {"batch_norm_relu", "running statistics",
     {APART(SWEEP, 6, 2, 3), APART(6), T_UNIFORM(0.1, 1, 6), T_UNIFORM(1, 2, 6),
      T_UNIFORM(0.2, 0.4, 6), FLOAT(1e-5)}, ref_batch_norm_relu, STATISTICS,
     .c = 8, .scale = 4, .grad = true, .grad_c = 256, .most = 65, .many = 4001},
    {"batch_norm_relu_backward", "images",
     {T(SWEEP, 4, 2, 3), APART(SWEEP, 4, 2, 3), APART(4), T_UNIFORM(0.1, 1, 4),
      T_UNIFORM(1, 2, 4), T_UNIFORM(0.2, 0.4, 4), FLOAT(1e-5), BOOL(false)},
     ref_batch_norm_relu_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true,
     .grad_c = 256, .most = 65, .many = 4001,
     .bad = {{0, T(2, 4, 3), TS_ERR_SHAPE, "grad"}, {2, T(3), TS_ERR_SHAPE, "mean"},
             {5, T(3), TS_ERR_SHAPE, "bias"}}},
    {"batch_norm_relu_backward", "constant",
     {T(SWEEP, 4, 6), APART(SWEEP, 4, 6), APART(4), T_UNIFORM(0.1, 1, 4), ABSENT,
      T_UNIFORM(0.2, 0.4, 4), FLOAT(1e-5), BOOL(true)},
     ref_batch_norm_relu_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true,
     .grad_c = 256, .most = 65, .many = 4001},
    {"batch_norm_update", "statistics",
     {T(SWEEP), T_POSITIVE(SWEEP), T(SWEEP), T_POSITIVE(SWEEP), INT(5), FLOAT(0.1)}, ref_update,
     .c = 4, .scale = 1, .no_expand = true, .no_layouts = true,
     .bad = {{1, T(2), TS_ERR_SHAPE, "running_var"}, {4, INT(1), TS_ERR_VALUE, "2 elements"},
             {5, FLOAT(1.5), TS_ERR_VALUE, "0 to 1"}, {2, T_OF(TS_I64, 3), TS_ERR_DTYPE, "float"}}},
    {"group_norm", "images", {T(SWEEP, 6, 2, 3), INT(3), T(6), T(6), FLOAT(1e-5)}, ref_group_norm,
     STATISTICS, .c = 8, .depth = 12, .scale = 4, .grad = true, .grad_c = 256, .most = 65,
     .many = 4001,
     .bad = {{1, INT(4), TS_ERR_VALUE, "divisor"}, {2, T(4), TS_ERR_SHAPE, "weight"},
             {3, T(4), TS_ERR_SHAPE, "bias"}, {0, T(6), TS_ERR_SHAPE, "dims"},
             {0, T_OF(TS_I64, 2, 6), TS_ERR_DTYPE, "float"}}},
    {"group_norm", "one group", {T(SWEEP, 4), INT(1), T(4), ABSENT, FLOAT(0.1)}, ref_group_norm,
     STATISTICS, .c = 8, .depth = 4, .scale = 4, .grad = true, .grad_c = 256},
    {"group_norm", "no affine", {T(3, 4, SWEEP), INT(2), ABSENT, ABSENT, FLOAT(1e-5)},
     ref_group_norm, STATISTICS, .c = 8, .depth = SWEEP, .scale = 4, .grad = true, .grad_c = 256},
    {"group_norm", "bias alone", {T(SWEEP, 4, 5), INT(4), ABSENT, T(4), FLOAT(1e-5)},
     ref_group_norm, STATISTICS, .c = 8, .depth = 5, .scale = 4, .grad = true, .grad_c = 256},
    {"group_norm", "equal elements", {EQUAL(3, 4, SWEEP), INT(2), ABSENT, ABSENT, FLOAT(1e-5)},
     ref_of_equal, STATISTICS, .c = 0, .no_empty = true},
    {"group_norm_backward", "images",
     {T(SWEEP, 6, 2, 3), T(SWEEP, 6, 2, 3), T(SWEEP, 3), T_POSITIVE(SWEEP, 3), T(6), INT(3),
      FLOAT(1e-5)},
     ref_group_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true, .grad_c = 256,
     .most = 65, .many = 4001},
    {"group_norm_backward", "instances",
     {T(3, SWEEP, 7), T(3, SWEEP, 7), T(3, SWEEP), T_POSITIVE(3, SWEEP), ABSENT, INT(SWEEP),
      FLOAT(0.1)},
     ref_group_norm_backward, .c = 16, .depth = SWEEP, .scale = 64, .grad = true, .grad_c = 256,
     .most = 65, .many = 4001, .no_empty = true},
};
TS_SAMPLES(batch_norm, samples)
