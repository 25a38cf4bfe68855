/** @file cost.c  FLOPs and bytes that ops declare for calls, compared with counts by hand. */
// SPDX-License-Identifier: MIT
#include "dispatch/op.h"
#include "include/tessera/tessera.h"
#include "ops/kernel.h"
#include "tests/harness.h"

#include <stdlib.h>

static ts_work last;

static ts_work work_of(const ts_frame *f)
{
    ts_work work;
    ck_assert_int_eq(ts_op_cost(f, &work), TS_OK);
    return work;
}

/** A layer that stores the work of the call in `last`. */
static ts_status watch(ts_frame *f)
{
    ts_status status = ts_redispatch(f);
    if (status == TS_OK)
        last = work_of(f);
    return status;
}

static void watching(void)
{
    ts_key key;
    ck_assert_int_eq(ts_register_layer("work", "backends", &key), TS_OK);
    ck_assert_int_eq(ts_register_fallback(key, watch, NULL), TS_OK);
    ck_assert_int_eq(ts_layer_enable(key, true), TS_OK);
}

static ts_tensor *ones(ts_dtype dtype, int64_t rows, int64_t columns)
{
    return ts_ones((int64_t[]){rows, columns}, 2, dtype);
}

/** Asserts the FLOPs and bytes of the last call. made: the call succeeded. */
static void expect_work(const char *call, bool made, double flops, double bytes)
{
    ck_assert_msg(made, "%s: %s", call, ts_error_message());
    ck_assert_msg(last.flops == flops && last.bytes == bytes,
                  "%s: expected %g FLOPs and %g bytes, got %g and %g", call, flops, bytes,
                  last.flops, last.bytes);
}
#define WORKS(call, flops, bytes) expect_work(#call, (call) != NULL, flops, bytes)

TS_TEST(pointwise_calls_read_each_element_once)
{
    watching();
    TS_SCOPE;
    ts_tensor *x = ones(TS_F32, 3, 5), *row = ts_ones(TS_SIZES(5), TS_F32),
              *h = ones(TS_BF16, 3, 5), *y = ones(TS_F32, 3, 5);
    WORKS(ts_add(x, y), 15, (15 + 15 + 15) * 4);
    WORKS(ts_add(x, x), 15, (15 + 15) * 4); /* the same tensor is read once */
    WORKS(ts_mul_(x, x), 15, (15 + 15) * 4);
    WORKS(ts_add(x, row), 15, (15 + 5 + 15) * 4);
    WORKS(ts_add(x, ts_expand(row, TS_SIZES(3, 5))), 15, (15 + 5 + 15) * 4);
    WORKS(ts_add_scalar(x, 2), 15, (15 + 15) * 4);
    WORKS(ts_add_(x, row), 15, (15 + 5 + 15) * 4);
    WORKS(ts_exp(h), 15, (15 + 15) * 2);
    WORKS(ts_lerp(x, y, x), 3 * 15, 3 * 15 * 4);
    WORKS(ts_normal(TS_SIZES(7), 1, 2, TS_F32), 7, 7 * 4); /* a function counts as one */
    WORKS(ts_uniform(TS_SIZES(7), 1, 2, TS_F64), 7, 7 * 8);
    WORKS(ts_gelu(x), 15, (15 + 15) * 4);
    WORKS(ts_eq(x, y), 15, 15 * 4 * 2 + 15);
    WORKS(ts_to(x, TS_F64), 0, 15 * 4 + 15 * 8);
    WORKS(ts_where(ts_eq(x, row), x, row), 0, 15 + 15 * 4 + 5 * 4 + 15 * 4);
}

TS_TEST(views_cost_nothing_and_copies_their_bytes)
{
    watching();
    TS_SCOPE;
    ts_tensor *x = ones(TS_F32, 4, 6);
    WORKS(ts_transpose(x, 0, 1), 0, 0);
    WORKS(ts_slice(x, 1, 0, 2, 1), 0, 0);
    WORKS(ts_clone(x), 0, 2 * 24 * 4);
    WORKS(ts_cat((ts_tensor *[]){x, x}, 2, 0), 0, (24 + 24 + 48) * 4);
    WORKS(ts_zeros(TS_SIZES(7), TS_F64), 0, 7 * 8);
}

TS_TEST(reductions_and_rows_count_operations_by_element)
{
    watching();
    TS_SCOPE;
    ts_tensor *x = ones(TS_F32, 4, 6), *w = ts_ones(TS_SIZES(6), TS_F32);
    WORKS(ts_sum(x), 24, 24 * 4 + 4);
    WORKS(ts_sum_dim(x, 0, false), 24, 24 * 4 + 6 * 4);
    WORKS(ts_softmax(x, 1), 5 * 24, 2 * 24 * 4);
    WORKS(ts_layer_norm(x, w, ts_ones(TS_SIZES(6), TS_F32)), 7 * 24, (24 + 6 + 6 + 24) * 4);
}

TS_TEST(products_count_additions_and_multiplications)
{
    watching();
    TS_SCOPE;
    ts_tensor *a = ones(TS_F32, 3, 5), *b = ones(TS_F32, 5, 7),
              *bias = ts_ones(TS_SIZES(7), TS_F32);
    WORKS(ts_mm(a, b), 2 * 3 * 5 * 7, (15 + 35 + 21) * 4);
    WORKS(ts_addmm(ones(TS_F32, 3, 7), a, b), 2 * 3 * 5 * 7 + 3 * 21, (21 + 15 + 35 + 21) * 4);
    WORKS(ts_linear(a, ts_transpose(b, 0, 1), bias), 2 * 3 * 5 * 7, (15 + 35 + 7 + 21) * 4);
    ts_tensor *g = ones(TS_F32, 3, 7), *w = ones(TS_F32, 7, 5), *gw, *gb;
    ck_assert_int_eq(ts_linear_backward(g, a, w, NULL, &gw, &gb), TS_OK);
    expect_work("linear_backward", true, 2 * 3 * 5 * 7 + 21, (21 + 15 + 35 + 35 + 7) * 4);
}

TS_TEST(rows_by_index_read_only_those_rows)
{
    watching();
    TS_SCOPE;
    ts_tensor *table = ones(TS_F32, 1000, 8), *at = ts_zeros(TS_SIZES(3), TS_I64);
    WORKS(ts_embedding(table, at, -1), 0, 3 * 8 + 2 * 3 * 8 * 4);
    WORKS(ts_index_select(table, 0, at), 0, 3 * 8 + 2 * 3 * 8 * 4);
}

TS_TEST(attention_counts_visible_pairs)
{
    watching();
    TS_SCOPE;
    ts_tensor *q = ts_ones(TS_SIZES(2, 3, 5, 8), TS_F32),
              *k = ts_ones(TS_SIZES(2, 3, 7, 8), TS_F32),
              *v = ts_ones(TS_SIZES(2, 3, 7, 8), TS_F32);
    ts_attention_opts causal = {.size = sizeof causal, .causal = true};
    double heads = 2 * 3, bytes = (2 * 3 * 5 * 8 * 2 + 2 * 3 * 7 * 8 * 2) * 4;
    WORKS(ts_scaled_dot_product_attention(q, k, v), 2 * heads * 5 * 7 * 16, bytes);
    /* causal: the 5 rows see 3 to 7 keys */
    WORKS(ts_scaled_dot_product_attention_ex(q, k, v, NULL, &causal),
          2 * heads * (3 + 4 + 5 + 6 + 7) * 16, bytes);
}

/** FLOPs of the same calls by PyTorch 2.15's torch.utils.flop_counter.FlopCounterMode. */
TS_TEST(counts_are_those_of_pytorchs_counter)
{
    watching();
    TS_SCOPE;
    WORKS(ts_mm(ones(TS_F32, 13, 17), ones(TS_F32, 17, 19)), 8398, (221 + 323 + 247) * 4);
    WORKS(ts_bmm(ts_ones(TS_SIZES(5, 7, 11), TS_F32), ts_ones(TS_SIZES(5, 11, 3), TS_F32)), 2310,
          (385 + 165 + 105) * 4);
    static const struct {
        int64_t groups, stride, padding;
        double flops, result; /* result: its number of elements */
    } layers[] = {{1, 1, 1, 443520, 2 * 12 * 11 * 7},
                  {2, 2, 0, 43200, 2 * 12 * 5 * 3},
                  {4, 1, 2, 168480, 2 * 12 * 13 * 9}};
    for (int i = 0; i < 3; i++) {
        int64_t g = layers[i].groups;
        ts_tensor *x = ts_ones(TS_SIZES(2, 8, 11, 9), TS_F32),
                  *w = ts_ones(TS_SIZES(12, 8 / g, 3, 5), TS_F32);
        double both = 2 * 8 * 11 * 9 + 12 * 8 / (double)g * 15;
        WORKS(ts_conv2d(x, w, TS_NONE,
                        TS_OPTS(ts_conv_opts, .stride = {layers[i].stride, layers[i].stride},
                                .padding = {layers[i].padding, layers[i].padding}, .groups = g)),
              layers[i].flops, (both + layers[i].result) * 4);
    }
}

static ts_tensor *leaf(const int64_t *sizes, int ndim)
{
    return ts_set_requires_grad(ts_ones(sizes, ndim, TS_F32), true);
}

/** The same for a forward and backward pass; the work of each is a product of its sizes. */
TS_TEST(counts_of_backward_passes_are_those_of_pytorchs_counter)
{
    TS_SCOPE;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ts_work_counter(true), TS_OK);
        ts_tensor *y = i == 0   ? ts_linear(leaf(TS_SIZES(6, 9)), leaf(TS_SIZES(4, 9)), TS_NONE)
                       : i == 1 ? ts_conv2d(leaf(TS_SIZES(2, 8, 11, 9)),
                                            leaf(TS_SIZES(12, 8, 3, 5)), TS_NONE,
                                            TS_OPTS(ts_conv_opts, .padding = {1, 1}))
                                : ts_scaled_dot_product_attention(leaf(TS_SIZES(2, 3, 5, 8)),
                                                                  leaf(TS_SIZES(2, 3, 7, 8)),
                                                                  leaf(TS_SIZES(2, 3, 7, 8)));
        ck_assert_ptr_nonnull(y);
        ck_assert_int_eq(ts_backward_ex(y, ts_ones_like(y), NULL), TS_OK);
        double flops[] = {1296, 1330560, 23520};
        ck_assert_double_eq(ts_work_counted().flops, flops[i]);
    }
    ck_assert_int_eq(ts_work_counter(false), TS_OK);
}

TS_TEST(update_rules_read_and_write_their_state)
{
    watching();
    TS_SCOPE;
    ts_tensor *p = ones(TS_F32, 2, 3), *g = ones(TS_F32, 2, 3), *m = ones(TS_F32, 2, 3),
              *v = ones(TS_F32, 2, 3);
    ts_adamw_rule rule = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    ck_assert_int_eq(ts_adamw_(&p, &g, &m, &v, (int64_t[]){1}, 1, &rule), TS_OK);
    expect_work("adamw", true, 13 * 6, (6 + 3 * 2 * 6) * 4);
}

static int64_t drawn(int most) { return 1 + random() % most; }

/** Calls of random sizes and dtypes, compared with formulas. */
TS_TEST(drawn_calls_have_the_work_of_their_formulas)
{
    watching();
    srandom(22);
    for (int turn = 0; turn < 400; turn++) {
        TS_SCOPE;
        static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16};
        ts_dtype dtype = dtypes[turn % 3];
        double s = dtype == TS_F64 ? 8 : dtype == TS_F32 ? 4 : 2;
        int64_t b = drawn(4), m = drawn(9), k = drawn(9), n = drawn(9), h = drawn(3);
        double B = (double)b, M = (double)m, K = (double)k, N = (double)n, H = (double)h;
        ts_tensor *left = ts_ones(TS_SIZES(b, m, k), dtype),
                  *right = ts_ones(TS_SIZES(b, k, n), dtype),
                  *row = ts_ones(TS_SIZES(k), dtype), *one = ts_ones(TS_SIZES(m, k), dtype);
        WORKS(ts_bmm(left, right), 2 * B * M * N * K, s * B * (M * K + K * N + M * N));
        WORKS(ts_mm(one, ts_ones(TS_SIZES(k, n), dtype)), 2 * M * N * K,
              s * (M * K + K * N + M * N));
        WORKS(ts_linear(left, ts_ones(TS_SIZES(n, k), dtype), TS_NONE), 2 * B * M * N * K,
              s * (B * M * K + N * K + B * M * N));
        WORKS(ts_add(left, row), B * M * K, s * (2 * B * M * K + K));
        WORKS(ts_sum_dim(left, 1, false), B * M * K, s * (B * M * K + B * K));
        WORKS(ts_layer_norm(left, row, row), 7 * B * M * K, s * (2 * B * M * K + K));
        ts_tensor *q = ts_ones(TS_SIZES(b, h, m, k), dtype),
                  *kv = ts_ones(TS_SIZES(b, h, n, k), dtype);
        WORKS(ts_scaled_dot_product_attention(q, kv, kv), 4 * B * H * M * N * K,
              s * B * H * K * (2 * M + N)); /* keys and values are one tensor */
    }
}

static ts_status nothing(ts_frame *f) { return ts_kernel_give(f, 0, f->args[0].t); }
static ts_work threefold(const ts_frame *f)
{
    return (ts_work){3 * (double)f->args[0].t->numel, 1};
}

/** A user's op has the work that its cost function returns; without one, its work is unknown. */
TS_TEST(ops_of_programs_declare_their_work)
{
    watching();
    TS_SCOPE;
    ts_tensor *x = ones(TS_F32, 2, 5);
    ts_value arg = ts_value_tensor(x), ret = ts_value_none();
    int known, unknown;
    ts_op_opts opts = {.size = sizeof opts, .cost = threefold};
    ck_assert_int_eq(ts_register_op_ex("test.known(Tensor a) -> Tensor", &opts, &known), TS_OK);
    ck_assert_int_eq(ts_register_op("test.unknown(Tensor a) -> Tensor", &unknown), TS_OK);
    ts_register_kernel_ex("test.known", TS_KEY_CPU, nothing, NULL, NULL);
    ts_register_kernel_ex("test.unknown", TS_KEY_CPU, nothing, NULL, NULL);
    expect_work("known", ts_call_boxed(known, &arg, 1, &ret, 1) == TS_OK, 30, 1);
    ts_release(ret.t);
    ret = ts_value_none();
    ck_assert_int_eq(ts_call_boxed(unknown, &arg, 1, &ret, 1), TS_OK);
    ts_release(ret.t);
    ck_assert(last.flops != last.flops && last.bytes != last.bytes);
}

TS_TEST(every_row_has_a_cost)
{
    for (int op = 0; op < TS_OP_COUNT; op++)
        ck_assert_msg(ts_ops[op].cost != NULL, "%s", ts_op_name(op));
}
