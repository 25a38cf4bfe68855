/** @file slice.c  Parts of a tensor: clamping, errors, gradients, one node for a split. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(slice_clamps_as_python_does)
{
    ts_tensor *x = count_up(TS_SIZES(6), TS_F32);
    EXPECT(ts_slice(x, 0, 1, 4, 1), 1, 2, 3);
    EXPECT(ts_slice(x, 0, -2, TS_END, 1), 4, 5);
    EXPECT(ts_slice(x, 0, -100, 2, 1), 0, 1);
    EXPECT(ts_slice(x, 0, 1, -1, 2), 1, 3);
    EXPECT(ts_slice(x, 0, 0, TS_END, 5), 0, 5);
    EXPECT(ts_slice(x, 0, 3, TS_END, INT64_MAX), 3);
    EXPECT_SIZES(ts_slice(x, 0, 4, 2, 1), 0);
    EXPECT_SIZES(ts_slice(x, 0, 100, 200, 1), 0);
    EXPECT_SIZES(ts_slice(x, 0, 0, -100, 1), 0);
    EXPECT(ts_slice(ts_slice(x, 0, 1, TS_END, 2), 0, 1, TS_END, 1), 3, 5);
    EXPECT_ERROR(ts_slice(x, 0, 0, 3, 0), TS_ERR_VALUE, "'step'");
    EXPECT_ERROR(ts_slice(x, 0, 0, 3, -1), TS_ERR_VALUE, "'step'");
    EXPECT_ERROR(ts_slice(x, 1, 0, 3, 1), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_slice(ts_select(x, 0, 0), 0, 0, 1, 1), TS_ERR_SHAPE, "0-dim");
}

TS_TEST(narrow_and_select_refuse_indices_out_of_range)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3), TS_F32);
    EXPECT(ts_narrow(x, 1, 1, 2), 1, 2, 4, 5);
    EXPECT(ts_narrow(x, -1, -1, 1), 2, 5);
    EXPECT_SIZES(ts_narrow(x, 0, 2, 0), 0, 3);
    EXPECT(ts_select(x, 0, -1), 3, 4, 5);
    EXPECT(ts_select(x, 1, 0), 0, 3);
    EXPECT_ERROR(ts_narrow(x, 1, 2, 2), TS_ERR_INDEX, "start 2 and length 2");
    EXPECT_ERROR(ts_narrow(x, 1, 0, -1), TS_ERR_INDEX, "narrow");
    EXPECT_ERROR(ts_narrow(x, 1, -4, 1), TS_ERR_INDEX, "narrow");
    EXPECT_ERROR(ts_narrow(x, 2, 0, 1), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_narrow(NULL, 0, 0, 1), TS_ERR_NULL, "t");
    EXPECT_ERROR(ts_select(x, 1, 3), TS_ERR_INDEX, "below 3 in dim 1, got 3");
    EXPECT_ERROR(ts_select(x, 1, -4), TS_ERR_INDEX, "got -4");
    EXPECT_ERROR(ts_select(NULL, 1, -4), TS_ERR_NULL, "self");
}

/** With one element any step is valid. UBSan reports if a stride overflows. */
TS_TEST(the_step_of_a_slice_of_one_element_does_not_matter)
{
    ts_tensor *x = count_up(TS_SIZES(3, 2), TS_F32);
    ts_tensor *row = ts_full(TS_SIZES(1, 2), TS_SCALAR(9.0), TS_F32);
    for (int64_t step = 3; step > 0; step = step == 3 ? INT64_MAX : 0) {
        EXPECT(ts_slice_scatter(x, row, 0, 1, 3, step), 0, 1, 9, 9, 4, 5);
        EXPECT(ts_slice_backward(row, (int64_t[]){3, 2}, 2, 0, 1, 3, step), 0, 0, 9, 9, 0, 0);
    }
}

TS_TEST(diagonal_is_a_view)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3, 4), TS_F32);
    EXPECT(ts_diagonal(ts_select(x, 0, 0), 0, 0, 1), 0, 5, 10);
    EXPECT(ts_diagonal(ts_select(x, 0, 0), 1, 0, 1), 1, 6, 11);
    EXPECT(ts_diagonal(ts_select(x, 0, 0), -1, 0, 1), 4, 9);
    EXPECT(ts_diagonal(x, 0, 0, 2), 0, 13, 4, 17, 8, 21);
    EXPECT_SIZES(ts_diagonal(x, 4, 1, 2), 2, 0);
    EXPECT_SIZES(ts_diagonal(x, INT64_MIN, 1, 2), 2, 0);
    EXPECT_ERROR(ts_diagonal(x, 0, 1, -2), TS_ERR_INDEX, "dim2");
    EXPECT_ERROR(ts_diagonal(count_up(TS_SIZES(3), TS_F32), 0, 0, 1), TS_ERR_SHAPE, "two dims");
}

TS_TEST(split_makes_parts_of_the_given_sizes)
{
    ts_tensor *x = count_up(TS_SIZES(2, 7), TS_F32), *p[8];
    ck_assert_int_eq(ts_split(x, 3, 1, p, 3), TS_OK);
    EXPECT(p[0], 0, 1, 2, 7, 8, 9);
    EXPECT(p[1], 3, 4, 5, 10, 11, 12);
    EXPECT(p[2], 6, 13);
    ck_assert_int_eq(ts_split(x, 1, -1, p, 7), TS_OK);
    EXPECT(p[6], 6, 13);
    ck_assert_int_eq(ts_split(x, 100, 0, p, 1), TS_OK);
    EXPECT_SIZES(p[0], 2, 7);
    EXPECT_STATUS(ts_split(x, 3, 1, p, 2), TS_ERR_VALUE, "got 3, which gives 3");
    ck_assert_ptr_null(p[0]);
    EXPECT_STATUS(ts_split(x, 0, 1, p, 2), TS_ERR_VALUE, "'size'");
    EXPECT_STATUS(ts_split(NULL, 1, 0, p, 2), TS_ERR_NULL, "t");
    EXPECT_STATUS(ts_split(x, 1, 0, NULL, 2), TS_ERR_NULL, "'parts'");
    int made = -1;
    ck_assert_int_eq(ts_chunk(x, 3, 1, p, NULL), TS_OK);
    EXPECT(p[2], 6, 13);
    ck_assert_int_eq(ts_chunk(x, 6, 1, p, &made), TS_OK);
    ck_assert_int_eq(made, 4);
    EXPECT(p[3], 6, 13);
    ck_assert_ptr_null(p[4]);
    ck_assert_int_eq(ts_chunk(count_up(TS_SIZES(0), TS_F32), 3, 0, p, &made), TS_OK);
    ck_assert_int_eq(made, 1);
    EXPECT_STATUS(ts_chunk(x, 0, 1, p, &made), TS_ERR_VALUE, "'chunks'");
    ck_assert_int_eq(made, 0);
    EXPECT_SIZES(p[0], 0);
    ck_assert_int_eq(ts_unbind(x, 0, p, 2), TS_OK);
    EXPECT(p[1], 7, 8, 9, 10, 11, 12, 13);
    EXPECT_STATUS(ts_unbind(x, 0, p, 3), TS_ERR_VALUE, "the size of dim 0, 2");
}

TS_TEST(parts_of_a_split_share_one_node_and_one_gradient)
{
    ts_tensor *x = leaf(TS_SIZES(2, 3)), *p[3];
    ck_assert_int_eq(ts_split(x, 1, 1, p, 3), TS_OK);
    backward_counting(ts_mul(p[0], p[2])); /* g = (1, 2); the middle part is not used */
    EXPECT(ts_grad(x), 1 * 2, 0, 1 * 0, 2 * 5, 0, 2 * 3);
    x = leaf(TS_SIZES(5));
    ck_assert_int_eq(ts_split(x, 1, 0, p, 3) != TS_OK, 1);
    ts_tensor *q[5];
    ck_assert_int_eq(ts_split(x, 1, 0, q, 5), TS_OK);
    backward_counting(ts_mul(q[1], q[4]));
    EXPECT(ts_grad(x), 0, 4, 0, 0, 1);
}

TS_TEST(scatter_replaces_a_part_of_a_copy, .loop = 4)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_I64, TS_U8};
    ts_dtype dtype = dtypes[_i];
    ts_tensor *x = count_up(TS_SIZES(2, 5), dtype);
    ts_tensor *two = ts_full(TS_SIZES(2, 2), ts_scalar_int(9), dtype);
    EXPECT(ts_slice_scatter(x, two, 1, 1, 3, 1), 0, 9, 9, 3, 4, 5, 9, 9, 8, 9);
    EXPECT(ts_slice_scatter(x, two, 1, 0, 4, 2), 9, 1, 9, 3, 4, 9, 6, 9, 8, 9);
    EXPECT(ts_slice_scatter(x, two, 1, 1, TS_END, 3), 0, 9, 2, 3, 9, 5, 9, 7, 8, 9);
    EXPECT(ts_slice_scatter(x, ts_slice(x, 1, 0, 0, 1), 1, 3, 3, 1), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    EXPECT(ts_select_scatter(ts_t(x), ts_full(TS_SIZES(2), ts_scalar_int(7), dtype), 0, -5), 7, 7,
           1, 6, 2, 7, 3, 8, 4, 9);
    EXPECT(ts_slice_backward(ts_slice(x, 1, 0, 2, 1), TS_SIZES(2, 6), 1, 1, 6, 3), 0, 0, 0, 0, 1, 0,
           0, 5, 0, 0, 6, 0);
    EXPECT_ERROR(ts_slice_scatter(x, two, 1, 1, 4, 1), TS_ERR_SHAPE, "(2, 3)");
    EXPECT_ERROR(ts_slice_scatter(x, count_up(TS_SIZES(2, 2), TS_BOOL), 1, 1, 3, 1), TS_ERR_DTYPE,
                 "'src'");
    EXPECT_ERROR(ts_select_scatter(x, two, 0, 2), TS_ERR_INDEX, "got 2");
    EXPECT_ERROR(ts_slice_scatter(x, NULL, 1, 1, 4, 1), TS_ERR_NULL, "src");
}

TS_TEST(parts_send_their_gradient_to_their_place)
{
    ts_tensor *x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_slice(x, 1, 0, TS_END, 2));
    EXPECT(ts_grad(x), 1, 0, 2, 3, 0, 4);
    x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_select(x, -1, -1));
    EXPECT(ts_grad(x), 0, 0, 1, 0, 0, 2);
    x = leaf(TS_SIZES(2, 3));
    backward_counting(ts_diagonal(x, 1, 0, 1));
    EXPECT(ts_grad(x), 0, 1, 0, 0, 0, 2);
    x = leaf(TS_SIZES(2, 3));
    ts_tensor *src = leaf(TS_SIZES(2, 1));
    backward_counting(ts_slice_scatter(x, src, 1, 1, 2, 1));
    EXPECT(ts_grad(x), 1, 0, 3, 4, 0, 6);
    EXPECT(ts_grad(src), 2, 5);
}

TS_TEST(gradients_of_parts_differentiate_again)
{
    /* y = sum of w * x[1]^2, dy/dx[1] = 2 w x[1], its gradient along v: 2 w v[1] */
    ts_tensor *x = leaf(TS_SIZES(3)), *g;
    ts_tensor *part = ts_slice(x, 0, 1, 2, 1);
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    ck_assert_int_eq(ts_grad_of(ts_mul(part, part), TS_NONE, &x, 1, &g, &opts), TS_OK);
    EXPECT(g, 0, 2, 0);
    ck_assert_int_eq(ts_backward_ex(g, ts_full_like(g, 5), NULL), TS_OK);
    EXPECT(ts_grad(x), 0, 10, 0);
}
