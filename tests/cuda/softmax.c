/** @file softmax.c  Softmax over wide rows on a GPU against the CPU in f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

/* Of f32: exponents and sums of up to 262,144 terms, 32 eps; of halves one rounding more, of f16 not below its smallest step. */
static void assert_near(ts_tensor *got_, ts_tensor *want_, ts_dtype dtype, bool log)
{
    ts_tensor *here = ts_to(ts_to_device(got_, TS_DEVICE_CPU), TS_F64);
    const double *got = ts_data(here), *want = ts_data(want_);
    double rounding = dtype == TS_F32 ? 0 : dtype == TS_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < ts_numel(want_); i++) {
        double most = (32 * 0x1p-23 + rounding) * fabs(want[i]) + (dtype == TS_F16 ? 0x1p-24 : 0);
        if (!(fabs(got[i] - want[i]) <= most))
            ck_abort_msg("%s: element %d of rows of %d: got %.9g, expected %.9g", log ? "log_softmax" : "softmax", (int)i,
                         (int)ts_size(want_, 1), got[i], want[i]);
    }
}

/** Rows in registers, and in the shared memory of clusters of 2, 4 and 8. */
TS_TEST(softmax_of_wide_rows_is_that_of_the_CPU, .loop = 3)
{
    GPU(device);
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
    static const int64_t columns[] = {8192, 20000, 50304, 100352, 131072, 262144};
    for (size_t k = 0; k < 2 * sizeof columns / sizeof *columns; k++) {
        TS_SCOPE;
        bool log = k & 1;
        int64_t n = columns[k / 2], rows = n < 30000 ? 150 : 20; /* more than blocks that stay, or few */
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(rows, n), 0, 2, TS_F32), dtypes[_i]), *there = ts_to_device(x, device);
        ts_tensor *right = (log ? ts_log_softmax : ts_softmax)(ts_to(x, TS_F64), 1);
        assert_near((log ? ts_log_softmax : ts_softmax)(there, 1), right, dtypes[_i], log);
    }
}
