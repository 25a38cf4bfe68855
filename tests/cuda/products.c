/** @file products.c  Products on a GPU: alignment and layouts of operands, expanded operands, GELU
 * and sums in epilogues, padded copies. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

enum { M = 48, N = 40, K = 72, BATCH = 3 };

/** Normal numbers, drawn on the CPU. */
static ts_tensor *drawn(ts_device device, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    return ts_to_device(ts_to(ts_normal(sizes, ndim, 0, 1, TS_F32), dtype), device);
}

/** An uninitialised contiguous tensor of t's sizes, dtype and device that begins `offset` elements
 *  after the start of its memory. */
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

TS_TEST(products_do_not_depend_on_the_alignment_of_operands, .loop = 4)
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

TS_TEST(linear_of_transposed_expanded_and_strided_operands_equals_linear_of_copies,
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

/** addmm with a matrix, a row, a column or a number as self, with factors, without an inner dim,
 *  and with few columns. */
TS_TEST(addmm_rounds_a_sum_of_factors_once, .loop = 4)
{
    GPU(device);
    static const int64_t shapes[][3] = {
        {M, K, N}, {300, 17, 3}, {1000, 64, 1}, {33, 0, 9}, {1, 8, 8}};
    static const double factors[][2] = {{1, 1}, {0.5, -2}, {0, 1}, {1, 0.25}};
    ts_dtype dtype = dtypes[_i];
    for (size_t i = 0; i < 4 * sizeof shapes / sizeof *shapes; i++) {
        TS_SCOPE;
        const int64_t *n = shapes[i / 4];
        const double *by = factors[i % 4];
        ts_scalar beta = ts_scalar_float(by[0]), alpha = ts_scalar_float(by[1]);
        ts_addmm_opts opts = {sizeof opts, &beta, &alpha};
        ts_tensor *a = drawn(device, dtype, TS_SIZES(n[0], n[1])),
                  *b = drawn(device, dtype, TS_SIZES(n[1], n[2]));
        ts_tensor *added[] = {drawn(device, dtype, TS_SIZES(n[0], n[2])),
                              drawn(device, dtype, TS_SIZES(n[2])),
                              drawn(device, dtype, TS_SIZES(n[0], 1)),
                              drawn(device, dtype, NULL, 0)};
        for (int k = 0; k < 4; k++) {
            ts_tensor *exact =
                ts_add(ts_mul_scalar(ts_mm(ts_to(a, TS_F64), ts_to(b, TS_F64)), by[1]),
                       ts_mul_scalar(ts_to(added[k], TS_F64), by[0]));
            double most;
            OK(ts_item(ts_max(ts_abs(exact)), &most));
            ck_assert_double_le(apart(ts_addmm_ex(added[k], a, b, &opts), exact),
                                (dtype == TS_BF16 || dtype == TS_F16 ? 1 : 64) * epsilons[_i] *
                                    (1 + most));
        }
    }
}

static void same_as_on_the_cpu(ts_tensor *got, ts_tensor *expected)
{
    double same;
    OK(ts_item(ts_all(ts_eq(ts_to_device(got, TS_DEVICE_CPU), expected)), &same));
    ck_assert(same);
}

/* Sizes near the kernel's tile, 64 x 64 with a depth of 16. Operands use the whole range of their
 * dtype, so sums wrap. */
TS_TEST(products_of_integers_of_all_sizes_and_strides_equal_those_of_the_CPU, .loop = 3)
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
        for (int i = 0; i < 3; i++) { /* unaligned copies on the device */
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

/* In bf16 and f16 the tanh form is the epilogue of the product, which applies an approximate tanh
 * to the unrounded sum. */
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

/* ------------------------------------------------------------------------- padded copies ---- */

/** Random integers from -3 to 3 as bf16 or f16, whose products and sums are exact. framed: a view
 *  of a larger tensor of NaN. */
static ts_tensor *small_integers(ts_dtype dtype, int64_t batch, int64_t rows, int64_t columns,
                                 bool framed)
{
    ts_tensor *t = ts_to(ts_randint(TS_SIZES(batch, rows, columns), -3, 4), dtype);
    if (!framed)
        return t;
    ts_tensor *frame = ts_fill_(ts_empty_on(TS_SIZES(batch, rows + 2, columns + 11), dtype,
                                            TS_DEVICE_CPU), NAN);
    return ts_copy_(ts_narrow(ts_narrow(frame, 1, 1, rows), 2, 8, columns), t);
}

/** A copy of t on a device. framed: with t's strides, and NaN between the elements. */
static ts_tensor *strided_to(ts_tensor *t, bool framed, ts_device device)
{
    if (!framed)
        return ts_to_device(t, device);
    const int64_t *sizes = ts_sizes(t);
    ts_tensor *frame = ts_fill_(ts_empty_on(TS_SIZES(sizes[0], sizes[1] + 2, sizes[2] + 11),
                                            ts_dtype_of(t), device), NAN);
    return ts_copy_(ts_narrow(ts_narrow(frame, 1, 1, sizes[1]), 2, 8, sizes[2]),
                    ts_to_device(ts_contiguous(t), device));
}

static int64_t up_to(int64_t most)
{
    double x;
    OK(ts_item(ts_randint(TS_SIZES(1), 1, most + 1), &x));
    return (int64_t)x;
}

/** Computes bmm(a, b) into memory between NaN, and checks that these are not overwritten. */
static ts_tensor *product_between(ts_tensor *a, ts_tensor *b)
{
    int64_t batch = ts_size(a, 0), m = ts_size(a, 1), n = ts_size(b, 2), numel = batch * m * n;
    ts_tensor *around = ts_fill_(ts_empty_on(TS_SIZES(numel + 16), ts_dtype_of(a),
                                             ts_device_of(a)), NAN);
    ts_tensor *out = ts_view(ts_narrow(around, 0, 8, numel), TS_SIZES(batch, m, n));
    OK(ts_bmm_out(out, a, b));
    double nans;
    OK(ts_item(ts_sum(ts_to(ts_isnan(around), TS_F32)), &nans));
    ck_assert_double_eq(nans, 16);
    return out;
}

/* Sums are exact in f32 and rounded once, so both sides have the same bits. */
TS_TEST(padded_products_of_drawn_sizes_equal_those_of_the_CPU, .loop = 4, .timeout = 120)
{
    ts_dtype dtype = _i % 2 ? TS_F16 : TS_BF16;
    if (_i < 2)
        setenv("TS_CUDA_MATMUL", "padded", 1);
    GPU(device);
    ts_manual_seed((uint64_t)(31 + _i));
    for (int turn = 0; turn < 96; turn++) {
        TS_SCOPE;
        int64_t batch = turn % 3 ? 1 : 3, m = up_to(turn % 4 ? 90 : 260), n = up_to(260),
                k = turn % 2 ? up_to(200) : 8 * up_to(25);
        bool framed = turn / 4 % 2, a_columns = turn % 2, b_columns = turn / 2 % 2;
        ts_tensor *a = a_columns ? small_integers(dtype, batch, k, m, framed)
                                 : small_integers(dtype, batch, m, k, framed);
        ts_tensor *b = b_columns ? small_integers(dtype, batch, n, k, framed)
                                 : small_integers(dtype, batch, k, n, framed);
        ts_tensor *on_a = strided_to(a, framed, device), *on_b = strided_to(b, framed, device);
        if (a_columns)
            a = ts_transpose(a, 1, 2), on_a = ts_transpose(on_a, 1, 2);
        if (b_columns)
            b = ts_transpose(b, 1, 2), on_b = ts_transpose(on_b, 1, 2);
        same_as_on_the_cpu(product_between(on_a, on_b), ts_bmm(a, b));

        ts_tensor *x = ts_select(a, 0, 0), *w = ts_t(ts_select(b, 0, 0));
        ts_tensor *on_x = ts_select(on_a, 0, 0), *on_w = ts_t(ts_select(on_b, 0, 0));
        ts_tensor *bias = ts_view(small_integers(dtype, 1, 1, n, false), TS_SIZES(n));
        same_as_on_the_cpu(ts_linear(on_x, on_w, ts_to_device(bias, device)),
                           ts_linear(x, w, bias));
        ts_tensor *g = ts_select(small_integers(dtype, 1, m, n, false), 0, 0), *d[3], *on_d[3];
        OK(ts_linear_backward(g, x, w, &d[0], &d[1], &d[2]));
        OK(ts_linear_backward(ts_to_device(g, device), on_x, on_w, &on_d[0], &on_d[1], &on_d[2]));
        for (int i = 0; i < 3; i++)
            same_as_on_the_cpu(on_d[i], d[i]);
        OK(ts_linear_backward(ts_to_device(g, device), on_x, on_w, NULL, &on_d[1], NULL));
        same_as_on_the_cpu(on_d[1], d[1]);
    }
}

/* With k = 24 the weight's rows are multiples of 16 bytes, so only its last rows are copied. */
TS_TEST(padded_products_of_many_columns_equal_those_of_the_CPU, .loop = 2, .timeout = 120)
{
    setenv("TS_CUDA_MATMUL", "padded", 1);
    GPU(device);
    TS_SCOPE;
    int64_t m = 130, n = 20001, k = _i ? 24 : 21;
    ts_manual_seed(7);
    ts_tensor *x = ts_select(small_integers(TS_BF16, 1, m, k, false), 0, 0);
    ts_tensor *w = ts_select(small_integers(TS_BF16, 1, n, k, false), 0, 0);
    ts_tensor *bias = ts_view(small_integers(TS_BF16, 1, 1, n, false), TS_SIZES(n));
    ts_tensor *on_x = ts_to_device(x, device), *on_w = ts_to_device(w, device);
    same_as_on_the_cpu(ts_linear(on_x, on_w, ts_to_device(bias, device)), ts_linear(x, w, bias));
    same_as_on_the_cpu(ts_mm(on_x, ts_contiguous(ts_t(on_w))), ts_mm(x, ts_t(w)));
}

static char matmul_line[1024];
static void keep_matmul_line(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "matmul") == 0)
        snprintf(matmul_line, sizeof matmul_line, "%s", line);
}

/* Sums of products of small integers are exact in f32. */
TS_TEST(linear_layers_of_few_features_are_exact_for_integers, .loop = 2, .timeout = 120)
{
    GPU(device);
    static const ts_dtype halves[] = {TS_BF16, TS_F16};
    for (int64_t turn = 0; turn < 14; turn++) {
        TS_SCOPE;
        ts_manual_seed((uint64_t)(97 * _i + turn));
        double number;
        OK(ts_item(ts_randint(TS_SIZES(1), 0, 1 << 20), &number));
        int64_t draw = (int64_t)number, n = 1 + turn % 7, k = 8 * (1 + draw % 130),
                rows = 16000 + draw / 130 % 20000, more = turn % 3 ? 0 : 8;
        ts_tensor *x = ts_to(ts_randint(TS_SIZES(rows, k + more), -2, 3), TS_F32),
                  *w = ts_to(ts_randint(TS_SIZES(n, k), -2, 3), TS_F32),
                  *b = turn % 2 ? ts_to(ts_randint(TS_SIZES(n), -2, 3), TS_F32) : TS_NONE;
        ts_dtype dtype = halves[_i];
        ts_tensor *want = ts_to(ts_linear(ts_narrow(x, 1, 0, k), w, b), dtype);
        x = ts_to_device(ts_to(x, dtype), device), w = ts_to_device(ts_to(w, dtype), device);
        b = b == TS_NONE ? b : ts_to_device(ts_to(b, dtype), device);
        ts_tensor *got = ts_linear(ts_narrow(x, 1, 0, k), w, b);
        OK(got);
        ck_assert_msg(apart(ts_to_device(got, TS_DEVICE_CPU), want) == 0,
                      "%lld rows, inner size %lld, %lld features", (long long)rows, (long long)k,
                      (long long)n);
    }
}

/* Gradients of 34 to 68 MiB, whose sums are a pass of their own. */
TS_TEST(bias_gradients_of_long_layers_are_rounded_once, .loop = 2, .timeout = 120)
{
    GPU(device);
    static const ts_dtype halves[] = {TS_BF16, TS_F16};
    for (uint64_t turn = 0; turn < 8; turn++) {
        TS_SCOPE;
        ts_manual_seed(31 * turn + (uint64_t)_i);
        double number[3];
        for (int i = 0; i < 3; i++)
            OK(ts_item(ts_randint(TS_SIZES(1), 0, 1 << 20), &number[i]));
        int64_t n = 128 + 8 * ((int64_t)number[0] % 300), k = 8 * (1 + (int64_t)number[1] % 20),
                rows = (17 << 20) / n * (8 + (int64_t)number[2] % 9) / 8;
        ts_dtype dtype = halves[_i];
        ts_tensor *g = ts_to(ts_normal_on(TS_SIZES(rows, n), 0, 1, TS_F32, device), dtype),
                  *x = ts_to(ts_normal_on(TS_SIZES(rows, k), 0, 1, TS_F32, device), dtype),
                  *w = ts_to(ts_normal_on(TS_SIZES(n, k), 0, 1, TS_F32, device), dtype),
                  *dx = NULL, *dw = NULL, *db = NULL, *exact, *most;
        OK(ts_linear_backward(g, x, w, &dx, &dw, &db));
        OK(exact = ts_sum_to_size(ts_to(g, TS_F64), TS_SIZES(n)));
        OK(most = ts_max(ts_abs(exact)));
        double largest, error = apart(db, exact);
        OK(ts_item(most, &largest));
        ck_assert_msg(error <= (dtype == TS_BF16 ? 0x1.1p-8 : 0x1.1p-11) * largest,
                      "(%lld, %lld) %s: error %g of %g", (long long)rows, (long long)n,
                      ts_dtype_name(dtype), error, largest);
    }
}

TS_TEST(the_log_has_products_that_could_be_padded)
{
    GPU(device);
    TS_SCOPE;
    ts_log_set_callback(keep_matmul_line, NULL);
    ts_tensor *a = drawn(device, TS_BF16, TS_SIZES(1024, 1023));
    ts_tensor *b = drawn(device, TS_BF16, TS_SIZES(1023, 1024));
    OK(ts_mm(a, b));
    ck_assert_ptr_nonnull(strstr(matmul_line,
                                 "cuda, padded to 1024 x 1024 x 1024, copying first operand, "
                                 "second operand, in mm("));
    OK(ts_mm(ts_narrow(a, 0, 0, 1), b)); /* the copies would cost more than the product */
    ck_assert_ptr_nonnull(strstr(matmul_line, "cuda, without padding 1 x 1023 x 1024 in mm("));
    matmul_line[0] = 0;
    OK(ts_mm(ts_to(a, TS_F32), ts_to(b, TS_F32)));
    ck_assert_str_eq(matmul_line, "");
}

/* After a few thousand shapes plans are not kept any more: each call makes its own. */
TS_TEST(products_of_more_shapes_than_the_plan_cache_holds_are_correct, .timeout = 120)
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

/** Infinities, NaN and numbers near the largest one affect only the sums that they belong to. */
TS_TEST(values_that_are_not_finite_stay_in_their_rows_and_columns)
{
    GPU(device);
    static const int64_t sizes[][3] = {{64, 64, 64}, {40, 100, 36}, {129, 68, 2048}};
    for (int k = 0; k < 3; k++) {
        TS_SCOPE;
        int64_t rows = sizes[k][0], columns = sizes[k][1], inner = sizes[k][2];
        ts_tensor *a = ts_uniform(TS_SIZES(rows, inner), 0.5, 1.5, TS_F32);
        ts_tensor *b = ts_ones(TS_SIZES(inner, columns), TS_F32);
        OK(ts_fill_(ts_select(ts_select(a, 0, 3), 0, 5), INFINITY));
        OK(ts_fill_(ts_select(ts_select(a, 0, 7), 0, 1), 3.4e38));
        OK(ts_fill_(ts_select(ts_select(a, 0, 9), 0, 2), NAN));
        ts_tensor *y = ts_mm(ts_to_device(a, device), ts_to_device(b, device)),
                  *want = ts_to_device(ts_mm(a, b), device);
        float *got = values_of(y), *cpu = values_of(want);
        for (int64_t i = 0; i < rows * columns; i++)
            ck_assert_msg(isnan(cpu[i]) ? isnan(got[i])
                          : isinf(cpu[i]) ? got[i] == cpu[i]
                                          : fabsf(got[i] - cpu[i]) <= 1e-5f * fabsf(cpu[i]),
                          "(%lld, %lld): %g, the CPU has %g", (long long)(i / columns),
                          (long long)(i % columns), got[i], cpu[i]);
        free(got), free(cpu);
    }
}

/* A product's kernel begins before the previous kernel has ended, and the products of both
 * gradients of a layer run at the same time. A product that did not wait would read the operands of
 * the previous turn, which differ. */
TS_TEST(small_products_wait_for_the_kernels_that_compute_their_operands)
{
    GPU(device);
    enum { ROWS = 516, WIDTH = 128, LAYERS = 6, TURNS = 20 };
    TS_SCOPE;
    ts_tensor *w[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        w[l] = ts_mul_scalar(drawn(device, TS_F32, TS_SIZES(WIDTH, WIDTH)), 0.08);
    for (int turn = 0; turn < TURNS; turn++) {
        TS_SCOPE;
        ts_tensor *x = drawn(device, TS_F32, TS_SIZES(ROWS, WIDTH)), *leaves[LAYERS], *y = x,
                  *wide[LAYERS], *z = ts_to(x, TS_F64);
        for (int l = 0; l < LAYERS; l++) {
            leaves[l] = ts_set_requires_grad(ts_clone(w[l]), true);
            wide[l] = ts_set_requires_grad(ts_to(w[l], TS_F64), true);
        }
        for (int l = 0; l < LAYERS; l++) {
            y = ts_linear(y, leaves[l], TS_NONE);
            z = ts_linear(z, wide[l], TS_NONE);
        }
        OK(ts_backward(ts_sum(ts_square(y))));
        OK(ts_backward(ts_sum(ts_square(z))));
        double most;
        OK(ts_item(ts_max(ts_abs(ts_to(z, TS_F64))), &most));
        ck_assert_double_le(apart(y, z), 1e-5 * most);
        for (int l = 0; l < LAYERS; l++) {
            OK(ts_item(ts_max(ts_abs(ts_grad(wide[l]))), &most));
            ck_assert_double_le(apart(ts_grad(leaves[l]), ts_grad(wide[l])), 1e-5 * most);
        }
    }
}
