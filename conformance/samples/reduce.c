/** @file reduce.c  Samples of reductions. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>
#include <string.h>

/** Each element of the argument is added to the element of the result
 * that it was broadcast from. */
static void ref_sum_to_size(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0], *to = &r->a[1];
    double *y = ref_ret(r, 0, to->sizes, to->ndim);
    r->scale[0] = ref_scratch(r, r->ret[0].numel);
    for (int64_t e = 0; e < a->numel; e++) {
        int64_t rest = e, index = 0, step = 1;
        for (int d = a->ndim - 1; d >= 0; d--) {
            int64_t k = rest % a->sizes[d];
            int s = d - (a->ndim - to->ndim);
            rest /= a->sizes[d];
            if (s < 0)
                continue;
            if (to->sizes[s] != 1)
                index += k * step;
            step *= to->sizes[s];
        }
        y[index] += a->x[e];
        r->scale[0][index] += fabs(a->x[e]);
    }
}

/** True if dim d is reduced: argument 1 lists it, or is absent or empty (all dims). */
static bool reduced(const ts_ref *r, int ndim, int d)
{
    const ts_ref_arg *dims = &r->a[1];
    if (dims->tag != TS_TAG_INTS || !dims->ndim)
        return true;
    for (int i = 0; i < dims->ndim; i++)
        if (dims->sizes[i] == d || dims->sizes[i] + ndim == d)
            return true;
    return false;
}

/** Computes each element of the result as fn of the n elements that are reduced to it. */
static void reduce(ts_ref *r, double (*fn)(const double *x, int64_t n, double option),
                   double option)
{
    const ts_ref_arg *a = &r->a[0];
    bool keep = r->a[2].i;
    int64_t sizes[TS_MAX_DIMS], n = 1;
    int ndim = 0;
    for (int d = 0; d < a->ndim; d++) {
        bool gone = reduced(r, a->ndim, d);
        n *= gone ? a->sizes[d] : 1;
        if (!gone || keep)
            sizes[ndim++] = gone ? 1 : a->sizes[d];
    }
    double *y = ref_ret(r, 0, sizes, ndim), *scale = r->scale[0] = ref_scratch(r, r->ret[0].numel);
    double *lists = ref_scratch(r, r->ret[0].numel * n);
    int64_t *used = (int64_t *)ref_scratch(r, r->ret[0].numel);
    for (int64_t e = 0; e < a->numel; e++) {
        int64_t rest = e, index = 0, step = 1;
        for (int d = a->ndim - 1; d >= 0; d--) {
            int64_t k = rest % a->sizes[d];
            rest /= a->sizes[d];
            if (reduced(r, a->ndim, d))
                continue;
            index += k * step;
            step *= a->sizes[d];
        }
        lists[index * n + used[index]++] = a->x[e];
    }
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        y[i] = fn(lists + i * n, n, option);
        for (int64_t k = 0; k < n; k++)
            scale[i] += fabs(lists[i * n + k]);
    }
}

static double sum(const double *x, int64_t n, double option)
{
    double s = 0;
    (void)option;
    for (int64_t i = 0; i < n; i++)
        s += x[i];
    return s;
}
static double mean(const double *x, int64_t n, double option)
{
    return sum(x, n, option) / (double)n;
}
static double product(const double *x, int64_t n, double option)
{
    double p = 1;
    (void)option;
    for (int64_t i = 0; i < n; i++)
        p *= x[i];
    return p;
}
static double extreme(const double *x, int64_t n, double sign)
{
    double m = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = isnan(x[i]) || isnan(m) ? NAN : fmax(m, sign * x[i]);
    return sign * m;
}
static double count_nonzero(const double *x, int64_t n)
{
    double c = 0;
    for (int64_t i = 0; i < n; i++)
        c += x[i] != 0;
    return c;
}
static double all(const double *x, int64_t n, double option)
{
    (void)option;
    return count_nonzero(x, n) == (double)n;
}
static double any(const double *x, int64_t n, double option)
{
    (void)option;
    return count_nonzero(x, n) > 0;
}
static double variance(const double *x, int64_t n, double correction)
{
    double m = mean(x, n, 0), s = 0, over = (double)n - correction;
    for (int64_t i = 0; i < n; i++)
        s += (x[i] - m) * (x[i] - m);
    return s / (over > 0 ? over : 0);
}
static double deviation(const double *x, int64_t n, double correction)
{
    return sqrt(variance(x, n, correction));
}
static double norm(const double *x, int64_t n, double p)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s = isinf(p) ? fmax(s, fabs(x[i])) : s + pow(fabs(x[i]), p);
    return isinf(p) ? s : pow(s, 1 / p);
}
static double logsumexp(const double *x, int64_t n, double option)
{
    double m = extreme(x, n, 1), s = 0;
    (void)option;
    if (isinf(m))
        return m;
    for (int64_t i = 0; i < n; i++)
        s += exp(x[i] - m);
    return m + log(s);
}

static void ref_sum(ts_ref *r) { reduce(r, sum, 0); }
static void ref_mean(ts_ref *r) { reduce(r, mean, 0); }
static void ref_prod(ts_ref *r) { reduce(r, product, 0); }
static void ref_amax(ts_ref *r) { reduce(r, extreme, 1); }
static void ref_amin(ts_ref *r) { reduce(r, extreme, -1); }
static void ref_all(ts_ref *r) { reduce(r, all, 0); }
static void ref_any(ts_ref *r) { reduce(r, any, 0); }
static void ref_var(ts_ref *r) { reduce(r, variance, r->a[3].d); }
static void ref_std(ts_ref *r) { reduce(r, deviation, r->a[3].d); }
static double nothing(const double *x, int64_t n, double option)
{
    (void)x, (void)n, (void)option;
    return 0;
}
static void ref_no_spread(ts_ref *r) { reduce(r, nothing, 0); }
static void ref_norm(ts_ref *r) { reduce(r, norm, r->a[3].d); }
static void ref_logsumexp(ts_ref *r) { reduce(r, logsumexp, 0); }

/** Sets each result element to the element of argument 0 that a reduction over the dims of argument
 * 2 would add it to. */
static void ref_unreduce(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0], *to = &r->a[1], *dims = &r->a[2];
    double *y = ref_ret(r, 0, to->sizes, to->ndim);
    for (int64_t e = 0; e < r->ret[0].numel; e++) {
        int64_t rest = e, index = 0, step = 1;
        int s = a->ndim - 1;
        for (int d = to->ndim - 1; d >= 0; d--) {
            int64_t k = rest % to->sizes[d];
            bool gone = false;
            rest /= to->sizes[d];
            for (int i = 0; i < dims->ndim; i++)
                gone |= dims->sizes[i] == d;
            if (gone && a->ndim != to->ndim)
                continue;
            if (a->sizes[s] != 1)
                index += k * step;
            step *= a->sizes[s--];
        }
        y[e] = a->x[index];
    }
}

/* Tolerance of all sums: n additions, each with an error relative to the sum of magnitudes. */
#define OVER(op, ref, value, ...)                                                                  \
    {op, "last dim", {value(3, SWEEP), INTS(-1), BOOL(false), __VA_ARGS__}, ref, .c = 4,           \
     .depth = SWEEP, .grad = true, SPECIFIC},                                                      \
    {op, "first dim, kept", {value(SWEEP, 5), INTS(0), BOOL(true), __VA_ARGS__}, ref, .c = 4,      \
     .depth = SWEEP, .grad = true, SPECIFIC},                                                      \
    {op, "middle", {value(2, SWEEP, 3), INTS(1), BOOL(false), __VA_ARGS__}, ref, .c = 4,           \
     .depth = SWEEP, .grad = true, SPECIFIC},                                                      \
    {op, "two dims", {value(2, SWEEP, 3), INTS(0, 2), BOOL(false), __VA_ARGS__}, ref, .c = 4,      \
     .depth = SWEEP, .grad = true, SPECIFIC},                                                      \
    {op, "all", {value(SWEEP, 2), ABSENT, BOOL(false), __VA_ARGS__}, ref, .c = 4, .depth = SWEEP,  \
     .grad = true, SPECIFIC},                                                                      \
    {op, "0-dim, its dim", {value(), INTS(-1), BOOL(true), __VA_ARGS__}, ref, .c = 4, SPECIFIC},   \
    {op, "0-dim", {value(), ABSENT, BOOL(false), __VA_ARGS__}, ref, .c = 4, SPECIFIC,              \
     .bad = {{1, INTS(3), TS_ERR_INDEX, "dim"}, {1, INTS(0, 0), TS_ERR_VALUE, "dim"}}}
#define FACTOR(...) T_UNIFORM(0.7, 1.4, __VA_ARGS__)

static const ts_sample samples[] = {
    {"sum_to_size", "rows", {T(SWEEP, 4), INTS(4)}, ref_sum_to_size, .c = 2, .depth = SWEEP,
     .grad = true,
     .bad = {{1, INTS(3), TS_ERR_SHAPE, "broadcast"},
             {1, INTS(1, 1, 1), TS_ERR_SHAPE, "broadcast"}}},
    {"sum_to_size", "rows of integers", {T(SWEEP, 4), INTS(4)}, ref_sum_to_size,
     .dtypes = DT_INTS | TS_DT(TS_BOOL), .out = {OUT_INT}},
    {"sum_to_size", "columns", {T(3, SWEEP), INTS(3, 1)}, ref_sum_to_size, .c = 2, .depth = SWEEP,
     .grad = true},
    {"sum_to_size", "inner dim", {T(3, SWEEP, 2), INTS(3, 1, 2)}, ref_sum_to_size, .c = 2,
     .depth = SWEEP, .grad = true},
    {"sum_to_size", "all", {T(2, SWEEP), INTS()}, ref_sum_to_size, .c = 2, .depth = SWEEP,
     .grad = true},
    {"sum_to_size", "same", {T(SWEEP, 2), INTS(SWEEP, 2)}, ref_sum_to_size, .c = 0, .grad = true},
    {"unreduce", "gone", {T(2, 3), INTS(2, 4, 3), INTS(1)}, ref_unreduce, .grad = true},
    {"unreduce", "kept", {T(2, 1, SWEEP), INTS(2, 4, SWEEP), INTS(1)}, ref_unreduce, .grad = true},
#define SPECIFIC .dtypes = DT_FLOATS_
    OVER("sum", ref_sum, T),
    OVER("var", ref_var, T, FLOAT(0)),
    OVER("mean", ref_mean, T),
#undef SPECIFIC
#define SPECIFIC .no_empty = true
    OVER("logsumexp", ref_logsumexp, T),
#undef SPECIFIC
#define SPECIFIC .most = 33, .many = 301
    OVER("prod", ref_prod, FACTOR),
#undef SPECIFIC
/* a standard deviation of 0 has no gradient */
#define SPECIFIC .no_empty = true, .no_expand = true
    OVER("std", ref_std, T, FLOAT(0)),
    OVER("amax", ref_amax, T),
    OVER("amin", ref_amin, T),
#undef SPECIFIC
#define SPECIFIC .dtypes = DT_ALL, .out = {OUT(TS_BOOL)}
    OVER("all", ref_all, T),
    OVER("any", ref_any, T),
#undef SPECIFIC
#define TRUTH(op)                                                                                  \
    {#op, "zeros", {T_WHOLE(0, 1, 3, SWEEP), INTS(1), BOOL(false)}, ref_##op, .dtypes = DT_ALL,    \
     .out = {OUT(TS_BOOL)}},                                                                       \
    {#op, "some zeros", {T_WHOLE(0, 2, SWEEP, 3), INTS(1), BOOL(false)}, ref_##op,                 \
     .dtypes = DT_ALL, .out = {OUT(TS_BOOL)}},                                                     \
    {#op, "one of a row", {T_WHOLE(0, 40, SWEEP, 17), INTS(1), BOOL(true)}, ref_##op,              \
     .dtypes = DT_ALL, .out = {OUT(TS_BOOL)}},                                                     \
    {#op, "special", {T_SPECIAL(20, 1), INTS(1), BOOL(false)}, ref_##op, .dtypes = DT_ALL,         \
     .out = {OUT(TS_BOOL)}}
    TRUTH(all),
    TRUTH(any),
#define SPECIFIC .no_empty = true
    OVER("norm", ref_norm, T, FLOAT(2)),
#undef SPECIFIC
    {"var", "correction 1", {T(3, SWEEP), INTS(1), BOOL(false), FLOAT(1)}, ref_var, .c = 4,
     .depth = SWEEP, .grad = true},
#define EQUAL(op)                                                                                  \
    {op, "equal elements", {T_UNIFORM(1.1, 1.1, 3, SWEEP), INTS(1), BOOL(false), FLOAT(0)},        \
     ref_no_spread, .no_empty = true},                                                             \
    {op, "equal columns", {T_UNIFORM(1.1, 1.1, SWEEP, 3), INTS(0), BOOL(false), FLOAT(0)},         \
     ref_no_spread, .no_empty = true}
    EQUAL("var"),
    EQUAL("std"),
#undef EQUAL
    {"norm", "p = 1", {T(3, SWEEP), INTS(1), BOOL(false), FLOAT(1)}, ref_norm, .c = 4,
     .grad = true},
    {"norm", "p = infinity", {T(3, SWEEP), INTS(1), BOOL(false), FLOAT(INFINITY)}, ref_norm, .c = 1,
     .no_expand = true,
     .no_empty = true, .grad = true},
    {"sum", "integers", {T(3, SWEEP), INTS(1), BOOL(false)}, ref_sum,
     .dtypes = DT_INTS | TS_DT(TS_BOOL), .out = {OUT_INT}},
    {"prod", "zeros", {T_WHOLE(-1, 2, SWEEP, 5), INTS(1), BOOL(false)}, ref_prod, .c = 4,
     .grad = true},
    {"prod", "zeros, all dims", {T_WHOLE(-1, 2, 2, 3), ABSENT, BOOL(false)}, ref_prod, .c = 4,
     .grad = true},
    {"prod", "0-dim, gradient", {FACTOR(), INTS(-1), BOOL(true)}, ref_prod, .c = 4, .grad = true},
    {"prod", "integers", {T_WHOLE(1, 3, 3, 4), INTS(1), BOOL(false)}, ref_prod, .dtypes = DT_INTS,
     .out = {OUT_INT}},
    {"amax", "integers", {T(3, SWEEP), INTS(1), BOOL(false)}, ref_amax, .dtypes = DT_ALL,
     .no_empty = true},
    {"amin", "integers", {T(3, SWEEP), INTS(1), BOOL(false)}, ref_amin, .dtypes = DT_ALL,
     .no_empty = true},
    {"amax", "special", {T_SPECIAL(7, 19), INTS(1), BOOL(false)}, ref_amax},
    {"amin", "special", {T_SPECIAL(19, 7), INTS(0), BOOL(false)}, ref_amin},
    {"sum", "special", {T_SPECIAL(3, 4), INTS(1), BOOL(false)}, ref_sum, .c = 1},
    {"logsumexp", "large", {T_UNIFORM(900, 1000, 3, SWEEP), INTS(1), BOOL(false)}, ref_logsumexp,
     .c = 4, .no_empty = true},
};
TS_SAMPLES(reduce, samples)
