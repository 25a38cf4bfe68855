/** @file mask.c  Triangles, and elements chosen by a mask. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

TS_TEST(triangles_keep_one_side_of_a_diagonal)
{
    ts_tensor *x = ts_add_scalar(count_up(TS_SIZES(2, 3), TS_F32), 1);
    EXPECT(ts_tril(x, 0), 1, 0, 0, 4, 5, 0);
    EXPECT(ts_tril(x, 1), 1, 2, 0, 4, 5, 6);
    EXPECT(ts_tril(x, -1), 0, 0, 0, 4, 0, 0);
    EXPECT(ts_tril(x, INT64_MAX), 1, 2, 3, 4, 5, 6);
    EXPECT(ts_tril(x, INT64_MIN), 0, 0, 0, 0, 0, 0);
    EXPECT(ts_triu(x, 0), 1, 2, 3, 0, 5, 6);
    EXPECT(ts_triu(x, 1), 0, 2, 3, 0, 0, 6);
    EXPECT(ts_triu(x, INT64_MAX), 0, 0, 0, 0, 0, 0);
    EXPECT(ts_triu(x, INT64_MIN), 1, 2, 3, 4, 5, 6);
    EXPECT(ts_tril(ts_t(x), 0), 1, 0, 2, 5, 3, 6);
    EXPECT(ts_tril(count_up(TS_SIZES(2, 2, 2), TS_I64), 0), 0, 0, 2, 3, 4, 0, 6, 7);
    EXPECT_SIZES(ts_tril(count_up(TS_SIZES(2, 0), TS_F32), 0), 2, 0);
    ts_tril_(x, 0);
    EXPECT(x, 1, 0, 0, 4, 5, 0);
    ts_triu_(ts_t(x), 1);
    EXPECT(x, 0, 0, 0, 4, 0, 0);
    EXPECT_ERROR(ts_tril(count_up(TS_SIZES(3), TS_F32), 0), TS_ERR_SHAPE, "two dims");
    EXPECT_ERROR(ts_triu(NULL, 0), TS_ERR_NULL, "self");
    ts_tensor *l = leaf(TS_SIZES(2, 2));
    backward_counting(ts_triu(l, 0));
    EXPECT(ts_grad(l), 1, 2, 0, 4);
}

TS_TEST(nonzero_lists_coordinates)
{
    ts_tensor *y = ts_nonzero(ts_view(ROW(TS_F32, 0, 3, 0, -1, 0, 2), TS_SIZES(2, 3)));
    EXPECT_SIZES(y, 3, 2);
    EXPECT(y, 0, 1, 1, 0, 1, 2);
    ck_assert_int_eq(ts_dtype_of(y), TS_I64);
    EXPECT_SIZES(ts_nonzero(ROW(TS_I64, 0, 0)), 0, 1);
    EXPECT_SIZES(ts_nonzero(ts_select(ROW(TS_BOOL, 1), 0, 0)), 1, 0);
    EXPECT(ts_nonzero(ts_t(ts_view(ROW(TS_U8, 0, 1, 1, 0), TS_SIZES(2, 2)))), 0, 1, 1, 0);
    EXPECT_ERROR(ts_nonzero(ts_empty_on(TS_SIZES(2), TS_F32, TS_DEVICE_META)), TS_ERR_UNSUPPORTED,
                 "META");
    EXPECT_ERROR(ts_nonzero(NULL), TS_ERR_NULL, "self");
}

TS_TEST(masked_select_packs_what_the_mask_allows)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3), TS_F64), *mask = ROW(TS_BOOL, 1, 0, 1);
    EXPECT(ts_masked_select(x, mask), 0, 2, 3, 5);
    EXPECT(ts_masked_select(ROW(TS_I64, 7), ts_view(mask, TS_SIZES(3, 1))), 7, 7);
    EXPECT(ts_masked_select(ts_t(x), ts_view(mask, TS_SIZES(3, 1))), 0, 3, 2, 5);
    EXPECT_SIZES(ts_masked_select(x, ROW(TS_BOOL, 0)), 0);
    EXPECT_ERROR(ts_masked_select(x, x), TS_ERR_DTYPE, "expected dtype bool");
    EXPECT_ERROR(ts_masked_select(x, ROW(TS_BOOL, 1, 1)), TS_ERR_SHAPE, "broadcast");
    ts_tensor *l = leaf(TS_SIZES(1, 3));
    backward_counting(ts_masked_select(l, ts_view(ROW(TS_BOOL, 1, 0, 1, 1, 0, 0), TS_SIZES(2, 3))));
    EXPECT(ts_grad(l), 1 + 3, 0, 2);
}

TS_TEST(masked_scatter_unpacks)
{
    ts_tensor *x = count_up(TS_SIZES(4), TS_F32), *mask = ROW(TS_BOOL, 0, 1, 0, 1),
              *src = ROW(TS_F32, 8, 9, 10);
    EXPECT(ts_masked_scatter(x, mask, src), 0, 8, 2, 9);
    EXPECT(ts_masked_scatter(ts_slice(x, 0, 2, 3, 1), mask, src), 2, 8, 2, 9);
    EXPECT_ERROR(ts_masked_scatter(x, mask, ROW(TS_F32, 1)), TS_ERR_SHAPE, "at least 2 elements");
    EXPECT_ERROR(ts_masked_scatter(x, mask, ROW(TS_F64, 1, 2)), TS_ERR_DTYPE, "'source'");
    ts_tensor *y = ts_clone(x);
    ck_assert_ptr_eq(ts_masked_scatter_(y, mask, src), y);
    EXPECT(y, 0, 8, 2, 9);
    EXPECT_ERROR(ts_masked_scatter_(ts_slice(y, 0, 0, 1, 1), mask, src), TS_ERR_SHAPE, "self");
    ts_tensor *l = leaf(TS_SIZES(4)), *s = leaf(TS_SIZES(3));
    backward_counting(ts_masked_scatter(l, mask, s));
    EXPECT(ts_grad(l), 1, 0, 3, 0);
    EXPECT(ts_grad(s), 2, 4, 0);
}

/* A view is copied where some row keeps its elements. */
TS_TEST(triangles_of_transposed_matrices_equal_those_of_copies)
{
    for (int64_t rows = 1; rows < 12; rows += 3)
        for (int64_t columns = 1; columns < 12; columns += 2)
            for (int64_t diagonal = -13; diagonal < 14; diagonal++) {
                TS_SCOPE;
                ts_tensor *t = ts_transpose(count_up(TS_SIZES(2, columns, rows), TS_F32), 1, 2),
                          *dense = ts_contiguous(t);
                size_t bytes = (size_t)(2 * rows * columns) * sizeof(float);
                ck_assert(!memcmp(ts_data(ts_tril(t, diagonal)), ts_data(ts_tril(dense, diagonal)),
                                  bytes));
                ck_assert(!memcmp(ts_data(ts_triu(t, diagonal)), ts_data(ts_triu(dense, diagonal)),
                                  bytes));
            }
}
