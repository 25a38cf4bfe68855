/** @file attention.c  Attention compared with sums in double: shapes, masks, layouts, gradients,
 * threads. */
// SPDX-License-Identifier: MIT
#include "tests/expect.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "tessera/tessera.h"

static double value(uint32_t seed, int64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x % 4096) / 1024 - 2;
}

enum { DENSE, SWAPPED, PACKED, SPREAD, LAYOUTS };

/** A (batch, heads, rows, depth) tensor. layout: DENSE; SWAPPED: rows outside heads in memory;
 *  PACKED: SWAPPED with a gap after each row; SPREAD: depth has stride 2. */
static ts_tensor *filled(uint32_t seed, ts_dtype dtype, int64_t batch, int64_t heads, int64_t rows,
                         int64_t depth, int layout)
{
    int64_t wide = layout == PACKED ? heads * depth + 7 : heads * depth,
            step = layout == SPREAD ? 2 : 1;
    ts_tensor *base = ts_empty(TS_SIZES(batch, rows, wide * step), dtype);
    ck_assert_ptr_nonnull(base);
    for (int64_t i = 0; i < base->numel; i++) {
        if (dtype == TS_F32)
            ((float *)base->data)[i] = (float)value(seed, i);
        else
            ((double *)base->data)[i] = value(seed, i);
    }
    int64_t sizes[] = {batch, heads, rows, depth},
            dense[] = {heads * rows * depth, rows * depth, depth, 1};
    int64_t swapped[] = {rows * wide * step, depth * step, wide * step, step};
    return ts_adopt(
        ts_tensor_alias(ts_thread_self(), base, sizes, layout == DENSE ? dense : swapped, 4, 0));
}

static double at(const ts_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t i = a * t->strides[0] + b * t->strides[1] + c * t->strides[2] +
                (t->ndim > 3 ? d * t->strides[3] : 0);
    return t->dtype == TS_F32 ? ((const float *)t->data)[i] : ((const double *)t->data)[i];
}

typedef struct shape {
    int64_t batch, heads, kv_heads, rows, keys, depth, value_depth;
    bool causal;
    double scale;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, false, 0},       {2, 3, 3, 5, 7, 4, 6, false, 0},
    {2, 4, 2, 9, 9, 8, 8, true, 0},
    {1, 2, 1, 33, 65, 16, 16, true, 0.3},  {1, 2, 2, 65, 33, 20, 12, true, 0},
    {1, 1, 1, 150, 150, 32, 32, true, 0},
    {1, 4, 1, 70, 300, 64, 33, false, 0},  {1, 1, 1, 300, 300, 40, 40, true, 0},
    {1, 2, 2, 17, 130, 128, 128, true, -0.1},
    {1, 1, 1, 20, 70, 256, 250, false, 0}, {2, 2, 1, 0, 5, 4, 4, false, 0},
    {2, 2, 1, 5, 0, 4, 4, true, 0},
    {0, 2, 1, 5, 5, 4, 4, true, 0},        {1, 1, 1, 1, 200, 32, 32, true, 0},
};

static ts_attention_opts opts_of(const shape *s)
{
    return (ts_attention_opts){
        .size = sizeof(ts_attention_opts), .scale = s->scale, .causal = s->causal};
}

/** Stores the probabilities of row i in p. Returns its log-sum-exp. */
static double reference_row(const shape *s, const ts_tensor *q, const ts_tensor *k, int64_t b,
                            int64_t h, int64_t i, double *p)
{
    double scale = s->scale != 0 ? s->scale : 1 / sqrt((double)s->depth), most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->keys; j++) {
        p[j] = -INFINITY;
        if (s->causal && j > i + s->keys - s->rows)
            continue;
        p[j] = 0;
        for (int64_t d = 0; d < s->depth; d++)
            p[j] += scale * at(q, b, h, i, d) * at(k, b, h / (s->heads / s->kv_heads), j, d);
        most = fmax(most, p[j]);
    }
    if (most == -INFINITY) {
        for (int64_t j = 0; j < s->keys; j++)
            p[j] = 0;
        return -INFINITY;
    }
    for (int64_t j = 0; j < s->keys; j++)
        sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < s->keys; j++)
        p[j] /= sum;
    return most + log(sum);
}

TS_TEST(attention_is_the_weighted_sum_of_values, .loop = TS_COUNTOF(shapes))
{
    const shape *s = &shapes[_i];
    double *p = malloc((size_t)(s->keys + 1) * sizeof *p);
    for (int run = 0; run < 2 * LAYOUTS; run++) {
        TS_SCOPE;
        ts_dtype dtype = run % 2 ? TS_F64 : TS_F32;
        double eps = dtype == TS_F32 ? 0x1p-24 : 0x1p-53;
        ts_tensor *q = filled(1, dtype, s->batch, s->heads, s->rows, s->depth, run / 2);
        ts_tensor *k = filled(2, dtype, s->batch, s->kv_heads, s->keys, s->depth, run / 2);
        ts_tensor *v = filled(3, dtype, s->batch, s->kv_heads, s->keys, s->value_depth, run / 2),
                  *lse = NULL;
        ts_attention_opts opts = opts_of(s);
        ts_tensor *y = ts_scaled_dot_product_attention_ex(q, k, v, &lse, &opts);
        ck_assert_msg(y != NULL, "%s", ts_error_message());
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t h = 0; h < s->heads; h++)
                for (int64_t i = 0; i < s->rows; i++) {
                    double want = reference_row(s, q, k, b, h, i, p), got = at(lse, b, h, i, 0);
                    /* the rounding of scores, up to 4 · depth · scale, changes lse and weights */
                    double tolerance = 64 * eps * sqrt((double)s->depth) *
                                       (1 + fabs(want == -INFINITY ? 0 : want));
                    ck_assert_msg(got == want || fabs(got - want) <= tolerance,
                                  "lse of row %lld: %g, expected %g", (long long)i, got, want);
                    for (int64_t e = 0; e < s->value_depth; e++) {
                        double sum = 0;
                        for (int64_t j = 0; j < s->keys; j++)
                            sum += p[j] * at(v, b, h / (s->heads / s->kv_heads), j, e);
                        got = at(y, b, h, i, e);
                        ck_assert_msg(want == -INFINITY ? got == 0
                                                        : fabs(got - sum) <= 2 * tolerance,
                                      "row %lld, element %lld: %g, expected %g", (long long)i,
                                      (long long)e, got, sum);
                    }
                }
    }
    free(p);
}

TS_TEST(the_result_has_the_memory_layout_of_the_query)
{
    TS_SCOPE;
    ts_tensor *q = filled(1, TS_F32, 2, 4, 6, 8, PACKED),
              *y = ts_scaled_dot_product_attention(q, q, q);
    ck_assert_ptr_nonnull(y);
    ck_assert(ts_is_contiguous(ts_transpose(y, 1, 2)));
    ck_assert(!ts_is_contiguous(y));
    q = filled(1, TS_F32, 2, 4, 6, 8, DENSE);
    ck_assert(ts_is_contiguous(ts_scaled_dot_product_attention(q, q, q)));
}

/** Sum of the result times g, plus lse times g_lse where lse is finite. */
static double objective(const shape *s, ts_tensor *const *in, const ts_tensor *g,
                        const ts_tensor *g_lse)
{
    TS_SCOPE;
    ts_attention_opts opts = opts_of(s);
    ts_tensor *lse, *y = ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], &lse, &opts);
    ck_assert_ptr_nonnull(y);
    double sum = 0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->rows; i++) {
                double l = at(lse, b, h, i, 0);
                sum += l == -INFINITY ? 0 : l * at(g_lse, b, h, i, 0);
                for (int64_t e = 0; e < s->value_depth; e++)
                    sum += at(y, b, h, i, e) * at(g, b, h, i, e);
            }
    return sum;
}

static const shape gradient_shapes[] = {
    {1, 2, 2, 3, 4, 3, 2, false, 0},    {1, 4, 2, 5, 5, 4, 4, true, 0},
    {2, 2, 1, 6, 3, 2, 3, true, 0},     {1, 1, 1, 3, 70, 2, 2, true, 0},
    {1, 2, 1, 70, 68, 2, 2, true, 0.4}, {1, 1, 1, 130, 66, 1, 1, false, 0},
};

TS_TEST(gradients_agree_with_finite_differences, .loop = TS_COUNTOF(gradient_shapes))
{
    const shape *s = &gradient_shapes[_i];
    TS_SCOPE;
    for (int layout = 0; layout < 2; layout++) {
        ts_tensor *in[] = {filled(1, TS_F64, s->batch, s->heads, s->rows, s->depth, layout),
                           filled(2, TS_F64, s->batch, s->kv_heads, s->keys, s->depth, layout),
                           filled(3, TS_F64, s->batch, s->kv_heads, s->keys, s->value_depth,
                                  layout)};
        ts_tensor *g = filled(4, TS_F64, s->batch, s->heads, s->rows, s->value_depth, DENSE);
        ts_tensor *g4 = filled(5, TS_F64, s->batch, s->heads, s->rows, 1, DENSE);
        ts_tensor *g_lse = ts_reshape(g4, (int64_t[]){s->batch, s->heads, s->rows}, 3);
        ts_attention_opts opts = opts_of(s);
        ts_tensor *lse, *y = ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], &lse, &opts);
        ts_tensor *grads[3], **wanted[] = {&grads[0], &grads[1], &grads[2]};
        ck_assert_int_eq(ts_scaled_dot_product_attention_backward(g, g_lse, in[0], in[1], in[2], y,
                                                                  lse, &opts, wanted),
                         TS_OK);
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; i < in[k]->numel; i++) {
                int64_t rest = i, offset = 0, to = 0;
                for (int d = 3; d >= 0; d--) {
                    offset += rest % in[k]->sizes[d] * in[k]->strides[d];
                    to += rest % in[k]->sizes[d] * grads[k]->strides[d];
                    rest /= in[k]->sizes[d];
                }
                double *x = (double *)in[k]->data + offset, held = *x, sides[2];
                for (int side = 0; side < 2; side++) {
                    *x = held + (side ? 1e-6 : -1e-6);
                    sides[side] = objective(s, in, g, g_lse);
                }
                *x = held;
                double want = (sides[1] - sides[0]) / 2e-6, got = ((double *)grads[k]->data)[to];
                ck_assert_msg(fabs(got - want) <= 1e-5 + 1e-3 * fabs(want),
                              "input %d, element %lld: %g, expected %g", k, (long long)i, got,
                              want);
            }
    }
}

TS_TEST(autograd_reaches_query_key_and_value)
{
    TS_SCOPE;
    ts_tensor *in[3], *grads[3], *direct[3], **wanted[] = {&direct[0], &direct[1], &direct[2]},
              *lse, *y;
    for (int i = 0; i < 3; i++)
        in[i] = ts_set_requires_grad(ts_clone(filled((uint32_t)(1 + i), TS_F32, 1, 2, 5, 4, DENSE)),
                                     true);
    ts_tensor *g = filled(9, TS_F32, 1, 2, 5, 4, DENSE);
    ts_attention_opts opts = {.size = sizeof opts, .causal = true};
    /* backward needs lse although the caller does not ask for it */
    y = ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], NULL, &opts);
    ck_assert_msg(ts_grad_of(y, g, in, 3, grads, NULL) == TS_OK, "%s", ts_error_message());
    TS_NO_GRAD;
    y = ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], &lse, &opts);
    ck_assert_int_eq(ts_scaled_dot_product_attention_backward(g, TS_NONE, in[0], in[1], in[2], y,
                                                              lse, &opts, wanted),
                     TS_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_mem_eq(grads[i]->data, direct[i]->data, 40 * sizeof(float));
    ts_tensor *only_key, **some[] = {NULL, &only_key, NULL};
    ck_assert_int_eq(ts_scaled_dot_product_attention_backward(g, TS_NONE, in[0], in[1], in[2], y,
                                                              lse, &opts, some),
                     TS_OK);
    ck_assert_mem_eq(only_key->data, direct[1]->data, 40 * sizeof(float));
}

TS_TEST(bits_do_not_depend_on_the_number_of_threads)
{
    TS_SCOPE;
    ts_tensor *q = filled(1, TS_F32, 3, 4, 200, 32, PACKED),
              *k = filled(2, TS_F32, 3, 2, 210, 32, PACKED);
    ts_tensor *v = filled(3, TS_F32, 3, 2, 210, 32, PACKED),
              *g = filled(4, TS_F32, 3, 4, 200, 32, SWAPPED);
    ts_attention_opts opts = {.size = sizeof opts, .causal = true};
    ts_tensor *y[2], *lse[2], *grads[2][3];
    for (int t = 0; t < 2; t++) {
        ts_tensor **wanted[] = {&grads[t][0], &grads[t][1], &grads[t][2]};
        ck_assert_int_eq(ts_set_num_threads(1 + t), TS_OK);
        y[t] = ts_scaled_dot_product_attention_ex(q, k, v, &lse[t], &opts);
        ck_assert_ptr_nonnull(y[t]);
        ck_assert_int_eq(ts_scaled_dot_product_attention_backward(g, TS_NONE, q, k, v, y[t], lse[t],
                                                                  &opts, wanted),
                         TS_OK);
    }
    ck_assert_mem_eq(y[0]->data, y[1]->data, (size_t)y[0]->numel * 4);
    ck_assert_mem_eq(lse[0]->data, lse[1]->data, (size_t)lse[0]->numel * 4);
    for (int i = 0; i < 3; i++)
        ck_assert_mem_eq(grads[0][i]->data, grads[1][i]->data, (size_t)grads[0][i]->numel * 4);
}

/* A single row reads its values in place; many rows read packed values. If a value is not finite,
 * keys with weight 0 are skipped. */
TS_TEST(a_row_alone_has_the_bits_of_a_row_among_many, .loop = 4)
{
    TS_SCOPE;
    enum { ROWS = 40, KEYS = 300, HIDDEN = 7 };
    int64_t depth = _i & 1 ? 20 : 32;
    ts_tensor *q = filled(1, TS_F32, 1, 2, ROWS, depth, DENSE),
              *k = filled(2, TS_F32, 1, 2, KEYS, depth, SWAPPED),
              *v = ts_contiguous(filled(3, TS_F32, 1, 2, KEYS, depth, SWAPPED)),
              *seen = ts_full(TS_SIZES(1, 1, 1, KEYS), TS_SCALAR(1), TS_BOOL);
    ((bool *)seen->data)[HIDDEN] = false;
    if (_i & 2)
        ((float *)v->data)[HIDDEN * v->strides[2] + 3] = INFINITY;
    ts_attention_opts opts = {.size = sizeof opts, .mask = &seen};
    ts_tensor *all = ts_scaled_dot_product_attention_ex(q, k, v, NULL, &opts);
    ck_assert_msg(all != NULL, "%s", ts_error_message());
    for (int64_t i = 0; i < ROWS; i++) {
        ts_tensor *row = ts_clone(ts_slice(q, 2, i, i + 1, 1)),
                  *y = ts_scaled_dot_product_attention_ex(row, k, v, NULL, &opts);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t j = 0; j < depth; j++) {
                ck_assert(isfinite(at(y, 0, h, 0, j)));
                ck_assert(at(y, 0, h, 0, j) == at(all, 0, h, i, j));
            }
    }
}

TS_TEST(errors_name_the_argument_and_what_was_expected)
{
    TS_SCOPE;
    ts_tensor *q = filled(1, TS_F32, 2, 4, 5, 8, DENSE), *k = filled(1, TS_F32, 2, 3, 5, 8, DENSE);
    ts_tensor *deep = filled(1, TS_F32, 2, 4, 5, 9, DENSE),
              *wide = filled(1, TS_F64, 2, 4, 5, 8, DENSE);
    ts_tensor *whole = ts_zeros(TS_SIZES(2, 4, 5, 8), TS_I64),
              *flat = ts_zeros(TS_SIZES(2, 4, 8), TS_F32);
    expect_error(ts_scaled_dot_product_attention(q, k, k), TS_ERR_SHAPE, "divisor of 4");
    expect_error(ts_scaled_dot_product_attention(q, deep, deep), TS_ERR_SHAPE, "key");
    expect_error(ts_scaled_dot_product_attention(q, q, k), TS_ERR_SHAPE, "value");
    expect_error(ts_scaled_dot_product_attention(q, wide, q), TS_ERR_DTYPE, "key");
    expect_error(ts_scaled_dot_product_attention(whole, whole, whole), TS_ERR_DTYPE, "query");
    expect_error(ts_scaled_dot_product_attention(flat, q, q), TS_ERR_SHAPE, "4 dims");
    expect_error(ts_scaled_dot_product_attention(NULL, q, q), TS_ERR_NULL, "query");
    expect_error(ts_scaled_dot_product_attention(q, q, NULL), TS_ERR_NULL, "value");
}
