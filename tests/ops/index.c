/** @file index.c  Ops that read and write by index: values, checks before writes, gradients,
 * threads. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

#include "core/philox.h"

static const ts_dtype index_dtypes[] = {TS_I64, TS_I32};

TS_TEST(embedding_reads_rows, .loop = 2)
{
    ts_tensor *w = count_up(TS_SIZES(4, 3), TS_F32);
    ts_tensor *i = ts_view(ROW(index_dtypes[_i], 2, 0, 2, 3), TS_SIZES(2, 2));
    ts_tensor *y = ts_embedding(w, i, -1);
    EXPECT_SIZES(y, 2, 2, 3);
    EXPECT(y, 6, 7, 8, 0, 1, 2, 6, 7, 8, 9, 10, 11);
    EXPECT(ts_embedding(ts_t(w), ts_slice(i, 1, 0, 1, 1), -1), 2, 5, 8, 11, 2, 5, 8, 11);
    EXPECT_SIZES(ts_embedding(w, ts_slice(i, 0, 0, 0, 1), -1), 0, 2, 3);
    EXPECT(ts_embedding(count_up(TS_SIZES(4, 1), TS_BOOL), i, -1), 1, 0, 1, 1);
    /* wide rows take the vector path, with a tail */
    ts_tensor *wide = ts_embedding(count_up(TS_SIZES(3, 41), TS_F32), ROW(index_dtypes[_i], 1), -1);
    for (int k = 0; k < 41; k++)
        ck_assert(((const float *)ts_data(wide))[k] == (float)(41 + k));
}

TS_TEST(embedding_names_the_index_out_of_range, .loop = 2)
{
    ts_tensor *w = count_up(TS_SIZES(4, 3), TS_F32);
    ts_tensor *i = ts_view(ROW(index_dtypes[_i], 0, 1, 2, 3, 4, -1), TS_SIZES(3, 2));
    EXPECT_ERROR(ts_embedding(w, i, -1), TS_ERR_INDEX,
                 "'index': expected indices from 0 to 3, got 4 at position (2, 0)");
    EXPECT_ERROR(ts_embedding(w, ts_slice(i, 1, 1, 2, 1), -1), TS_ERR_INDEX,
                 "got -1 at position (2, 0)");
    EXPECT_ERROR(ts_embedding(w, i, 4), TS_ERR_INDEX, "'padding_idx'");
    EXPECT_ERROR(ts_embedding(w, w, -1), TS_ERR_DTYPE, "i64 or i32, got f32");
    EXPECT_ERROR(ts_embedding(ts_select(w, 0, 0), i, -1), TS_ERR_SHAPE, "2 dims");
    EXPECT_ERROR(ts_embedding(NULL, i, -1), TS_ERR_NULL, "weight");
    EXPECT_ERROR(ts_embedding(w, NULL, -1), TS_ERR_NULL, "index");
    EXPECT_ERROR(ts_embedding(count_up(TS_SIZES(0, 3), TS_F32), i, -1), TS_ERR_INDEX,
                 "got 0 at position (0, 0)");
}

TS_TEST(embedding_sums_gradients_of_equal_rows)
{
    ts_tensor *w = leaf(TS_SIZES(4, 2)), *i = ROW(TS_I64, 3, 1, 3);
    backward_counting(ts_embedding(w, i, -1));
    EXPECT(ts_grad(w), 0, 0, 3, 4, 0, 0, 1 + 5, 2 + 6);
    w = leaf(TS_SIZES(4, 2));
    backward_counting(ts_embedding(w, i, 3));
    EXPECT(ts_grad(w), 0, 0, 3, 4, 0, 0, 0, 0);
    /* the gradient of the gradient reads rows again, except the padding row */
    ts_tensor *g = leaf(TS_SIZES(3, 2));
    backward_counting(ts_embedding_backward(g, i, 4, 1));
    EXPECT(ts_grad(g), 7, 8, 0, 0, 7, 8);
    EXPECT_SIZES(ts_embedding_backward(g, i, 0 + 4, -1), 4, 2);
    EXPECT_ERROR(ts_embedding_backward(g, i, 3, -1), TS_ERR_INDEX, "got 3");
    EXPECT_ERROR(ts_embedding_backward(g, ROW(TS_I64, 0, 1), 3, -1), TS_ERR_SHAPE, "'index'");
}

TS_TEST(sums_by_index_have_the_same_bits_for_any_number_of_threads)
{
    enum { N = 3000, C = 70, V = 17 };
    static float values[N * C];
    static int64_t index[N];
    uint32_t state = 1;
    for (int k = 0; k < N * C; k++)
        values[k] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f - 0.3f;
    for (int k = 0; k < N; k++)
        index[k] = (state = state * 1664525u + 1013904223u) % V;
    ts_tensor *g = ts_from_array(values, TS_F32, TS_SIZES(N, C)),
              *i = ts_from_array(index, TS_I64, TS_SIZES(N));
    ts_tensor *zeros = ts_zeros(TS_SIZES(V, C), TS_F32),
              *all = ts_expand(ts_unsqueeze(i, 1), TS_SIZES(N, C));
    static float want[V * C];
    for (int k = 0; k < N; k++)
        for (int c = 0; c < C; c++)
            want[index[k] * C + c] += values[k * C + c];
    for (int threads = 1; threads <= 5; threads += 2) {
        ts_set_num_threads(threads);
        ck_assert_int_eq(memcmp(ts_data(ts_embedding_backward(g, i, V, -1)), want, sizeof want), 0);
        ck_assert_int_eq(memcmp(ts_data(ts_index_add(zeros, 0, i, g)), want, sizeof want), 0);
        ck_assert_int_eq(memcmp(ts_data(ts_scatter_add(zeros, 0, all, g)), want, sizeof want), 0);
        ts_tensor *last = ts_scatter(zeros, 0, all, g); /* the last of equal indices wins */
        for (int k = N - 1, seen = 0; k >= 0; k--) {
            if (!(seen >> index[k] & 1))
                ck_assert_int_eq(memcmp((const float *)ts_data(last) + index[k] * C, values + k * C,
                                        C * sizeof(float)),
                                 0);
            seen |= 1 << index[k];
        }
    }
}

/* Rows that are runs of memory, equally spaced or not, broadcast or permuted. */
TS_TEST(index_select_of_drawn_layouts_equals_that_of_a_contiguous_copy, .loop = 80)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_U8};
    uint64_t draw = 0;
#define DRAWN(n) (int64_t)(ts_philox_u64(53, (uint64_t)_i, draw++) % (n))
    int64_t sizes[4], order[4] = {0, 1, 2, 3};
    for (int d = 0; d < 4; d++)
        sizes[d] = DRAWN(3) ? 1 + DRAWN(9) : 1;
    ts_manual_seed((uint64_t)_i);
    ts_tensor *x = ts_randint_on(sizes, 4, 0, 99, dtypes[_i % 4], TS_DEVICE_CPU);
    for (int d = 3; d > 0 && _i % 3 == 0; d--) {
        int64_t k = DRAWN(d + 1), other = order[d];
        order[d] = order[k];
        order[k] = other;
    }
    x = ts_permute(x, order, 4);
    int64_t last = ts_size(x, 3);
    x = DRAWN(3) ? x : ts_slice(x, 3, last / 3, last, 1 + DRAWN(2));
    for (int d = 0; d < 4; d++)
        sizes[d] = ts_size(x, d) == 1 ? 1 + DRAWN(7) : ts_size(x, d);
    x = ts_expand(x, sizes, 4);
    int64_t dim = DRAWN(4), count = 1 + DRAWN(40);
#undef DRAWN
    ts_tensor *i = ts_randint_on(&count, 1, 0, sizes[dim], index_dtypes[_i / 4 % 2],
                                 TS_DEVICE_CPU);
    ts_tensor *y = ts_index_select(x, (int)dim, i),
              *want = ts_index_select(ts_clone(ts_contiguous(x)), (int)dim, i);
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(ts_numel(y), ts_numel(want));
    y = ts_contiguous(y);
    ck_assert_mem_eq(ts_data(y), ts_data(want),
                     (size_t)ts_numel(y) * (dtypes[_i % 4] == TS_F32   ? 4
                                            : dtypes[_i % 4] == TS_F64 ? 8
                                            : dtypes[_i % 4] == TS_U8  ? 1
                                                                       : 2));
}

TS_TEST(index_select_reads_any_dim)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3, 2), TS_F64), *i = ROW(TS_I32, 2, 0);
    EXPECT(ts_index_select(x, 1, i), 4, 5, 0, 1, 10, 11, 6, 7);
    EXPECT(ts_index_select(ts_transpose(x, 0, 1), 0, i), 4, 5, 10, 11, 0, 1, 6, 7);
    EXPECT(ts_index_select(x, -1, ROW(TS_I64, 1)), 1, 3, 5, 7, 9, 11);
    ts_tensor *zero = ts_select(ROW(TS_F32, 5), 0, 0);
    EXPECT(ts_index_select(zero, 0, ROW(TS_I64, 0)), 5);
    EXPECT_ERROR(ts_index_select(zero, 0, ROW(TS_I64, 0, 0)), TS_ERR_SHAPE, "one index");
    EXPECT_ERROR(ts_index_select(x, 0, i), TS_ERR_INDEX, "from 0 to 1, got 2 at position (0)");
    EXPECT_ERROR(ts_index_select(x, 3, i), TS_ERR_INDEX, "'dim'");
    EXPECT_ERROR(ts_index_select(x, 0, ts_view(i, TS_SIZES(2, 1))), TS_ERR_SHAPE, "one dim");
    ts_tensor *l = leaf(TS_SIZES(2, 3));
    backward_counting(ts_index_select(l, 1, ROW(TS_I64, 2, 2, 0)));
    EXPECT(ts_grad(l), 3, 0, 1 + 2, 6, 0, 4 + 5);
}

TS_TEST(index_add_adds_slices, .loop = 4)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_I64, TS_U8};
    ts_tensor *x = count_up(TS_SIZES(2, 3), dtypes[_i]),
              *src = count_up(TS_SIZES(2, 2), dtypes[_i]), *i = ROW(TS_I64, 2, 2);
    EXPECT(ts_index_add(x, 1, i, src), 0, 1, 2 + 0 + 1, 3, 4, 5 + 2 + 3);
    EXPECT(x, 0, 1, 2, 3, 4, 5);
    ck_assert_ptr_eq(ts_index_add_(x, 1, i, src), x);
    EXPECT(x, 0, 1, 3, 3, 4, 10);
    /* in place on a tensor that is not contiguous */
    ts_tensor *t = ts_t(count_up(TS_SIZES(3, 2), dtypes[_i]));
    ts_index_add_(t, 1, i, src);
    EXPECT(t, 0, 2, 5, 1, 3, 10);
    EXPECT_ERROR(ts_index_add_(x, 1, ROW(TS_I64, 2, 3), src), TS_ERR_INDEX, "got 3");
    EXPECT(x, 0, 1, 3, 3, 4, 10);
    EXPECT_ERROR(ts_index_add(x, 1, i, x), TS_ERR_SHAPE, "(2, 2)");
    EXPECT_ERROR(ts_index_add(x, 1, i, count_up(TS_SIZES(2, 2), TS_BOOL)), TS_ERR_DTYPE, "'src'");
    EXPECT_ERROR(ts_index_add_(x, 1, ROW(TS_I64, 0, 1, 2), x), TS_ERR_VALUE, "shares memory");
}

TS_TEST(index_add_has_both_gradients)
{
    ts_tensor *x = leaf(TS_SIZES(3)), *src = leaf(TS_SIZES(2));
    backward_counting(ts_index_add(x, 0, ROW(TS_I64, 2, 2), src));
    EXPECT(ts_grad(x), 1, 2, 3);
    EXPECT(ts_grad(src), 3, 3);
}

TS_TEST(gather_takes_one_element_an_index, .loop = 2)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3), TS_F32);
    ts_tensor *i = ts_view(ROW(index_dtypes[_i], 2, 0, 1, 1), TS_SIZES(2, 2));
    EXPECT(ts_gather(x, 1, i), 2, 0, 4, 4);
    EXPECT(ts_gather(x, 0, ts_view(ROW(index_dtypes[_i], 1, 0, 1), TS_SIZES(1, 3))), 3, 1, 5);
    EXPECT(ts_gather(ts_t(x), 0, i), 2, 3, 1, 4);
    EXPECT(ts_gather(count_up(TS_SIZES(2, 3), TS_BOOL), 1, i), 1, 0, 1, 1);
    EXPECT(ts_take_along_dim(x, ts_view(ROW(index_dtypes[_i], 2, 1), TS_SIZES(1, 2)), 1), 2, 1, 5,
           4);
    EXPECT_SIZES(ts_gather(x, 1, ts_slice(i, 1, 0, 0, 1)), 2, 0);
    ts_tensor *zero = ts_select(ROW(TS_F32, 5), 0, 0);
    EXPECT(ts_gather(zero, 0, ts_select(ROW(index_dtypes[_i], 0), 0, 0)), 5);
    EXPECT_ERROR(ts_gather(x, 0, i), TS_ERR_INDEX, "from 0 to 1, got 2 at position (0, 0)");
    EXPECT_ERROR(ts_gather(x, 1, ts_flatten(i, 0, 1)), TS_ERR_SHAPE, "2 dims");
    EXPECT_ERROR(ts_gather(x, 1, ts_expand(ts_slice(i, 0, 0, 1, 1), TS_SIZES(3, 2))), TS_ERR_SHAPE,
                 "at most (2, 3)");
    EXPECT_ERROR(ts_take_along_dim(x, ts_view(i, TS_SIZES(4, 1)), 1), TS_ERR_SHAPE, "broadcast");
    EXPECT_ERROR(ts_take_along_dim(x, NULL, 1), TS_ERR_NULL, "index");
    ts_tensor *l = leaf(TS_SIZES(2, 3));
    backward_counting(ts_gather(l, 1, i));
    EXPECT(ts_grad(l), 2, 0, 1, 0, 3 + 4, 0);
}

TS_TEST(scatter_writes_where_the_index_says)
{
    ts_tensor *x = count_up(TS_SIZES(2, 3), TS_F32),
              *src = ts_add_scalar(count_up(TS_SIZES(2, 3), TS_F32), 10);
    ts_tensor *i = ts_view(ROW(TS_I64, 2, 0, 1, 1), TS_SIZES(2, 2));
    EXPECT(ts_scatter(x, 1, i, src), 11, 1, 10, 3, 14, 5);
    EXPECT(ts_scatter_add(x, 1, i, src), 11, 1, 12, 3, 4 + 13 + 14, 5);
    EXPECT(ts_scatter_value(x, 1, i, -1), -1, 1, -1, 3, -1, 5);
    EXPECT(ts_scatter_value(count_up(TS_SIZES(3), TS_I64), 0, ROW(TS_I64, 1), 7.9), 0, 7, 2);
    EXPECT(x, 0, 1, 2, 3, 4, 5);
    ts_scatter_add_(x, 1, i, src);
    EXPECT(x, 11, 1, 12, 3, 31, 5);
    ts_scatter_value_(x, 1, i, 0);
    EXPECT(x, 0, 1, 0, 3, 0, 5);
    EXPECT_ERROR(ts_scatter_(x, 0, i, src), TS_ERR_INDEX, "got 2");
    EXPECT(x, 0, 1, 0, 3, 0, 5);
    EXPECT_ERROR(ts_scatter(x, 1, ts_expand(ts_slice(i, 1, 0, 1, 1), TS_SIZES(2, 4)), src),
                 TS_ERR_SHAPE, "at least");
    EXPECT_ERROR(ts_scatter(x, 1, i, ts_flatten(src, 0, 1)), TS_ERR_SHAPE, "'src'");
    EXPECT_ERROR(ts_scatter_add(x, 1, i, ts_to(src, TS_F64)), TS_ERR_DTYPE, "expected dtype f32");
}

TS_TEST(scatters_have_both_gradients)
{
    ts_tensor *x = leaf(TS_SIZES(2, 3)), *src = leaf(TS_SIZES(2, 3));
    ts_tensor *i = ts_view(ROW(TS_I64, 2, 0, 1, 2), TS_SIZES(2, 2));
    backward_counting(ts_scatter(x, 1, i, src));
    EXPECT(ts_grad(x), 0, 2, 0, 4, 0, 0);
    EXPECT(ts_grad(src), 3, 1, 0, 5, 6, 0);
    x = leaf(TS_SIZES(2, 3));
    src = leaf(TS_SIZES(2, 3));
    backward_counting(ts_scatter_add(x, 1, i, src));
    EXPECT(ts_grad(x), 1, 2, 3, 4, 5, 6);
    EXPECT(ts_grad(src), 3, 1, 0, 5, 6, 0);
}

TS_TEST(one_hot_writes_ones)
{
    ts_tensor *y = ts_one_hot(ROW(TS_I32, 1, 0), 3);
    ck_assert_int_eq(ts_dtype_of(y), TS_I64);
    EXPECT(y, 0, 1, 0, 1, 0, 0);
    EXPECT_ERROR(ts_one_hot(ROW(TS_I64, 1, 3), 3), TS_ERR_INDEX, "got 3 at position (1)");
    EXPECT_ERROR(ts_one_hot(ROW(TS_I64, 1), 0), TS_ERR_VALUE, "'num_classes'");
}

TS_TEST(drawn_one_hot_rows_have_one_one, .loop = 24)
{
    uint64_t draw = 0;
    int64_t n = 1 + (int64_t)(ts_philox_u64(71, (uint64_t)_i, draw++) % 3000);
    int64_t classes = 1 + (int64_t)(ts_philox_u64(71, (uint64_t)_i, draw++) % (_i % 2 ? 20 : 9000));
    n = n * classes > 1 << 22 ? (1 << 22) / classes : n;
    ts_tensor *index = ts_empty(TS_SIZES(n), TS_I64);
    int64_t *at = ts_data_mut(index);
    for (int64_t k = 0; k < n; k++)
        at[k] = (int64_t)(ts_philox_u64(72, (uint64_t)_i << 32, (uint64_t)k) % (uint64_t)classes);
    ts_set_num_threads(1 + _i % 4);
    const int64_t *y = ts_data(ts_one_hot(index, classes));
    for (int64_t k = 0; k < n; k++)
        for (int64_t c = 0; c < classes; c++)
            if (y[k * classes + c] != (c == at[k]))
                ck_abort_msg("case %d: element (%lld, %lld) is wrong", _i, (long long)k,
                             (long long)c);
}

/** A number from low to high. */
static int64_t pick(uint64_t seed, uint64_t *draw, int64_t low, int64_t high)
{
    return low + (int64_t)(ts_philox_u64(91, seed, (*draw)++) % (uint64_t)(high - low + 1));
}

/* src is larger than the index, and all tensors are views. */
TS_TEST(scatters_of_views_equal_those_of_copies, .loop = 40)
{
    uint64_t draw = 0, seed = (uint64_t)_i;
    int64_t n = pick(seed, &draw, 1, 30), rows = pick(seed, &draw, 1, 9),
            columns = pick(seed, &draw, 1, 50), few = pick(seed, &draw, 1, rows);
    int dim = _i % 2;
    ts_dtype dtype = _i % 3 ? TS_F32 : TS_I64;
    const int64_t self_sizes[] = {dim ? rows : n, dim ? n : rows},
                  index_sizes[] = {dim ? few : columns, dim ? columns : few};
    ts_tensor *self = ts_t(count_up(TS_SIZES(self_sizes[1], self_sizes[0]), dtype)),
              *src = ts_slice(count_up(TS_SIZES(2 * index_sizes[0], index_sizes[1] + 3), dtype), 0,
                              0, TS_END, 2),
              *index = ts_empty(TS_SIZES(index_sizes[1], index_sizes[0]), TS_I64);
    int64_t *at = ts_data_mut(index);
    for (int64_t k = 0; k < few * columns; k++)
        at[k] = pick(seed, &draw, 0, n - 1);
    index = ts_t(index);
    ts_set_num_threads(1 + _i % 4);
    for (int add = 0; add < 2; add++) {
        ts_tensor *(*op)(ts_tensor *, int, ts_tensor *, ts_tensor *) =
            add ? ts_scatter_add : ts_scatter;
        ts_tensor *(*in_place)(ts_tensor *, int, ts_tensor *, ts_tensor *) =
            add ? ts_scatter_add_ : ts_scatter_;
        ts_tensor *want = op(ts_contiguous(self), dim, ts_contiguous(index), ts_contiguous(src)),
                  *got = op(self, dim, index, src), *written = ts_t(ts_clone(ts_t(self)));
        ck_assert_ptr_nonnull(in_place(written, dim, index, src));
        ck_assert(!ts_is_contiguous(written) || n == 1 || rows == 1);
        written = ts_contiguous(written);
        size_t bytes = (size_t)(n * rows) * (dtype == TS_F32 ? 4 : 8);
        ck_assert(!memcmp(ts_data(got), ts_data(want), bytes));
        ck_assert(!memcmp(ts_data(written), ts_data(want), bytes));
    }
}

TS_TEST(index_add_of_views_equals_that_of_copies, .loop = 24)
{
    uint64_t draw = 0, seed = 1000 + (uint64_t)_i;
    int64_t n = pick(seed, &draw, 1, 30), rows = pick(seed, &draw, 2, 60),
            count = pick(seed, &draw, 1, 20);
    int dim = _i % 2;
    ts_tensor *self = ts_t(count_up(TS_SIZES(dim ? n : rows, dim ? rows : n), TS_F32)),
              *src = ts_slice(count_up(TS_SIZES(2 * (dim ? rows : count), dim ? count : rows),
                                       TS_F32), 0, 0, TS_END, 2),
              *index = ts_empty(TS_SIZES(2 * count), TS_I64);
    int64_t *at = ts_data_mut(index);
    for (int64_t k = 0; k < 2 * count; k++)
        at[k] = pick(seed, &draw, 0, n - 1);
    index = ts_slice(index, 0, 0, TS_END, 2);
    ts_set_num_threads(1 + _i % 4);
    ts_tensor *want = ts_index_add(ts_contiguous(self), dim, ts_contiguous(index),
                                   ts_contiguous(src)),
              *got = ts_index_add(self, dim, index, src), *written = ts_t(ts_clone(ts_t(self)));
    ck_assert_ptr_nonnull(ts_index_add_(written, dim, index, src));
    written = ts_contiguous(written);
    size_t bytes = (size_t)(n * rows) * sizeof(float);
    ck_assert(!memcmp(ts_data(got), ts_data(want), bytes));
    ck_assert(!memcmp(ts_data(written), ts_data(want), bytes));
}
