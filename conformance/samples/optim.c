/** @file optim.c  Samples of update rules over lists. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "conformance/sample.h"

/** Result q * count + k: a copy of member k of argument `list`, for the caller to update. Results
 * are the members of the written lists in order. */
static double *written(ts_ref *r, int list, int q, int k)
{
    int count = r->a[0].count;
    double *y = ref_ret_like(r, q * count + k, &r->a[list].list[k]);
    for (int64_t i = 0; i < r->a[list].list[k].numel; i++)
        y[i] = r->a[list].list[k].x[i];
    return y;
}

/** True if the step is skipped: argument `guard`, the flag `found`, is not 0. Adds 1 or 0 to the
 * counts of skipped steps: argument guard + 1, the written list number q. */
static bool is_skipped(ts_ref *r, int guard, int q)
{
    bool skip = r->a[guard].tag == TS_TAG_TENSOR && r->a[guard].x[0] != 0;
    for (int k = 0; k < r->a[guard + 1].count; k++)
        *written(r, guard + 1, q, k) += skip;
    return skip;
}
/** The number of updates of member k, this one included, without skipped ones. steps, skipped:
 * indices of the arguments. */
static double step_of(const ts_ref *r, int steps, int skipped, int k)
{
    return (double)r->a[steps].sizes[k] - (r->a[skipped].count ? r->a[skipped].list[k].x[0] : 0);
}

static double grad_scale(const ts_ref_arg *a) { return a->tag == TS_TAG_TENSOR ? a->x[0] : 1; }

static void ref_adamw(ts_ref *r)
{
    bool skip = is_skipped(r, 11, 3);
    double lr = r->a[5].d, beta1 = r->a[6].d, beta2 = r->a[7].d, eps = r->a[8].d, decay = r->a[9].d;
    for (int k = 0; k < r->a[0].count; k++) {
        double *p = written(r, 0, 0, k), *m = written(r, 2, 1, k), *v = written(r, 3, 2, k);
        double t = step_of(r, 4, 12, k);
        for (int64_t i = 0; i < r->a[0].list[k].numel && !skip; i++) {
            double g =
                grad_scale(&r->a[13]) * r->a[1].list[k].x[i] + (r->a[10].i ? 0 : decay * p[i]);
            p[i] *= r->a[10].i ? 1 - lr * decay : 1;
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            p[i] -= lr * (m[i] / (1 - pow(beta1, t))) / (sqrt(v[i] / (1 - pow(beta2, t))) + eps);
        }
    }
}

static void ref_sgd(ts_ref *r)
{
    double lr = r->a[4].d, momentum = r->a[5].d, dampening = r->a[6].d, decay = r->a[7].d;
    bool skip = is_skipped(r, 9, r->a[2].count ? 2 : 1);
    for (int k = 0; k < r->a[0].count; k++) {
        double *p = written(r, 0, 0, k), *b = r->a[2].count ? written(r, 2, 1, k) : NULL;
        for (int64_t i = 0; i < r->a[0].list[k].numel && !skip; i++) {
            double g = grad_scale(&r->a[11]) * r->a[1].list[k].x[i] + decay * p[i];
            if (b) {
                b[i] = step_of(r, 3, 10, k) == 1 ? g : momentum * b[i] + (1 - dampening) * g;
                g = r->a[8].i ? g + momentum * b[i] : b[i];
            }
            p[i] -= lr * g;
        }
    }
}

static double squares(const ts_ref *r)
{
    long double sum = 0; /* equal elements of an expanded dim round alike and add up */
    for (int k = 0; k < r->a[0].count; k++)
        for (int64_t i = 0; i < r->a[0].list[k].numel; i++)
            sum += (long double)r->a[0].list[k].x[i] * r->a[0].list[k].x[i];
    return (double)sum;
}

static void ref_global_norm(ts_ref *r) { *ref_ret(r, 0, NULL, 0) = sqrt(squares(r)); }

static void times(ts_ref *r, double factor)
{
    for (int k = 0; k < r->a[0].count; k++) {
        double *y = written(r, 0, 0, k);
        for (int64_t i = 0; i < r->a[0].list[k].numel; i++)
            y[i] *= factor;
    }
}

static double number(const ts_ref_arg *a) { return a->tag == TS_TAG_TENSOR ? a->x[0] : a->d; }
static void ref_scale(ts_ref *r) { times(r, number(&r->a[1])); }
static void ref_clip_norm(ts_ref *r) { times(r, fmin(1, r->a[2].d / (number(&r->a[1]) + 1e-6))); }

/** Result 0 is the flag `found`; the written tensors follow. */
static void ref_unscale(ts_ref *r)
{
    double *found = ref_ret(r, 0, NULL, 0), factor = number(&r->a[1]);
    *found = 0;
    for (int k = 0; k < r->a[0].count; k++) {
        const ts_ref_arg *x = &r->a[0].list[k];
        double *y = ref_ret_like(r, 1 + k, x);
        for (int64_t i = 0; i < x->numel; i++) {
            y[i] = x->x[i] * factor;
            *found = *found != 0 || !isfinite(y[i]);
        }
    }
}

#define PAIR LIST(T(SWEEP, 3), T(7))
#define SQUARES LIST(T_UNIFORM(0.5, 2, SWEEP, 3), T_UNIFORM(0.5, 2, 7))
/* SQUARES with an f32 first member */
#define SQUARES_F32 LIST({.tag = TS_TAG_TENSOR, .dtype = 1 + TS_F32, .gen = GEN_UNIFORM,           \
                          .low = 0.5, .high = 2, SIZES_(SWEEP, 3)}, T_UNIFORM(0.5, 2, 7))
#define MIXED LIST(T(SWEEP, 3), T_OF(TS_BF16, 7))
#define OTHER LIST(T(SWEEP, 3), T(8))

/* a 0-dim f32 tensor */
#define NUMBER(from, to) {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_F32, .gen = GEN_WHOLE,             \
                          .low = from, .high = to}
#define FACTOR(from, to) {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_F32, .gen = GEN_UNIFORM,           \
                          .low = from, .high = to}
#define UNGUARDED ABSENT, ABSENT
#define GUARDED(found) NUMBER(found, found), LIST(NUMBER(1, 1), NUMBER(2, 2))

static const ts_sample samples[] = {
    {"adamw", "decoupled",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.9), FLOAT(0.99), FLOAT(1e-3),
      FLOAT(0.1), BOOL(true), UNGUARDED, ABSENT},
     ref_adamw, .c = 16, .scale = 1, .no_expand = true,
     .bad = {{1, OTHER, TS_ERR_SHAPE, "grads[1]': expected sizes (7), got (8)"},
             {4, INTS(1), TS_ERR_VALUE, "expected 2 numbers"},
             {4, INTS(1, 0), TS_ERR_VALUE, "steps[1]': expected at least 1"},
             {5, FLOAT(-1), TS_ERR_VALUE, "at least 0"},
             {7, FLOAT(1), TS_ERR_VALUE, "less than 1"}}},
    {"adamw", "in the gradient",
     {PAIR, PAIR, PAIR, SQUARES, INTS(1, 2), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.5), BOOL(false), UNGUARDED, ABSENT},
     ref_adamw, .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "gradients of bf16", /* as for f32 copies of bf16 parameters */
     {PAIR, LIST(T_OF(TS_BF16, SWEEP, 3), T_OF(TS_BF16, 7)), PAIR, SQUARES, INTS(3, 5), FLOAT(0.1),
      FLOAT(0.8), FLOAT(0.9),
      FLOAT(1e-2), FLOAT(0.1), BOOL(true), UNGUARDED, ABSENT},
     ref_adamw, .dtypes = TS_DT(TS_F32), .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "mixed", /* f32 and bf16 parameters in one list, with f32 state */
     {MIXED, MIXED, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), UNGUARDED, ABSENT},
     ref_adamw, .dtypes = TS_DT(TS_F32), .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "averages of two dtypes",
     {PAIR, PAIR, PAIR, SQUARES_F32, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), UNGUARDED, ABSENT},
     ref_adamw, .dtypes = DT_HALVES, .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "averages of two dtypes, skipped",
     {PAIR, PAIR, PAIR, SQUARES_F32, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), GUARDED(1), ABSENT},
     ref_adamw, .dtypes = DT_HALVES, .no_expand = true},
    {"adamw", "guarded, not skipped",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), GUARDED(0), ABSENT},
     ref_adamw, .c = 16, .scale = 4, .no_expand = true,
     .bad = {{11, T_OF(TS_F32, 2), TS_ERR_SHAPE, "one element"},
             {11, T_OF(TS_I64), TS_ERR_DTYPE, "f32"},
             {12, LIST(NUMBER(0, 0)), TS_ERR_VALUE, "expected 2 tensors, got 1"},
             {11, ABSENT, TS_ERR_VALUE, "expected 0 tensors"}}},
    {"adamw", "guarded, skipped",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), GUARDED(1), ABSENT},
     ref_adamw, .no_expand = true},
    {"adamw", "scaled",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), UNGUARDED,
      FACTOR(0.2, 0.4)},
     ref_adamw, .c = 16, .scale = 4, .no_expand = true,
     .bad = {{13, T_OF(TS_F32, 2), TS_ERR_SHAPE, "one element"},
             {13, T_OF(TS_F64), TS_ERR_DTYPE, "f32"}}},
    {"adamw", "scaled, in the gradient", /* the scale does not apply to the decay */
     {PAIR, PAIR, PAIR, SQUARES, INTS(1, 2), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.5), BOOL(false), UNGUARDED,
      FACTOR(0.2, 0.4)},
     ref_adamw, .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "scaled gradients of f16",
     {PAIR, LIST(T_OF(TS_F16, SWEEP, 3), T_OF(TS_F16, 7)), PAIR, SQUARES, INTS(3, 5), FLOAT(0.1),
      FLOAT(0.8), FLOAT(0.9),
      FLOAT(1e-2), FLOAT(0.1), BOOL(true), UNGUARDED, FACTOR(0.2, 0.4)},
     ref_adamw, .dtypes = TS_DT(TS_F32), .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "scaled, mixed",
     {MIXED, MIXED, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), UNGUARDED,
      FACTOR(0.2, 0.4)},
     ref_adamw, .dtypes = TS_DT(TS_F32), .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "scaled, guarded, not skipped",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), GUARDED(0),
      FACTOR(0.2, 0.4)},
     ref_adamw, .c = 16, .scale = 4, .no_expand = true},
    {"adamw", "scaled, guarded, skipped",
     {PAIR, PAIR, PAIR, SQUARES, INTS(3, 5), FLOAT(0.1), FLOAT(0.8), FLOAT(0.9), FLOAT(1e-2),
      FLOAT(0.1), BOOL(true), GUARDED(1),
      FACTOR(0.2, 0.4)},
     ref_adamw, .no_expand = true},
    {"sgd", "plain", {PAIR, PAIR, {.tag = TS_TAG_TENSORS}, INTS(1, 2), FLOAT(0.1), FLOAT(0),
                      FLOAT(0), FLOAT(0.1), BOOL(false), UNGUARDED, ABSENT},
     ref_sgd, .c = 4, .scale = 1, .no_expand = true},
    {"sgd", "momentum", {PAIR, PAIR, PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9), FLOAT(0.5),
                         FLOAT(0.1), BOOL(false), UNGUARDED, ABSENT},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true,
     .bad = {{2, OTHER, TS_ERR_SHAPE, "[1]': expected sizes (7)"},
             {8, BOOL(true), TS_ERR_VALUE, "dampening 0"}}},
    {"sgd", "nesterov", {PAIR, PAIR, PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9), FLOAT(0), FLOAT(0.1),
                         BOOL(true), UNGUARDED, ABSENT},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "gradients of f16",
     {PAIR, LIST(T_OF(TS_F16, SWEEP, 3), T_OF(TS_F16, 7)), PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9),
      FLOAT(0), FLOAT(0.1), BOOL(true), UNGUARDED, ABSENT},
     ref_sgd, .dtypes = TS_DT(TS_F32), .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "mixed", {MIXED, MIXED, PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9), FLOAT(0.5),
                      FLOAT(0.1), BOOL(false), UNGUARDED, ABSENT},
     ref_sgd, .dtypes = TS_DT(TS_F32), .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "guarded, first", {PAIR, PAIR, PAIR, INTS(2, 4), FLOAT(0.1), FLOAT(0.9), FLOAT(0),
                               FLOAT(0.1), BOOL(true), GUARDED(0), ABSENT},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "guarded, skipped",
     {PAIR, PAIR, {.tag = TS_TAG_TENSORS}, INTS(2, 4), FLOAT(0.1), FLOAT(0), FLOAT(0), FLOAT(0.1),
      BOOL(false), GUARDED(1), ABSENT},
     ref_sgd, .no_expand = true},
    {"sgd", "scaled, plain",
     {PAIR, PAIR, {.tag = TS_TAG_TENSORS}, INTS(1, 2), FLOAT(0.1), FLOAT(0), FLOAT(0), FLOAT(0.1),
      BOOL(false), UNGUARDED, FACTOR(2, 3)},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "scaled, nesterov",
     {PAIR, PAIR, PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9), FLOAT(0), FLOAT(0.1), BOOL(true),
      UNGUARDED, FACTOR(0.2, 0.4)},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true,
     .bad = {{11, T_OF(TS_F32, 2), TS_ERR_SHAPE, "one element"},
             {11, T_OF(TS_I64), TS_ERR_DTYPE, "f32"}}},
    {"sgd", "scaled gradients of bf16",
     {PAIR, LIST(T_OF(TS_BF16, SWEEP, 3), T_OF(TS_BF16, 7)), PAIR, INTS(1, 2), FLOAT(0.1),
      FLOAT(0.9), FLOAT(0), FLOAT(0.1), BOOL(true), UNGUARDED, FACTOR(0.2, 0.4)},
     ref_sgd, .dtypes = TS_DT(TS_F32), .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "scaled, mixed", {MIXED, MIXED, PAIR, INTS(1, 2), FLOAT(0.1), FLOAT(0.9), FLOAT(0.5),
                              FLOAT(0.1), BOOL(false), UNGUARDED, FACTOR(0.2, 0.4)},
     ref_sgd, .dtypes = TS_DT(TS_F32), .c = 8, .scale = 1, .no_expand = true},
    {"sgd", "scaled, guarded", {PAIR, PAIR, PAIR, INTS(2, 4), FLOAT(0.1), FLOAT(0.9), FLOAT(0),
                                FLOAT(0.1), BOOL(true), GUARDED(0), FACTOR(0.2, 0.4)},
     ref_sgd, .c = 8, .scale = 1, .no_expand = true},
    {"global_norm", "two", {LIST(T(SWEEP, 3), T(SWEEP))}, ref_global_norm, .out = {OUT_WIDE},
     .c = 2, .depth = SWEEP,
     .bad = {{0, LIST(T_OF(TS_I64, 3)), TS_ERR_DTYPE, "floating dtype"}}},
    {"global_norm", "mixed", {MIXED}, ref_global_norm, .dtypes = TS_DT(TS_F32), .out = {OUT_WIDE},
     .c = 2, .depth = SWEEP},
    {"global_norm", "0-dim", {LIST(T(), T())}, ref_global_norm, .out = {OUT_WIDE}, .c = 2},
    {"scale", "number", {PAIR, FLOAT(0.75)}, ref_scale, .c = 1, .no_expand = true},
    {"scale", "mixed", {MIXED, FLOAT(0.75)}, ref_scale, .dtypes = TS_DT(TS_F32), .c = 1,
     .no_expand = true},
    {"scale", "tensor", {PAIR, T()}, ref_scale, .c = 1, .no_expand = true,
     .bad = {{1, T(2), TS_ERR_SHAPE, "one element"}}},
    {"unscale", "finite", {PAIR, FLOAT(0.25)}, ref_unscale, .out = {1 + TS_F32}, .c = 1,
     .no_expand = true},
    {"unscale", "not finite", {LIST(T(SWEEP, 3), T_SPECIAL(9)), T()}, ref_unscale,
     .out = {1 + TS_F32}, .c = 1,
     .no_expand = true,
     .bad = {{1, T(2), TS_ERR_SHAPE, "one element"},
             {0, LIST(T_OF(TS_I64, 3)), TS_ERR_DTYPE, "floating dtype"}}},
    {"clip_norm", "clipped", {PAIR, T_UNIFORM(4, 5), FLOAT(1)}, ref_clip_norm, .c = 2,
     .no_expand = true,
     .bad = {{2, FLOAT(-1), TS_ERR_VALUE, "at least 0"}}},
    {"clip_norm", "below the limit", {PAIR, T_UNIFORM(0.5, 0.9), FLOAT(1)}, ref_clip_norm,
     .no_expand = true},
};
TS_SAMPLES(optim, samples)
