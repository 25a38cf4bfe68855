/** @file factory.c  Sequences and matrices made from numbers. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(arange_follows_start_end_and_step)
{
    ts_tensor *y = ts_arange(0, 5, 2, TS_DTYPE_NONE);
    ck_assert_int_eq(ts_dtype_of(y), TS_I64);
    EXPECT(y, 0, 2, 4);
    EXPECT(ts_arange(3, 0, -1, TS_I32), 3, 2, 1);
    y = ts_arange(0.0, 1, 0.25, TS_DTYPE_NONE);
    ck_assert_int_eq(ts_dtype_of(y), TS_F32);
    EXPECT(y, 0, 0.25, 0.5, 0.75);
    EXPECT(ts_arange(1, 3, 1, TS_F64), 1, 2);
    EXPECT_SIZES(ts_arange(2, 2, 1, TS_U8), 0);
    EXPECT_SIZES(ts_arange(INT64_MAX - 3, INT64_MAX, 1, TS_DTYPE_NONE), 3);
    ck_assert(((const int64_t *)ts_data(ts_arange(INT64_MAX - 3, INT64_MAX, 1, TS_I64)))[2] ==
              INT64_MAX - 1);
    EXPECT_ERROR(ts_arange(0, 5, 0, TS_I64), TS_ERR_VALUE, "'step'");
    EXPECT_ERROR(ts_arange(0, 5, -1, TS_I64), TS_ERR_VALUE, "direction");
    EXPECT_ERROR(ts_arange(0, 1e300, 1, TS_F64), TS_ERR_SHAPE, "finite");
    EXPECT_ERROR(ts_arange(0, 5, 1, TS_BOOL), TS_ERR_DTYPE, "bool");
    EXPECT_ERROR(ts_arange(0, 5, 1, (ts_dtype)77), TS_ERR_DTYPE, "77");
}

TS_TEST(linspace_reaches_both_ends)
{
    EXPECT(ts_linspace(0, 1, 5, TS_DTYPE_NONE), 0, 0.25, 0.5, 0.75, 1);
    EXPECT(ts_linspace(3, -3, 3, TS_F64), 3, 0, -3);
    EXPECT(ts_linspace(7, 9, 1, TS_F64), 7);
    EXPECT_SIZES(ts_linspace(0, 1, 0, TS_F64), 0);
    EXPECT_ERROR(ts_linspace(0, 1, -1, TS_F64), TS_ERR_VALUE, "'steps'");
}

TS_TEST(eye_has_ones_on_its_diagonal)
{
    EXPECT(ts_eye(2, 3, TS_DTYPE_NONE), 1, 0, 0, 0, 1, 0);
    EXPECT(ts_eye(3, 1, TS_BF16), 1, 0, 0);
    EXPECT(ts_eye(2, 2, TS_BOOL), 1, 0, 0, 1);
    EXPECT_SIZES(ts_eye(0, 3, TS_I64), 0, 3);
    EXPECT_ERROR(ts_eye(-1, 3, TS_F32), TS_ERR_SHAPE, "'rows'");
}

TS_TEST(scalar_tensor_takes_the_kind_of_its_value)
{
    ck_assert_int_eq(ts_dtype_of(ts_scalar_tensor(2, TS_DTYPE_NONE)), TS_I64);
    ck_assert_int_eq(ts_dtype_of(ts_scalar_tensor(2.5, TS_DTYPE_NONE)), TS_F32);
    EXPECT(ts_scalar_tensor(2.5, TS_F64), 2.5);
    ck_assert_int_eq(ts_ndim(ts_scalar_tensor(1, TS_F64)), 0);
}
