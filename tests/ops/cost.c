/** @file cost.c  FLOPs and bytes of calls, beside counts made by hand. */
// SPDX-License-Identifier: MIT
#include "dispatch/op.h"
#include "include/tessera/tessera.h"
#include "ops/kernel.h"
#include "tests/harness.h"

static ts_work last;

static ts_work work_of(const ts_frame *f)
{
    ts_work work;
    ck_assert_int_eq(ts_op_cost(f, &work), TS_OK);
    return work;
}

/** A layer that takes the work of the call that went through it. */
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

/** The work of the call that gave y. */
static void works(const char *call, bool made, double flops, double bytes)
{
    ck_assert_msg(made, "%s: %s", call, ts_error_message());
    ck_assert_msg(last.flops == flops && last.bytes == bytes,
                  "%s: expected %g FLOPs and %g bytes, got %g and %g", call, flops, bytes,
                  last.flops, last.bytes);
}
#define WORKS(call, flops, bytes) works(#call, (call) != NULL, flops, bytes)

TS_TEST(pointwise_calls_read_what_is_there_once)
{
    watching();
    TS_SCOPE;
    ts_tensor *x = ones(TS_F32, 3, 5), *row = ts_ones(TS_SIZES(5), TS_F32),
              *h = ones(TS_BF16, 3, 5);
    WORKS(ts_add(x, x), 15, (15 + 15 + 15) * 4);
    WORKS(ts_add(x, row), 15, (15 + 5 + 15) * 4);
    WORKS(ts_add(x, ts_expand(row, TS_SIZES(3, 5))), 15, (15 + 5 + 15) * 4);
    WORKS(ts_add_scalar(x, 2), 15, (15 + 15) * 4);
    WORKS(ts_add_(x, row), 15, (15 + 5 + 15) * 4);
    WORKS(ts_exp(h), 15, (15 + 15) * 2);
    WORKS(ts_lerp(x, x, x), 3 * 15, 4 * 15 * 4);
    WORKS(ts_eq(x, x), 15, 15 * 4 * 2 + 15);
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
    WORKS(ts_layer_norm(x, w, w), 7 * 24, (24 + 6 + 6 + 24) * 4);
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
    works("linear_backward", true, 2 * 3 * 5 * 7 + 21, (21 + 15 + 35 + 35 + 7) * 4);
}

TS_TEST(rows_by_index_read_only_those_rows)
{
    watching();
    TS_SCOPE;
    ts_tensor *table = ones(TS_F32, 1000, 8), *at = ts_zeros(TS_SIZES(3), TS_I64);
    WORKS(ts_embedding(table, at, -1), 0, 3 * 8 + 2 * 3 * 8 * 4);
    WORKS(ts_index_select(table, 0, at), 0, 3 * 8 + 2 * 3 * 8 * 4);
}

TS_TEST(attention_counts_the_pairs_that_meet)
{
    watching();
    TS_SCOPE;
    ts_tensor *q = ts_ones(TS_SIZES(2, 3, 5, 8), TS_F32),
              *k = ts_ones(TS_SIZES(2, 3, 7, 8), TS_F32);
    ts_attention_opts causal = {.size = sizeof causal, .causal = true};
    double heads = 2 * 3, bytes = (2 * 3 * 5 * 8 * 2 + 2 * 3 * 7 * 8 * 2) * 4;
    WORKS(ts_scaled_dot_product_attention(q, k, k), 2 * heads * 5 * 7 * 16, bytes);
    /* rows stand at keys 2 to 6 */
    WORKS(ts_scaled_dot_product_attention_ex(q, k, k, NULL, &causal),
          2 * heads * (3 + 4 + 5 + 6 + 7) * 16, bytes);
}

TS_TEST(update_rules_read_and_write_their_state)
{
    watching();
    TS_SCOPE;
    ts_tensor *p = ones(TS_F32, 2, 3), *g = ones(TS_F32, 2, 3), *m = ones(TS_F32, 2, 3),
              *v = ones(TS_F32, 2, 3);
    ts_adamw_rule rule = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    ck_assert_int_eq(ts_adamw_(&p, &g, &m, &v, (int64_t[]){1}, 1, &rule), TS_OK);
    works("adamw", true, 13 * 6, (6 + 3 * 2 * 6) * 4);
}

TS_TEST(every_row_says_its_work)
{
    for (int op = 0; op < TS_OP_COUNT; op++)
        ck_assert_msg(ts_ops[op].cost != NULL, "%s", ts_op_name(op));
}
