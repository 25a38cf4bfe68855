/** @file cat.c  Joining: values over layouts and dtypes, errors, gradients. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(cat_joins_along_any_dim)
{
    ts_tensor *a = count_up(TS_SIZES(2, 2), TS_F32), *b = ts_t(count_up(TS_SIZES(3, 2), TS_F32));
    ts_tensor *list[] = {a, b};
    ts_tensor *y = ts_cat(list, 2, 1);
    EXPECT_SIZES(y, 2, 5);
    EXPECT(y, 0, 1, 0, 2, 4, 2, 3, 1, 3, 5);
    ts_tensor *rows[] = {a, ts_expand(count_up(TS_SIZES(1), TS_F32), TS_SIZES(1, 2)), a};
    EXPECT(ts_cat(rows, 3, -2), 0, 1, 2, 3, 0, 0, 0, 1, 2, 3);
    ts_tensor *out = ts_zeros(TS_SIZES(2, 5), TS_F32);
    ck_assert_ptr_eq(ts_cat_out(out, list, 2, 1), out);
    EXPECT(out, 0, 1, 0, 2, 4, 2, 3, 1, 3, 5);
}

TS_TEST(cat_of_channels_last_is_channels_last)
{
    for (int dims = 3; dims <= 5; dims++)
        for (int dim = 0; dim < dims; dim++) {
            TS_SCOPE;
            int64_t sizes[] = {2, 3, 4, 2, 5}, total = 0;
            ts_tensor *plain[3], *last[3];
            for (int i = 0; i < 3; i++) {
                sizes[dim] = 2 + i;
                total += sizes[dim];
                plain[i] = ts_normal(sizes, dims, 0, 1, TS_F32);
                last[i] = ts_movedim(ts_contiguous(ts_movedim(plain[i], 1, -1)), -1, 1);
            }
            ts_tensor *want = ts_cat(plain, 3, dim), *y = ts_cat(last, 3, dim);
            ck_assert_int_eq(ts_size(y, dim), total);
            ck_assert(ts_is_contiguous(ts_movedim(y, 1, -1)) && !ts_is_contiguous(y));
            double apart;
            ck_assert_int_eq(ts_item(ts_amax(ts_abs(ts_sub(y, want))), &apart), TS_OK);
            ck_assert_double_eq(apart, 0);
            ck_assert(ts_is_contiguous(ts_cat((ts_tensor *[]){last[0], plain[1]}, 2, dim)));
        }
}

TS_TEST(cat_promotes_and_skips_empty_tensors_of_one_dim)
{
    ts_tensor *nothing = count_up(TS_SIZES(0), TS_F32);
    ts_tensor *list[] = {nothing, count_up(TS_SIZES(1, 2), TS_I64),
                         count_up(TS_SIZES(1, 2), TS_F64)};
    ts_tensor *y = ts_cat(list, 3, 0);
    ck_assert_int_eq(ts_dtype_of(y), TS_F64);
    EXPECT(y, 0, 1, 0, 1);
    ts_tensor *only[] = {nothing, nothing};
    EXPECT_SIZES(ts_cat(only, 2, 0), 0);
}

TS_TEST(stack_adds_a_dim)
{
    ts_tensor *a = count_up(TS_SIZES(2, 2), TS_F32), *list[] = {a, ts_t(a)};
    EXPECT(ts_stack(list, 2, 0), 0, 1, 2, 3, 0, 2, 1, 3);
    EXPECT(ts_stack(list, 2, 1), 0, 1, 0, 2, 2, 3, 1, 3);
    ts_tensor *y = ts_stack(list, 2, -1);
    EXPECT(y, 0, 0, 1, 2, 2, 1, 3, 3);
    EXPECT_SIZES(y, 2, 2, 2);
    ts_tensor *zero = ts_select(ts_select(a, 0, 1), 0, 1), *scalars[] = {zero, zero, zero};
    EXPECT(ts_stack(scalars, 3, 0), 3, 3, 3);
}

TS_TEST(joining_refuses_what_does_not_fit)
{
    ts_tensor *a = count_up(TS_SIZES(2, 2), TS_F32), *b = count_up(TS_SIZES(3, 2), TS_F32),
              *list[] = {a, b};
    EXPECT_ERROR(ts_cat(list, 2, 1), TS_ERR_SHAPE, "'tensors[1]': expected sizes");
    EXPECT_ERROR(ts_cat(list, 2, 2), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_cat(list, 0, 0), TS_ERR_VALUE, "at least one");
    EXPECT_ERROR(ts_cat(NULL, 2, 0), TS_ERR_NULL, "tensors");
    EXPECT_ERROR(ts_cat((ts_tensor *[]){a, NULL}, 2, 0), TS_ERR_NULL, "tensors");
    EXPECT_ERROR(ts_cat((ts_tensor *[]){a, TS_NONE}, 2, 0), TS_ERR_NULL, "tensors");
    EXPECT_ERROR(ts_cat((ts_tensor *[]){ts_select(ts_select(a, 0, 0), 0, 0)}, 1, 0), TS_ERR_SHAPE,
                 "ts_stack");
    EXPECT_ERROR(ts_stack(list, 2, 0), TS_ERR_SHAPE, "'tensors[1]': expected sizes");
    EXPECT_ERROR(ts_stack((ts_tensor *[]){a, a}, 2, 3), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(
        ts_cat_out(a, (ts_tensor *[]){ts_slice(a, 0, 0, 1, 1), ts_slice(a, 0, 1, 2, 1)}, 2, 0),
        TS_ERR_VALUE, "shares memory");
    ts_tensor *meta = ts_empty_on(TS_SIZES(2, 2), TS_F32, TS_DEVICE_META);
    EXPECT_ERROR(ts_cat((ts_tensor *[]){a, meta}, 2, 0), TS_ERR_DEVICE, "meta");
    EXPECT_SIZES(ts_cat((ts_tensor *[]){meta, meta}, 2, 0), 4, 2);
}

TS_TEST(members_get_their_part_of_the_gradient)
{
    ts_tensor *a = leaf(TS_SIZES(2, 1)),
              *b = ts_set_requires_grad(count_up(TS_SIZES(2, 2), TS_F32), true);
    backward_counting(ts_cat((ts_tensor *[]){a, b, count_up(TS_SIZES(2, 1), TS_F32)}, 3, 1));
    EXPECT(ts_grad(a), 1, 5);
    EXPECT(ts_grad(b), 2, 3, 6, 7);
    ck_assert_int_eq(ts_dtype_of(ts_grad(b)), TS_F32);
    a = leaf(TS_SIZES(2));
    ts_tensor *c = leaf(TS_SIZES(2));
    backward_counting(ts_stack((ts_tensor *[]){a, c, a}, 3, 1));
    EXPECT(ts_grad(a), 1 + 3, 4 + 6);
    EXPECT(ts_grad(c), 2, 5);
}

/* Strides of torch.stack() of two channels-last images (2, 3, 4, 5), and of others. */
TS_TEST(stack_keeps_channels_last)
{
    static const int64_t strides[][5] = {
        {120, 60, 1, 15, 3}, {120, 3, 1, 30, 6}, {120, 1, 60, 15, 3}, {120, 1, 30, 15, 3}};
    for (int on_meta = 0; on_meta < 2; on_meta++) {
        TS_SCOPE;
        ts_tensor *plain = ts_normal(TS_SIZES(2, 3, 4, 5), 0, 1, TS_F32), *last[2], *mixed[2];
        if (on_meta)
            plain = ts_to_device(plain, TS_DEVICE_META);
        last[0] = last[1] = mixed[1] = ts_to_channels_last(plain);
        mixed[0] = plain;
        for (int dim = 0; dim < 5; dim++) {
            ts_tensor *y = ts_stack(last, 2, dim);
            ck_assert_ptr_nonnull(y);
            ck_assert_int_eq(ts_is_contiguous(y), dim == 4);
            for (int d = 0; d < 5 && dim < 4; d++)
                ck_assert_int_eq(ts_strides(y)[d], strides[dim][d]);
            ts_tensor *z = ts_stack(mixed, 2, dim);
            ck_assert(ts_is_contiguous(z));
            double apart = 0;
            if (!on_meta)
                ck_assert_int_eq(ts_item(ts_amax(ts_abs(ts_sub(y, z))), &apart), TS_OK);
            ck_assert(apart == 0);
        }
    }
}
