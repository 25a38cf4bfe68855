/** @file matmul.c  Products of matrices: shapes, layouts, dtypes, gradients, errors, threads. */
// SPDX-License-Identifier: MIT
#include "tests/expect.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "core/tensor.h"
#include "tessera/tessera.h"

/** A value in [-1, 1) that depends on seed and index. */
static double value(uint32_t seed, int64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x % 4096) / 2048 - 1;
}

/** Element of a strided tensor as a double. */
static double at(const ts_tensor *t, const int64_t *index)
{
    int64_t offset = 0;
    for (int d = 0; d < t->ndim; d++)
        offset += index[d] * t->strides[d];
    switch (t->dtype) {
    case TS_F32: return ((const float *)t->data)[offset];
    case TS_F64: return ((const double *)t->data)[offset];
    case TS_I64: return (double)((const int64_t *)t->data)[offset];
    case TS_I32: return ((const int32_t *)t->data)[offset];
    default: return ((const uint8_t *)t->data)[offset];
    }
}

static ts_tensor *filled(uint32_t seed, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    ts_tensor *t = ts_empty(sizes, ndim, dtype);
    ck_assert_ptr_nonnull(t);
    for (int64_t i = 0; i < t->numel; i++) {
        double v = value(seed, i);
        switch (dtype) {
        case TS_F32: ((float *)t->data)[i] = (float)v; break;
        case TS_F64: ((double *)t->data)[i] = v; break;
        case TS_I64: ((int64_t *)t->data)[i] = (int64_t)(v * 100); break;
        case TS_I32: ((int32_t *)t->data)[i] = (int32_t)(v * 100); break;
        default: ((uint8_t *)t->data)[i] = (uint8_t)(int)(v * 5 + 5); break;
        }
    }
    return t;
}

/** Layouts of a (rows, columns) matrix. */
enum { DENSE, TRANSPOSED, PADDED, SPREAD, EXPANDED, LAYOUTS };

static ts_tensor *matrix(uint32_t seed, ts_dtype dtype, int64_t rows, int64_t columns, int layout)
{
    ts_thread *thread = ts_thread_self();
    int64_t sizes[] = {rows, columns};
    switch (layout) {
    case TRANSPOSED: {
        ts_tensor *t = filled(seed, dtype, TS_SIZES(columns, rows));
        return ts_adopt(ts_tensor_alias(thread, t, sizes, (int64_t[]){1, rows}, 2, 0));
    }
    case PADDED: {
        ts_tensor *t = filled(seed, dtype, TS_SIZES(rows + 1, columns + 3));
        return ts_adopt(
            ts_tensor_alias(thread, t, sizes, (int64_t[]){columns + 3, 1}, 2, columns + 4));
    }
    case SPREAD: {
        ts_tensor *t = filled(seed, dtype, TS_SIZES(rows, columns * 2 + 1));
        return ts_adopt(ts_tensor_alias(thread, t, sizes, (int64_t[]){columns * 2 + 1, 2}, 2, 0));
    }
    case EXPANDED: {
        ts_tensor *t = filled(seed, dtype, TS_SIZES(columns));
        return ts_adopt(ts_tensor_alias(thread, t, sizes, (int64_t[]){0, 1}, 2, 0));
    }
    default:
        return filled(seed, dtype, sizes, 2);
    }
}

/** Compares c = a b + bias with sums in double. Bound of the error: depth * eps of the sum of
 *  magnitudes. */
static void check_product(const ts_tensor *c, const ts_tensor *a, const ts_tensor *b,
                          const ts_tensor *bias)
{
    double eps = c->dtype == TS_F32 ? 0x1p-24 : c->dtype == TS_F64 ? 0x1p-53 : 0;
    int64_t k = a->sizes[1];
    for (int64_t i = 0; i < c->sizes[0]; i++)
        for (int64_t j = 0; j < c->sizes[1]; j++) {
            double sum = bias ? at(bias, &j) : 0, magnitude = fabs(sum);
            for (int64_t p = 0; p < k; p++) {
                double term = at(a, (int64_t[]){i, p}) * at(b, (int64_t[]){p, j});
                sum += term;
                magnitude += fabs(term);
            }
            double got = at(c, (int64_t[]){i, j});
            if (c->dtype == TS_U8)
                sum = (double)((int64_t)sum & 255);
            ck_assert_msg(fabs(got - sum) <= (double)(k + 1) * eps * magnitude,
                          "(%lld, %lld) of m %lld n %lld k %lld: %.9g, expected %.9g", (long long)i,
                          (long long)j, (long long)c->sizes[0], (long long)c->sizes[1],
                          (long long)k, got, sum);
        }
}

static const int64_t shapes[][3] = { /* m, n, k */
    {1, 1, 1},    {3, 5, 7},     {8, 32, 16},  {8, 4, 32},    {16, 8, 32},   {1, 64, 128},
        {64, 1, 33}, {2, 3, 500},
    {65, 129, 17}, {130, 70, 90}, {33, 17, 300}, {14, 32, 16}, {15, 33, 257}, {29, 47, 513},
    {0, 3, 4},   {3, 0, 4},
    {3, 4, 0},    {128, 128, 64}, {1030, 37, 20}, {100, 260, 40},
    {230, 37, 300},
};

TS_TEST(mm_is_the_sum_of_products_in_every_layout, .loop = TS_COUNTOF(shapes))
{
    int64_t m = shapes[_i][0], n = shapes[_i][1], k = shapes[_i][2];
    static const ts_dtype dtypes[] = {TS_F32, TS_F64};
    for (int d = 0; d < TS_COUNTOF(dtypes); d++)
        for (int la = 0; la < LAYOUTS; la++)
            for (int lb = 0; lb < LAYOUTS; lb++) {
                TS_SCOPE;
                ts_tensor *a = matrix(1, dtypes[d], m, k, la), *b = matrix(2, dtypes[d], k, n, lb);
                ts_tensor *c = ts_mm(a, b);
                ck_assert_msg(c != NULL, "%s", ts_error_message());
                ck_assert_int_eq(c->sizes[0], m);
                ck_assert_int_eq(c->sizes[1], n);
                check_product(c, a, b, NULL);
            }
}

TS_TEST(products_with_a_vector_are_sums_of_products, .loop = 60)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_U8, TS_I32};
    uint64_t count = 0;
#define DRAW(n) ((int64_t)(ts_philox_u64(0x7ec + (uint64_t)_i, 0, count++) % (uint64_t)(n)))
    for (int round = 0; round < 4; round++) {
        TS_SCOPE;
        ts_dtype dtype = dtypes[DRAW(TS_COUNTOF(dtypes))];
        int64_t most = DRAW(2) ? 40 : 3000, k = 1 + DRAW(most), n = 1 + DRAW(120000 / k % 900 + 1);
        bool row = DRAW(2);
        ts_tensor *a = matrix(1, dtype, row ? 1 : n, k, (int)DRAW(LAYOUTS)),
                  *b = matrix(2, dtype, k, row ? n : 1, (int)DRAW(LAYOUTS)), *c[3];
        for (int threads = 1; threads <= 3; threads++) {
            ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
            c[threads - 1] = ts_mm(a, b);
            ck_assert_ptr_nonnull(c[threads - 1]);
        }
        check_product(c[0], a, b, NULL);
        size_t bytes = (size_t)n * ts_dtype_size(dtype);
        ck_assert_mem_eq(c[0]->data, c[1]->data, bytes);
        ck_assert_mem_eq(c[0]->data, c[2]->data, bytes);
        if (!ts_dtype_is_float(dtype))
            continue;
        ts_tensor *bias = filled(3, dtype, TS_SIZES(n)), *x = row ? a : ts_transpose(b, 0, 1),
                  *w = row ? ts_transpose(b, 0, 1) : a, *y = ts_linear(x, w, bias);
        ck_assert_ptr_nonnull(y);
        check_product(y, x, ts_transpose(w, 0, 1), bias);
    }
#undef DRAW
    ts_set_num_threads(1);
}

TS_TEST(integers_multiply_exactly)
{
    static const ts_dtype dtypes[] = {TS_I64, TS_I32, TS_U8};
    for (int d = 0; d < TS_COUNTOF(dtypes); d++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            TS_SCOPE;
            ts_tensor *a = matrix(3, dtypes[d], 9, 21, layout),
                      *b = matrix(4, dtypes[d], 21, 6, layout);
            ts_tensor *c = ts_mm(a, b);
            ck_assert_ptr_nonnull(c);
            check_product(c, a, b, NULL);
        }
}

TS_TEST(out_may_be_strided_and_its_old_values_do_not_matter)
{
    TS_SCOPE;
    ts_tensor *a = matrix(1, TS_F32, 5, 6, DENSE), *b = matrix(2, TS_F32, 6, 7, DENSE);
    ts_tensor *dense = ts_full(TS_SIZES(5, 7), TS_SCALAR(NAN), TS_F32);
    ck_assert_ptr_eq(ts_mm_out(dense, a, b), dense);
    check_product(dense, a, b, NULL);
    ts_tensor *strided = matrix(0, TS_F32, 5, 7, TRANSPOSED);
    ck_assert_ptr_eq(ts_mm_out(strided, a, b), strided);
    check_product(strided, a, b, NULL);
    ts_tensor *empty_sum = ts_full(TS_SIZES(5, 7), TS_SCALAR(NAN), TS_F32);
    ck_assert_ptr_nonnull(
        ts_mm_out(empty_sum, ts_empty(TS_SIZES(5, 0), TS_F32), ts_empty(TS_SIZES(0, 7), TS_F32)));
    for (int i = 0; i < 35; i++)
        ck_assert_float_eq(((float *)empty_sum->data)[i], 0);
    ck_assert_ptr_null(ts_mm_out(a, a, matrix(2, TS_F32, 6, 6, DENSE)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
}

TS_TEST(bmm_multiplies_matrix_by_matrix)
{
    for (int64_t count = 0; count < 4; count++) {
        TS_SCOPE;
        int64_t m = count == 3 ? 70 : 5, n = count == 3 ? 90 : 4, k = count == 3 ? 64 : 3;
        ts_tensor *a = filled(1, TS_F32, TS_SIZES(count, m, k)),
                  *b = filled(2, TS_F32, TS_SIZES(count, n, k));
        ts_tensor *bt = ts_adopt(ts_tensor_alias(ts_thread_self(), b, (int64_t[]){count, k, n},
                                                 (int64_t[]){n * k, 1, k}, 3, 0));
        ts_tensor *c = ts_bmm(a, bt);
        ck_assert_ptr_nonnull(c);
        for (int64_t i = 0; i < count; i++) {
            ts_tensor *ai = ts_adopt(ts_tensor_alias(ts_thread_self(), a, (int64_t[]){m, k},
                                                     (int64_t[]){k, 1}, 2, i * m * k));
            ts_tensor *bi = ts_adopt(ts_tensor_alias(ts_thread_self(), b, (int64_t[]){k, n},
                                                     (int64_t[]){1, k}, 2, i * n * k));
            ts_tensor *ci = ts_adopt(ts_tensor_alias(ts_thread_self(), c, (int64_t[]){m, n},
                                                     (int64_t[]){n, 1}, 2, i * m * n));
            check_product(ci, ai, bi, NULL);
        }
    }
}

TS_TEST(linear_flattens_leading_dims_and_adds_the_bias, .loop = TS_COUNTOF(shapes))
{
    int64_t m = shapes[_i][0], n = shapes[_i][1], k = shapes[_i][2];
    static const ts_dtype dtypes[] = {TS_F32, TS_F64};
    for (int d = 0; d < TS_COUNTOF(dtypes); d++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            TS_SCOPE;
            ts_tensor *x = matrix(1, dtypes[d], m, k, layout),
                      *w = matrix(2, dtypes[d], n, k, layout);
            ts_tensor *bias = filled(5, dtypes[d], TS_SIZES(n));
            ts_tensor *wt =
                ts_adopt(ts_tensor_alias(ts_thread_self(), w, (int64_t[]){k, n},
                                         (int64_t[]){w->strides[1], w->strides[0]}, 2, 0));
            ts_tensor *y = ts_linear(x, w, bias);
            ck_assert_msg(y != NULL, "%s", ts_error_message());
            check_product(y, x, wt, bias);
            ts_tensor *batched =
                ts_adopt(ts_tensor_alias(ts_thread_self(), x, (int64_t[]){1, m, 1, k},
                                         (int64_t[]){1, x->strides[0], 99, x->strides[1]}, 4, 0));
            y = ts_linear(batched, w, TS_NONE);
            ck_assert_ptr_nonnull(y);
            ck_assert_int_eq(y->ndim, 4);
            ck_assert_int_eq(y->sizes[3], n);
            ts_tensor *flat = ts_adopt(
                ts_tensor_alias(ts_thread_self(), y, (int64_t[]){m, n}, (int64_t[]){n, 1}, 2, 0));
            check_product(flat, x, wt, NULL);
        }
}

TS_TEST(linear_takes_one_dim)
{
    TS_SCOPE;
    const float x[] = {1, 2, 3}, w[] = {1, 0, 2, -1, 1, 0.5f};
    ts_tensor *y = ts_linear(ts_from_array(x, TS_F32, TS_SIZES(3)),
                             ts_from_array(w, TS_F32, TS_SIZES(2, 3)), TS_NONE);
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(y->ndim, 1);
    ck_assert_float_eq(((float *)y->data)[0], 7);
    ck_assert_float_eq(((float *)y->data)[1], 2.5f);
}

static bool same_bits(const ts_tensor *a, const ts_tensor *b)
{
    return a->numel == b->numel &&
           memcmp(a->data, b->data, (size_t)a->numel * ts_dtype_sizes[a->dtype]) == 0;
}

TS_TEST(linear_gelu_is_linear_and_its_gelu, .loop = 4)
{
    TS_SCOPE;
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16};
    ts_dtype dtype = dtypes[_i / 2];
    bool tanh_form = _i % 2;
    ts_tensor *x = ts_to(filled(1, TS_F32, TS_SIZES(2, 5, 33)), dtype),
              *w = ts_to(filled(2, TS_F32, TS_SIZES(17, 33)), dtype);
    ts_tensor *bias = ts_to(filled(3, TS_F32, TS_SIZES(17)), dtype), *linear,
              *expected = ts_linear(x, w, bias);
    ts_tensor *y = ts_linear_gelu(x, w, bias, tanh_form, &linear);
    ck_assert(same_bits(linear, expected));
    ck_assert(same_bits(y, tanh_form ? ts_gelu_tanh(expected) : ts_gelu(expected)));
    ck_assert(same_bits(ts_linear_gelu(x, w, bias, tanh_form, NULL), y));
}

TS_TEST(linear_backward_returns_the_wanted_gradients)
{
    TS_SCOPE;
    ts_tensor *g = matrix(1, TS_F64, 70, 33, DENSE), *x = matrix(2, TS_F64, 70, 20, PADDED),
              *w = matrix(3, TS_F64, 33, 20, DENSE);
    ts_tensor *gx = NULL, *gw = NULL, *gb = NULL;
    ts_tensor *gt = ts_adopt(
        ts_tensor_alias(ts_thread_self(), g, (int64_t[]){33, 70}, (int64_t[]){1, 33}, 2, 0));
    ck_assert_int_eq(ts_linear_backward(g, x, w, &gx, &gw, &gb), TS_OK);
    check_product(gx, g, w, NULL);
    check_product(gw, gt, x, NULL);
    for (int64_t j = 0; j < 33; j++) {
        double sum = 0;
        for (int64_t i = 0; i < 70; i++)
            sum += at(g, (int64_t[]){i, j});
        ck_assert_double_eq_tol(((double *)gb->data)[j], sum, 1e-13);
    }
    ck_assert_int_eq(ts_linear_backward(g, TS_NONE, TS_NONE, NULL, NULL, &gb), TS_OK);
    ck_assert_int_eq(ts_linear_backward(g, TS_NONE, w, &gx, NULL, NULL), TS_OK);
    ck_assert_int_eq(ts_linear_backward(g, x, TS_NONE, NULL, &gw, NULL), TS_OK);
    ck_assert_int_eq(ts_linear_backward(g, TS_NONE, w, NULL, &gw, NULL), TS_ERR_NULL);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "input"));
    ck_assert_int_eq(ts_linear_backward(g, x, TS_NONE, &gx, NULL, NULL), TS_ERR_NULL);
}

TS_TEST(gradient_of_weights_over_many_rows, .loop = 4)
{
    static const int threads[] = {1, 3};
    int64_t rows = 1029, n = _i < 2 ? 45 : 240, k = 70;
    TS_SCOPE;
    ck_assert_int_eq(ts_set_num_threads(threads[_i % 2]), TS_OK);
    ts_tensor *g = matrix(1, TS_F32, rows, n, DENSE), *x = matrix(2, TS_F32, rows, k, PADDED);
    ts_tensor *gt = ts_adopt(
        ts_tensor_alias(ts_thread_self(), g, (int64_t[]){n, rows}, (int64_t[]){1, n}, 2, 0));
    ts_tensor *ones = ts_full(TS_SIZES(rows, 1), TS_SCALAR(1), TS_F32), *gw = NULL, *gb = NULL;
    ck_assert_int_eq(ts_linear_backward(g, x, TS_NONE, NULL, &gw, &gb), TS_OK);
    check_product(gw, gt, x, NULL);
    check_product(ts_reshape(gb, TS_SIZES(n, 1)), gt, ones, NULL);
    check_product(ts_mm(gt, x), gt, x, NULL);
}

TS_TEST(bits_do_not_depend_on_the_number_of_threads)
{
    static const int64_t large[][3] = {
        {2048, 384, 128}, {384, 128, 2048}, {130, 70, 90}, {512, 128, 2048}, {64, 512, 300}};
    for (int s = 0; s < TS_COUNTOF(large); s++)
        for (int layout = 0; layout < 2; layout++) {
            TS_SCOPE;
            int64_t m = large[s][0], n = large[s][1], k = large[s][2];
            ts_tensor *a = matrix(1, TS_F32, m, k, layout), *w = matrix(2, TS_F32, n, k, DENSE),
                      *g = matrix(3, TS_F32, m, n, DENSE);
            ts_tensor *bias = filled(4, TS_F32, TS_SIZES(n));
            ts_tensor *y[4], *gx[4], *gw[4], *gb[4];
            static const int threads[] = {1, 2, 3, 5};
            for (int t = 0; t < 4; t++) {
                ck_assert_int_eq(ts_set_num_threads(threads[t]), TS_OK);
                y[t] = ts_linear(a, w, bias);
                ck_assert_int_eq(ts_linear_backward(g, a, w, &gx[t], &gw[t], &gb[t]), TS_OK);
            }
            for (int t = 1; t < 4; t++) {
                ck_assert_mem_eq(y[0]->data, y[t]->data, (size_t)(m * n * 4));
                ck_assert_mem_eq(gx[0]->data, gx[t]->data, (size_t)(m * k * 4));
                ck_assert_mem_eq(gw[0]->data, gw[t]->data, (size_t)(n * k * 4));
                ck_assert_mem_eq(gb[0]->data, gb[t]->data, (size_t)(n * 4));
            }
        }
}

/* ---------------------------------------------------------------------------- gradients ---- */

/** Random weights of y's sizes, the gradient of weighted(y). */
static ts_tensor *weights_of(const ts_tensor *y) { return filled(77, TS_F64, y->sizes, y->ndim); }

/** Sum of y times its weights. */
static double weighted(const ts_tensor *y)
{
    const double *w = (const double *)weights_of(y)->data, *x = (const double *)y->data;
    double sum = 0;
    for (int64_t i = 0; i < y->numel; i++)
        sum += w[i] * x[i];
    return sum;
}

typedef ts_tensor *(*function)(ts_tensor *const *in);

static ts_tensor *f_mm(ts_tensor *const *in) { return ts_mm(in[0], in[1]); }
static ts_tensor *f_linear(ts_tensor *const *in) { return ts_linear(in[0], in[1], in[2]); }
static ts_tensor *f_linear_plain(ts_tensor *const *in) { return ts_linear(in[0], in[1], TS_NONE); }

static const struct gradient_case {
    const char *name;
    function fn;
    int inputs;
    int64_t sizes[3][3];
    int ndim[3];
} gradient_cases[] = {
    {"mm", f_mm, 2, {{3, 4}, {4, 2}}, {2, 2}},
    {"linear", f_linear, 3, {{2, 3, 4}, {5, 4}, {5}}, {3, 2, 1}},
    {"linear without bias", f_linear_plain, 2, {{3, 4}, {5, 4}}, {2, 2}},
    {"linear of one row", f_linear, 3, {{4}, {5, 4}, {5}}, {1, 2, 1}},
};

/** Stores the result of c->fn, or (second) the squares of its gradients, in `out`. Returns their
 *  number. */
static int results_of(const struct gradient_case *c, ts_tensor *const *in, bool second,
                      ts_tensor **out)
{
    out[0] = c->fn(in);
    ck_assert_msg(out[0] != NULL, "%s", ts_error_message());
    if (!second)
        return 1;
    ts_tensor *grads[3];
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    ck_assert_msg(ts_grad_of(out[0], weights_of(out[0]), in, c->inputs, grads, &opts) == TS_OK,
                  "%s", ts_error_message());
    for (int i = 0; i < c->inputs; i++)
        out[i] = ts_mul(grads[i], grads[i]);
    return c->inputs;
}

TS_TEST(gradients_agree_with_finite_differences, .loop = 2 * TS_COUNTOF(gradient_cases))
{
    const struct gradient_case *c = &gradient_cases[_i / 2];
    bool second = _i % 2;
    TS_SCOPE;
    ts_tensor *in[3], *out[3], *grads[3][3];
    for (int i = 0; i < c->inputs; i++) {
        in[i] = filled((uint32_t)(10 + i), TS_F64, c->sizes[i], c->ndim[i]);
        ck_assert_ptr_nonnull(ts_set_requires_grad(in[i], true));
    }
    int outs = results_of(c, in, second, out);
    for (int o = 0; o < outs; o++) {
        ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
        if (!ts_requires_grad(out[o])) /* such as the bias's gradient */
            for (int i = 0; i < c->inputs; i++)
                grads[o][i] = TS_NONE;
        else
            ck_assert_msg(ts_grad_of(out[o], weights_of(out[o]), in, c->inputs, grads[o], &opts) ==
                              TS_OK,
                          "%s", ts_error_message());
    }
    for (int i = 0; i < c->inputs; i++)
        for (int64_t k = 0; k < in[i]->numel; k++) {
            double sides[2], *x = (double *)in[i]->data + k, held = *x, got = 0;
            for (int side = 0; side < 2; side++) {
                *x = held + (side ? 1e-6 : -1e-6);
                results_of(c, in, second, out);
                sides[side] = 0;
                for (int o = 0; o < outs; o++)
                    sides[side] += weighted(out[o]);
            }
            *x = held;
            for (int o = 0; o < outs; o++)
                got += grads[o][i] == TS_NONE ? 0 : ((double *)grads[o][i]->data)[k];
            double expected = (sides[1] - sides[0]) / 2e-6;
            ck_assert_msg(fabs(got - expected) <= 1e-5 + 1e-3 * fabs(expected),
                          "%s, input %d, element %lld: %g, expected %g", c->name, i, (long long)k,
                          got, expected);
        }
}

TS_TEST(only_needed_operands_are_kept)
{
    TS_SCOPE;
    ts_tensor *x = matrix(1, TS_F32, 3, 4, DENSE), *w = matrix(2, TS_F32, 5, 4, DENSE);
    ck_assert_ptr_nonnull(ts_set_requires_grad(w, true));
    ts_tensor *y = ts_linear(x, w, TS_NONE);
    ck_assert_ptr_nonnull(ts_zero_(x)); /* changes a saved tensor */
    ck_assert_int_eq(ts_backward_ex(y, ts_ones(TS_SIZES(3, 5), TS_F32), NULL), TS_ERR_AUTOGRAD);
    ts_error_clear();
    ck_assert_ptr_nonnull(ts_set_requires_grad(w, false));
    ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
    y = ts_linear(x, w, TS_NONE);
    ck_assert_int_eq(ts_backward_ex(y, ts_ones(TS_SIZES(3, 5), TS_F32), NULL), TS_OK);
    ck_assert_ptr_nonnull(ts_grad(x));
}

/* ------------------------------------------------------------------------------- errors ---- */

TS_TEST(errors_name_the_argument_and_what_was_expected)
{
    TS_SCOPE;
    ts_tensor *a = ts_zeros(TS_SIZES(2, 3), TS_F32), *b = ts_zeros(TS_SIZES(4, 5), TS_F32);
    ts_tensor *cube = ts_zeros(TS_SIZES(2, 3, 4), TS_F32), *wide = ts_zeros(TS_SIZES(3, 2), TS_F64);
    expect_error(ts_mm(a, b), TS_ERR_SHAPE, "expected 3");
    expect_error(ts_mm(a, cube), TS_ERR_SHAPE, "mat2");
    expect_error(ts_mm(cube, b), TS_ERR_SHAPE, "self");
    expect_error(ts_mm(a, wide), TS_ERR_DTYPE, "f32");
    expect_error(ts_mm(NULL, b), TS_ERR_NULL, "self");
    expect_error(ts_mm(a, NULL), TS_ERR_NULL, "mat2");
    expect_error(ts_mm_out(NULL, a, b), TS_ERR_NULL, "out");
    expect_error(ts_mm(ts_zeros(TS_SIZES(2, 2), TS_BOOL), ts_zeros(TS_SIZES(2, 2), TS_BOOL)),
                 TS_ERR_DTYPE, "bool");
    expect_error(ts_bmm(a, a), TS_ERR_SHAPE, "3 dims");
    expect_error(ts_bmm(cube, ts_zeros(TS_SIZES(3, 4, 2), TS_F32)), TS_ERR_SHAPE, "dim 0");
    expect_error(ts_linear(a, b, TS_NONE), TS_ERR_SHAPE, "expected 5");
    expect_error(ts_linear(a, cube, TS_NONE), TS_ERR_SHAPE, "weight");
    expect_error(ts_linear(ts_zeros(NULL, 0, TS_F32), b, TS_NONE), TS_ERR_SHAPE, "input");
    expect_error(ts_linear(cube, ts_zeros(TS_SIZES(6, 4), TS_F32), ts_zeros(TS_SIZES(5), TS_F32)),
                 TS_ERR_SHAPE, "bias");
    expect_error(ts_linear(cube, ts_zeros(TS_SIZES(6, 4), TS_F32), NULL), TS_ERR_NULL, "bias");
    ts_tensor *gx;
    ck_assert_int_eq(ts_linear_backward(a, TS_NONE, b, &gx, NULL, NULL), TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_int_eq(ts_linear_backward(NULL, TS_NONE, b, &gx, NULL, NULL), TS_ERR_NULL);
}

/* Integers wrap, so neither the order of the sums nor of the factor alpha matters. */
TS_TEST(drawn_addmm_of_integers_wraps, .loop = 120)
{
    static const ts_dtype dtypes[] = {TS_I64, TS_I32, TS_U8};
    uint64_t word = 0;
#define DRAW(low, high)                                                                         \
    ((low) + (int64_t)(ts_philox_u64(73, (uint64_t)_i << 8, word++) % (uint64_t)((high) - (low))))
    ts_dtype dtype = dtypes[_i % 3];
    int item = dtype == TS_I64 ? 8 : dtype == TS_I32 ? 4 : 1;
    int64_t m = DRAW(1, 40), n = DRAW(1, _i % 4 ? 40 : 1100), k = DRAW(0, 40), form = DRAW(0, 4),
            beta = DRAW(-3, 4), alpha = DRAW(-3, 4);
    bool turned_a = DRAW(0, 2), turned_b = DRAW(0, 2);
    ts_tensor *a = turned_a ? ts_empty(TS_SIZES(k, m), dtype) : ts_empty(TS_SIZES(m, k), dtype),
              *b = turned_b ? ts_empty(TS_SIZES(n, k), dtype) : ts_empty(TS_SIZES(k, n), dtype),
              *x = ts_empty(TS_SIZES(form & 1 ? m : 1, form & 2 ? n : 1), dtype);
    ts_tensor *all[] = {a, b, x};
    for (int i = 0; i < 3; i++)
        for (int64_t e = 0; e < all[i]->numel * item; e++)
            all[i]->data[e] = (char)ts_philox_u64(74 + (uint64_t)i, (uint64_t)_i << 32,
                                                  (uint64_t)e);
    a = turned_a ? ts_t(a) : a;
    b = turned_b ? ts_t(b) : b;
    ts_scalar factors[] = {ts_scalar_int(beta), ts_scalar_int(alpha)};
    ts_tensor *y = ts_addmm_ex(x, a, b, &(ts_addmm_opts){sizeof(ts_addmm_opts), &factors[0],
                                                         &factors[1]});
    ck_assert_ptr_nonnull(y);
#define WORD(t, i, j)                                                                           \
    ({                                                                                          \
        uint64_t word_ = 0;                                                                     \
        memcpy(&word_, (t)->data + ((i) * (t)->strides[0] + (j) * (t)->strides[1]) * item,      \
               (size_t)item);                                                                   \
        word_;                                                                                  \
    })
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            uint64_t sum = 0, expected;
            for (int64_t p = 0; p < k; p++)
                sum += WORD(a, i, p) * WORD(b, p, j);
            expected = (uint64_t)beta * WORD(x, form & 1 ? i : 0, form & 2 ? j : 0) +
                       (uint64_t)alpha * sum;
            expected &= ~(uint64_t)0 >> (64 - 8 * item);
            if (WORD(y, i, j) != expected)
                ck_abort_msg("case %d, %lldx%lldx%lld: element (%lld, %lld) is wrong", _i,
                             (long long)m, (long long)k, (long long)n, (long long)i,
                             (long long)j);
        }
#undef WORD
#undef DRAW
}

/** Draws a size from 1 to `most`. */
static int64_t drawn_size(uint32_t seed, int64_t i, int64_t most)
{
    return 1 + (int64_t)((value(seed, i) + 1) / 2 * (double)most) % most;
}

/** Seed of drawn case i, which TS_TEST_SEED changes. */
static uint32_t seed_of(int i)
{
    const char *drawn = getenv("TS_TEST_SEED");
    return (uint32_t)(i + 1) * 7919u + (drawn ? (uint32_t)atoi(drawn) : 0u);
}

TS_TEST(drawn_products_of_halves_are_rounded_once, .loop = 60)
{
    TS_SCOPE;
    uint32_t seed = seed_of(_i);
    static const int64_t few[] = {1, 2, 3};
    int64_t m = _i % 3 ? drawn_size(seed, 0, 200) : few[_i / 3 % 3], n = drawn_size(seed, 1, 70),
            k = drawn_size(seed, 2, _i % 10 ? 90 : 5000);
    ts_dtype dtype = _i % 4 ? TS_BF16 : TS_F16;
    ts_manual_seed(seed);
    ts_tensor *x = ts_to(ts_normal(TS_SIZES(m, k), 0, 1, TS_F32), dtype),
              *w = ts_to(ts_normal(TS_SIZES(n, k), 0, 1, TS_F32), dtype),
              *bias = ts_to(ts_normal(TS_SIZES(n), 0, 1, TS_F32), dtype), *y[2];
    if (_i & 1) /* dense columns */
        x = ts_transpose(ts_contiguous(ts_transpose(x, 0, 1)), 0, 1);
    if (_i & 2)
        w = ts_transpose(ts_contiguous(ts_transpose(w, 0, 1)), 0, 1);
    for (int i = 0; i < 2; i++) {
        ts_set_num_threads(1 + 2 * i);
        y[i] = ts_addmm(bias, x, ts_transpose(w, 0, 1));
        ck_assert_msg(y[i] != NULL, "%s", ts_error_message());
    }
    ck_assert_mem_eq(ts_data(y[0]), ts_data(y[1]), (size_t)(2 * m * n));
    ts_tensor *want = ts_add(ts_matmul(ts_to(x, TS_F64), ts_to(ts_transpose(w, 0, 1), TS_F64)),
                             ts_to(bias, TS_F64)),
              *size = ts_add(ts_matmul(ts_abs(ts_to(x, TS_F64)),
                                       ts_abs(ts_to(ts_transpose(w, 0, 1), TS_F64))),
                             ts_abs(ts_to(bias, TS_F64)));
    /* one rounding to the half, and the error of a sum in f32 */
    double unit = dtype == TS_BF16 ? 0x1p-8 : 0x1p-11, worst = NAN;
    ts_tensor *allowed = ts_add(ts_mul_scalar(ts_abs(want), unit * 1.01),
                                ts_mul_scalar(size, (double)(k + 8) * 0x1p-24)),
              *error = ts_abs(ts_sub(ts_to(y[0], TS_F64), want));
    ck_assert_int_eq(ts_item(ts_max(ts_sub(error, allowed)), &worst), TS_OK);
    ck_assert_double_le(worst, 0);
}

/* The kernel packs rows of `a` that share the sets of a cache. */
TS_TEST(drawn_products_of_rows_4_KiB_apart, .loop = 16)
{
    TS_SCOPE;
    uint32_t seed = seed_of(_i);
    int64_t m = drawn_size(seed, 0, 90), n = drawn_size(seed, 1, 120),
            row = 1024 * drawn_size(seed, 2, 3), k = row - drawn_size(seed, 3, row / 2);
    ts_tensor *a = ts_slice(filled(seed, TS_F32, TS_SIZES(m, row)), 1, row - k, row, 1), *y[2],
              *b = matrix(seed, TS_F32, k, n, _i % 2), *bias = filled(5, TS_F32, TS_SIZES(n));
    for (int i = 0; i < 2; i++) {
        ts_set_num_threads(1 + 2 * i);
        ck_assert_ptr_nonnull(y[i] = ts_addmm(bias, a, b));
    }
    ck_assert(same_bits(y[0], y[1]));
    check_product(y[0], a, b, bias);
}
