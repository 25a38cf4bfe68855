/** @file arg.c  max, min and their indices: public functions, ties and NaN in long lines,
 * gradients. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

#include <math.h>

TS_TEST(places_by_form)
{
    double values[] = {3, 9, 1, 9, 0, 4};
    ts_tensor *t = ts_reshape(row(TS_F32, values, 6), TS_SIZES(2, 3)), *places = NULL;
    EXPECT(ts_argmax(t), 1);
    EXPECT(ts_argmin(t), 4);
    EXPECT(ts_argmax_dim(t, 1, false), 1, 0);
    EXPECT(ts_argmin_dim(t, 0, true), 0, 1, 0);
    EXPECT_SIZES(ts_argmin_dim(t, 0, true), 1, 3);
    ts_tensor *out = ts_zeros(TS_SIZES(2), TS_I64);
    ck_assert_ptr_eq(ts_argmin_out(out, t, 1, false), out);
    EXPECT(out, 2, 1);
    EXPECT(ts_argmax_out(out, t, -1, false), 1, 0);
    EXPECT(ts_max_dim(t, 1, false, &places), 9, 9);
    EXPECT(places, 1, 0);
    EXPECT(ts_min_dim(t, 1, true, NULL), 1, 0);
    EXPECT_ERROR(ts_argmax_out(ts_zeros(TS_SIZES(2), TS_F32), t, 1, false), TS_ERR_DTYPE, "out");
    EXPECT_ERROR(ts_max_dim(t, 2, false, &places), TS_ERR_INDEX, "'dim'");
}

TS_TEST(a_dim_of_one_element_has_its_elements)
{
    double values[] = {3, -INFINITY, 7};
    ts_tensor *t = ts_unsqueeze(row(TS_F64, values, 3), 0), *places = NULL;
    EXPECT(ts_argmax_dim(t, 0, false), 0, 0, 0);
    EXPECT(ts_argmin_dim(ts_unsqueeze(t, 2), 2, false), 0, 0, 0);
    EXPECT(ts_max_dim(t, 0, false, &places), 3, -INFINITY, 7);
    EXPECT(places, 0, 0, 0);
    EXPECT(ts_min_dim(t, 0, false, NULL), 3, -INFINITY, 7);
}

TS_TEST(the_first_of_many_parts_wins)
{
    ts_tensor *t = ts_zeros(TS_SIZES(200000), TS_F32);
    EXPECT(ts_argmax(t), 0);
    float *x = ts_data_mut(t);
    x[150000] = x[70001] = 2;
    x[199999] = -1;
    EXPECT(ts_argmax(t), 70001);
    EXPECT(ts_argmin(t), 199999);
    x[190000] = x[130000] = NAN;
    EXPECT(ts_argmax(t), 130000);
    EXPECT(ts_argmin(t), 130000);
}

TS_TEST(one_of_equal_elements_gets_the_gradient)
{
    double values[] = {5, 1, 5, 2, 7, 7};
    ts_tensor *t = ts_set_requires_grad(ts_reshape(row(TS_F32, values, 6), TS_SIZES(2, 3)), true),
              *places = NULL;
    ts_tensor *y = ts_max_dim(t, 1, false, &places);
    ck_assert(!ts_requires_grad(places));
    ck_assert_int_eq(ts_backward(ts_sum(ts_mul_scalar(y, 3))), TS_OK);
    EXPECT(ts_grad(t), 3, 0, 0, 0, 3, 0);
}
