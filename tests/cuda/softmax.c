/** @file softmax.c  Softmax over wide rows on a GPU against the CPU in f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};

/* Bound of the error: 32 eps of f32, for exponentials and sums of up to 262,144 terms, plus the
 * rounding to bf16 or f16; for f16 at least its smallest step. */
static void assert_near(ts_tensor *got_, ts_tensor *want_, ts_dtype dtype, bool log)
{
    ts_tensor *here = ts_to(ts_to_device(got_, TS_DEVICE_CPU), TS_F64);
    const double *got = ts_data(here), *want = ts_data(want_);
    double rounding = dtype == TS_F32 ? 0 : dtype == TS_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < ts_numel(want_); i++) {
        double most = (32 * 0x1p-23 + rounding) * fabs(want[i]) + (dtype == TS_F16 ? 0x1p-24 : 0);
        if (!(fabs(got[i] - want[i]) <= most) && got[i] != want[i])
            ck_abort_msg("%s: element %d of rows of %d: got %.9g, expected %.9g",
                         log ? "log_softmax" : "softmax", (int)i, (int)ts_size(want_, 1), got[i],
                         want[i]);
    }
}

/** Rows in registers, and in the shared memory of clusters of 4 and 8. */
TS_TEST(softmax_of_wide_rows_equals_that_of_the_CPU, .loop = 3)
{
    GPU(device);
    static const int64_t columns[] = {8192, 16384, 20000, 32768, 50304, 100352, 131072, 262144};
    for (size_t k = 0; k < 2 * sizeof columns / sizeof *columns; k++) {
        TS_SCOPE;
        bool log = k & 1;
        /* more rows than resident blocks; few if rows are long */
        int64_t n = columns[k / 2], rows = n < 30000 ? 150 : 20;
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(rows, n), 0, 2, TS_F32), dtypes[_i]),
                  *there = ts_to_device(x, device);
        ts_tensor *right = (log ? ts_log_softmax : ts_softmax)(ts_to(x, TS_F64), 1);
        assert_near((log ? ts_log_softmax : ts_softmax)(there, 1), right, dtypes[_i], log);
    }
}

static const int64_t widths[] = {8, 800, 1024, 4096, 16384, 20000, 32768, 100352, 131072};
enum { WIDTHS = sizeof widths / sizeof *widths, LINES = 3 };

/* Rows with one value in the left half and one in the right, so that some threads and warps see
 * only one of them. */
static ts_tensor *halves(int64_t n, float left, float right, ts_dtype dtype)
{
    ts_tensor *x = ts_empty(TS_SIZES(LINES, n), TS_F32);
    float *at = ts_data_mut(x);
    for (int64_t i = 0; i < LINES * n; i++)
        at[i] = i % n < n / 2 ? left : right;
    return ts_to(x, dtype);
}

TS_TEST(softmax_of_a_row_of_which_one_half_is_NaN_is_NaN, .loop = 3)
{
    GPU(device);
    for (int k = 0; k < 4 * WIDTHS; k++) {
        TS_SCOPE;
        int64_t n = widths[k / 4];
        ts_tensor *x = k & 1 ? halves(n, NAN, 1, dtypes[_i]) : halves(n, 1, NAN, dtypes[_i]);
        ts_tensor *y = (k & 2 ? ts_log_softmax : ts_softmax)(ts_to_device(x, device), 1);
        const float *got = ts_data(ts_to(ts_to_device(y, TS_DEVICE_CPU), TS_F32));
        for (int64_t i = 0; i < LINES * n; i++)
            ck_assert_msg(isnan(got[i]), "element %d of rows of %d: got %.9g, expected NaN", (int)i,
                          (int)n, got[i]);
    }
}

TS_TEST(softmax_of_numbers_far_below_zero_beside_minus_infinity_equals_that_of_the_CPU, .loop = 3)
{
    GPU(device);
    for (int k = 0; k < 6 * WIDTHS; k++) {
        TS_SCOPE;
        int64_t n = widths[k / 6];
        float right[] = {-1000, -INFINITY, -2000};
        ts_tensor *x = halves(n, -1000, right[k % 3], dtypes[_i]);
        bool log = k / 3 & 1;
        ts_tensor *want = (log ? ts_log_softmax : ts_softmax)(ts_to(x, TS_F64), 1);
        assert_near((log ? ts_log_softmax : ts_softmax)(ts_to_device(x, device), 1), want,
                    dtypes[_i], log);
    }
}

/** Lines that several blocks share, with gradients: rows of any length, or lines with inner > 1. */
TS_TEST(softmax_of_few_long_lines_equals_that_of_the_CPU, .loop = 3)
{
    GPU(device);
    uint64_t state = 4242 + (uint64_t)_i;
    ts_manual_seed(state);
    for (int turn = 0; turn < 24; turn++) {
        TS_SCOPE;
        state = state * 6364136223846793005u + 1442695040888963407u;
        int64_t outer = 1 + (int64_t)(state >> 60) % 3,
                inner = turn % 2 ? 1 + (int64_t)(state >> 55) % 70 : 1,
                n = 4097 + (int64_t)(state >> 33) % (400000 / (outer * inner));
        bool log = turn & 2;
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(outer, n, inner), 0, 2, TS_F32), dtypes[_i]),
                  *up = ts_to(ts_normal(TS_SIZES(outer, n, inner), 0, 1, TS_F32), dtypes[_i]),
                  *there = ts_to_device(x, device);
        ts_tensor *right = (log ? ts_log_softmax : ts_softmax)(ts_to(x, TS_F64), 1),
                  *got = (log ? ts_log_softmax : ts_softmax)(there, 1);
        assert_near(got, right, dtypes[_i], log);
        ts_tensor *y = ts_to_device(got, TS_DEVICE_CPU);
        ts_tensor *(*backward)(ts_tensor *, ts_tensor *, int) =
            log ? ts_log_softmax_backward : ts_softmax_backward;
        ts_tensor *want = backward(ts_to(up, TS_F64), ts_to(y, TS_F64), 1),
                  *first = backward(ts_to_device(up, device), got, 1),
                  *again = backward(ts_to_device(up, device), got, 1);
        ts_tensor *here = ts_to(ts_to_device(first, TS_DEVICE_CPU), TS_F64);
        const double *a = ts_data(here), *b = ts_data(want);
        /* the sum of n terms errs by less than sqrt(n) eps of the terms' magnitudes */
        double unit = dtypes[_i] == TS_F32 ? 0x1p-20 : dtypes[_i] == TS_BF16 ? 0x1p-8 : 0x1p-11,
               most = log ? 0x1p-22 * sqrt((double)n) * 8 : 0x1p-24;
        for (int64_t i = 0; i < ts_numel(want); i++)
            ck_assert_msg(fabs(a[i] - b[i]) <= 2 * unit * fabs(b[i]) + most,
                          "gradient %d of (%d, %d, %d): got %.9g, expected %.9g", (int)i,
                          (int)outer, (int)n, (int)inner, a[i], b[i]);
        double same = 0;
        OK(ts_item(ts_all(ts_eq(first, again)), &same));
        ck_assert_double_eq(same, 1);
    }
}
