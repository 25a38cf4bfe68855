/** @file arg.c  max, min and their indices: public functions, ties and NaN in long lines,
 * gradients. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

#include "core/philox.h"

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

/* Results of a few adjacent columns are searched side by side. */
TS_TEST(drawn_columns_have_the_first_of_their_largest_elements, .loop = 60)
{
    uint64_t draw = 0;
    int64_t sizes[3];
    for (int d = 0; d < 3; d++)
        sizes[d] = 1 + (int64_t)(ts_philox_u64(31, (uint64_t)_i, draw++) % (d ? 40 : 200));
    sizes[2] = _i % 2 ? sizes[2] : 1 + sizes[2] % 9;
    ts_manual_seed((uint64_t)_i);
    ts_tensor *t = ts_randint_on(sizes, 3, 0, 9, _i % 3 ? TS_F32 : TS_U8, TS_DEVICE_CPU), *places;
    ts_set_num_threads(1 + _i % 4);
    ts_tensor *found = ts_to(ts_max_dim(t, 1, false, &places), TS_F64), *wide = ts_to(t, TS_F64);
    const double *x = ts_data(wide), *best = ts_data(found);
    const int64_t *at = ts_data(places);
    for (int64_t r = 0; r < sizes[0] * sizes[2]; r++) {
        const double *column = x + r / sizes[2] * sizes[1] * sizes[2] + r % sizes[2];
        int64_t first = 0;
        for (int64_t k = 1; k < sizes[1]; k++)
            first = column[k * sizes[2]] > column[first * sizes[2]] ? k : first;
        ck_assert_int_eq(at[r], first);
        ck_assert_double_eq(best[r], column[first * sizes[2]]);
    }
}
