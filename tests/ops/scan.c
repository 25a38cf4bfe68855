/** @file scan.c  Cumulative sums: public forms, wrapping, precision of long sums. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(cumulative_sums_in_each_form)
{
    ts_tensor *t = count_up(TS_SIZES(2, 3), TS_F32);
    EXPECT(ts_cumsum(t, 1), 0, 1, 3, 3, 7, 12);
    EXPECT(ts_cumsum(t, -2), 0, 1, 2, 3, 5, 7);
    EXPECT(ts_cumsum_reversed(t, 1), 3, 3, 2, 12, 9, 5);
    ts_tensor *out = ts_zeros(TS_SIZES(2, 3), TS_F32);
    ck_assert_ptr_eq(ts_cumsum_out(out, t, 0), out);
    EXPECT(out, 0, 1, 2, 3, 5, 7);
    ck_assert_ptr_eq(ts_cumsum_(ts_t(t), 0) ? t : NULL, t);
    EXPECT(t, 0, 1, 3, 3, 7, 12);
    EXPECT_ERROR(ts_cumsum_(count_up(TS_SIZES(3), TS_I32), 0), TS_ERR_DTYPE, "i64");
    EXPECT_ERROR(ts_cumsum(t, 2), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_cumsum(NULL, 0), TS_ERR_NULL, "self");
}

TS_TEST(long_sums_of_f32_stay_exact)
{
    ts_tensor *t = ts_ones(TS_SIZES(1001, 2), TS_F32);
    float *x = ts_data_mut(t);
    x[0] = x[1] = 1 << 24; /* where adding 1 to a sum in f32 changes nothing */
    EXPECT(ts_select(ts_cumsum(t, 0), 0, 1000), (1 << 24) + 1000, (1 << 24) + 1000);
    EXPECT(ts_select(ts_cumsum(ts_contiguous(ts_t(t)), 1), 1, 1000), (1 << 24) + 1000,
           (1 << 24) + 1000);
}
