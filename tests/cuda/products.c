/** @file products.c  Products on a GPU: data anywhere, operands that repeat,
 * gelu and sums in the epilogue. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

enum { M = 48, N = 40, K = 72, BATCH = 3 };

/** Normal numbers, drawn on the CPU. */
static ts_tensor *drawn(ts_device device, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    return ts_to_device(ts_to(ts_normal(sizes, ndim, 0, 1, TS_F32), dtype), device);
}

/** A contiguous tensor like t that begins `offset` elements behind a block of memory. */
static ts_tensor *like_at(ts_tensor *t, int64_t offset)
{
    ts_tensor *buffer =
        ts_empty_on(TS_SIZES(ts_numel(t) + offset), ts_dtype_of(t), ts_device_of(t));
    return ts_view(ts_narrow(buffer, 0, offset, ts_numel(t)), ts_sizes(t), ts_ndim(t));
}

static double apart(ts_tensor *a, ts_tensor *b)
{
    double most;
    OK(ts_item(ts_max(ts_abs(ts_sub(ts_to(a, TS_F64), ts_to(b, TS_F64)))), &most));
    return most;
}

static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_F16};
static const double epsilons[] = {0x1p-52, 0x1p-23, 0x1p-7, 0x1p-10};

TS_TEST(bits_of_a_product_do_not_depend_on_where_its_data_lie, .loop = 4)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *a = drawn(device, dtypes[_i], TS_SIZES(BATCH, M, K));
    ts_tensor *b = drawn(device, dtypes[_i], TS_SIZES(BATCH, K, N));
    ts_tensor *expected = ts_bmm(a, b);
    for (int64_t offset = 0; offset < 8; offset++) {
        ts_tensor *a2 = ts_copy_(like_at(a, offset), a), *b2 = ts_copy_(like_at(b, offset), b);
        ts_tensor *out = like_at(expected, offset);
        ck_assert_msg(ts_bmm_out(out, a, b), "%s", ts_error_message());
        ck_assert_msg(apart(out, expected) == 0, "a destination at element %lld",
                      (long long)offset);
        ck_assert_msg(apart(ts_bmm(a2, b), expected) == 0, "a first operand at element %lld",
                      (long long)offset);
        ck_assert_msg(apart(ts_bmm(a, b2), expected) == 0, "a second operand at element %lld",
                      (long long)offset);
    }
}

TS_TEST(a_linear_layer_reads_transposed_repeated_and_uneven_operands_as_if_they_were_dense,
        .loop = 4)
{
    GPU(device);
    TS_SCOPE;
    ts_dtype dtype = dtypes[_i];
    ts_tensor *x = drawn(device, dtype, TS_SIZES(K, M)), *w = drawn(device, dtype, TS_SIZES(K, N));
    ts_tensor *bias = drawn(device, dtype, TS_SIZES(N)),
              *row = drawn(device, dtype, TS_SIZES(1, K));
    ts_tensor *xt = ts_t(x), *wt = ts_t(w), *rows = ts_expand(row, TS_SIZES(M, K));
    double bound = 256 * epsilons[_i];
    ts_tensor *dense = ts_linear(ts_contiguous(xt), ts_contiguous(wt), bias);
    ck_assert_double_le(apart(ts_linear(xt, wt, ts_copy_(like_at(bias, 1), bias)), dense), bound);
    ck_assert_double_le(apart(ts_linear(rows, wt, bias), ts_linear(ts_contiguous(rows), wt, bias)),
                        0);
    ts_tensor *dx, *dw, *db, *dx2, *dw2, *db2, *g = ts_t(drawn(device, dtype, TS_SIZES(N, M)));
    OK(ts_linear_backward(g, xt, wt, &dx, &dw, &db));
    OK(ts_linear_backward(ts_contiguous(g), ts_contiguous(xt), ts_contiguous(wt), &dx2, &dw2,
                          &db2));
    ck_assert_double_le(apart(dx, dx2), bound);
    ck_assert_double_le(apart(dw, dw2), bound);
    ck_assert_double_le(apart(db, db2), bound);
}

static void same_as_on_the_cpu(ts_tensor *got, ts_tensor *expected)
{
    double same;
    OK(ts_item(ts_all(ts_eq(ts_to_device(got, TS_DEVICE_CPU), expected)), &same));
    ck_assert(same);
}

/* Sizes about the tile of 64 x 64 and its steps of 16; all bits of the operands are set or not, so
 * sums wrap. */
TS_TEST(products_of_integers_are_the_cpus_whatever_their_sizes_and_steps, .loop = 3)
{
    GPU(device);
    static const ts_dtype integers[] = {TS_I64, TS_I32, TS_U8};
    static const int64_t sizes[][3] = {{1, 1, 1},     {1, 65, 17}, {64, 64, 16}, {65, 63, 15},
                                       {130, 1, 200}, {3, 5, 0},   {0, 5, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        TS_SCOPE;
        int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        ts_tensor *a =
            ts_to(ts_randint(TS_SIZES(BATCH, m, k), INT64_MIN / 2, INT64_MAX / 2), integers[_i]);
        ts_tensor *b =
            ts_to(ts_randint(TS_SIZES(BATCH, n, k), INT64_MIN / 2, INT64_MAX / 2), integers[_i]);
        ts_tensor *bias = ts_select(ts_select(ts_bmm(b, ts_transpose(b, 1, 2)), 0, 0), 0, 0);
        ts_tensor *a1 = ts_select(a, 0, 1), *b1 = ts_select(b, 0, 1), *on[] = {a, b, bias};
        for (int i = 0; i < 3; i++) { /* where no vector begins */
            ts_tensor *there = ts_to_device(on[i], device);
            on[i] = ts_copy_(like_at(there, 1), there);
        }
        ts_tensor *on_a1 = ts_select(on[0], 0, 1), *on_b1 = ts_select(on[1], 0, 1);
        same_as_on_the_cpu(ts_bmm(on[0], ts_transpose(on[1], 1, 2)),
                           ts_bmm(a, ts_transpose(b, 1, 2)));
        same_as_on_the_cpu(ts_mm(on_a1, ts_t(on_b1)), ts_mm(a1, ts_t(b1)));
        same_as_on_the_cpu(ts_linear(on_a1, on_b1, on[2]), ts_linear(a1, b1, bias));
        ts_tensor *g = ts_mm(a1, ts_t(b1)), *d[3], *on_d[3];
        OK(ts_linear_backward(g, a1, b1, &d[0], &d[1], &d[2]));
        OK(ts_linear_backward(ts_to_device(g, device), on_a1, on_b1, &on_d[0], &on_d[1], &on_d[2]));
        for (int i = 0; i < 3; i++)
            same_as_on_the_cpu(on_d[i], d[i]);
    }
}

/* Of halves the tanh form is part of the product: from the sum that is not yet rounded,
 * by an approximate tanh. */
TS_TEST(linear_gelu_is_gelu_of_linear_within_the_rounding_of_its_dtype, .loop = 8)
{
    GPU(device);
    TS_SCOPE;
    ts_dtype dtype = dtypes[_i / 2];
    bool tanh_form = _i % 2;
    ts_tensor *x = drawn(device, dtype, TS_SIZES(M, K)), *w = drawn(device, dtype, TS_SIZES(N, K));
    ts_tensor *bias = drawn(device, dtype, TS_SIZES(N)), *linear, *expected = ts_linear(x, w, bias);
    ts_tensor *y = ts_linear_gelu(x, w, bias, tanh_form, &linear), *wide = ts_to(expected, TS_F64);
    double most;
    OK(ts_item(ts_max(ts_abs(wide)), &most));
    double bound = 2 * epsilons[_i / 2] * most;
    ck_assert_double_le(apart(linear, expected), bound);
    ck_assert_double_le(apart(y, tanh_form ? ts_gelu_tanh(wide) : ts_gelu(wide)), bound);
    ck_assert_double_le(apart(ts_linear_gelu(x, w, bias, tanh_form, NULL), y), 0);
}

/* Of shapes beyond the first few thousand each call makes its plan anew. */
TS_TEST(products_of_more_shapes_than_there_are_plans_kept_are_right, .timeout = 120)
{
    GPU(device);
    TS_SCOPE;
    enum { SHAPES = 4608 };
    ts_tensor *ones = full_on(device, SHAPES, 1);
    for (int64_t n = 1; n <= SHAPES; n++) {
        TS_SCOPE;
        ts_tensor *some = ts_narrow(ones, 0, 0, n);
        double sum;
        OK(ts_item(ts_mm(ts_view(some, TS_SIZES(1, n)), ts_view(some, TS_SIZES(n, 1))), &sum));
        ck_assert_double_eq(sum, (double)n);
    }
}
