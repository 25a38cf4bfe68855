/** @file errors.h  Errors of results relative to exact values, for tests that compare compiled and
 * eager calls with f64. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_ERRORS_H
#define TESSERA_TESTS_CUDA_ERRORS_H

#include "tests/cuda/cuda.h"

#include <math.h>

/** Elements of a tensor on any device as doubles, row-major; the caller frees them. */
static inline double *doubles_of(ts_tensor *t)
{
    double *values = malloc((size_t)ts_numel(t) * sizeof *values + 8);
    t = ts_contiguous(ts_to(ts_to_device(t, TS_DEVICE_CPU), TS_F64));
    OK(ts_copy_to(t, values, (size_t)ts_numel(t) * sizeof *values));
    return values;
}

/** Largest difference between a tensor and the exact values, relative to the largest absolute exact
 *  value. Inf if an element of the tensor is not finite. */
static inline double error_of(ts_tensor *t, ts_tensor *exact)
{
    double *a = doubles_of(t), *b = doubles_of(exact), worst = 0, most = 1e-30;
    ck_assert_int_eq(ts_numel(t), ts_numel(exact));
    for (int64_t i = 0; i < ts_numel(t); i++) {
        worst = fmax(worst, isfinite(a[i]) ? fabs(a[i] - b[i]) : INFINITY);
        most = fmax(most, fabs(b[i]));
    }
    free(a), free(b);
    return worst / most;
}

/** Unit of tolerances. The unit roundoff of a dtype is half of the distance from 1 to the next
 *  number. For bf16 and f16 the unit is half of their unit roundoff; for other dtypes it is the
 *  unit roundoff of f32. */
static inline double rounding(ts_dtype dtype)
{
    return dtype == TS_BF16 ? 0x1p-9 : dtype == TS_F16 ? 0x1p-12 : 0x1p-24;
}

#endif
