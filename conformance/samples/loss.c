/** @file loss.c  Samples of losses over classes and over pairs. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

/* ----------------------------------------------------------------------- classes ---------- */

/** Logits (C) or (N, C, …) by position: class c of position p is x[first(p) + c * step]. */
typedef struct classes {
    const ts_ref_arg *x, *target;
    int64_t n, step, positions, counting;
    double ignore;
} classes;

static classes classes_of(const ts_ref_arg *x, const ts_ref_arg *target, int64_t ignore)
{
    classes k = {.x = x, .target = target, .positions = target->numel, .ignore = (double)ignore};
    int64_t outer;
    ref_split(x, x->ndim > 1, &outer, &k.n, &k.step);
    for (int64_t p = 0; p < k.positions; p++)
        k.counting += target->x[p] != k.ignore;
    return k;
}

static int64_t first(const classes *k, int64_t p)
{
    return p / k->step * k->n * k->step + p % k->step;
}

/** Writes result 0: the losses of n positions, their sum, or the sum / count, by the reduction. */
static void set_loss(ts_ref *r, const double *losses, int64_t n, int64_t reduction, double count,
                     const int64_t *sizes, int ndim)
{
    double *y = ref_ret(r, 0, sizes, reduction == TS_REDUCTION_NONE ? ndim : 0);
    for (int64_t p = 0; p < n; p++)
        y[reduction == TS_REDUCTION_NONE ? p : 0] += losses[p];
    if (reduction == TS_REDUCTION_MEAN || reduction == TS_REDUCTION_BATCHMEAN)
        y[0] /= count;
}

/** Upstream gradient of a position or element. */
static double upstream(const ts_ref_arg *g, int64_t p, int64_t reduction, double count)
{
    if (reduction == TS_REDUCTION_NONE)
        return g->x[p];
    return reduction == TS_REDUCTION_SUM ? g->x[0] : g->x[0] / count;
}

static void ref_cross_entropy(ts_ref *r)
{
    classes k = classes_of(&r->a[0], &r->a[1], r->a[3].i);
    double *losses = ref_scratch(r, k.positions), smoothing = r->a[4].d;
    double *lse = ref_ret_like(r, 1, k.target);
    for (int64_t p = 0; p < k.positions; p++) {
        const double *x = k.x->x + first(&k, p);
        double most = -INFINITY, sum = 0, all = 0;
        for (int64_t c = 0; c < k.n; c++)
            most = fmax(most, x[c * k.step]);
        for (int64_t c = 0; c < k.n; c++) {
            sum += exp(x[c * k.step] - most);
            all += x[c * k.step];
        }
        lse[p] = most + log(sum);
        if (k.target->x[p] != k.ignore)
            losses[p] = (1 - smoothing) * (lse[p] - x[(int64_t)k.target->x[p] * k.step]) +
                        smoothing * (lse[p] - all / (double)k.n);
    }
    set_loss(r, losses, k.positions, r->a[2].i, (double)k.counting, k.target->sizes,
             k.target->ndim);
}

/* args: grad, self, target, lse, reduction, ignore_index, label_smoothing; lse may hold anything */
static void ref_cross_entropy_backward(ts_ref *r)
{
    classes k = classes_of(&r->a[1], &r->a[2], r->a[5].i);
    double *y = ref_ret_like(r, 0, k.x), smoothing = r->a[6].d;
    for (int64_t p = 0; p < k.positions; p++) {
        double g = upstream(&r->a[0], p, r->a[4].i, (double)k.counting);
        for (int64_t c = 0; c < k.n && k.target->x[p] != k.ignore; c++) {
            int64_t at = first(&k, p) + c * k.step;
            bool chosen = k.target->x[p] == (double)c;
            double want = smoothing / (double)k.n + (chosen ? 1 - smoothing : 0);
            y[at] = (exp(k.x->x[at] - r->a[3].x[p]) - want) * g;
        }
    }
}

static void ref_cross_entropy_grad(ts_ref *r)
{
    classes k = classes_of(&r->a[0], &r->a[1], r->a[3].i);
    double *losses = ref_scratch(r, k.positions), *y = ref_ret_like(r, 0, k.x);
    double smoothing = r->a[4].d;
    int64_t reduction = r->a[2].i;
    for (int64_t p = 0; p < k.positions; p++) {
        const double *x = k.x->x + first(&k, p);
        double most = -INFINITY, sum = 0, all = 0;
        double g = reduction == TS_REDUCTION_MEAN ? 1 / (double)k.counting : 1;
        if (k.target->x[p] == k.ignore)
            continue;
        for (int64_t c = 0; c < k.n; c++)
            most = fmax(most, x[c * k.step]);
        for (int64_t c = 0; c < k.n; c++) {
            sum += exp(x[c * k.step] - most);
            all += x[c * k.step];
        }
        double lse = most + log(sum), own = x[(int64_t)k.target->x[p] * k.step];
        losses[p] = (1 - smoothing) * (lse - own) + smoothing * (lse - all / (double)k.n);
        for (int64_t c = 0; c < k.n; c++)
            y[first(&k, p) + c * k.step] = g * (exp(x[c * k.step] - lse) - smoothing / (double)k.n -
                                                (k.target->x[p] == (double)c ? 1 - smoothing : 0));
    }
    bool each = reduction == TS_REDUCTION_NONE;
    double *loss = ref_ret(r, 1, k.target->sizes, each ? k.target->ndim : 0);
    for (int64_t p = 0; p < k.positions; p++)
        loss[each ? p : 0] += losses[p];
    if (reduction == TS_REDUCTION_MEAN)
        loss[0] /= (double)k.counting;
}

static void ref_nll_loss(ts_ref *r)
{
    classes k = classes_of(&r->a[0], &r->a[1], r->a[3].i);
    double *losses = ref_scratch(r, k.positions);
    for (int64_t p = 0; p < k.positions; p++)
        if (k.target->x[p] != k.ignore)
            losses[p] = -k.x->x[first(&k, p) + (int64_t)k.target->x[p] * k.step];
    set_loss(r, losses, k.positions, r->a[2].i, (double)k.counting, k.target->sizes,
             k.target->ndim);
}

static void ref_nll_loss_backward(ts_ref *r)
{
    classes k = classes_of(&r->a[1], &r->a[2], r->a[4].i);
    double *y = ref_ret_like(r, 0, k.x);
    for (int64_t p = 0; p < k.positions; p++)
        if (k.target->x[p] != k.ignore)
            y[first(&k, p) + (int64_t)k.target->x[p] * k.step] =
                -upstream(&r->a[0], p, r->a[3].i, (double)k.counting);
}

/* ----------------------------------------------------------------------- pairs ------------ */

/** Loss of a pair; *dx and *dt become its derivatives. `option` is the last argument. */
typedef double pair_fn(double x, double t, double option, double *dx, double *dt);

static double sign(double d) { return d > 0 ? 1 : d < 0 ? -1 : 0; }

static double mse(double x, double t, double option, double *dx, double *dt)
{
    (void)option;
    *dx = 2 * (x - t);
    *dt = -*dx;
    return (x - t) * (x - t);
}
static double l1(double x, double t, double option, double *dx, double *dt)
{
    (void)option;
    *dx = sign(x - t);
    *dt = -*dx;
    return fabs(x - t);
}
static double huber(double x, double t, double delta, double *dx, double *dt)
{
    double d = x - t;
    *dx = fmax(-delta, fmin(delta, d));
    *dt = -*dx;
    return fabs(d) <= delta ? d * d / 2 : delta * (fabs(d) - delta / 2);
}
static double smooth_l1(double x, double t, double beta, double *dx, double *dt)
{
    if (beta == 0)
        return l1(x, t, 0, dx, dt);
    double y = huber(x, t, beta, dx, dt) / beta;
    *dx /= beta;
    *dt /= beta;
    return y;
}
static double bce(double x, double t, double option, double *dx, double *dt)
{
    double p = 1 / (1 + exp(-x));
    (void)option;
    *dx = p - t;
    *dt = -x;
    return (fmax(x, 0) - x * t) + log1p(exp(-fabs(x)));
}
static double kl(double x, double t, double log_target, double *dx, double *dt)
{
    if (log_target != 0) {
        *dx = -exp(t);
        *dt = exp(t) * (t - x + 1);
        return exp(t) * (t - x);
    }
    *dx = -t;
    *dt = log(t) + 1 - x;
    return t == 0 ? 0 : t * (log(t) - x);
}

static double pair_count(const ts_ref_arg *x, int64_t reduction)
{
    if (reduction != TS_REDUCTION_BATCHMEAN)
        return (double)x->numel;
    return x->ndim ? (double)x->sizes[0] : 1;
}

static void pairs(ts_ref *r, pair_fn *fn)
{
    const ts_ref_arg *x = &r->a[0];
    double *losses = ref_scratch(r, x->numel), dx, dt;
    for (int64_t e = 0; e < x->numel; e++)
        losses[e] = fn(x->x[e], r->a[1].x[e], r->a[3].d, &dx, &dt);
    set_loss(r, losses, x->numel, r->a[2].i, pair_count(x, r->a[2].i), x->sizes, x->ndim);
}

static void pairs_backward(ts_ref *r, pair_fn *fn)
{
    const ts_ref_arg *x = &r->a[1];
    double *dx = ref_ret_like(r, 0, x), *dt = ref_ret_like(r, 1, x);
    for (int64_t e = 0; e < x->numel; e++) {
        double g = upstream(&r->a[0], e, r->a[3].i, pair_count(x, r->a[3].i));
        fn(x->x[e], r->a[2].x[e], r->a[4].d, &dx[e], &dt[e]);
        dx[e] *= g;
        dt[e] *= g;
    }
}

#define REF_PAIR(fn)                                               \
    static void ref_##fn(ts_ref *r) { pairs(r, fn); }              \
    static void ref_##fn##_backward(ts_ref *r) { pairs_backward(r, fn); }
REF_PAIR(mse)
REF_PAIR(l1)
REF_PAIR(huber)
REF_PAIR(smooth_l1)
REF_PAIR(bce)
REF_PAIR(kl)

/* ----------------------------------------------------------------------- rows ------------- */

#define MEAN INT(TS_REDUCTION_MEAN)
#define SUM INT(TS_REDUCTION_SUM)
#define EACH INT(TS_REDUCTION_NONE)
#define BATCHMEAN INT(TS_REDUCTION_BATCHMEAN)
#define NEVER INT(-100)
#define INDEX32(bound, ...) \
    {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_I32, .gen = GEN_WHOLE, .high = bound, \
     SIZES_(__VA_ARGS__)}
#define ABOVE(...) \
    {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_I64, .gen = GEN_WHOLE, .low = 7, .high = 9, \
     SIZES_(__VA_ARGS__)}
#define LSE(...) T_UNIFORM(2, 4, __VA_ARGS__)
#define BAD_CLASSES(self, target, reduction) \
    {target, ABOVE(3), TS_ERR_INDEX, "classes from 0 to 6"}, \
    {target, T_INDEX(7, 2), TS_ERR_SHAPE, "sizes"}, \
    {target, T_OF(TS_F32, 3), TS_ERR_DTYPE, "i64 or i32"}, {self, T(), TS_ERR_SHAPE, "(N, C"}, \
    {reduction, INT(3), TS_ERR_VALUE, "from 0 to 2"}

/* A loss is a difference of numbers of about 4; sums of positions have the error of a chain. */
#define POSITIONS .c = 4, .scale = 4, .depth = SWEEP
/* forward and backward of an op over pairs: `last` has the arguments after the reduction */
#define PAIRS(op, ref, target, ...) \
    {op, "mean", {T(SWEEP, 3), target(SWEEP, 3), MEAN, __VA_ARGS__}, ref, POSITIONS, .grad = true, \
     .bad = {{1, T(3), TS_ERR_SHAPE, "sizes"}, {2, INT(4), TS_ERR_VALUE, "ts_reduction"}, \
             {2, INT(-1), TS_ERR_VALUE, "ts_reduction"}}}, \
    {op, "sum", {T(2, SWEEP), target(2, SWEEP), SUM, __VA_ARGS__}, ref, POSITIONS, .grad = true}, \
    {op, "each", {T(SWEEP, 2), target(SWEEP, 2), EACH, __VA_ARGS__}, ref, .c = 4, .scale = 4, \
     .grad = true}, \
    {op, "0-dim", {T(), target(), MEAN, __VA_ARGS__}, ref, .c = 4, .scale = 4, .grad = true}, \
    {op, "mixed", {T_OF(TS_F32, SWEEP), target(SWEEP), MEAN, __VA_ARGS__}, ref, POSITIONS, \
     .dtypes = TS_DT(TS_F64)}, \
    {op "_backward", "mean", {T(), T(SWEEP, 3), target(SWEEP, 3), MEAN, __VA_ARGS__}, \
     ref##_backward, .c = 8, .scale = 4, .grad = true, \
     .bad = {{0, T(3), TS_ERR_SHAPE, "sizes"}, {2, T(3), TS_ERR_SHAPE, "sizes"}, \
             {3, INT(4), TS_ERR_VALUE, "ts_reduction"}}}, \
    {op "_backward", "sum", {T(), T(2, SWEEP), target(2, SWEEP), SUM, __VA_ARGS__}, \
     ref##_backward, .c = 8, .scale = 4, .grad = true}, \
    {op "_backward", "each", {T(SWEEP, 2), T(SWEEP, 2), target(SWEEP, 2), EACH, __VA_ARGS__}, \
     ref##_backward, .c = 8, .scale = 8, .grad = true}
#define PROBABILITY(...) T_UNIFORM(0.01, 1, __VA_ARGS__)
#define LOG_PROBABILITY(...) T_UNIFORM(-4, 0, __VA_ARGS__)

static const ts_sample samples[] = {
    {"cross_entropy", "mean", {T(SWEEP, 7), T_INDEX(7, SWEEP), MEAN, NEVER, FLOAT(0)},
     ref_cross_entropy, .out = {0, OUT_WIDE}, POSITIONS, .grad = true,
     .bad = {BAD_CLASSES(0, 1, 2), {4, FLOAT(1.5), TS_ERR_VALUE, "from 0 to 1"}}},
    {"cross_entropy", "sum, smooth", {T(SWEEP, 7), INDEX32(7, SWEEP), SUM, NEVER, FLOAT(0.1)},
     ref_cross_entropy, .out = {0, OUT_WIDE}, POSITIONS,
     .grad = true},
    {"cross_entropy", "each, ignored", {T(SWEEP, 5), T_INDEX(5, SWEEP), EACH, INT(2), FLOAT(0)},
     ref_cross_entropy, .out = {0, OUT_WIDE}, .c = 4,
     .scale = 4, .grad = true},
    {"cross_entropy", "mean, ignored, smooth", {T(SWEEP, 3), T_INDEX(3, SWEEP), MEAN, INT(1),
         FLOAT(0.3)}, ref_cross_entropy, .out = {0, OUT_WIDE},
     POSITIONS, .grad = true},
    {"cross_entropy", "more dims", {T(2, 5, SWEEP, 2), T_INDEX(5, 2, SWEEP, 2), MEAN, INT(4),
         FLOAT(0.2)}, ref_cross_entropy, .out = {0, OUT_WIDE},
     POSITIONS, .grad = true},
    {"cross_entropy", "no batch", {T(9), T_INDEX(9), MEAN, NEVER, FLOAT(0)}, ref_cross_entropy,
     .out = {0, OUT_WIDE}, .c = 4, .scale = 4, .grad = true},
    {"cross_entropy", "classes", {T(4, SWEEP), T_INDEX(1, 4), MEAN, NEVER, FLOAT(0.1)},
     ref_cross_entropy, .out = {0, OUT_WIDE}, .c = 4, .scale = 8,
     .no_empty = true, .grad = true},
    {"cross_entropy", "many classes", {T(3, 257), T_INDEX(257, 3), SUM, NEVER, FLOAT(0)},
     ref_cross_entropy, .out = {0, OUT_WIDE}, .c = 4, .scale = 8},
    {"cross_entropy", "large", {T_UNIFORM(-900, 900, SWEEP, 6), T_INDEX(6, SWEEP), EACH, NEVER,
         FLOAT(0)}, ref_cross_entropy, .out = {0, OUT_WIDE},
     .c = 4, .scale = 900},
    {"cross_entropy_backward", "mean", {T(), T(SWEEP, 7), T_INDEX(7, SWEEP), LSE(SWEEP), MEAN,
         NEVER, FLOAT(0)},
     ref_cross_entropy_backward, .c = 8, .scale = 4, .grad = true,
     .bad = {BAD_CLASSES(1, 2, 4), {3, T(2), TS_ERR_SHAPE, "sizes"}}},
    {"cross_entropy_backward", "sum, ignored, smooth",
     {T(), T(SWEEP, 5), INDEX32(5, SWEEP), LSE(SWEEP), SUM, INT(3), FLOAT(0.1)},
     ref_cross_entropy_backward, .c = 8, .scale = 4, .grad = true},
    {"cross_entropy_backward", "each, more dims",
     {T(2, SWEEP), T(2, 5, SWEEP), T_INDEX(5, 2, SWEEP), LSE(2, SWEEP), EACH, INT(0), FLOAT(0.2)},
     ref_cross_entropy_backward,
     .c = 8, .scale = 4, .grad = true},
    {"cross_entropy_backward", "mean, more dims, ignored",
     {T(), T(2, 9, SWEEP), T_INDEX(9, 2, SWEEP), LSE(2, SWEEP), MEAN, INT(1), FLOAT(0)},
     ref_cross_entropy_backward, .c = 8, .scale = 4, .grad = true},
    {"cross_entropy_backward", "classes", {T(4), T(4, SWEEP), T_INDEX(1, 4), LSE(4), EACH, NEVER,
         FLOAT(0)},
     ref_cross_entropy_backward, .c = 8, .scale = 4, .grad = true, .no_empty = true},

    {"cross_entropy_grad", "mean", {T(SWEEP, 7), T_INDEX(7, SWEEP), MEAN, NEVER, FLOAT(0)},
     ref_cross_entropy_grad, .out = {0, OUT_WIDE}, POSITIONS,
     .inplace = true,
     .bad = {{1, T_INDEX(7, 2), TS_ERR_SHAPE, "sizes"},
             {1, T_OF(TS_F32, 3), TS_ERR_DTYPE, "i64 or i32"},
             {0, T(), TS_ERR_SHAPE, "(N, C"},
             {2, INT(3), TS_ERR_VALUE, "from 0 to 2"},
             {4, FLOAT(1.5), TS_ERR_VALUE, "from 0 to 1"}}},
    {"cross_entropy_grad", "sum, ignored, smooth",
     {T(SWEEP, 5), INDEX32(5, SWEEP), SUM, INT(3), FLOAT(0.1)}, ref_cross_entropy_grad,
     .out = {0, OUT_WIDE},
     POSITIONS, .inplace = true},
    {"cross_entropy_grad", "each, more dims", {T(2, 5, SWEEP), T_INDEX(5, 2, SWEEP), EACH, INT(0),
         FLOAT(0.2)}, ref_cross_entropy_grad, .out = {0, OUT_WIDE},
     .c = 8, .scale = 4, .inplace = true},
    {"cross_entropy_grad", "many classes", {T(3, 1032), T_INDEX(1032, 3), MEAN, NEVER, FLOAT(0.1)},
     ref_cross_entropy_grad, .out = {0, OUT_WIDE}, .c = 8,
     .scale = 8, .inplace = true},
    {"cross_entropy_grad", "wide rows", {T(3, 20480), T_INDEX(20480, 3), MEAN, NEVER, FLOAT(0)},
     ref_cross_entropy_grad, .out = {0, OUT_WIDE}, .c = 8,
     .scale = 8, .inplace = true},
    {"cross_entropy_grad", "wide rows, sum, ignored, smooth",
     {T(3, 8200), INDEX32(2, 3), SUM, INT(1), FLOAT(0.1)},
     ref_cross_entropy_grad, .out = {0, OUT_WIDE}, .c = 8, .scale = 8, .inplace = true},
    {"cross_entropy_grad", "wide rows, each, smooth",
     {T(2, 36864), T_INDEX(36864, 2), EACH, NEVER, FLOAT(0.3)}, ref_cross_entropy_grad,
     .out = {0, OUT_WIDE},
     .c = 8, .scale = 8, .inplace = true},
    {"cross_entropy_grad", "wide rows, not aligned",
     {T(2, 8209), T_INDEX(8209, 2), MEAN, NEVER, FLOAT(0.1)}, ref_cross_entropy_grad,
     .out = {0, OUT_WIDE},
     .c = 8, .scale = 8, .inplace = true},
    {"nll_loss", "mean", {T(SWEEP, 7), T_INDEX(7, SWEEP), MEAN, NEVER}, ref_nll_loss, POSITIONS,
     .grad = true,
     .bad = {BAD_CLASSES(0, 1, 2)}},
    {"nll_loss", "sum, ignored", {T(SWEEP, 5), INDEX32(5, SWEEP), SUM, INT(2)}, ref_nll_loss,
     POSITIONS, .grad = true},
    {"nll_loss", "mean, more dims, ignored", {T(2, 3, SWEEP), T_INDEX(3, 2, SWEEP), MEAN, INT(0)},
     ref_nll_loss, POSITIONS, .grad = true},
    {"nll_loss", "each", {T(2, 3, SWEEP), T_INDEX(3, 2, SWEEP), EACH, INT(1)}, ref_nll_loss,
     .grad = true},
    {"nll_loss", "no batch", {T(9), T_INDEX(9), MEAN, NEVER}, ref_nll_loss, .grad = true},
    {"nll_loss_backward", "mean", {T(), T(SWEEP, 7), T_INDEX(7, SWEEP), MEAN, NEVER},
     ref_nll_loss_backward, .c = 2, .grad = true,
     .bad = {BAD_CLASSES(1, 2, 3), {0, T(3), TS_ERR_SHAPE, "sizes"}}},
    {"nll_loss_backward", "sum, more dims, ignored",
     {T(), T(2, 3, SWEEP), T_INDEX(3, 2, SWEEP), SUM, INT(0)}, ref_nll_loss_backward, .grad = true},
    {"nll_loss_backward", "each, ignored", {T(SWEEP), T(SWEEP, 5), INDEX32(5, SWEEP), EACH, INT(2)},
     ref_nll_loss_backward, .grad = true},

    PAIRS("mse_loss", ref_mse, T),
    PAIRS("l1_loss", ref_l1, T),
    PAIRS("smooth_l1_loss", ref_smooth_l1, T, FLOAT(0.7)),
    {"smooth_l1_loss", "beta 0", {T(SWEEP, 2), T(SWEEP, 2), EACH, FLOAT(0)}, ref_smooth_l1, .c = 2,
     .scale = 4, .grad = true,
     .bad = {{3, FLOAT(-1), TS_ERR_VALUE, "at least 0"},
             {3, FLOAT(NAN), TS_ERR_VALUE, "at least 0"}}},
    PAIRS("huber_loss", ref_huber, T, FLOAT(0.7)),
    {"huber_loss", "whole", {T_WHOLE(-3, 4, SWEEP), T_WHOLE(-3, 4, SWEEP), EACH, FLOAT(1)},
     ref_huber,
     .bad = {{3, FLOAT(0), TS_ERR_VALUE, "above 0"}, {3, FLOAT(NAN), TS_ERR_VALUE, "above 0"}}},
    PAIRS("binary_cross_entropy_with_logits", ref_bce, PROBABILITY),
    {"binary_cross_entropy_with_logits", "large",
     {T_UNIFORM(-900, 900, SWEEP), T_WHOLE(0, 2, SWEEP), EACH}, ref_bce, .c = 4},
    PAIRS("kl_div", ref_kl, PROBABILITY, BOOL(false)),
    PAIRS("kl_div", ref_kl, LOG_PROBABILITY, BOOL(true)),
    {"kl_div", "batchmean", {T(SWEEP, 3), PROBABILITY(SWEEP, 3), BATCHMEAN, BOOL(false)}, ref_kl,
     .c = 4, .scale = 16,
     .depth = SWEEP, .grad = true},
    {"kl_div", "zeros", {T(SWEEP), T_WHOLE(0, 2, SWEEP), EACH, BOOL(false)}, ref_kl, .c = 4,
     .scale = 4},
    {"kl_div_backward", "batchmean", {T(), T(SWEEP, 3), PROBABILITY(SWEEP, 3), BATCHMEAN,
         BOOL(false)}, ref_kl_backward, .c = 8,
     .scale = 4, .grad = true},
};
TS_SAMPLES(loss, samples)
