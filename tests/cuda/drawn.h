/** @file drawn.h  Random sizes and values for tests on a GPU, and comparison with the CPU. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_DRAWN_H
#define TESSERA_TESTS_CUDA_DRAWN_H

#include "tests/cuda/cuda.h"

#include <math.h>

static uint64_t state; /* of drawn() */

/** Seeds drawn() and the library's generator with `seed`, plus the environment variable
 *  TS_TEST_SEED if it is set. */
static inline void seed_draws(uint64_t seed)
{
    const char *more = getenv("TS_TEST_SEED");
    state = seed + (more ? strtoull(more, NULL, 10) : 0);
    ts_manual_seed(state);
}

/** A random integer from 0 to n - 1. */
static inline int64_t drawn(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/** A random size below *limit, or 1, from small and large ranges; divides *limit by it, so that the
 * product of a tensor's sizes stays below the first *limit. */
static inline int64_t drawn_size(int64_t *limit)
{
    static const int64_t most[] = {1, 4, 9, 40, 300, 3000};
    int64_t n = 1 + drawn(most[drawn(6)]);
    n = n < *limit ? n : 1;
    *limit /= n;
    return n;
}

/** Random integers with many ties, as `dtype`; unless `finite`, also NaN and -infinity. */
static inline ts_tensor *drawn_values(const int64_t *sizes, int ndim, ts_dtype dtype, bool finite)
{
    ts_tensor *x = ts_round(ts_normal(sizes, ndim, 0, 3, TS_F32));
    if (!finite) {
        ts_tensor *rare = ts_uniform(sizes, ndim, 0, 1, TS_F32);
        x = ts_masked_fill_scalar(x, ts_lt_scalar(rare, 0.0005), NAN);
        x = ts_masked_fill_scalar(x, ts_gt_scalar(rare, 0.6), -INFINITY);
    }
    return ts_to(ts_dtype_is_float(dtype) ? x : ts_abs(x), dtype);
}

/** Elements of a tensor on any device as doubles, row-major; the caller frees them. */
static inline double *doubles_of(ts_tensor *t)
{
    t = ts_to(ts_to_device(ts_contiguous(t), TS_DEVICE_CPU), TS_F64);
    OK(t);
    double *values = malloc((size_t)ts_numel(t) * sizeof *values + 1);
    OK(ts_copy_to(t, values, (size_t)ts_numel(t) * sizeof *values));
    return values;
}

/** Asserts that elements differ by at most relative * |want| + absolute. NaN equals NaN. */
static inline void assert_alike(ts_tensor *got, ts_tensor *want, double relative, double absolute,
                                const char *what, ts_dtype dtype)
{
    OK(got);
    OK(want);
    ck_assert_int_eq(ts_numel(got), ts_numel(want));
    double *a = doubles_of(got), *b = doubles_of(want);
    for (int64_t i = 0; i < ts_numel(got); i++) {
        bool alike = a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) ||
                     fabs(a[i] - b[i]) <= relative * fabs(b[i]) + absolute;
        ck_assert_msg(alike, "%s of %s, result %lld of %lld: got %.9g, expected %.9g", what,
                      ts_dtype_name(dtype), (long long)i, (long long)ts_numel(got), a[i], b[i]);
    }
    free(a);
    free(b);
}

/** Unit of tolerances: the unit roundoff of bf16 and f16 (half of the distance from 1 to the next
 *  number), 2^-21 for other dtypes (in f32, four such distances). */
static inline double unit_of(ts_dtype dtype)
{
    return dtype == TS_BF16 ? 0x1p-8 : dtype == TS_F16 ? 0x1p-11 : 0x1p-21;
}

#endif
