/** @file cuda.h  Common functions of the tests on a GPU, written with public headers only.
 * Each case opens the backend itself: cases run in forked children, which cannot use a CUDA context
 * of their parent. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_H
#define TESSERA_TESTS_CUDA_H

#include <tessera/tessera.h>

#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(expr) ck_assert_msg(TS_STATUS_OF(expr) == TS_OK, "%s: %s", #expr, ts_error_message())

/** Opens the first GPU as `device`. Skips the case, with the reason, if that fails. */
#define GPU(device)                                                \
    ts_device device = TS_DEVICE_CPU;                              \
    if (ts_device_open("cuda", &device, NULL, 0) != TS_OK)         \
    TS_SKIP("%s", ts_error_message())

/** A tensor of n floats on the device, all v. */
static inline ts_tensor *full_on(ts_device device, int64_t n, double v)
{
    return ts_fill_(ts_empty_on(TS_SIZES(n), TS_F32, device), v);
}

/** Copies the elements of t (f32) to memory that the caller frees. */
static inline float *values_of(ts_tensor *t)
{
    float *values = malloc((size_t)ts_numel(t) * sizeof *values);
    OK(ts_copy_to(t, values, (size_t)ts_numel(t) * sizeof *values));
    return values;
}

/** True if all elements of t (f32) are v. */
static inline bool all_are(ts_tensor *t, float v)
{
    float *values = values_of(t);
    int64_t n = ts_numel(t), i = 0;
    while (i < n && values[i] == v)
        i++;
    free(values);
    return i == n;
}

static inline ts_memory_stats memory_of(ts_device device)
{
    ts_memory_stats stats;
    OK(ts_device_memory_stats(device, &stats));
    return stats;
}

#endif
