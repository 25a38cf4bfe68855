/** @file view.c  Views: sizes, shared memory, errors, gradients. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(view_shares_memory_and_computes_one_size)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3, 4), TS_F32);
    ts_tensor *y = ts_view(x, TS_SIZES(6, -1));
    EXPECT_SIZES(y, 6, 4);
    ck_assert_ptr_eq(ts_data(y), ts_data(x));
    ck_assert(ts_is_contiguous(y));
    ts_fill_(ts_select(y, 0, 5), 9);
    EXPECT(ts_select(ts_select(x, 0, 1), 0, 2), 9, 9, 9, 9);
    ck_assert_int_eq(ts_version(x), ts_version(y));
    EXPECT_SIZES(ts_view(count_up(TS_SIZES(1), TS_F32), TS_SIZES(1, 1, 1)), 1, 1, 1);
    ck_assert_int_eq(ts_ndim(ts_view(count_up(TS_SIZES(1), TS_F32), NULL, 0)), 0);
    EXPECT_SIZES(ts_view(count_up(TS_SIZES(0, 3), TS_F32), TS_SIZES(3, -1)), 3, 0);
}

TS_TEST(view_keeps_strides_where_it_can)
{
    /* (6, 2), strides (1, 6) */
    ts_tensor *x = ts_transpose(count_up(TS_SIZES(2, 6), TS_F32), 0, 1);
    ts_tensor *y = ts_view(x, TS_SIZES(3, 1, 2, 2));
    EXPECT_SIZES(y, 3, 1, 2, 2);
    EXPECT(y, 0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11);
    ck_assert_ptr_eq(ts_data(y), ts_data(x));
    ts_tensor *e = ts_expand(count_up(TS_SIZES(2, 1), TS_F32), TS_SIZES(2, 4));
    EXPECT(ts_view(e, TS_SIZES(2, 2, 2)), 0, 0, 0, 0, 1, 1, 1, 1);
    ts_tensor *s = ts_slice(count_up(TS_SIZES(4, 4), TS_F32), 1, 0, 2, 1);
    EXPECT(ts_view(s, TS_SIZES(2, 2, 2)), 0, 1, 4, 5, 8, 9, 12, 13);
}

TS_TEST(view_that_needs_a_copy_names_reshape)
{
    ts_tensor *x = ts_transpose(count_up(TS_SIZES(2, 3), TS_F32), 0, 1);
    EXPECT_ERROR(ts_view(x, TS_SIZES(6)), TS_ERR_SHAPE, "ts_reshape");
    ts_tensor *y = ts_reshape(x, TS_SIZES(-1));
    EXPECT(y, 0, 3, 1, 4, 2, 5);
    ck_assert_ptr_ne(ts_data(y), ts_data(x));
    ts_tensor *z = ts_reshape(count_up(TS_SIZES(2, 3), TS_F32), TS_SIZES(3, 2));
    EXPECT(z, 0, 1, 2, 3, 4, 5);
}

TS_TEST(view_refuses_sizes_that_do_not_fit)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3), TS_F32);
    EXPECT_ERROR(ts_view(x, TS_SIZES(4, 2)), TS_ERR_SHAPE, "'sizes'");
    EXPECT_ERROR(ts_view(x, TS_SIZES(-1, -1)), TS_ERR_SHAPE, "at most one of them -1");
    EXPECT_ERROR(ts_view(x, TS_SIZES(-1, 4)), TS_ERR_SHAPE, "(-1, 4)");
    EXPECT_ERROR(ts_view(x, TS_SIZES(-2, -3)), TS_ERR_SHAPE, "(-2, -3)");
    EXPECT_ERROR(ts_view(x, TS_SIZES(INT64_MAX, 2)), TS_ERR_SHAPE, "'sizes'");
    EXPECT_ERROR(ts_view(x, TS_SIZES(1, 1, 1, 1, 1, 1, 1, 2, 3)), TS_ERR_SHAPE, "0 to 8");
    EXPECT_ERROR(ts_view(x, NULL, -1), TS_ERR_SHAPE, "0 to 8");
    EXPECT_ERROR(ts_view(x, NULL, 2), TS_ERR_NULL, "sizes");
    EXPECT_ERROR(ts_view(NULL, TS_SIZES(2)), TS_ERR_NULL, "self");
    ts_tensor *empty = count_up(TS_SIZES(0), TS_F32);
    EXPECT_ERROR(ts_view(empty, TS_SIZES(0, -1)), TS_ERR_SHAPE, "'sizes'");
    EXPECT_ERROR(ts_view(empty, TS_SIZES(0, INT64_MAX, INT64_MAX)), TS_ERR_SHAPE, "'sizes'");
}

TS_TEST(flatten_and_unflatten_are_inverse)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3, 4), TS_F32);
    EXPECT_SIZES(ts_flatten(x, 0, -1), 24);
    EXPECT_SIZES(ts_flatten(x, 1, 2), 2, 12);
    EXPECT_SIZES(ts_flatten(x, 1, 1), 2, 3, 4);
    EXPECT_SIZES(ts_unflatten(ts_flatten(x, 0, 1), 0, TS_SIZES(2, -1)), 2, 3, 4);
    EXPECT_SIZES(ts_unflatten(x, -1, TS_SIZES(2, 2, 1)), 2, 3, 2, 2, 1);
    EXPECT_SIZES(ts_flatten(ts_view(count_up(TS_SIZES(1), TS_F32), NULL, 0), 0, -1), 1);
    EXPECT_ERROR(ts_flatten(x, 2, 1), TS_ERR_INDEX, "end_dim");
    EXPECT_ERROR(ts_flatten(x, 3, 3), TS_ERR_INDEX, "start_dim");
    EXPECT_ERROR(ts_unflatten(x, 1, TS_SIZES(2, 2)), TS_ERR_SHAPE, "product is 3");
    EXPECT_ERROR(ts_unflatten(x, 1, TS_SIZES(1, 1, 1, 1, 1, 1, 3)), TS_ERR_SHAPE, "1 to 6 sizes");
}

TS_TEST(permute_orders_dims)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3, 4), TS_F32);
    ts_tensor *y = ts_permute(x, TS_SIZES(2, 0, -2));
    EXPECT_SIZES(y, 4, 2, 3);
    EXPECT(ts_select(y, 0, 1), 1, 5, 9, 13, 17, 21);
    EXPECT_SIZES(ts_movedim(x, 0, 2), 3, 4, 2);
    EXPECT_SIZES(ts_movedim(x, -1, 0), 4, 2, 3);
    EXPECT_SIZES(ts_movedim(x, 1, 1), 2, 3, 4);
    EXPECT_SIZES(ts_t(count_up(TS_SIZES(2, 3), TS_F32)), 3, 2);
    EXPECT_SIZES(ts_t(count_up(TS_SIZES(5), TS_F32)), 5);
    EXPECT_SIZES(ts_transpose(x, -1, 0), 4, 3, 2);
    EXPECT_ERROR(ts_permute(x, TS_SIZES(0, 1)), TS_ERR_INDEX, "each of 3 dims once");
    EXPECT_ERROR(ts_permute(x, TS_SIZES(0, 1, -2)), TS_ERR_INDEX, "(0, 1, -2)");
    EXPECT_ERROR(ts_permute(x, TS_SIZES(0, 1, 3)), TS_ERR_INDEX, "'dims'");
    EXPECT_ERROR(ts_transpose(x, 0, 3), TS_ERR_INDEX, "dim1");
    EXPECT_ERROR(ts_t(x), TS_ERR_SHAPE, "at most two dims");
    EXPECT_ERROR(ts_t(NULL), TS_ERR_NULL, "t");
}

TS_TEST(expand_stretches_and_refuses_the_rest)
{
    ts_tensor *x = count_up(TS_SIZES(2, 1), TS_F32);
    ts_tensor *y = ts_expand(x, TS_SIZES(2, -1, 3));
    EXPECT_SIZES(y, 2, 2, 3);
    EXPECT(y, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1);
    EXPECT_SIZES(ts_expand(x, TS_SIZES(2, 0)), 2, 0);
    EXPECT_SIZES(ts_expand_as(x, count_up(TS_SIZES(4, 2, 5), TS_F32)), 4, 2, 5);
    EXPECT_ERROR(ts_expand(x, TS_SIZES(3, 1)), TS_ERR_SHAPE, "(3, 1)");
    EXPECT_ERROR(ts_expand(x, TS_SIZES(2)), TS_ERR_SHAPE, "broadcasts");
    EXPECT_ERROR(ts_expand(x, TS_SIZES(-1, 2, 1)), TS_ERR_SHAPE, "'sizes'");
    EXPECT_ERROR(ts_expand(x, TS_SIZES(INT64_MAX, 2, 1)), TS_ERR_SHAPE, "'sizes'");
    EXPECT_ERROR(ts_expand_as(x, TS_NONE), TS_ERR_NULL, "other");
}

TS_TEST(squeeze_and_unsqueeze_move_dims_of_one)
{
    ts_tensor *x = count_up(TS_SIZES(1, 3, 1), TS_F32);
    EXPECT_SIZES(ts_squeeze(x), 3);
    EXPECT_SIZES(ts_squeeze_dim(x, 0), 3, 1);
    EXPECT_SIZES(ts_squeeze_dim(x, 1), 1, 3, 1);
    EXPECT_SIZES(ts_unsqueeze(ts_squeeze(x), 0), 1, 3);
    EXPECT_SIZES(ts_unsqueeze(ts_squeeze(x), -1), 3, 1);
    EXPECT_ERROR(ts_squeeze_dim(x, 3), TS_ERR_INDEX, "'dims'");
    EXPECT_ERROR(ts_unsqueeze(x, 4), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_unsqueeze(count_up(TS_SIZES(1, 1, 1, 1, 1, 1, 1, 1), TS_F32), 0), TS_ERR_SHAPE,
                 "fewer than 8");
    EXPECT_ERROR(ts_squeeze(NULL), TS_ERR_NULL, "self");
}

TS_TEST(as_strided_stays_within_the_storage)
{
    ts_tensor *x = count_up(TS_SIZES(12), TS_F32);
    EXPECT(ts_as_strided(x, (int64_t[]){2, 3}, (int64_t[]){4, 2}, 2, 1), 1, 3, 5, 5, 7, 9);
    ts_tensor *part = ts_slice(x, 0, 6, TS_END, 1);
    EXPECT(ts_as_strided(part, (int64_t[]){3}, (int64_t[]){1}, 1, 0), 0, 1, 2);
    EXPECT_ERROR(ts_as_strided(x, (int64_t[]){3}, (int64_t[]){6}, 1, 0), TS_ERR_VALUE,
                 "within 12 elements");
    EXPECT_ERROR(ts_as_strided(x, (int64_t[]){1}, (int64_t[]){1}, 1, 12), TS_ERR_VALUE,
                 "offset 12");
    EXPECT_ERROR(ts_as_strided(x, (int64_t[]){2}, (int64_t[]){-1}, 1, 5), TS_ERR_VALUE,
                 "strides >= 0");
    EXPECT_ERROR(ts_as_strided(x, (int64_t[]){3, 3}, (int64_t[]){INT64_MAX, INT64_MAX}, 2, 0),
                 TS_ERR_VALUE, "'strides'");
    ck_assert_int_eq(ts_numel(ts_as_strided(x, (int64_t[]){0}, (int64_t[]){1}, 1, 12)), 0);
    /* the stride of a dim of size 1 is not used; UBSan reports if it overflows */
    ts_tensor *far = ts_as_strided(x, (int64_t[]){1, 3}, (int64_t[]){INT64_MAX, 2}, 2, 1);
    EXPECT(ts_add_scalar(far, 1), 2, 4, 6);
}

TS_TEST(meta_views_have_sizes_alone)
{
    ts_tensor *x = ts_empty_on(TS_SIZES(4, 6), TS_F32, TS_DEVICE_META);
    EXPECT_SIZES(ts_reshape(ts_transpose(x, 0, 1), TS_SIZES(-1)), 24);
    EXPECT_SIZES(ts_slice(x, 1, 1, TS_END, 2), 4, 3);
}

TS_TEST(views_have_the_inverse_view_as_gradient)
{
    ts_tensor *x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_view(x, TS_SIZES(3, 2)));
    EXPECT(ts_grad(x), 1, 2, 3, 4, 5, 6);
    x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_transpose(x, 0, 1));
    EXPECT(ts_grad(x), 1, 3, 5, 2, 4, 6);
    x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_reshape(ts_transpose(x, 0, 1), TS_SIZES(6)));
    EXPECT(ts_grad(x), 1, 3, 5, 2, 4, 6);
    x = leaf(TS_SIZES(2, 1, 3));
    backward_counting(ts_permute(x, TS_SIZES(-1, 0, 1)));
    EXPECT(ts_grad(x), 1, 3, 5, 2, 4, 6);
    x = leaf(TS_SIZES(2, 1));
    backward_counting(ts_expand(x, TS_SIZES(2, 2, 2)));
    EXPECT(ts_grad(x), 1 + 2 + 5 + 6, 3 + 4 + 7 + 8);
    x = leaf(TS_SIZES(1, 2));
    backward_counting(ts_unsqueeze(ts_squeeze(x), 1));
    EXPECT(ts_grad(x), 1, 2);
    EXPECT_SIZES(ts_grad(x), 1, 2);
}

TS_TEST(as_strided_sums_its_gradient_where_elements_lie)
{
    ts_tensor *x = leaf(TS_SIZES(4)); /* windows that overlap */
    backward_counting(ts_as_strided(x, (int64_t[]){3, 2}, (int64_t[]){1, 1}, 2, 0));
    EXPECT(ts_grad(x), 1, 2 + 3, 4 + 5, 6);
    /* positions count from the storage's start, whatever the strides of the argument */
    x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_as_strided(ts_transpose(x, 0, 1), (int64_t[]){2}, (int64_t[]){3}, 1, 1));
    EXPECT(ts_grad(x), 0, 1, 0, 0, 2, 0);
    x = leaf(TS_SIZES(6)); /* positions outside the argument get nothing */
    backward_counting(ts_as_strided(ts_slice(x, 0, 2, 4, 1), (int64_t[]){3}, (int64_t[]){1}, 1, 1));
    EXPECT(ts_grad(x), 0, 0, 2, 3, 0, 0);
    x = leaf(TS_SIZES(1, 2)); /* three expanded rows share memory */
    backward_counting(
        ts_as_strided(ts_expand(x, TS_SIZES(3, 2)), (int64_t[]){2}, (int64_t[]){1}, 1, 0));
    EXPECT(ts_grad(x), 1, 2);
}
