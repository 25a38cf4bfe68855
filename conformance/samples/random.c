/** @file random.c  Samples of random ops: their references are the formulas of core/philox.h. */
// SPDX-License-Identifier: MIT
#include "core/philox.h"
#include "conformance/sample.h"

enum { SEED = 1234 }; /* seed of every call; the offset is 0 */

static double uniform_at(const ts_ref *r, int64_t i)
{
    return r->dtype == TS_F64 ? ts_philox_uniform_f64(SEED, 0, (uint64_t)i)
                              : (double)ts_philox_uniform_f32(SEED, 0, (uint64_t)i);
}

static void ref_uniform(ts_ref *r)
{
    double *y = ref_ret(r, 0, r->a[0].sizes, r->a[0].ndim);
    /* ends of these samples are powers of two: a half must not round up to them */
    double unit = r->dtype == TS_BF16  ? 0x1p-8
                  : r->dtype == TS_F16 ? 0x1p-11
                                       : 0,
           last = r->a[2].d * (1 - unit);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        y[i] = fmin(r->a[1].d + uniform_at(r, i) * (r->a[2].d - r->a[1].d), last);
}

static void ref_normal(ts_ref *r)
{
    double *y = ref_ret(r, 0, r->a[0].sizes, r->a[0].ndim);
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        double z = r->dtype == TS_F64 ? ts_philox_normal_f64(SEED, 0, (uint64_t)i)
                                      : (double)ts_philox_normal_f32(SEED, 0, (uint64_t)i);
        y[i] = r->a[1].d + z * r->a[2].d;
    }
}

static void ref_randint(ts_ref *r)
{
    double *y = ref_ret(r, 0, r->a[0].sizes, r->a[0].ndim);
    uint64_t range = (uint64_t)(r->a[2].i - r->a[1].i);
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        uint64_t bits = ts_philox_u64(SEED, 0, (uint64_t)i);
        y[i] = (double)(r->a[1].i + (int64_t)((unsigned __int128)bits * range >> 64));
    }
}

static bool is_permutation(const ts_ref *r)
{
    bool seen[257] = {0};
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        int64_t k = (int64_t)r->ret[0].x[i];
        if (k < 0 || k >= 257 || seen[k])
            return false;
        seen[k] = true;
    }
    return r->ret[0].numel == 257;
}

static void ref_bernoulli(ts_ref *r)
{
    bool each = r->a[0].tag == TS_TAG_TENSOR;
    double *y = each ? ref_ret_like(r, 0, &r->a[0]) : ref_ret(r, 0, r->a[1].sizes, r->a[1].ndim);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        y[i] = uniform_at(r, i) < (each ? r->a[0].x[i] : r->a[0].d);
}

static bool are_draws(const ts_ref *r)
{
    int64_t draws = r->a[1].i, categories = r->a[0].sizes[r->a[0].ndim - 1];
    for (int64_t i = 0; i < r->ret[0].numel; i++) {
        if (r->ret[0].x[i] < 0 || r->ret[0].x[i] >= (double)categories)
            return false;
        for (int64_t k = i / draws * draws; !r->a[2].i && k < i; k++)
            if (r->ret[0].x[k] == r->ret[0].x[i])
                return false;
    }
    return true;
}

static void ref_dropout(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]), p = r->a[1].d;
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        y[i] = (double)ts_philox_uniform_f32(SEED, 0, (uint64_t)i) < p ? 0 : r->a[0].x[i] / (1 - p);
}

#define FILL INTS(SWEEP, 3)
#define END DTYPE_OF_RUN, DEVICE
#define TOO_LARGE INTS((int64_t)1 << 33, (int64_t)1 << 33)

static const ts_sample samples[] = {
    {"uniform", "unit", {FILL, FLOAT(0), FLOAT(1), END}, ref_uniform, .c = 0,
     .bad = {{0, INTS(-1), TS_ERR_SHAPE, "sizes >= 0"}, {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"},
             {2, FLOAT(-1), TS_ERR_VALUE, "at least low"},
             {3, DTYPE(TS_I64), TS_ERR_DTYPE, "i64"}}},
    {"uniform", "range", {FILL, FLOAT(-3), FLOAT(2), END}, ref_uniform, .c = 2, .scale = 5},
    {"uniform", "0-dim", {INTS(), FLOAT(0), FLOAT(1), END}, ref_uniform},
    {"normal", "standard", {FILL, FLOAT(0), FLOAT(1), END}, ref_normal, .c = 0, .device_c = 2,
     .bad = {{2, FLOAT(-1), TS_ERR_VALUE, "at least 0"},
             {0, INTS(2, -1), TS_ERR_SHAPE, "sizes >= 0"}}},
    {"normal", "moved", {FILL, FLOAT(3), FLOAT(0.5), END}, ref_normal, .c = 1},
    {"randint", "bits", {FILL, INT(0), INT(2), END}, ref_randint, .dtypes = DT_ALL,
     .bad = {{2, INT(0), TS_ERR_VALUE, "more than low"}, {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"}}},
    {"randint", "signed", {FILL, INT(-1000), INT(77777), END}, ref_randint,
     .dtypes = DT_WIDE | TS_DT(TS_I64) | TS_DT(TS_I32),
     .bad = {{3, DTYPE(TS_U8), TS_ERR_VALUE, "0 to 255"}}},
    {"randperm", "257", {INT(257), END}, .check = is_permutation,
     .dtypes = TS_DT(TS_I64) | TS_DT(TS_I32),
     .bad = {{0, INT(-1), TS_ERR_VALUE, "expected 0 to"},
             {1, DTYPE(TS_U8), TS_ERR_VALUE, "0 to 255"}}},
    {"bernoulli", "each", {T_UNIFORM(0, 1, SWEEP, 3), FILL, END}, ref_bernoulli},
    {"bernoulli", "one", {FLOAT(0.3), FILL, END}, ref_bernoulli, .dtypes = DT_ALL,
     .bad = {{0, FLOAT(1.5), TS_ERR_VALUE, "from 0 to 1"},
             {1, INTS(-1), TS_ERR_SHAPE, "sizes >= 0"}}},
    {"multinomial", "with replacement", {T_UNIFORM(0.1, 1, SWEEP, 7), INT(9), BOOL(true)},
     .check = are_draws,
     .out = {OUT(TS_I64)},
     .bad = {{1, INT(0), TS_ERR_VALUE, "at least 1"}, {0, T(), TS_ERR_SHAPE, "(C) or (N, C)"}}},
    {"multinomial", "without", {T_UNIFORM(0.1, 1, SWEEP, 7), INT(7), BOOL(false)},
     .check = are_draws,
     .out = {OUT(TS_I64)}, .bad = {{1, INT(8), TS_ERR_VALUE, "at most the 7"}}},
    {"multinomial", "one row", {T_UNIFORM(0.1, 1, SWEEP), INT(1), BOOL(false)}, .check = are_draws,
     .no_empty = true,
     .out = {OUT(TS_I64)}},
    {"dropout", "some", {T(SWEEP, 5), FLOAT(0.3)}, ref_dropout, .c = 2, .grad = true,
     .inplace = true,
     .bad = {{1, FLOAT(-0.1), TS_ERR_VALUE, "from 0 to 1"},
             {0, T_OF(TS_I64, 3), TS_ERR_DTYPE, "floating"}}},
    {"dropout", "all", {T(SWEEP, 2), FLOAT(1)}, ref_dropout, .inplace = true},
    {"dropout_backward", "some", {T(SWEEP, 5), FLOAT(0.3), INT(SEED), INT(0)}, ref_dropout, .c = 2,
     .grad = true,
     .inplace = true},
};
TS_SAMPLES(random, samples)
